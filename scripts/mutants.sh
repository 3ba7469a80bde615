#!/usr/bin/env bash
# Runs the tests against one deliberate bug after another, to test the tests. Exits with 1 if a
# mutant survives. One build contains all mutants (`braid_rt::mutant!`). Takes about half an hour;
# not part of CI.
#
#     scripts/mutants.sh [MUTANT...]
#
# Simulated histories run first. Mutants that survive them run in the simulator's other tests, which
# repeat histories that once found a defect, in the engine's tests, in as many further histories as
# CI runs, and in loom's tests, up to the first failure. BRAID_JOBS is the number of threads (by
# default one per processor), BRAID_LIMIT the time limit of each of these stages in seconds (by
# default 900). Exceeding it does not count as catching the mutant.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/mutants" RUST_BACKTRACE=0
export RUST_TEST_THREADS="${BRAID_JOBS:-$(nproc)}"
mapfile -t mutants < <(grep -rhoP 'mutant!\("\K\w+' crates/*/src | sort -u)
[ $# -gt 0 ] && mutants=("$@")
# The first histories catch most mutants; a test catches the others sooner than further histories.
first=3000
histories=14000
limit=${BRAID_LIMIT:-900}

# Common flags of all commands, so that they share the build.
cargo_() {
    RUSTFLAGS="--cfg braid_mutants" cargo "$@"
}
simulate() {
    "$CARGO_TARGET_DIR/debug/braid" simulate --jobs "$RUST_TEST_THREADS" --seeds "$1"
}
simulate_first() {
    simulate "0..$first"
}
simulate_more() {
    simulate "$first..$histories"
}
directed() {
    cargo_ test --quiet -p braid-sim --tests -- --skip histories_of_every_protocol
}
tests() {
    # Fewer crash histories than in CI, and without the models of the protocols, which have their
    # own mutants.
    BRAID_HISTORIES=30 cargo_ test --quiet -p braid-io -p braid-nvme -p braid-pmem -p braid-nvwal -p braid-sqlite -p braid-log -p braid-store -p braiddb -p braid-server --tests -- --skip _is_caught \
        --skip serial_holds --skip aether_holds --skip epoch_holds --skip glsn_holds --skip gwsn_strict_holds \
        --skip gwsn_holds --skip gsn_holds
}
loom() {
    # Bounded, because a mutant's steps may have too many orders.
    RUSTFLAGS="--cfg braid_mutants --cfg loom" LOOM_MAX_PREEMPTIONS=2 \
        cargo test --quiet --target-dir "$CARGO_TARGET_DIR/loom" --profile loom \
        -p braid-log -p braid-store -p braiddb -p braid-nvme --lib loom
}
export -f simulate simulate_first simulate_more directed tests loom cargo_
export first histories

cargo_ build --quiet --profile test -p braid-cli
cargo_ test --quiet --no-run -p braid-io -p braid-nvme -p braid-pmem -p braid-nvwal -p braid-sqlite -p braid-log -p braid-store -p braiddb -p braid-server --tests
cargo_ test --quiet --no-run -p braid-sim --tests

log="$(mktemp)"
trap 'rm -f "$log"' EXIT

# Prints how a stage caught the mutant; fails if it did not.
caught_by() {
    local stage="$1" code=0
    timeout "$limit" bash -c "$stage" >"$log" 2>&1 || code=$?
    case "$code" in
        0) return 1 ;;
        124)
            echo "          $stage took longer than $limit s" >&2
            return 1
            ;;
    esac
    if [[ "$stage" = simulate_* ]]; then
        local again what
        again="$(sed -n 's/^again: braid simulate --seeds \([0-9]*\).* --protocol \([a-z-]*\).*/seed \1 (\2)/p' "$log" | head -1)"
        what="$(sed -n 's/^violation: //p' "$log" | head -1 | cut -c1-90)"
        echo "simulate, ${again:-code $code}: $what"
    else
        local names
        names="$(sed -n 's/^    \([a-z0-9_:]*\)$/\1/p' "$log" | sort -u | paste -sd, | sed 's/,/, /g')"
        echo "$stage: ${names:-code $code}"
    fi
}

survivors=0
for mutant in "${mutants[@]}"; do
    export BRAID_MUTANT="$mutant"
    begun=$SECONDS
    if how="$(caught_by simulate_first || caught_by directed || caught_by tests ||
        caught_by simulate_more || caught_by loom)"; then
        echo "caught    $mutant: $how ($((SECONDS - begun)) s)"
    else
        echo "SURVIVED  $mutant ($((SECONDS - begun)) s)"
        survivors=$((survivors + 1))
    fi
done
echo "$((${#mutants[@]} - survivors)) of ${#mutants[@]} mutants caught"
[ "$survivors" = 0 ]
