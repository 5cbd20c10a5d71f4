#!/usr/bin/env bash
# Installs the C library, its header and its pkg-config file, or removes them: scripts/install.sh install|uninstall. Built before by `make build`.
#
# Below PREFIX (/usr/local), or below $DESTDIR$PREFIX for a package. Promises: writes these files and nothing else; removes the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${CARGO_TARGET_DIR:?}"
PREFIX="${PREFIX:-/usr/local}"
case "$PREFIX" in /*) ;; *) PREFIX="$PWD/$PREFIX" ;; esac
readonly TO="${DESTDIR:-}$PREFIX"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
readonly FILES=(include/terrace.h lib/libterrace.a "lib/libterrace.so.$version" "lib/libterrace.so.0" lib/libterrace.so lib/pkgconfig/terrace.pc)

case "${1:-}" in
install)
    mkdir -p "$TO/include" "$TO/lib/pkgconfig"
    install -m 644 crates/capi/include/terrace.h "$TO/include/terrace.h"
    install -m 644 "$CARGO_TARGET_DIR/release/libterrace.a" "$TO/lib/libterrace.a"
    install -m 755 "$CARGO_TARGET_DIR/release/libterrace.so" "$TO/lib/libterrace.so.$version"
    ln -sf "libterrace.so.$version" "$TO/lib/libterrace.so.0"
    ln -sf "libterrace.so.0" "$TO/lib/libterrace.so"
    sed "s|@PREFIX@|$PREFIX|; s|@VERSION@|$version|" crates/capi/terrace.pc.in >"$TO/lib/pkgconfig/terrace.pc"
    [ -n "${DESTDIR:-}" ] || [ "$(id -u)" != 0 ] || ldconfig "$TO/lib" 2>/dev/null || true
    echo "installed below $TO: cc program.c \$(PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig pkg-config --cflags --libs terrace)"
    ;;
uninstall)
    for file in "${FILES[@]}"; do rm -f "$TO/$file"; done
    echo "removed from $TO"
    ;;
*)
    echo "install.sh: install or uninstall" >&2
    exit 1
    ;;
esac
