#!/usr/bin/env bash
# Runs the three paths to an NVMe drive in a virtual machine: io_uring, NVMe passthrough, and the driver
# of braid-nvme over VFIO with an IOMMU; see docs/nvme.md.
#
#     scripts/guest-nvme.sh [paths|crash|crash-database|database|format|paper|pull|server]...
#
# paths: each path writes, flushes and reads back. Then strace counts system calls: the driver over VFIO may
# take none, and no interrupt, and passthrough one for each batch. Then the paths run in turns at
# depth 1, 8 and 32, and the script prints the driver's requests per second and processor time
# relative to the kernel's io_uring. Times of an emulated machine mean little, and their ratios more.
# A second boot gives the kernel queues that it polls (IOPOLL). crash: images of the drive at any
# point of a program on a volume. database: the engine on each path. paper: `braid bench paper nvme`,
# each point for EACH seconds (1), with RECORDS records (20000) and the numbers of CLIENTS. pull: the
# drive loses its power under a database (PULLS times on each path, 3), as if it had been pulled out, and
# another boot recovers the database. server: `braid bench paper server` with a server for Redis clients on
# each path, as paper. Without an argument, paths, crash and crash-database.
#
# ROUNDS=n sets the number of turns (3), PATHS=vfio runs one path, POLLED=0 leaves out the second
# boot, ACCEL=kvm uses the processor's virtualization (default: emulation, which works everywhere).
# Needs QEMU for x86, busybox (static), kmod, cpio, apt and strace; says what is missing, and skips.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/guest.sh
source scripts/guest.sh
guest_needs strace strace

[ $# -gt 0 ] || set -- paths crash crash-database
# The engine alone runs in these, and the programs that use drives without it in the others.
engine=" database format paper server "
others=()
for task in "$@"; do
    [[ $engine == *" $task "* ]] || others+=("$task")
done
if [ -z "${EXAMPLES:-}" ] && [ ${#others[@]} -gt 0 ]; then
    cargo build --release -p braid-nvme --example nvme_probe --example nvme_crash
    case " $* " in
        *" crash-database "* | *" pull "*) cargo build --release -p braid-sim --example nvme_database ;;
    esac
    EXAMPLES=${CARGO_TARGET_DIR:-target}/release/examples
fi
guest_kernel
guest_root "$work/nvme-root"
case " $* " in
    *" database "* | *" format "* | *" paper "* | *" server "*)
        if [ -z "${BRAID:-}" ]; then
            cargo build --release -p braid-cli --features connect
            BRAID=${CARGO_TARGET_DIR:-target}/release/braid
        fi
        guest_program "$BRAID" braid
        ;;
esac
for example in nvme_probe nvme_crash nvme_database; do
    [ ! -e "${EXAMPLES:-}/$example" ] || guest_program "$EXAMPLES/$example" "$example"
done
guest_program "$(command -v strace)" strace
case " $* " in
    *" format "* | *" paper "* | *" server "*)
        guest_needs e2fsprogs mkfs.ext4
        guest_program "$(command -v mkfs.ext4)" mkfs.ext4
        ;;
esac
case " $* " in
    *" pull "*)
        guest_needs pciutils setpci
        guest_program "$(command -v setpci)" setpci
        ;;
