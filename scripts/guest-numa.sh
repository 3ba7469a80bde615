#!/usr/bin/env bash
# Runs the tests of memory placement, `braid demo` and `braid stat` in virtual machines with two and
# four memory nodes (NUMA); see docs/testing.md.
#
#     scripts/guest-numa.sh [PATH OF braid]
#
# Builds the command without an argument, and the tests. ACCEL=kvm uses the processor's
# virtualization (default: emulation, which works everywhere and is slow). Debian's kernel
# is fetched once into GUEST_DIR (default: target/guest). Needs QEMU for x86, busybox (static), kmod,
# cpio and apt; says what is missing, and skips.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/guest.sh
source scripts/guest.sh
guest_needs ""

# Builds a test program and prints its path: test_program PACKAGE FLAGS...
test_program() {
    local package=$1
    shift
    cargo test -p "$package" "$@" --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}
braid=${1:-}
if [ -z "$braid" ]; then
    cargo build --release -p braid-cli
    braid=${CARGO_TARGET_DIR:-target}/release/braid
fi
guest_kernel
guest_root "$work/root"
guest_program "$braid" braid
guest_program "$(test_program braid-rt --lib)" rt-tests
guest_program "$(test_program braid-log --lib)" log-tests
guest_program "$(test_program braiddb --test numa)" numa
guest_pack "$work/numa.gz" <<'GUEST'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
finish() { echo "guest: $*"; poweroff -f; }
nodes=$(sed 's/.*nodes=\([0-9]*\).*/\1/' /proc/cmdline)
echo "guest: nodes with processors: $(cat /sys/devices/system/node/has_cpu)"
[ "$(ls -d /sys/devices/system/node/node[0-9]* | wc -l)" = "$nodes" ] || finish "FAILED: other nodes"
rt-tests numa:: || finish "FAILED: the tests of braid-rt"
log-tests memory_node || finish "FAILED: the tests of braid-log"
numa --nocapture || finish "FAILED: the tests of the engine"
# The accounts are divided over a tablespace on each node.
braid demo --dir /tmp/demo --seconds 5 --threads "$nodes" --accounts 100 --kills 1 --tablespaces "$nodes" ||
    finish "FAILED: the demo"
braid verify /tmp/demo || finish "FAILED: the demo's database is damaged"
[ "$(braid stat /tmp/demo | grep -c '; on memory node [0-9]*$')" = "$nodes" ] || finish "FAILED: the demo's tables are not on the nodes"
braid stat /tmp/demo
[ "$(braid stat /tmp/demo | grep -c '^memory node')" = "$nodes" ] || finish "FAILED: stat names other nodes"
# A tablespace with a log of its own on each node, used and opened again.
script=""
for node in $(seq 0 $((nodes - 1))); do
    script="$script create-tablespace t$node /tmp/t$node 8 on node $node with log; create c$node u64 string in t$node;"
done
braid shell /tmp/tables --create -c "$script" || finish "FAILED: tablespaces on nodes"
for node in $(seq 0 $((nodes - 1))); do
    braid shell /tmp/tables -c "put c$node 1 one" || finish "FAILED: a put on node $node"
done
braid verify /tmp/tables || finish "FAILED: the tablespaces are damaged"
braid stat /tmp/tables
[ "$(braid stat /tmp/tables | grep -c '; on memory node [0-9]*$')" = "$nodes" ] || finish "FAILED: stat shows no node"
finish "done"
GUEST

for nodes in 2 4; do
    # A processor and as much memory for each node.
    numa=()
    for ((node = 0; node < nodes; node++)); do
        numa+=(-object "memory-backend-ram,id=m$node,size=512M" -numa "node,nodeid=$node,cpus=$node,memdev=m$node")
    done
    timeout 900 qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -cpu max \
        -smp "$nodes" -M "q35,accel=${ACCEL:-tcg}" -m $((512 * nodes))M "${numa[@]}" \
        -kernel "$kernel" -initrd "$work/numa.gz" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init nodes=$nodes" \
        -serial "file:$work/console" || true
    cat "$work/console"
    grep -q "guest: done" "$work/console" || { echo "FAILED: $nodes nodes" >&2; exit 1; }
    echo "$nodes nodes: passed"
done
