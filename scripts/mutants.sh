#!/usr/bin/env bash
# Runs the suite against one deliberate bug after the other: a test of the tests. Exits 1 if a mutant survives.
# One build holds all mutants (`braid_rt::mutant!`). Takes about ten minutes; not part of CI.
#
#     scripts/mutants.sh [MUTANT...]
#
# First as many simulated histories as CI runs; then, for those that survive these, the other tests.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/mutants" RUSTFLAGS="--cfg braid_mutants" RUST_BACKTRACE=0
mapfile -t mutants < <(grep -rhoP 'mutant!\("\K\w+' crates/*/src | sort -u)
[ $# -gt 0 ] && mutants=("$@")
histories=14000
limit=300

cargo build --quiet --profile test -p braid-cli
cargo test --quiet --no-run -p braid-log -p braid-store -p braiddb --tests

survivors=0
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
for mutant in "${mutants[@]}"; do
    export BRAID_MUTANT="$mutant"
    code=0
    timeout "$limit" "$CARGO_TARGET_DIR/debug/braid" simulate --seeds "0..$histories" >"$log" 2>&1 || code=$?
    if [ "$code" -ne 0 ]; then
        again="$(sed -n 's/^again: braid simulate --seeds \([0-9]*\) --protocol \([a-z-]*\).*/seed \1 (\2)/p' "$log" | head -1)"
        what="$(sed -n 's/^violation: //p' "$log" | head -1 | cut -c1-90)"
        echo "caught    $mutant: simulate, ${again:-code $code}: $what"
    elif ! timeout "$limit" cargo test --quiet -p braid-log -p braid-store -p braiddb --tests --no-fail-fast >"$log" 2>&1; then
        echo "caught    $mutant: $(sed -n 's/^    \([a-z_:]*\)$/\1/p' "$log" | sort -u | paste -sd, | sed 's/,/, /g')"
    else
        echo "SURVIVED  $mutant"
        survivors=1
    fi
done
exit "$survivors"
