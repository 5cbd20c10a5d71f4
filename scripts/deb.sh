#!/usr/bin/env bash
# Makes Debian packages of what was built before (`make deb`): scripts/deb.sh [DIRECTORY]. `terrace` is the command with its manual,
# completions, unit and settings, and the library of `terrace run`; `libterrace0` the C library; `libterrace-dev` its header, static library and
# pkg-config file. Promises: writes the packages to the directory (./out) and nothing else, the same bytes from the same inputs.
#
# Who builds them is who they say maintains them: DEBFULLNAME and DEBEMAIL as for Debian's own tools, else git's user.name and user.email, else
# the user at this host.
set -euo pipefail
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${TERRACE_BIN:?}"
out="${1:-out}"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
arch=$(dpkg --print-architecture)
name="${DEBFULLNAME:-$(git config user.name 2>/dev/null || id -un)}"
email="${DEBEMAIL:-$(git config user.email 2>/dev/null || echo "$(id -un)@$(hostname)")}"
SOURCE_DATE_EPOCH=$(stat -c %Y "$TERRACE_BIN")
export SOURCE_DATE_EPOCH

# The oldest C library that has what these files ask for.
libc_of() { objdump -T "$@" | sed -n 's/.*GLIBC_\([0-9.]*\)).*/\1/p' | sort -V | tail -n1; }

# Moves files out of the whole installation into a package's root.
take() {
    local root="$work/$1" file
    shift
    for file in "$@"; do
        mkdir -p "$root/$(dirname "$file")"
        mv "$work/all/$file" "$root/$file"
    done
}

# Finishes a package: NAME SECTION DEPENDS, its description on stdin.
package() {
    local root="$work/$1" doc="$work/$1/usr/share/doc/$1" file="$out/$1_${version}_$arch.deb"
    find "$root" -type d -exec chmod 755 {} +
    install -d "$doc" "$root/DEBIAN"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
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
    chmod 644 "$doc"/*
    cat >"$root/DEBIAN/control" <<END
Package: $1
Source: terrace
Version: $version
Architecture: $arch
Maintainer: $name <$email>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $3
Section: $2
Priority: optional
$(cat)
END
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    chmod 644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$root" "$file" >/dev/null
    echo "$file"
}

DESTDIR="$work/all" PREFIX=/usr ETC=/etc UNIT_DIR=/lib/systemd/system scripts/install.sh install >/dev/null
strip --strip-debug "$work/all/usr/bin/terrace" "$work/all"/usr/lib/*.so "$work/all/usr/lib/libterrace.a"
find "$work/all/usr/share/man" -name '*.1' -exec gzip -9n {} +

take libterrace0 "usr/lib/libterrace.so.$version" usr/lib/libterrace.so.0
take libterrace-dev usr/include/terrace.h usr/lib/libterrace.a usr/lib/libterrace.so usr/lib/pkgconfig/terrace.pc
find "$work/all" -type d -empty -delete
mv "$work/all" "$work/terrace"

mkdir -p "$work/libterrace0/DEBIAN"
echo "libterrace 0 libterrace0" >"$work/libterrace0/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$work/libterrace0/DEBIAN/triggers"
chmod 644 "$work"/libterrace0/DEBIAN/*
package libterrace0 libs "libc6 (>= $(libc_of "$work/libterrace0/usr/lib/libterrace.so.$version")), libgcc-s1" <<END
Description: memory larger than DRAM for programs (shared library)
 Objects, arrays, tables and a malloc whose data may be many times larger
 than DRAM: a log that steps down from DRAM to SSD holds them, under a cap.
END
install -D -m 644 -t "$work/libterrace-dev/usr/share/doc/libterrace-dev" docs/c-api.md
package libterrace-dev libdevel "libterrace0 (= $version)" <<END
Description: memory larger than DRAM for programs (development files)
 The header, the static library and the pkg-config file of libterrace, whose
 objects, arrays and tables may be many times larger than DRAM.
END

mkdir -p "$work/terrace/DEBIAN"
echo /etc/terrace/terrace.toml >"$work/terrace/DEBIAN/conffiles"
chmod 644 "$work/terrace/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 "packaging/$script" "$work/terrace/DEBIAN/$script"; done
install -D -m 644 -t "$work/terrace/usr/share/doc/terrace" README.md docs/redis.md docs/memcached.md docs/service.md docs/sight.md docs/run.md docs/format.md
package terrace database "libc6 (>= $(libc_of "$work/terrace/usr/bin/terrace" "$work/terrace/usr/lib/libterrace_preload.so")), libgcc-s1, adduser" <<END
Description: key-value server whose data may be many times larger than DRAM
 Terrace serves Redis strings and memcached's text protocol from one log that
 steps down from DRAM to SSD. Its use of DRAM stays under a cap, and what it
 has acknowledged survives a crash. With \`terrace run\` an unmodified program
 gets memory that is larger than DRAM.
END
