#!/usr/bin/env bash
# Runs `braid demo` and `braid verify` on a file system with direct access (DAX), in a virtual machine
# with an NVDIMM that is killed and booted again; see docs/testing.md.
#
#     scripts/guest-pmem.sh [PATH OF braid]
#
# Builds the command without an argument. KILLS=n sets how often the machine is killed (5), ACCEL=kvm
# uses the processor's virtualization (default: emulation, which works everywhere and is slow).
# Debian's kernel is fetched once into GUEST_DIR (default: target/guest). Needs QEMU for x86, busybox
# (static), ndctl, mkfs.ext4, kmod, cpio and apt; says what is missing, and skips.
#
# A killed machine loses the memory of its kernel, and no cache line: the script tests mapping, file
# lengths, names and recovery on real direct access. Lost lines are simulated (`braid simulate`).
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/guest.sh
source scripts/guest.sh
guest_needs "ndctl e2fsprogs" ndctl mkfs.ext4

braid=${1:-}
if [ -z "$braid" ]; then
    cargo build --release -p braid-cli
    braid=${CARGO_TARGET_DIR:-target}/release/braid
fi
kills=${KILLS:-5}
guest_kernel
image=$work/nvdimm.img
guest_root "$work/root"
guest_program "$braid" braid
for program in ndctl mkfs.ext4; do
    guest_program "$(command -v $program)" $program
done
guest_modules nfit nd_pmem ext4 crc32c_generic
guest_pack "$work/initrd.gz" <<'GUEST'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module" 2>/dev/null; done
finish() { echo "guest: $*"; sync; poweroff -f; }
for pause in 1 2 3 4 5 6 7 8 9 10; do
    [ -e /sys/bus/nd/devices/namespace0.0 ] && break
    sleep 1
done
[ -e /sys/bus/nd/devices/namespace0.0 ] || { ls /sys/bus/nd/devices; finish "FAILED: no NVDIMM"; }
ndctl list -N | grep -q fsdax ||
    ndctl create-namespace -f -e namespace0.0 --mode=fsdax --map=mem >/dev/null || finish "FAILED: no namespace"
mount -t ext4 -o dax=always /dev/pmem0 /mnt 2>/dev/null || {
    mkfs.ext4 -q -b 4096 -F /dev/pmem0 && mount -t ext4 -o dax=always /dev/pmem0 /mnt
} || finish "FAILED: no file system with direct access"
for db in /mnt/db-*; do
    [ -e "$db/data.braid" ] || continue
    braid verify "$db" || finish "FAILED: $db is damaged"
    # Transfers move money and make none; a hundred accounts began with 1,000 each, in one
    # transaction.
    sum=$(braid export "$db" accounts --format csv 2>/dev/null |
        awk -F, '$2 ~ /^-?[0-9]+$/ { sum += $2; n++ } END { print n + 0, sum + 0 }')
    echo "guest: accounts and balances in $db: $sum"
    [ "$sum" = "100 100000" ] || [ "$sum" = "0 0" ] || finish "FAILED: the sum of $db has changed"
    rm -rf "$db"
done
boot=$(sed 's/.*boot=\([0-9]*\).*/\1/' /proc/cmdline)
last=$(sed 's/.*last=\([0-9]*\).*/\1/' /proc/cmdline)
echo "guest: the demo begins"
seconds=600
[ "$boot" = "$last" ] && seconds=20
braid demo --dir /mnt/db-$boot --device pmem --seconds $seconds --threads 2 --accounts 100 --kills 2 ||
    finish "FAILED: the demo"
braid verify /mnt/db-$boot || finish "FAILED: the demo's database is damaged"
finish "done"
GUEST

rm -f "$image"
truncate -s 256M "$image"
machine=
trap '[ -z "$machine" ] || kill -9 "$machine" 2>/dev/null' EXIT

# Boots the guest; its output goes to $work/console.
boot() {
    : >"$work/console"
    qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -cpu max -smp 2 \
        -M "q35,accel=${ACCEL:-tcg},nvdimm=on" -m 1024M,slots=2,maxmem=2G \
        -kernel "$kernel" -initrd "$work/initrd.gz" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init boot=$1 last=$kills" \
        -serial "file:$work/console" \
        -object "memory-backend-file,id=pm0,share=on,mem-path=$image,size=256M" \
        -device nvdimm,id=nv0,memdev=pm0 &
    machine=$!
}

# Waits until the console has a line with one of the texts, or the guest has ended.
await() {
    local deadline=$((SECONDS + 300))
    until grep -q -e "$1" -e "guest: FAILED" "$work/console"; do
        kill -0 "$machine" 2>/dev/null || break
        [ $SECONDS -lt $deadline ] || break
        sleep 0.2
    done
    if ! grep -q -e "$1" "$work/console"; then
        cat "$work/console"
        echo "FAILED: the guest did not get to \"$1\"" >&2
        exit 1
    fi
}

for ((number = 0; number < kills; number++)); do
    boot $number
    await "guest: the demo begins"
    pause=$((3 + RANDOM % 6))
    sleep $pause
    kill -9 "$machine" 2>/dev/null || await "the demo runs when the guest is killed"
    wait "$machine" 2>/dev/null || true
    grep -a -e sound -e "guest:" "$work/console" || true
    echo "boot $number: killed $pause seconds after the demo began"
done
boot "$kills"
await "guest: done"
wait "$machine" || true
machine=
cat "$work/console"
echo "the guest was killed $kills times; every database was sound"
