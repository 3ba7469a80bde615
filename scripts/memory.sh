#!/usr/bin/env bash
# The unsafe parts under Miri, AddressSanitizer and valgrind; see docs/testing.md.
#
#     scripts/memory.sh ci|miri|asan|valgrind|all [cargo test arguments, for miri and asan]
#
# `ci` is what takes a minute or two: a part of Miri, and the smallest tests under valgrind; `all` is everything
# that this machine has.
set -euo pipefail
cd "$(dirname "$0")/.."

# A nightly compiler that is known to work with all of this.
nightly=${BRAID_NIGHTLY:-nightly-2026-05-20}
target=x86_64-unknown-linux-gnu
crates=(-p braid-io -p braid-log -p braid-store -p braiddb)
out=${CARGO_TARGET_DIR:-target}

# What can't be run here is said, and is no failure: CI may have no way to a compiler.
skip() {
    printf 'SKIPPED: %s\n' "$*"
    exit 0
}

need_nightly() {
    command -v rustup >/dev/null || skip "no rustup, so no nightly compiler"
    # Also one of that version by another name will do.
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
    # The device tests and what spawns processes or maps memory are not for Miri: these have names.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance ${MIRIFLAGS:-}"
    # Proptest tries each property so often.
    export PROPTEST_CASES=${PROPTEST_CASES:-2}
    cargo "+$nightly" miri test --target-dir "$out/miri" "$@"
}

miri_ci() {
    # What has an `unsafe` of its own: buffers, pages, parts of a buffer; not the contexts of a database,
    # which take minutes to get to.
    miri -p braid-io -p braid-log -p braid-store --lib -- \
        shared_buffer:: consolidation:: commit_slots:: strand:: nonsense heads space::tests::b sim::tests::f
}

miri_all() {
    miri "${crates[@]}" --lib
    miri -p braid-c --lib
    miri -p braid-store --test races
    miri -p braiddb --test small
}

asan() {
    # A leak is an error, too. The C programs of `braid-c`'s tests are under it together with the library.
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
    cargo test -p braid-io -p braiddb --test devices --test small
}

valgrind_all() {
    # It runs one thread at a time, ten to fifty times slower: without what only counts to many, nor the
    # coroutines of a simulation, whose stacks it takes for one.
    PROPTEST_CASES=${PROPTEST_CASES:-4} cargo test "${crates[@]}" --lib -- \
        --skip a_leaf_is_a_map --skip contended --skip quiesce_sees --skip under_a_simulation
    cargo test -p braid-io -p braid-log -p braiddb --test devices --test basic --test small
}

case "${1:-}" in
    # Each is skipped by itself.
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
