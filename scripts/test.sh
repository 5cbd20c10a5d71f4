#!/usr/bin/env bash
# Runs the tests in the order that fails soonest: build, unit, end to end. `scripts/test.sh soak` runs the long ones.
#
# An end-to-end test is a test function whose name starts with `e2e_`; it starts the release binary named by
# TERRACE_BIN. A soak test is an ignored one with `soak` in its name; it runs for SOAK_SECONDS.
#
# One line for each test binary; whatever a failing test says comes in full. All output is kept in
# $CARGO_TARGET_DIR/test-output.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${CARGO_TARGET_DIR:?}" "${TERRACE_BIN:?}"
mkdir -p "$CARGO_TARGET_DIR"
# Three times what either half of the tests takes on two cores.
readonly TESTS_SECONDS_MAX="${TESTS_SECONDS_MAX:-1800}"
readonly LOG="$CARGO_TARGET_DIR/test-output.log"
: >"$LOG"

# Drops the lines of what went well and joins "Running <binary>" with its result. Binaries in which no test was
# selected are left out. Everything else, failures and compiler messages above all, passes through.
brief() {
    tee -a "$LOG" | awk '
        /^ *(Compiling|Downloading|Downloaded|Finished|Blocking|Locking|Updating|Adding|Executable) / { next }
        /^ *Running / {
            sub(/^ *Running (unittests )?/, ""); file = $1
            sub(/.*\/deps\//, ""); sub(/-[0-9a-f]+\)$/, "")
            name = $0 " " file; next
        }
        /^ *Doc-tests / { sub(/^ */, ""); name = $0; next }
        /^running [0-9]+ tests?$/ || /^test .* \.\.\. (ok|ignored.*)$/ { next }
        /^test result: ok\. 0 passed/ || /^all doctests ran in / { next }
        /^test result: ok/ { sub(/^test result: ok\. /, ""); printf "  %s: %s\n", name, $0; fflush(); next }
        /^$/ { blank = 1; next }
        /^test result: FAILED/ { $0 = name ": " $0 }
        { if (blank) print ""; blank = 0; print; fflush() }'
}

# Runs a command for so many seconds at most. If it takes longer, what runs then is printed before all of it is stopped:
# a test that hangs on somebody else's machine cannot be looked at later.
bounded() {
    local limit="$1" status=0 work watch
    shift
    timeout --kill-after=30 "$((limit + 10))" "$@" &
    work=$!
    trap 'kill "$work"' INT TERM
    {
        sleep "$limit" &
        trap 'kill $!; exit' TERM
        wait $!
        echo "not done after $limit s; what runs:"
        ps -eo pid,ppid,stat,etimes,wchan:20,args --sort=etimes | grep -v ' \[' | cut -c1-150 | head -60 || true
    } &
    watch=$!
    wait "$work" || status=$?
    trap - INT TERM
    kill "$watch" 2>/dev/null || true
    wait "$watch" || true
    return "$status"
}

step() {
    local name="$1" start="$SECONDS"
    shift
    echo "$name"
    if ! "$@" 2>&1 | brief; then
        echo "FAILED: $name, after $((SECONDS - start)) s; all output is in $LOG" >&2
        exit 1
    fi
    echo "  $((SECONDS - start)) s"
}

# The program and the tests at the same time: joining the program into one unit leaves a processor idle for minutes.
build() {
    local program status=0
    cargo build --release --locked &
    program=$!
    # What runs in the background does not hear Ctrl-C.
    trap 'kill "$program"' INT TERM
    cargo test --locked --workspace --no-run || status=$?
    wait "$program" || status=$?
    trap - INT TERM
    return "$status"
}

if [ "${1:-}" = soak ]; then
    echo "each long test runs for ${SOAK_SECONDS:?} s"
    step "build" cargo build --release --locked
    step "soak" cargo test --locked --release --workspace --tests -- --ignored soak
else
    step "build" build
    # A process has 16 memories at most (`vm`), and a test up to two.
    few="${RUST_TEST_THREADS:-$(($(nproc) < 8 ? $(nproc) : 8))}"
    step "unit tests" bounded "$TESTS_SECONDS_MAX" env RUST_TEST_THREADS="$few" cargo test --locked --workspace -- --skip e2e_
    # One more than there are processors: mostly a test waits for the disk or for a program.
    threads="${RUST_TEST_THREADS:-$(($(nproc) + 1))}"
    step "end-to-end tests" bounded "$TESTS_SECONDS_MAX" env RUST_TEST_THREADS="$threads" cargo test --locked --workspace --tests -- e2e_
fi
echo "all passed in $SECONDS s"
