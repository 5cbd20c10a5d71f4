#!/usr/bin/env bash
# Installs what was built before, or removes it: scripts/install.sh install|install-server|uninstall. The server is the command, its manual,
# completions, a systemd unit and its settings; `install` adds the library of `terrace run`, the C library, its header and its pkg-config file.
#
# Below PREFIX (/usr/local), or below $DESTDIR$PREFIX for a package; settings below $DESTDIR$ETC (/etc, or PREFIX/etc elsewhere than in /usr), where what exists is kept. Promises:
# writes these files and nothing else; removes the same, but for the settings. Starts no service.
set -euo pipefail
# What is installed is for everybody to read, whatever the caller's own files are.
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${CARGO_TARGET_DIR:=$PWD/target}" "${TERRACE_BIN:=$CARGO_TARGET_DIR/release/terrace}"
PREFIX="${PREFIX:-/usr/local}"
case "$PREFIX" in /*) ;; *) PREFIX="$PWD/$PREFIX" ;; esac
readonly TO="${DESTDIR:-}$PREFIX"
case "$PREFIX" in /usr | /usr/local) ETC="${ETC:-/etc}" ;; *) ETC="${ETC:-$PREFIX/etc}" ;; esac
readonly UNITS="${DESTDIR:-}${UNIT_DIR:-$PREFIX/lib/systemd/system}"
# Elsewhere than there systemd does not look for units, nor the loader for libraries.
case "$PREFIX" in /usr | /usr/local) unit=terrace found="" ;; *) unit="$UNITS/terrace.service" found=" -Wl,-rpath,$PREFIX/lib" ;; esac
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
readonly FILES=(lib/libterrace_preload.so include/terrace.h lib/libterrace.a "lib/libterrace.so.$version" "lib/libterrace.so.0" lib/libterrace.so lib/pkgconfig/terrace.pc)
# Debian's zsh looks elsewhere for what packages bring.
case "$PREFIX" in /usr) zsh=share/zsh/vendor-completions ;; *) zsh=share/zsh/site-functions ;; esac
readonly BASH_FILE=share/bash-completion/completions/terrace FISH_FILE=share/fish/vendor_completions.d/terrace.fish ZSH_FILE="$zsh/_terrace"

install_library() {
    mkdir -p "$TO/include" "$TO/lib/pkgconfig"
    install -m 644 crates/capi/include/terrace.h "$TO/include/terrace.h"
    install -m 755 "$CARGO_TARGET_DIR/release/libterrace_preload.so" "$TO/lib/libterrace_preload.so"
    install -m 644 "$CARGO_TARGET_DIR/release/libterrace.a" "$TO/lib/libterrace.a"
    install -m 755 "$CARGO_TARGET_DIR/release/libterrace.so" "$TO/lib/libterrace.so.$version"
    ln -sf "libterrace.so.$version" "$TO/lib/libterrace.so.0"
    ln -sf "libterrace.so.0" "$TO/lib/libterrace.so"
    sed "s|@PREFIX@|$PREFIX|; s|@VERSION@|$version|" crates/capi/terrace.pc.in >"$TO/lib/pkgconfig/terrace.pc"
    [ -n "${DESTDIR:-}$found" ] || [ "$(id -u)" != 0 ] || ldconfig "$TO/lib" 2>/dev/null || true
    echo "installed below $TO: cc program.c \$(PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig pkg-config --cflags --libs terrace)$found"
}

install_server() {
    local made
    made=$(mktemp -d)
    "$TERRACE_BIN" generate "$made"
    install -D -m 755 "$TERRACE_BIN" "$TO/bin/terrace"
    install -D -m 644 -t "$TO/share/man/man1" "$made"/*.1
    install -D -m 644 "$made/terrace.bash" "$TO/$BASH_FILE"
    install -D -m 644 "$made/_terrace" "$TO/$ZSH_FILE"
    install -D -m 644 "$made/terrace.fish" "$TO/$FISH_FILE"
    sed "s|@PREFIX@|$PREFIX|; s|@ETC@|$ETC|" packaging/terrace.service.in >"$made/terrace.service"
    install -D -m 644 "$made/terrace.service" "$UNITS/terrace.service"
    [ -e "${DESTDIR:-}$ETC/terrace/terrace.toml" ] || install -D -m 644 packaging/terrace.toml "${DESTDIR:-}$ETC/terrace/terrace.toml"
    rm -r "$made"
    echo "installed $TO/bin/terrace and $UNITS/terrace.service; to start it: adduser --system --group --no-create-home terrace && systemctl enable --now $unit"
}

uninstall() {
    local file
    for file in "${FILES[@]}" bin/terrace "$BASH_FILE" "$ZSH_FILE" "$FISH_FILE"; do rm -f "$TO/$file"; done
    rm -f "$TO"/share/man/man1/terrace.1 "$TO"/share/man/man1/terrace-*.1 "$UNITS/terrace.service"
    echo "removed from $TO; settings (${DESTDIR:-}$ETC/terrace) and data stay"
}

case "${1:-}" in
install)
    install_library
    install_server
    ;;
install-server) install_server ;;
uninstall) uninstall ;;
*)
    echo "install.sh: install, install-server or uninstall" >&2
    exit 1
    ;;
esac
