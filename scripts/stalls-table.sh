#!/usr/bin/env bash
# Measures the stalls of Braid, and prints the table of docs/stalls.md (section "One run"):
#
#     scripts/stalls-table.sh [SCENARIO,...]
#
# All scenarios by default, which takes 5 to 10 minutes and 1 GiB of disk. The machine must do nothing
# else: the first line says what it did, and the bare log of each row shows what its disk did.
#
# BRAID names the program (target/release/braid, or the fat profile's), DIR a directory on the disk to
# measure (target), FIGURE a file for the figure, docs/images/stalls.svg (needs a build with
# `--features braid-cli/plots`). SCALE (0.1), SECONDS_EACH (5) and RATE (500 commits per second) are
# those of the table.
#
# What else `braid bench stalls` printed follows the table: what each scenario did, the rates of the hot
# key, and the holds of gates.
set -euo pipefail
cd "$(dirname "$0")/.."

braid=${BRAID:-target/release/braid}
if ! command -v "$braid" >/dev/null; then
    printf 'no %s: build it (cargo build --release -p braid-cli), or name another one in BRAID\n' "$braid" >&2
    exit 1
fi
scale=${SCALE:-0.1} seconds=${SECONDS_EACH:-5} rate=${RATE:-500}
options=(--engine braid --scale "$scale" --seconds "$seconds" --rate "$rate")
[[ $# -eq 0 ]] || options+=(--scenario "$1")
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT

# Prints the average number of threads that ran or waited for a disk, where the system tells it.
load_average() {
    cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo unknown
}

before=$(load_average)
figure=()
[[ -z ${FIGURE:-} ]] || figure=(--figure "$FIGURE")
"$braid" bench stalls --dir "${DIR:-target}" "${options[@]}" "${figure[@]}" >"$printed"
printf '%s, load average before %s, afterwards %s, %s\n\n' \
    "$(date +%F)" "$before" "$(load_average)" "$(sed -n 's/^machine: //p' "$printed")"
printf '```text\nbraid bench stalls %s\n```\n\n' "${options[*]}"
# A row has the figures in a fixed order; buffered commits have none of the bare log.
awk '
    /^scenario \(ms\)/ {
        print "| next to the load | p50 | p99 | p99.9 | longest | gap | bare log: p99.9 | gap | exceeds |"
        print "|---|---|---|---|---|---|---|---|---|"
        rows = 1
        next
    }
    rows && NF == 0 { exit }
    rows && $2 == "failed:" {
        print "| `" $1 "` | failed |  |  |  |  |  |  |  |"
        next
    }
    rows {
        exceeds = ""
        if (match($0, /no: .*/)) { exceeds = substr($0, RSTART + 4); $0 = substr($0, 1, RSTART - 1) }
        else if (sub(/yes$/, "")) exceeds = "nothing"
        else sub(/\(baseline\)$/, "")
        print "| `" $1 "` | " $2 " | " $3 " | " $4 " | " $5 " | " $6 " | " $7 " | " $8 " | " exceeds " |"
    }
' "$printed"
printf '\n```text\n%s\n```\n' "$(sed -n '/^scenario (ms)/,$p' "$printed" | sed '1,/^$/d')"
