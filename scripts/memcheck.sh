#!/usr/bin/env bash
# Runs the tests of `media`, and those of `vm` that take no faults, under valgrind's memcheck: reads and writes outside of what was
# allocated, and decisions on bytes nobody wrote. Exits 1 when it finds any, or when a test fails.
#
# The simulated device has no unsafe code and is left out. Where valgrind's version does not know a system call it
# answers as a kernel without it would, and the code falls back as it does there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${CARGO_TARGET_DIR:?}"
readonly LOG="$CARGO_TARGET_DIR/memcheck.log"
# Asks rustix for the page size, which it looks up at an address that is not mapped under valgrind.
readonly SKIP=(--skip probe::)
# What takes faults is left out, so all of capi and most tests of vm. Valgrind 3.19 does not know the system call userfaultfd; through
# /dev/userfaultfd, and with --vex-iropt-register-updates=allregs-at-mem-access (a handler that returns needs all registers as they were), it
# follows the faults of a program of one thread. Memories have more than one, and hang there: why is open. It has some 32 GiB of addresses.
# What takes faults, has tens of millions of objects, lives a hundred lives, or stores
# tens of thousands of objects beside a thread in the background, of which valgrind runs one at a time.
readonly VM_SKIP=(--skip failing:: --skip measure:: --skip thirty_million --skip many_lives --skip store::tests::)

: >"$LOG"

# check PACKAGE "CARGO'S SELECTION" ARGUMENTS... : the tests of a package's binaries, with arguments to them.
check() {
    local package="$1" selection="$2" binary name
    shift 2
    # shellcheck disable=SC2086 # the selection is several words
    cargo test --locked -p "$package" $selection --no-run --message-format=json 2>>"$LOG" |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' |
        while read -r binary; do
            name=$(basename "$binary")
            if ! (cd "crates/${package#terrace-}" && valgrind -q --error-exitcode=9 "$binary" --test-threads 1 "$@") >>"$LOG" 2>&1; then
                echo "memcheck: FAILED: ${name%-*}; all output is in $LOG" >&2
                exit 1
            fi
            echo "  ${name%-*}: $(grep '^test result' "$LOG" | tail -n1)"
        done
}

check terrace-media "--lib --test file" "${SKIP[@]}"
check terrace-vm "--lib" "${VM_SKIP[@]}"
echo "memcheck: clean"
