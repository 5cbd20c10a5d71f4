#!/usr/bin/env bash
# Counts what an application's lines of code had to change for Terrace: each source is taken apart into its malloc, MP and OPP versions, and those are compared.
# Printed: lines of the malloc version; for MP and OPP, lines that are new or changed in it. The paper's four applications: 9 to 36.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The lines that the compiler sees with one macro defined (none: malloc), without blank lines and comment lines.
version() {
    awk -v macro="$2" '
        /^#(if|elif) defined/ { if ($1 == "#if") { depth++; taken[depth] = 0 }
                                on[depth] = !taken[depth] && macro != "" && index($0, "(" macro ")") > 0
                                taken[depth] = taken[depth] || on[depth]; next }
        /^#else/              { on[depth] = !taken[depth]; taken[depth] = 1; next }
        /^#endif/             { depth--; next }
        { for (i = 1; i <= depth; i++) if (!on[i]) next; print }' "$1" |
        grep -vE '^ *$|^ */\*|^ \* ' || true
}

printf '%-12s %7s %12s %12s\n' application lines "changed: MP" "changed: OPP"
for app in btree packetcache hashcache; do
    source="$app/$app.c"
    plain=$(version "$source" "")
    changed() { diff <(echo "$plain") <(version "$source" "$1") | grep -c '^>' || true; }
    printf '%-12s %7d %12d %12d\n' "$app" "$(wc -l <<<"$plain")" "$(changed TERRACE_MP)" "$(changed TERRACE_OPP)"
done
