#!/usr/bin/env bash
# Runs the unsafe code under Miri, AddressSanitizer and valgrind; see docs/testing.md.
#
#     scripts/memory.sh ci|miri|asan|valgrind|all [cargo test arguments, for miri and asan]
#
# `ci` takes a minute or two: a part of Miri, and the smallest tests under valgrind. `all` runs
# everything that this machine supports.
set -euo pipefail
cd "$(dirname "$0")/.."

# A nightly compiler that is known to work with all of these tools.
nightly=${BRAID_NIGHTLY:-nightly-2026-05-20}
target=x86_64-unknown-linux-gnu
crates=(-p braid-io -p braid-pmem -p braid-nvwal -p braid-log -p braid-store -p braiddb)
out=${CARGO_TARGET_DIR:-target}

# A missing tool is reported and is not a failure, because CI may not be able to install one.
skip() {
    printf 'SKIPPED: %s\n' "$*"
    exit 0
}

need_nightly() {
    command -v rustup >/dev/null || skip "no rustup, so no nightly compiler"
    # Accept this version under another name, too.
    for name in "$nightly" nightly; do
        if cargo "+$name" miri --version >/dev/null 2>&1; then
            nightly=$name
            return
        fi
    done
    rustup toolchain install "$nightly" --profile minimal --component miri,rust-src --no-self-update ||
        skip "$nightly can't be installed"
}

miri() {
    # Miri cannot run the device tests, or tests that start processes or map memory; skip them by
    # name.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance ${MIRIFLAGS:-}"
    # Number of cases that proptest tries for each property.
    export PROPTEST_CASES=${PROPTEST_CASES:-2}
    cargo "+$nightly" miri test --target-dir "$out/miri" "$@"
}

miri_ci() {
    # Tests of code with `unsafe`: buffers, pages, parts of a buffer, memory in huge pages; not a
    # database's contexts, which take minutes to reach.
    miri -p braid-rt -p braid-io -p braid-pmem -p braid-nvwal -p braid-log -p braid-store --lib -- \
        huge::tests::a latch::tests::a words:: simulated::tests::a shared_buffer:: consolidation:: commit_slots:: strand:: nonsense heads words_below space::tests::b sim::tests::f
}

miri_all() {
    miri "${crates[@]}" --lib
    miri -p braid-c --lib
    miri -p braid-store --test races
    miri -p braiddb --test small
}

asan() {
    # A leak is an error as well. The C programs of `braid-c`'s tests run under it together with the
    # library.
    export LSAN_OPTIONS="suppressions=$PWD/scripts/lsan.supp:print_suppressions=0 ${LSAN_OPTIONS:-}"
    RUSTFLAGS="-Zsanitizer=address" BRAID_HISTORIES=${BRAID_HISTORIES:-20} \
        cargo "+$nightly" test --target-dir "$out/asan" --target "$target" "${crates[@]}" -p braid-c \
        --lib --tests "$@"
}

need_valgrind() {
    command -v valgrind >/dev/null || skip "no valgrind"
    local options="--quiet --error-exitcode=9 --fair-sched=yes --leak-check=full"
    options+=" --errors-for-leak-kinds=definite --show-leak-kinds=definite"
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind $options"
}

valgrind_ci() {
    # Of the whole workspace, so that what its tests have built is used.
    cargo test --workspace --test devices --test small
    # Mapped memory, which Miri does not support: reading in place, writing lines. Not the tests whose
    # point is the number of repetitions, nor one that takes all addresses. Of SIGBUS, only the test in
    # `in_place`: with several such tests, valgrind takes a mapping for the stack of a thread that ended.
    cargo test --workspace --lib -- mapping:: damage:: file_backed:: counters:: in_place:: lines:: \
        --skip reserves_as_many --skip is_gone --skip many_mappings \
        --skip readers_find_whole --skip a_crash_leaves --skip killed_process
}

valgrind_all() {
    # It runs one thread at a time, ten to fifty times slower. Skip tests whose point is the number
    # of repetitions, and the coroutines of a simulation, whose stacks it mistakes for one stack.
    PROPTEST_CASES=${PROPTEST_CASES:-4} cargo test "${crates[@]}" --lib -- \
        --skip a_leaf_is_a_map --skip contended --skip quiesce_sees --skip under_a_simulation
    cargo test -p braid-io -p braid-log -p braiddb --test devices --test basic --test small
}

case "${1:-}" in
    # A subshell, so that a missing tool skips only its own part.
    ci)
        (need_nightly; miri_ci)
        (need_valgrind; valgrind_ci)
        ;;
    miri)
        need_nightly
        if [ $# -gt 1 ]; then miri "${@:2}"; else miri_all; fi
        ;;
    asan) need_nightly; asan "${@:2}" ;;
    valgrind) need_valgrind; valgrind_all ;;
    all)
        (need_nightly; miri_all; asan)
        (need_valgrind; valgrind_all)
        ;;
    *)
        sed -n '2,7s/^# \?//p' "$0" >&2
        exit 2
        ;;
esac
