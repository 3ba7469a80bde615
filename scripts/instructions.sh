#!/usr/bin/env bash
# Counts the instructions of operations with callgrind; see docs/testing.md.
#
#     scripts/instructions.sh check            compare with crates/braiddb/instructions.toml
#     scripts/instructions.sh show [PROTOCOL]  count and print
#     scripts/instructions.sh --update         count and record
set -euo pipefail
cd "$(dirname "$0")/.."

recorded=crates/braiddb/instructions.toml
# Tolerated increase over the recorded counts, in per cent.
tolerance=3

need_valgrind() {
    command -v valgrind >/dev/null && return
    { apt-get update -qq && apt-get install -y -qq valgrind; } >/dev/null 2>&1 || true
    if ! command -v valgrind >/dev/null; then
        printf 'SKIPPED: no valgrind, and it cannot be installed\n'
        exit 0
    fi
}

# Prints the versions that the counts depend on, as lines of the file.
surroundings() {
    rustc -vV | awk '/^release:/ { print "rustc = \"" $2 "\"" } /^host:/ { print "target = \"" $2 "\"" }' | sort
    printf 'libc = "%s"\n' "$(getconf GNU_LIBC_VERSION 2>/dev/null || echo unknown)"
    printf 'valgrind = "%s"\n' "$(valgrind --version)"
}

# Prints `operation = instructions` for each operation.
count() {
    # Flags of a user's build, whatever the caller's shell sets.
    unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
    export CARGO_INCREMENTAL=0
    cargo build --quiet --profile fat -p braiddb --example instructions
    totals=$(mktemp -d)
    trap 'rm -rf "$totals"' EXIT
    # Restricts the C library's copy routines to instructions of every x86-64 processor: its
    # preference depends on the processor, and callgrind counts each byte of a `rep stosb`.
    export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2_Usable,-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM
    valgrind --quiet --tool=callgrind --callgrind-out-file="$totals/total" --collect-atstart=no \
        --toggle-collect='*::measured' --dump-after='*::measured' \
        "${CARGO_TARGET_DIR:-target}/fat/examples/instructions" "$@" >"$totals/operations"
    # The n-th file contains the n-th operation.
    local n=0 name times total
    while read -r name times; do
        n=$((n + 1))
        total=$(awk '/^totals:/ { print $2 }' "$totals/total.$n")
        if ((${total:-0} < times)); then
            printf 'callgrind did not count %s\n' "$name" >&2
            exit 1
        fi
        printf '%s = %d\n' "$name" $(((total + times / 2) / times))
    done <"$totals/operations"
    if [[ -e $totals/total.$((n + 1)) ]] || ((n == 0)); then
        printf 'callgrind counted something else than the operations\n' >&2
        exit 1
    fi
}

update() {
    local counts
    counts=$(count)
    {
        printf '# Instructions that one operation takes; written by scripts/instructions.sh --update.\n'
        surroundings
        printf '\n[glsn]\n%s\n' "$counts"
    } >"$recorded"
    cat "$recorded"
}

check() {
    local counts differences
    counts=$(count)
    differences=$(surroundings | grep -vxFf "$recorded" || true)
    if [[ -n $differences ]]; then
        printf 'Not what was recorded with, so differences are shown and are no failure: %s\n' \
            "${differences//$'\n'/, }"
    fi
    awk -F ' = ' -v tolerance="$tolerance" -v comparable="$([[ -z $differences ]] && echo 1)" '
        FNR == 1 { file += 1 }
        file == 1 && /^\[/ { operations = 1; next }
        file == 1 { if (operations && NF == 2) before[$1] = $2; next }
        {
            if (!($1 in before)) {
                printf "%-18s %7d  is not in the file: scripts/instructions.sh --update\n", $1, $2
                bad = 1
                next
            }
            change = ($2 / before[$1] - 1) * 100
            verdict = ""
            if (change > tolerance) { verdict = "  MORE than recorded"; bad += comparable }
            if (change < -tolerance) verdict = "  less: scripts/instructions.sh --update keeps it so"
            printf "%-18s %7d  recorded %7d  %+5.1f %%%s\n", $1, $2, before[$1], change, verdict
            delete before[$1]
        }
        END {
            for (operation in before) { printf "%-18s was not counted\n", operation; bad = 1 }
            exit (bad > 0)
        }
    ' "$recorded" - <<<"$counts"
}

case "${1:-}" in
    check) need_valgrind; check ;;
    show) need_valgrind; count "${@:2}" ;;
    --update) need_valgrind; update ;;
    *)
        sed -n '2,6s/^# \?//p' "$0" >&2
        exit 2
        ;;
esac
