#!/usr/bin/env bash
# Builds the engine with one deliberate bug after the other and checks that the tests catch each.
# A test of the tests: exits 1 if a mutant survives. Takes a few minutes; not part of CI.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/mutants"
mutants=(
    acknowledge_before_flush
    skip_gap_rule
    superblock_before_pages
    reuse_log_before_checkpoint
    skip_page_checksum
    skip_chunk_checksum
    skip_validation
    forget_dependencies
    number_after_latches
)
[ $# -gt 0 ] && mutants=("$@")

# A test may wait for ever for what a mutant does not do: caught, if another one failed before.
limit=240
survivors=0
for mutant in "${mutants[@]}"; do
    log="$(mktemp)"
    if RUSTFLAGS="--cfg braid_mutant=\"$mutant\"" RUST_BACKTRACE=0 \
        timeout "$limit" cargo test -p braid-log -p braid-store -p braiddb --tests --no-fail-fast \
        >"$log" 2>&1; then
        echo "SURVIVED  $mutant"
        survivors=1
    elif grep -q '^error: could not compile' "$log"; then
        cat "$log"
        exit 2
    else
        echo "caught    $mutant, by: $(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sort -u | paste -sd, | sed 's/,/, /g')"
    fi
    rm -f "$log"
done
exit "$survivors"
