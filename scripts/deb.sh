#!/usr/bin/env bash
# Makes a Debian package of the server (the command, its manual, completions, a systemd unit): scripts/deb.sh [DIRECTORY]. Built before by
# `make deb`. Promises: writes the package to the directory (./out) and nothing else, the same bytes from the same inputs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${TERRACE_BIN:?}"
out="${1:-out}"
mkdir -p "$out"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
arch=$(dpkg --print-architecture)
# The oldest C library that has what the program asks for.
libc=$(objdump -T "$TERRACE_BIN" | sed -n 's/.*GLIBC_\([0-9.]*\)).*/\1/p' | sort -V | tail -n1)

DESTDIR="$root" PREFIX=/usr ETC=/etc UNIT_DIR=/lib/systemd/system scripts/install.sh install-server >/dev/null
strip --strip-debug "$root/usr/bin/terrace"
find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +
doc="$root/usr/share/doc/terrace"
install -d "$doc" "$root/DEBIAN"
install -m 644 README.md docs/redis.md docs/memcached.md "$doc/"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
chmod 644 "$doc/changelog.gz"
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Terrace

Files: *
Copyright: the authors of Terrace
License: Apache-2.0 or Expat
 At your choice: the Apache License 2.0 (/usr/share/common-licenses/Apache-2.0) or the following.
 .
$(sed 's/^$/./; s/^/ /' LICENSE-MIT)
END
chmod 644 "$doc/copyright"
cat >"$root/DEBIAN/control" <<END
Package: terrace
Version: $version
Architecture: $arch
Maintainer: Terrace <root@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $libc), libgcc-s1, adduser
Section: database
Priority: optional
Description: key-value server whose data may be many times larger than DRAM
 Terrace serves Redis strings and memcached's text protocol from one log that
 steps down from DRAM to SSD. Its use of DRAM stays under a cap, and what it
 has acknowledged survives a crash.
END
echo /etc/terrace/terrace.toml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 "packaging/$script" "$root/DEBIAN/$script"; done
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
chmod 644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control" "$root/DEBIAN/conffiles"
package="$out/terrace_${version}_$arch.deb"
SOURCE_DATE_EPOCH=$(stat -c %Y "$TERRACE_BIN") dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
