#!/usr/bin/env bash
# Starts the server that `make run` built, after saying how to try it. Settings come from the Makefile's variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${TERRACE_BIN:?}" "${POOL:?}" "${DRAM:?}" "${SSD:?}" "${RESP:?}"

host="${RESP%:*}" port="${RESP##*:}"
mkdir -p "$(dirname "$POOL")"
cat <<END
Pool $POOL: at most $DRAM of DRAM over $SSD of disk. In another terminal:

    redis-cli -h $host -p $port set greeting hello
    redis-cli -h $host -p $port get greeting
    redis-cli -h $host -p $port info tiers
    redis-benchmark -h $host -p $port -t set,get -r 1000000 -n 1000000 -d 1000 -P 16 -q

Ctrl-C stops it cleanly; what was written is there again at the next start.

END
exec "$TERRACE_BIN" serve --pool "$POOL" --dram "$DRAM" --ssd "$SSD" --resp "$RESP"
