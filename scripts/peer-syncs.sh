#!/usr/bin/env bash
# Traces the system calls of waited commits on Braid and other engines, see docs/peers.md:
#
#     scripts/peer-syncs.sh [COMMITS [ENGINE...]]
#
# Needs strace, and the permission to trace (root, or a system that permits tracing one's own
# children). Prints a row for each engine: commits of one thread, one 100-byte record each; syncs;
# durable writes (O_DSYNC, RWF_DSYNC); bytes passed to write calls on files. Exits with 1 if an
# engine acknowledged more commits than it made syncs or durable writes. DIR sets the directory of
# the engines' files, FEATURES the features of the build.
set -euo pipefail
cd "$(dirname "$0")/.."

commits=${1:-200}
shift || true
command -v strace >/dev/null || { echo "strace is missing" >&2; exit 2; }
cargo build --quiet -p braid-bench --features "${FEATURES-peers}" --example peer_commits
program=$(cargo metadata --format-version 1 --no-deps |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/examples/peer_commits
scratch=$(mktemp -d "${DIR:-/var/tmp}/peer-syncs.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# A server runs as another user.
chmod 755 "$scratch"
versions=$("$program" 2>/dev/null)
engines=("$@")
[ $# -gt 0 ] || mapfile -t engines < <(cut -f1 <<<"$versions" | sed 's/^braid$/braid\nbraid-file/')

# Counts the calls between the two lines of the program. A file of strace -ff contains the calls of
# one thread, one per line: the time, the call, and the path of each descriptor.
read -r -d '' count <<'AWK' || true
function descriptor(text) {
    return match(text, /[0-9]+<[^>]*>/) ? substr(text, RSTART, RLENGTH) : ""
}
FNR == 1 { pass = FILENAME in seen ? 2 : 1; seen[FILENAME] = 1 }
pass == 1 && /peer_commits: begin/ { begin = $1 }
pass == 1 && /peer_commits: end/ { end = $1 }
pass == 1 && $2 ~ /^open/ && /O_DSYNC|O_SYNC/ {
    sub(/.* = /, "")
    dsync[descriptor($0)] = 1
}
pass == 1 || $1 < begin || $1 > end || / = -1 / { next }
$2 ~ /^(fsync|fdatasync)\(/ { syncs++; calls[substr($2, 1, index($2, "(") - 1)]++ }
$2 ~ /^msync\(/ && /MS_SYNC/ { syncs++; calls["msync"]++ }
$2 ~ /^sync_file_range\(/ { calls["sync_file_range, which is no sync"]++ }
$2 ~ /^io_uring_enter\(/ { calls["io_uring_enter"]++ }
$2 ~ /^p?writev?(64|2)?\(/ {
    file = descriptor($2)
    # Skip sockets and the program's own lines.
    if (file !~ /<\// || file ~ /^[012]</) next
    bytes += $NF
    if (/RWF_DSYNC/) { durable++; calls["pwritev2 RWF_DSYNC"]++ }
    else if (file in dsync) { durable++; calls["O_DSYNC write"]++ }
    else calls["write"]++
}
END {
    list = ""
    for (call in calls) list = list (list == "" ? "" : ", ") calls[call] " " call
    printf "%d\t%d\t%d\t%d\t%s\n", syncs, durable, bytes, calls["io_uring_enter"], list
}
AWK

status=0
printf '| engine | version | syncs a commit | durable writes a commit | bytes a commit | calls in %s commits |\n' "$commits"
printf '|---|---|---|---|---|---|\n'
for engine in "${engines[@]}"; do
    mkdir "$scratch/trace" "$scratch/$engine"
    chmod 755 "$scratch/$engine"
    strace -ff -ttt -y -s 40 -o "$scratch/trace/t" \
        -e trace=open,openat,fsync,fdatasync,msync,sync_file_range,write,writev,pwrite64,pwritev,pwritev2,io_uring_enter \
        "$program" "$engine" "$scratch/$engine" "$commits" 2>"$scratch/said" || {
        cat "$scratch/said" >&2
        exit 2
    }
    # Read twice: the first pass finds the times, and the files opened for durable writes.
    IFS=$'\t' read -r syncs durable bytes rings calls < <(awk "$count" "$scratch"/trace/t.* "$scratch"/trace/t.*)
    version=$(awk -F'\t' -v name="${engine%-file}" '$1 == name { print $2 }' <<<"$versions")
    awk -v engine="$engine" -v version="$version" -v syncs="$syncs" -v durable="$durable" -v bytes="$bytes" \
        -v calls="$calls" -v of="$commits" 'BEGIN {
            printf "| %s | %s | %.2f | %.2f | %.0f | %s |\n",
                engine, version, syncs / of, durable / of, bytes / of, calls
        }'
    # Calls through io_uring are not in the trace; braid-file is the same engine without it.
    if [ $((syncs + durable)) -lt "$commits" ] && [ "$rings" -lt "$commits" ]; then
        echo "$engine acknowledged $commits commits with $syncs syncs and $durable durable writes" >&2
        status=1
    fi
    rm -rf "$scratch/trace" "${scratch:?}/$engine"
done
exit $status
