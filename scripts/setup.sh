#!/usr/bin/env bash
# Brings a Debian 12 machine with git, make and rustup's cargo to where the given make target can run.
#
#   scripts/setup.sh build|run|test|lint|bench|memcheck|all
#
# Promises: does nothing when nothing is missing (well under a second); installs only what is missing; never starts,
# stops or restarts a service, and a server it installed is not started at boot either; asks nothing but sudo's
# password; when it cannot go on it says so in one line and exits 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly RUST_MINOR_MIN=95 # rust-version in Cargo.toml
readonly APT_LOCK_WAIT_S=120
APT_LOG=$(mktemp -u)
readonly APT_LOG
readonly POLICY=/usr/sbin/policy-rc.d
readonly POLICY_SAVED=/usr/sbin/policy-rc.d.before-terrace

# mkswap and others live in sbin, which an ordinary user's PATH on Debian leaves out.
PATH="$PATH:/usr/sbin:/sbin"

fail() {
    echo "setup: $*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# A compiler alone is not enough: without libc's development files cargo fails at its first link.
can_link() { have cc && echo 'int main(void) { return 0; }' | cc -xc - -o /dev/null 2>/dev/null; }

# Prints the Debian packages that a target needs and this machine lacks. The commands are asked for, not the
# packages, so that a redis-server built by hand, or another distribution, is as good.
missing_packages() {
    { can_link && have c++; } || echo build-essential
    have pkg-config || echo pkg-config
    case "$1" in run | test | bench | all) have redis-cli || echo redis-tools ;; esac
    case "$1" in test | bench | all)
        have sqlite3 || echo sqlite3
        /usr/bin/python3 -c 'import numpy' 2>/dev/null || echo python3-numpy
        have redis-server || echo redis-server
        have taskset || echo util-linux
        ;;
    esac
    case "$1" in test | all)
        have memcached || echo memcached
        { have memccapable || have memcapable; } || echo libmemcached-tools
        python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
        have openssl || echo openssl
        [ -e /usr/include/hiredis/hiredis.h ] || echo libhiredis-dev
        have javac || echo default-jdk-headless
        have mvn || echo maven
        ;;
    esac
    case "$1" in memcheck | all) have valgrind || echo valgrind ;; esac
    case "$1" in bench | all)
        have memcached || echo memcached
        have fio || echo fio
        have swapon || echo mount
        ;;
    esac
}

# --- Debian packages -------------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Debian starts a server as soon as it is installed. While apt runs, a policy says no for the two we install and
# passes every other question on to the policy that was there before, if any.
policy_install() {
    if [ -e "$POLICY" ] && ! grep -q terrace-setup "$POLICY"; then as_root mv "$POLICY" "$POLICY_SAVED"; fi
    as_root tee "$POLICY" >/dev/null <<POLICY_END
#!/bin/sh
# terrace-setup: here only while Terrace's "make setup" installs packages; safe to remove afterwards.
for word in "\$@"; do
    case "\$word" in redis-server* | memcached*) exit 101 ;; esac
done
[ -x $POLICY_SAVED ] && exec $POLICY_SAVED "\$@"
exit 0
POLICY_END
    as_root chmod 755 "$POLICY"
}

policy_remove() {
    if [ -e "$POLICY_SAVED" ]; then
        as_root mv "$POLICY_SAVED" "$POLICY"
    else
        as_root rm -f "$POLICY"
    fi
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq -o "DPkg::Lock::Timeout=$APT_LOCK_WAIT_S" "$@"
}

install_packages() {
    local wanted="$*"
    have apt-get || fail "missing: $wanted, and this is not Debian (no apt-get); install them by hand and run this again"
    if [ "$(id -u)" != 0 ]; then
        have sudo || fail "missing: $wanted; needs root or sudo: run 'apt-get install $wanted' as root"
        sudo -v || fail "missing: $wanted; sudo was refused: run 'apt-get install $wanted' as root"
    fi
    echo "setup: installing $wanted" >&2
    local log="$APT_LOG"
    trap 'policy_remove; rm -f "$APT_LOG"' EXIT
    trap 'exit 130' INT TERM HUP
    policy_install
    # The lists may be absent or old: ask for them only when installing does not work without.
    if ! apt install --no-install-recommends -y "$@" >"$log" 2>&1 &&
        ! { apt update && apt install --no-install-recommends -y "$@"; } >"$log" 2>&1; then
        fail "apt-get could not install $wanted (no network?): $(grep -m1 '^E:' "$log" || tail -n1 "$log")"
    fi
    no_start_at_boot "$@"
    policy_remove
    rm -f "$log"
    trap - EXIT INT TERM HUP
}

