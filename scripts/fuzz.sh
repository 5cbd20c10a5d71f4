#!/usr/bin/env bash
# Fuzzing guided by coverage, on the stable toolchain: scripts/fuzz.sh [TARGET...]. Each target runs for FUZZ_SECONDS (60; make
# soak: SOAK_SECONDS), and what it found that covers more is added to crates/fuzz/corpus/TARGET.
#
# libFuzzer is built by the crate libfuzzer-sys; the compiler counts what is covered (LLVM's pass, which stable has; only the
# sanitizers need nightly). Exits 1 when an input fails, and says where it is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${CARGO_TARGET_DIR:?}"
readonly SECONDS_EACH="${FUZZ_SECONDS:-60}"
readonly COVER="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
readonly MEMORY_MIB=2048
# A run that takes longer is a finding: a reply waits 20 s at most.
readonly ONE_RUN_MAX_S=120
host=$(rustc -vV | sed -n 's/^host: //p')
# With a target named, build scripts are not instrumented.
export CARGO_TARGET_DIR="$CARGO_TARGET_DIR/fuzz"
RUSTFLAGS="$COVER" cargo build --quiet --locked --release --target "$host" -p terrace-fuzz --features libfuzzer \
    --config 'profile.release.lto="off"' --config profile.release.debug-assertions=true
readonly PROGRAM="$CARGO_TARGET_DIR/$host/release/terrace-fuzz"

[ $# -gt 0 ] || set -- resp memcached lzf dump entry segment recovery
for target in "$@"; do
    kept="crates/fuzz/corpus/$target" grown="$CARGO_TARGET_DIR/corpus/$target"
    log="$CARGO_TARGET_DIR/$target.log"
    mkdir -p "$kept" "$grown"
    if ! TERRACE_FUZZ_TARGET="$target" "$PROGRAM" "$grown" "$kept" -max_total_time="$SECONDS_EACH" -timeout="$ONE_RUN_MAX_S" \
        -rss_limit_mb="$MEMORY_MIB" -print_final_stats=1 -artifact_prefix="$CARGO_TARGET_DIR/$target-" >"$log" 2>&1; then
        echo "fuzz: $target FAILED; the input: $(grep -o 'written to .*' "$log" | tail -n1); all output: $log" >&2
        exit 1
    fi
    before=$(find "$kept" -type f | wc -l)
    # Only what covers more than the kept ones do.
    TERRACE_FUZZ_TARGET="$target" "$PROGRAM" -merge=1 "$kept" "$grown" >>"$log" 2>&1
    echo "  fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | head -n1) runs in $SECONDS_EACH s, corpus $before -> $(find "$kept" -type f | wc -l)"
done
