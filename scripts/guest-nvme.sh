#!/usr/bin/env bash
# Runs the three paths to an NVMe drive in a virtual machine: io_uring, NVMe passthrough, and the driver
# of braid-nvme over VFIO with an IOMMU; see docs/nvme.md.
#
#     scripts/guest-nvme.sh [PATH OF nvme_probe]
#
# Each path writes, flushes and reads back; then system calls, interrupts and context switches per
# request are counted. Times mean nothing, since the machine is emulated. Debian's kernel is fetched
# once into GUEST_DIR (default: target/guest). PATHS=vfio runs one path, POLLED=0 without queues that
# the kernel polls. Needs QEMU for x86, busybox (static), kmod, cpio, apt
# and, to count system calls, strace; says what is missing, and skips.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    printf 'SKIPPED: %s\n' "$*"
    exit 0
}

[ "$(uname -sm)" = "Linux x86_64" ] || skip "the guest's kernel is for x86-64 Linux"
for tool in qemu-system-x86_64 busybox depmod cpio apt-get dpkg-deb gzip strace; do
    command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin:/sbin
    command -v "$tool" >/dev/null || skip "$tool is missing (Debian: apt-get install qemu-system-x86" \
        "busybox-static kmod cpio strace)"
done

probe=${1:-}
if [ -z "$probe" ]; then
    cargo build --release -p braid-nvme --example nvme_probe
    probe=${CARGO_TARGET_DIR:-target}/release/examples/nvme_probe
fi
work=${GUEST_DIR:-${CARGO_TARGET_DIR:-target}/guest}
mkdir -p "$work"
work=$(cd "$work" && pwd)
image=$work/nvme.img
root=$work/nvme-root

# The kernel of Debian, unpacked and not installed.
if ! ls "$work"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -1)
    [ -n "$package" ] || skip "no package with a kernel is known; run apt-get update"
    (cd "$work" && apt-get download -q "$package") || skip "$package cannot be fetched"
    dpkg-deb -x "$work/$package"_*.deb "$work/kernel"
    rm "$work/$package"_*.deb
fi
kernel=$(ls "$work"/kernel/boot/vmlinuz-*)
version=${kernel##*/vmlinuz-}
depmod -b "$work/kernel" "$version"

# A root file system in memory: the programs with their libraries, and the modules in their order.
rm -rf "$root"
mkdir -p "$root"/{bin,proc,sys,dev,modules,tmp}
cp "$(command -v busybox)" "$root/bin/busybox"
for program in "$probe" "$(command -v strace)"; do
    cp -L "$program" "$root/bin/"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do
        mkdir -p "$root${library%/*}"
        cp -L "$library" "$root$library"
    done
done
modules=$work/kernel/lib/modules/$version
order=0
for module in nvme vfio-pci vfio_iommu_type1; do
    for file in $(sed -n "s|^\(.*/$module\.ko\):\(.*\)|\1 \2|p" "$modules/modules.dep" | tr ' ' '\n' | tac); do
        [ -z "$(find "$root/modules" -name "*-${file##*/}")" ] || continue
        cp "$modules/$file" "$root/modules/$(printf '%03d' $order)-${file##*/}"
        order=$((order + 1))
    done
done
cat >"$root/init" <<'GUEST'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do
    options=
    case $module in *-nvme.ko) options="poll_queues=$(sed 's/.*polled=\([0-9]*\).*/\1/' /proc/cmdline)" ;; esac
    insmod "$module" $options 2>/dev/null
done
finish() { echo "guest: $*"; sync; poweroff -f; }
for pause in 1 2 3 4 5 6 7 8 9 10; do
    [ -e /dev/ng0n1 ] && break
    sleep 1
done
[ -e /dev/ng0n1 ] || finish "FAILED: no drive"

# Prints the system calls per request: the difference of two runs, so that those of the start and the
# end do not count.
calls() {
    strace -f -c -o /tmp/calls nvme_probe "$1" "$2" "$3" >/dev/null || finish "FAILED: $1 under strace"
    # Share, seconds, microseconds for each call, calls, errors if there are any, "total".
    awk '$NF == "total" { print $4 }' /tmp/calls
}
run() {
    for depth in 1 8; do
        nvme_probe "$1" 2000 $depth || finish "FAILED: $1"
        few=$(calls "$1" 400 $depth)
        many=$(calls "$1" 1200 $depth)
        echo "guest: $1 depth $depth: $few and $many system calls," \
            "$(awk "BEGIN { print ($many - $few) / 800 }") per request"
    done
}
for path in $(sed 's/.*paths=\([a-z,]*\).*/\1/; s/,/ /g' /proc/cmdline); do
    case $path in
        uring) run uring:/dev/nvme0n1 ;;
        passthrough) run passthrough:/dev/ng0n1 ;;
    esac
done
device=$(basename "$(readlink /sys/class/nvme/nvme0/device)")
echo vfio-pci >"/sys/bus/pci/devices/$device/driver_override"
echo "$device" >/sys/bus/pci/drivers/nvme/unbind
echo "$device" >/sys/bus/pci/drivers_probe
case $(cat /proc/cmdline) in *vfio*) run "vfio:$device" ;; esac
finish "done"
GUEST
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/nvme-initrd.gz"

# Without and with queues that the kernel polls.
for polled in ${POLLED:-0 2}; do
    rm -f "$image"
    truncate -s 256M "$image"
    echo "polled queues of the kernel: $polled"
    timeout "${LIMIT:-240}" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -cpu max -smp 2 \
        -M "q35,accel=${ACCEL:-tcg},kernel-irqchip=split" -m 1024M \
        -device intel-iommu,intremap=on,caching-mode=on \
        -kernel "$kernel" -initrd "$work/nvme-initrd.gz" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init intel_iommu=on polled=$polled paths=${PATHS:-uring,passthrough,vfio}" \
        -serial "file:$work/nvme-console" \
        -blockdev "driver=file,node-name=n0,filename=$image,discard=unmap" \
        -device "nvme,serial=braid0,drive=n0,max_ioqpairs=8" || true
    cat "$work/nvme-console"
    grep -q "guest: done" "$work/nvme-console" || {
        echo "FAILED: the guest did not finish" >&2
        exit 1
    }
    calls=$(sed -n 's/^guest: vfio:.* calls, \([0-9.e-]*\) per request.*/\1/p' "$work/nvme-console")
    for count in $calls; do
        awk "BEGIN { exit !($count < 0.01) }" || {
            echo "FAILED: the driver over VFIO takes $count system calls per request" >&2
            exit 1
        }
    done
done