no_start_at_boot() {
    local package
    for package in "$@"; do
        case "$package" in redis-server | memcached)
            if have systemctl; then as_root systemctl disable --quiet "$package" >/dev/null 2>&1 || true; fi
            ;;
        esac
    done
}

ensure_packages() {
    local missing still
    # shellcheck disable=SC2046,SC2116,SC2005 # one line of words
    missing=$(echo $(missing_packages "$1"))
    [ -z "$missing" ] && return
    # shellcheck disable=SC2086 # a list of package names
    install_packages $missing
    # shellcheck disable=SC2046,SC2116,SC2005
    still=$(echo $(missing_packages "$1"))
    [ -z "$still" ] || fail "apt-get installed $missing, but the commands of $still are still not in PATH"
}

# --- Rust ------------------------------------------------------------------------------------------------------

ensure_cargo() {
    have cargo || fail "missing: cargo; install it with rustup (https://rustup.rs) and run this again"
    local minor
    minor=$(rust_minor)
    [ "$minor" -ge "$RUST_MINOR_MIN" ] && return
    have rustup || fail "cargo is 1.$minor, and 1.$RUST_MINOR_MIN or later is needed; this cargo is not rustup's, so update it by hand"
    echo "setup: cargo is 1.$minor; updating stable to at least 1.$RUST_MINOR_MIN" >&2
    rustup -q update stable --no-self-update >/dev/null 2>&1 || fail "cargo is 1.$minor, and 'rustup update stable' failed (no network?)"
    minor=$(rust_minor)
    [ "$minor" -ge "$RUST_MINOR_MIN" ] || fail "stable is new enough now, but cargo here is still 1.$minor: run 'rustup default stable'"
}

# 95 for "cargo 1.95.0 (...)".
rust_minor() {
    local version
    version=$(cargo --version 2>&1) || fail "cargo is there but does not work: $(head -n1 <<<"$version")"
    sed -E 's/^cargo 1\.([0-9]+)\..*/\1/' <<<"$version"
}

ensure_crates() {
    local host said
    host=$(rustc -vV | sed -n 's/^host: //p')
    said=$(cargo fetch --quiet --locked --target "$host" 2>&1) && return
    case "$said" in
    *--locked*) fail "Cargo.lock does not match the crates' Cargo.toml files: run 'cargo check' and commit Cargo.lock" ;;
    *) fail "cargo could not get the crates (no network?): $(grep -v '^$' <<<"$said" | head -n1)" ;;
    esac
}

ensure_lint_tools() {
    local component
    for component in fmt clippy; do
        cargo "$component" --version >/dev/null 2>&1 && continue
        have rustup || fail "missing: cargo $component; this cargo is not rustup's, so install it by hand"
        [ "$component" = fmt ] && component=rustfmt
        rustup -q component add "$component" >/dev/null 2>&1 || fail "missing: $component, and 'rustup component add $component' failed (no network?)"
    done
    have cargo-machete && return
    echo "setup: installing cargo-machete, about a minute" >&2
    local said
    said=$(cargo install --quiet --locked cargo-machete 2>&1) ||
        fail "missing: cargo-machete, and 'cargo install cargo-machete' failed (no network?): $(grep -m1 '^error' <<<"$said")"
}

main() {
    local target="${1:-all}"
    case "$target" in
    build | run | test | lint | bench | memcheck | all) ;;
    *) fail "unknown target '$target'; one of: build run test lint bench memcheck all" ;;
    esac
    ensure_cargo
    ensure_packages "$target"
    ensure_crates
    case "$target" in lint | all) ensure_lint_tools ;; esac
}

main "$@"
