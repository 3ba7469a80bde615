#!/usr/bin/env bash
# Builds the engine's tests for another processor and runs them in user-mode emulation; see
# docs/testing.md.
#
#     scripts/emulated.sh aarch64|powerpc64le [cargo test arguments]
#
# Installs the missing tools (Debian packages, rustup's target). Without arguments, all tests run,
# except the models of the protocols, which do not depend on the machine, and tests that need a
# kernel's system call filter. BRAID_HISTORIES=n sets the number of crash histories, which is small
# by default. The emulator gives the engine pages of 64 KiB, as these machines have. It has no
# io_uring: code with a fallback uses it, and tests that need io_uring are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-}
case "$arch" in
    aarch64) emulator=qemu-aarch64 ;;
    powerpc64le) emulator=qemu-ppc64le ;;
    *)
        sed -n '2,11s/^# \?//p' "$0" >&2
        exit 2
        ;;
esac
shift

target=$arch-unknown-linux-gnu
gcc=$arch-linux-gnu-gcc
# Debian has the emulator in two packages.
command -v "$emulator" >/dev/null || ! command -v "$emulator-static" >/dev/null || emulator+=-static
if ! command -v "$gcc" >/dev/null || ! command -v "$emulator" >/dev/null; then
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq "gcc-$arch-linux-gnu" qemu-user
fi
rustup target add "$target"

name=$(tr 'a-z-' 'A-Z_' <<<"$target")
export "CARGO_TARGET_${name}_LINKER=$gcc"
# Also for the processes that tests start.
# The emulator has a record of each page that a program reserves addresses for. Without the limit of 64
# GiB of addresses, a test that reserves as many as there are takes all memory of this machine.
limit="-R 0x1000000000"
export BRAID_RUNNER="$emulator -p 65536 $limit -L /usr/$arch-linux-gnu"
# Before version 8.1, the emulator announces `dc cvap` and refuses to execute it for a program. A
# processor without it then runs the other instruction.
version=$($emulator --version | sed -n '1s/.*version \([0-9]*\.[0-9]*\).*/\1/p')
if [ "$arch" = aarch64 ] && [ "$(printf '%s\n8.1\n' "$version" | sort -V | head -1)" != 8.1 ]; then
    BRAID_RUNNER+=" -cpu cortex-a57"
fi
export "CARGO_TARGET_${name}_RUNNER=$BRAID_RUNNER"
export BRAID_HISTORIES=${BRAID_HISTORIES:-3}
export PROPTEST_CASES=${PROPTEST_CASES:-32}
# With large pages, the emulator does not map the memory that a backtrace reads.
export RUST_BACKTRACE=0

# With the limit, the emulator (7.2) reports SIGBUS with an address that is one page too high: the
# handler replaces the wrong page, and the signal comes again forever. Tests of such pages skip
# themselves if `BRAID_RUNNER` has the limit, and run without it here.
if [ $# = 0 ]; then
    unlimited=${BRAID_RUNNER/ $limit/}
    env BRAID_RUNNER="$unlimited" "CARGO_TARGET_${name}_RUNNER=$unlimited" cargo test --target "$target" \
        -p braid-pmem -p braid-store --lib -- page_that_is_gone many_mappings_have_damage lost_page
    set -- -p braid-io -p braid-nvme -p braid-pmem -p braid-nvwal -p braid-log -p braid-store -p braiddb --lib --tests --no-fail-fast -- \
        --skip _is_caught --skip syscalls:: --skip readers_in_other_processes --skip a_killed_writer
    for test in {serial,aether,epoch,glsn,gwsn_strict,gwsn,gsn}_holds; do
        set -- "$@" --skip "$test"
    done
fi
cargo test --target "$target" "$@"
