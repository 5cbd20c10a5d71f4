#!/usr/bin/env bash
# Builds the three applications, each with malloc, MP and OPP, and the dictionary that is kept, into the directory $1, against the library in $2. Prints nothing when all is well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out="${1:?a directory for the programs}" libraries="${2:?the directory of libterrace.a}"
mkdir -p "$out"
for app in btree packetcache hashcache; do
    for kind in malloc MP OPP; do
        library=()
        [ "$kind" = malloc ] || library=("$libraries/libterrace.a" -lgcc_s -lutil -lrt -ldl)
        "${CC:-cc}" -std=c11 -O2 -Wall -Wextra -D_GNU_SOURCE "-DTERRACE_$kind" -Icommon -I../crates/capi/include "$app/$app.c" common/bench.c \
            -o "$out/$app-$kind" "${library[@]}" -lpthread -lm
    done
done
"${CC:-cc}" -std=c11 -O2 -Wall -Wextra -D_GNU_SOURCE -I../crates/capi/include dictionary/dictionary.c -o "$out/dictionary" "$libraries/libterrace.a" \
    -lgcc_s -lutil -lrt -ldl -lpthread -lm