esac
guest_modules nvme vfio-pci vfio_iommu_type1 ext4 crc32c_generic
guest_pack "$work/nvme-initrd.gz" <<'GUEST'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
option() { sed "s/.*$1=\([^ ]*\).*/\1/" /proc/cmdline; }
for module in /modules/*; do
    options=
    case $module in *-nvme.ko) options="poll_queues=$(option polled)" ;; esac
    insmod "$module" $options 2>/dev/null
done
finish() { echo "guest: $*"; sync; poweroff -f; }
paths=$(option paths | tr ',' ' ')
# The driver has the last drive.
last=$(option last)
for pause in 1 2 3 4 5 6 7 8 9 10; do
    [ -e /dev/ng0n1 ] && [ -e "/dev/ng${last}n1" ] && break
    sleep 1
done
[ -e "/dev/ng${last}n1" ] || finish "FAILED: no drive"
case $paths in
    *vfio*)
        device=$(basename "$(readlink "/sys/class/nvme/nvme$last/device")")
        echo vfio-pci >"/sys/bus/pci/devices/$device/driver_override"
        echo "$device" >/sys/bus/pci/drivers/nvme/unbind
        echo "$device" >/sys/bus/pci/drivers_probe
        ;;
esac
echo "guest: clock $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
place() {
    case $1 in
        uring) echo uring:/dev/nvme0n1 ;;
        passthrough) echo passthrough:/dev/ng0n1 ;;
        vfio) echo "vfio:$device" ;;
    esac
}
case $paths in
    uring) drive=nvme:/dev/nvme0n1 ;;
    passthrough) drive=nvme:/dev/ng0n1 ;;
    *) drive=vfio:$device ;;
esac
case $(option task) in
    crash)
        nvme_crash run "$(place $paths)" "$(option seed)" "$(option operations)" || finish "FAILED: $paths"
        finish "done"
        ;;
    crash-database)
        nvme_database run "$drive" "$(option seed)" "$(option operations)" || finish "FAILED: $drive"
        finish "done"
        ;;
esac
if [ "$(option task)" = pull ]; then
    : >/tmp/pulled
    nvme_database pull "$drive" "$(option seed)" >/tmp/pulled 2>&1 &
    worker=$!
    for pause in $(seq 600); do
        grep -q working /tmp/pulled && break
        sleep 0.1
    done
    grep -q working /tmp/pulled || { cat /tmp/pulled; finish "FAILED: $drive does not work"; }
    sleep "0.$(option pause)"
    # The port switches the slot's power and its indicator off: the drive is gone at once, unannounced.
    setpci -s "$(option port)" CAP_EXP+18.w=0700:0700
    wait $worker || { cat /tmp/pulled; finish "FAILED: $drive"; }
    sed 's/^/guest: /' /tmp/pulled
    finish "done"
fi
if [ "$(option task)" = recover ]; then
    nvme_database recover "$drive" "$(option seed)" $(option counts | tr ',' ' ') >/tmp/out 2>&1 ||
        { cat /tmp/out; finish "FAILED: recover $drive"; }
    sed 's/^/guest: /' /tmp/out
    finish "done"
fi
run() {
    echo "guest: $*"
    # No terminal, so no progress.
    "$@" >/tmp/out 2>&1 || { cat /tmp/out; finish "FAILED: $*"; }
    tail -3 /tmp/out
}
if [ "$(option task)" = database ]; then
    run braid nvme format "$drive"
    run braid demo --dir "$drive/bank" --seconds 10 --kills 5 --threads 2 --accounts 100
    run braid verify "$drive/bank"
    run braid bench tpcc --dir "$drive/tpcc" --scale 1 --threads 2 --seconds "$(option tpcc)" --warm-up 1
    run braid verify "$drive/tpcc"
    run braid backup "$drive/bank" /tmp/backup
    run braid restore /tmp/backup /tmp/restored
    run braid verify /tmp/restored
    run braid backup /tmp/restored /tmp/second-backup
    run braid restore /tmp/second-backup "$drive/copy"
    run braid verify "$drive/copy"
    for database in "$drive/bank" /tmp/restored "$drive/copy"; do
        braid export "$database" accounts --format csv >>/tmp/accounts || finish "FAILED: export $database"
        md5sum </tmp/accounts >>/tmp/sums
        rm /tmp/accounts
    done
    [ "$(sort -u /tmp/sums | wc -l)" = 1 ] || finish "FAILED: the restored databases differ"
    run braid nvme fsck "$drive"
    finish "done"
fi
if [ "$(option task)" = paper ]; then
    mkfs.ext4 -q -F /dev/nvme1n1 && mount -t ext4 /dev/nvme1n1 /mnt || finish "FAILED: no file system"
    run braid nvme format nvme:/dev/nvme0n1
    run braid nvme format "vfio:$device"
    # The figures are measured with direct I/O, in a directory that lost+found is not in.
    braid bench paper nvme --dir /mnt/paper --memory-dir /tmp/memory --out /tmp/figures \
        --drive nvme:/dev/nvme0n1 --drive nvme:/dev/ng0n1 --drive "vfio:$device" \
        --seconds "$(option seconds)" --records "$(option records)" --threads "$(option threads)" ||
        finish "FAILED: braid bench paper nvme"
    finish "done"
fi
if [ "$(option task)" = server ]; then
    mkfs.ext4 -q -F /dev/nvme1n1 && mount -t ext4 /dev/nvme1n1 /mnt || finish "FAILED: no file system"
    servers=
    for place in file-system=/mnt uring=nvme:/dev/nvme0n1 passthrough=nvme:/dev/ng2n1 "vfio=vfio:$device"; do
        name=${place%%=*} drive=${place#*=}
        [ "$name" = file-system ] || run braid nvme format "$drive"
        braid serve "$drive/served" --port 0 --unixsocket "/tmp/$name" --threads 1 --pool 64 >"/tmp/$name.log" 2>&1 &
        servers="$servers --server $name=/tmp/$name"
        # A server listens when it has opened its database.
        for pause in $(seq 600); do [ -S "/tmp/$name" ] && break; sleep 0.1; done
        [ -S "/tmp/$name" ] || { cat "/tmp/$name.log"; finish "FAILED: braid serve $drive"; }
    done
    braid bench paper server --out /tmp/figures $servers --seconds "$(option seconds)" \
        --records "$(option records)" --threads "$(option threads)" ||
        finish "FAILED: braid bench paper server"
    for figure in /tmp/figures/*.csv; do sed "s|^|guest: $(basename "$figure" .csv) |" "$figure"; done
    # The servers answer what is in progress and close their databases, which are then sound.
    kill $(pidof braid)
    wait
    for drive in /mnt nvme:/dev/nvme0n1 nvme:/dev/ng2n1 "vfio:$device"; do run braid verify "$drive/served"; done
    finish "done"
fi
if [ "$(option task)" = format ]; then
    # Refused with a reason, whatever the path: refused REASON ARGUMENT...
    refused() {
        local reason=$1
        shift
        if braid nvme format "$@" >/tmp/out 2>&1 || ! grep -q "$reason" /tmp/out; then
            cat /tmp/out
            finish "FAILED: format $* is not refused for: $reason"
        fi
        echo "guest: format $* refused: $reason"
    }
    block=/dev/nvme0n1
    printf 'n\np\n1\n\n\nw\n' | fdisk "$block" >/dev/null 2>&1
    for pause in 1 2 3 4 5; do [ -e "${block}p1" ] || sleep 1; done
    [ -e "${block}p1" ] || finish "FAILED: no partition"
    mkfs.ext4 -q -F "${block}p1" || finish "FAILED: mkfs.ext4"
    for name in "$block" /dev/ng0n1; do refused "partition table" "$name"; done
    mount "${block}p1" /mnt || finish "FAILED: mount"
    for name in "$block" "${block}p1" /dev/ng0n1; do refused "mounted at /mnt" "$name" --force; done
    # The drive with the root file system: of a process whose root is there.
    mkdir /mnt/proc /mnt/sys /mnt/dev /mnt/tmp
    for part in /bin /lib /lib64 /usr; do [ ! -e "$part" ] || cp -a "$part" /mnt; done
    for part in proc sys dev; do mount -o bind "/$part" "/mnt/$part"; done
    for name in "$block" /dev/ng0n1; do
        chroot /mnt braid nvme format "$name" --force >/tmp/out 2>&1 && finish "FAILED: the root is lost"
        grep -q "the drive with the root file system" /tmp/out || { cat /tmp/out; finish "FAILED: $name"; }
        echo "guest: format $name --force refused: the root file system"
    done
    for part in proc sys dev; do umount "/mnt/$part"; done
    umount /mnt
    mkswap "${block}p1" >/dev/null && swapon "${block}p1" || finish "FAILED: swapon"
    for name in "$block" /dev/ng0n1; do refused "swap space" "$name" --force; done
    swapoff "${block}p1"
    mkfs.ext4 -q -F "$block"
    for name in "$block" /dev/ng0n1; do refused "ext2, ext3 or ext4" "$name"; done
    run braid nvme format "$block" --force
    for name in "$block" /dev/ng0n1; do refused "a Braid volume" "$name"; done
    # A controller whose namespace is mounted stays where it is.
    mkfs.ext4 -q -F "$block" && mount "$block" /mnt || finish "FAILED: mount"
    address=$(basename "$(readlink /sys/class/nvme/nvme0/device)")
    braid nvme bind "$address" >/tmp/out 2>&1 && finish "FAILED: a mounted drive is bound"
    grep -q "mounted at /mnt" /tmp/out || { cat /tmp/out; finish "FAILED: bind"; }
    umount /mnt
    run braid nvme bind "$address"
    refused "ext2, ext3 or ext4" "vfio:$address"
    run braid nvme format "vfio:$address" --force
    refused "a Braid volume" "vfio:$address"
    finish "done"
fi
# Prints the system calls per request: the difference of two runs, so that those of the start and the
# end do not count. A thread polls for seconds: on a busy machine, the emulated drive may take so long
# that a thread would rightly sleep.
calls() {
    strace -f -c -o /tmp/calls nvme_probe "$@" 10000000 >/dev/null || finish "FAILED: $1 under strace"
    # Share, seconds, microseconds for each call, calls, errors if there are any, "total".
    awk '$NF == "total" { print $4 }' /tmp/calls
}
for path in $paths; do
    for depth in 1 8; do
        nvme_probe "$(place $path)" 800 $depth >/tmp/out || finish "FAILED: $path"
        echo "guest: $path $depth: $(sed -n 2p /tmp/out)"
        few=$(calls "$(place $path)" 400 $depth)
        many=$(calls "$(place $path)" 1200 $depth)
        echo "guest: calls $path $depth $(awk "BEGIN { print ($many - $few) / 800 }")"
    done
done
# With the patience of a database, and with none: the thread sleeps at once.
for round in $(seq "$(option rounds)"); do
    for depth in 1 8 32; do
        for idle in 20 0; do
            for path in $paths; do
                nvme_probe "$(place $path)" 1500 $depth $idle >/tmp/out || finish "FAILED: $path"
                echo "guest: run $path $depth $idle $(tail -1 /tmp/out)"
            done
        done
    done
done
finish "done"
GUEST

# Boots with kernel arguments and drives: boot ARGUMENTS BLOCKDEV...
boot() {
    local arguments=$1 drives=() drive count=0 bus=${PORT:+,bus=socket}
    shift
    [ -z "${PORT:-}" ] || drives+=(-device "pcie-root-port,id=socket,addr=$PORT,slot=1")
    for drive in "$@"; do
        drives+=(-blockdev "$drive" -device "nvme,serial=braid$count,drive=n$count,max_ioqpairs=8$bus")
        count=$((count + 1))
    done
    # Clock readings are no system calls with the processor's own clock, as on real machines; an
    # emulated one does not trust it unless it is told to. On a busy machine, an emulated timer is too
    # late for the kernel's check of it.
    timeout "${LIMIT:-550}" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -cpu max -smp 2 \
        -M "q35,accel=${ACCEL:-tcg},kernel-irqchip=split" -m 1024M \
        -device intel-iommu,intremap=on,caching-mode=on \
        -kernel "$kernel" -initrd "$work/nvme-initrd.gz" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init intel_iommu=on no_timer_check tsc=reliable clocksource=tsc last=$(($# - 1)) $arguments" \
        -serial "file:$work/nvme-console" "${drives[@]}" || true
    tr -d '\r' <"$work/nvme-console" >"$work/nvme-output"
    grep -v '^guest: run' "$work/nvme-output"
    grep -q "guest: done" "$work/nvme-output" || {
        echo "FAILED: the guest did not finish" >&2
        exit 1
    }
}

# Makes an empty image of MiB: empty NAME MIB
empty() {
    rm -f "$work/$1"
    truncate -s "$2M" "$work/$1"
}

paths() {
    local polled=$1 paths=${PATHS:-uring,passthrough,vfio}
    # Only reads and writes of the block device are polled.
    [ "$polled" = 0 ] || paths=${PATHS:-uring,vfio}
    echo "queues that the kernel polls: $polled; paths: $paths"
    empty nvme0.img 256
    empty nvme1.img 256
    boot "task=paths polled=$polled paths=$paths rounds=${ROUNDS:-3}" \
        "driver=file,node-name=n0,filename=$work/nvme0.img,discard=unmap" \
        "driver=file,node-name=n1,filename=$work/nvme1.img,discard=unmap"
    # System calls and interrupts: counts, which an emulated machine has like any other.
    awk '
        function fail(what) { print "FAILED: " what; failed = 1 }
        /^guest: calls vfio/ && $5 >= 0.01 { fail("VFIO takes " $5 " system calls per request at depth " $4) }
        /^guest: calls passthrough/ && $5 * $4 >= 1.01 {
            fail("passthrough takes " $5 * $4 " system calls per batch of " $4)
        }
        /^guest: run vfio/ && $(NF - 1) > 0 { fail("VFIO takes " $(NF - 1) " interrupts per request") }
        /^guest: calls/ { calls++ }
        END { if (!calls) fail("no system calls were counted"); exit failed }
    ' "$work/nvme-output" >&2 || exit 1
    # The median of the turns.
    awk '
        function median(list, values, n, i, j, t) {
            n = split(list, values, " ")
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && values[j - 1] + 0 > values[j] + 0; j--) {
                    t = values[j]; values[j] = values[j - 1]; values[j - 1] = t
                }
            return values[int((n + 1) / 2)]
        }
        /^guest: run/ {
            at = $3 " " $4 " " $5; seen[at] = 1
            for (i = 6; i <= NF; i++) {
                if ($i == "requests/s,") rate[at] = rate[at] " " $(i - 1)
                if ($i == "p50") p50[at] = p50[at] " " $(i + 1)
                if ($i == "p99") p99[at] = p99[at] " " $(i + 1)
                if ($i == "processor") time[at] = time[at] " " $(i - 3)
                if ($i == "switches,") switches[at] = switches[at] " " $(i - 2)
                if ($i == "interrupts") interrupts[at] = interrupts[at] " " $(i - 1)
            }
        }
        END {
            format = "%-12s %5s %7s %11s %8s %8s %9s %9s %10s\n"
            printf format, "path", "depth", "idle us", "requests/s", "p50 us", "p99 us", "CPU us", "switches", "interrupts"
            n = split("1 8 32", depths, " "); split("20 0", idles, " "); split("uring passthrough vfio", names, " ")
            for (k = 1; k <= 2; k++) for (d = 1; d <= n; d++) {
                for (p = 1; p <= 3; p++) {
                    at = names[p] " " depths[d] " " idles[k]
                    if (seen[at]) printf format, names[p], depths[d], idles[k], median(rate[at]), median(p50[at]),
                        median(p99[at]), median(time[at]), median(switches[at]), median(interrupts[at])
                }
                u = "uring " depths[d] " " idles[k]; v = "vfio " depths[d] " " idles[k]
                if (seen[u] && seen[v]) {
                    r = median(rate[v]) / median(rate[u]); t = median(time[v]) / median(time[u])
                    printf "  VFIO relative to io_uring: %.2f x the requests/s (goal: 1), %.2f x the processor time (goal: 0.7): %s\n",
                        r, t, (r >= 1 && t <= 0.7) ? "met" : "not met"
                }
            }
        }
    ' "$work/nvme-output"
}

# Records a program on each path, and checks images: crash TASK PROGRAM OPERATIONS
crash() {
    local path seed=${SEED:-1}
    for path in $(tr ',' ' ' <<<"${PATHS:-uring,passthrough,vfio}"); do
        empty nvme0.img 64
        # Sparse; the record ends where it reads as zeros.
        empty nvme0.log 65536
        boot "task=$1 polled=0 paths=$path seed=$seed operations=$3" \
            "driver=blklogwrites,node-name=n0,log-sector-size=512,file.driver=file,file.filename=$work/nvme0.img,log.driver=file,log.filename=$work/nvme0.log"
        printf '%s: ' "$path"
        "$EXAMPLES/$2" check "$work/nvme0.log" $((64 << 20)) "$seed" "${IMAGES:-700}"
    done
    rm "$work/nvme0.log"
}

database() {
    local path
    for path in $(tr ',' ' ' <<<"${PATHS:-uring,passthrough,vfio}"); do
        echo "a database over $path"
        # TPC-C's tables grow; the image has holes.
        empty nvme0.img $((1024 + 4 * ${TPCC_SECONDS:-5}))
        LIMIT=${LIMIT:-$((600 + ${TPCC_SECONDS:-5}))} boot "task=database polled=0 paths=$path tpcc=${TPCC_SECONDS:-5}" \
            "driver=file,node-name=n0,filename=$work/nvme0.img,discard=unmap"
    done
}

paper() {
    echo "the paper's figures"
    empty nvme0.img 2048
    empty nvme1.img 2048
    empty nvme2.img 2048
    LIMIT=${LIMIT:-3600} boot "task=paper polled=0 paths=uring,passthrough,vfio seconds=${EACH:-1} records=${RECORDS:-20000} threads=${CLIENTS:-1,8,16,32,64}" \
        "driver=file,node-name=n0,filename=$work/nvme0.img,discard=unmap" \
        "driver=file,node-name=n1,filename=$work/nvme1.img,discard=unmap" \
        "driver=file,node-name=n2,filename=$work/nvme2.img,discard=unmap"
}

server() {
    local number drives=()
    echo "servers for Redis clients"
    for number in 0 1 2 3; do
        empty "nvme$number.img" 1024
        drives+=("driver=file,node-name=n$number,filename=$work/nvme$number.img,discard=unmap")
    done
    LIMIT=${LIMIT:-3600} boot "task=server polled=0 paths=uring,passthrough,vfio seconds=${EACH:-1} records=${RECORDS:-20000} threads=${CLIENTS:-1,8,16,32,64}" \
        "${drives[@]}"
}

# The drive loses its power under a database, and the next boot recovers the database.
pull() {
    local path seed
    for path in $(tr ',' ' ' <<<"${PATHS:-uring,passthrough,vfio}"); do
        for seed in $(seq "${SEED:-1}" $((${SEED:-1} + ${PULLS:-3} - 1))); do
            echo "a drive that is pulled out: $path, seed $seed"
            empty nvme0.img 64
            local drive="driver=file,node-name=n0,filename=$work/nvme0.img,discard=unmap" counts
            PORT=05.0 boot "task=pull polled=0 paths=$path seed=$seed pause=$((seed * 37 % 100)) port=00:05.0" "$drive"
            # Registers of a missing device read as zeros in QEMU, and as ones on a real machine. So over
            # VFIO, the commands reach their time limit before the driver fails to reset the controller.
            grep -q '^guest: error: .*\(the drive is gone\|the drive did not answer\)' "$work/nvme-output" || {
                echo "FAILED: no thread reports that the drive is gone" >&2
                exit 1
            }
            counts=$(sed -n 's/^guest: acknowledged: //p' "$work/nvme-output" | tr ' ' ',')
            boot "task=recover polled=0 paths=$path seed=$seed counts=$counts" "$drive"
        done
    done
}

format() {
    empty nvme0.img 256
    boot "task=format polled=0 paths=uring" \
        "driver=file,node-name=n0,filename=$work/nvme0.img,discard=unmap"
}

for task in "$@"; do
    case $task in
        paths)
            for polled in ${POLLED:-0 2}; do
                paths "$polled"
            done
            ;;
        crash) crash crash nvme_crash 400 ;;
        crash-database) crash crash-database nvme_database 100 ;;
        database) database ;;
        format) format ;;
        paper) paper ;;
        server) server ;;
        pull) pull ;;
        *)
            echo "unknown: $task; expected paths, crash, crash-database, database, format, paper, pull or server" >&2
            exit 2
            ;;
    esac
done
