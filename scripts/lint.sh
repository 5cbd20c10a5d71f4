#!/usr/bin/env bash
# What a change must pass besides the tests: formatting, clippy, unused dependencies, and the house rules that no
# tool knows (see CONTRIBUTING.md). Runs all of them, then fails if one did, so that one run shows everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly FILE_LINES_MAX=600
readonly UNSAFE_CRATES='media|vm|capi|preload'

# Rust sources, tracked or about to be, as far as they exist.
sources() { git ls-files -co --exclude-standard -- '*.rs' | while read -r file; do [ -f "$file" ] && echo "$file"; done || true; }

opens_with_module_doc() {
    local file bad=0
    while read -r file; do
        head -n1 "$file" | grep -q '^//!' || { echo "$file:1: must open with a //! paragraph: what lives here, what it promises, what it never does"; bad=1; }
    done < <(sources)
    return $bad
}

files_are_short() {
    local file lines bad=0
    while read -r file; do
        lines=$(wc -l <"$file")
        [ "$lines" -lt "$FILE_LINES_MAX" ] || { echo "$file: $lines lines, fewer than $FILE_LINES_MAX are allowed: split it"; bad=1; }
    done < <(sources)
    return $bad
}

unsafe_stays_in_its_rooms() {
    local found
    found=$(sources | grep -vE "^crates/($UNSAFE_CRATES)/" | xargs -r grep -nHE '\bunsafe( *\{| +(fn|impl|trait|extern)\b)' | grep -vE ':[0-9]+: *//' || true)
    [ -z "$found" ] && return
    echo "$found"
    echo "unsafe is allowed only in crates ${UNSAFE_CRATES//|/, }"
    return 1
}

# It reports success at length.
no_unused_dependencies() {
    local said
    said=$(cargo machete --skip-target-dir 2>&1) || { echo "$said"; return 1; }
}

scripts_parse() {
    local script
    for script in .ci/run scripts/*.sh; do bash -n "$script" || return 1; done
}

failed=()
check() {
    local name="$1"
    shift
    "$@" || failed+=("$name")
}

check "cargo fmt" cargo fmt --all --check
check "clippy" cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
check "cargo machete" no_unused_dependencies
check "module docs" opens_with_module_doc
check "file length" files_are_short
check "unsafe" unsafe_stays_in_its_rooms
check "scripts" scripts_parse

if [ "${#failed[@]}" -gt 0 ]; then
    (
        IFS=,
        echo "lint: failed: ${failed[*]}" >&2
    )
    exit 1
fi
echo "lint: clean"
