#!/usr/bin/env bash
# Runs the tests of the crates that may be unsafe under valgrind's memcheck: reads and writes outside of what was
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

: >"$LOG"
cargo test --locked -p terrace-media --lib --test file --no-run --message-format=json 2>>"$LOG" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' |
    while read -r binary; do
        name=$(basename "$binary")
        if ! (cd crates/media && valgrind -q --error-exitcode=9 "$binary" --test-threads 1 "${SKIP[@]}") >>"$LOG" 2>&1; then
            echo "memcheck: FAILED: ${name%-*}; all output is in $LOG" >&2
            exit 1
        fi
        echo "  ${name%-*}: $(grep '^test result' "$LOG" | tail -n1)"
    done
echo "memcheck: clean"
