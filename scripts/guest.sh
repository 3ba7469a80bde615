# Functions of the scripts that run Braid in a virtual machine; sourced by them, from the root of the
# repository. Debian's kernel is fetched once into GUEST_DIR (default: target/guest).

skip() {
    printf 'SKIPPED: %s\n' "$*"
    exit 0
}

# Skips if the machine or one of the tools is missing: guest_needs PACKAGES TOOL...
guest_needs() {
    local packages="qemu-system-x86 busybox-static kmod cpio $1" tool
    shift
    [ "$(uname -sm)" = "Linux x86_64" ] || skip "the guest's kernel is for x86-64 Linux"
    for tool in qemu-system-x86_64 busybox depmod cpio apt-get dpkg-deb gzip "$@"; do
        command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin:/sbin
        command -v "$tool" >/dev/null || skip "$tool is missing (Debian: apt-get install $packages)"
    done
}

# Fetches Debian's kernel, and unpacks it without installing it. Sets work, the folder of all files,
# kernel, and modules.
guest_kernel() {
    local package version
    work=${GUEST_DIR:-${CARGO_TARGET_DIR:-target}/guest}
    mkdir -p "$work"
    work=$(cd "$work" && pwd)
    if ! ls "$work"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
        package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -1)
        [ -n "$package" ] || skip "no package with a kernel is known; run apt-get update"
        (cd "$work" && apt-get download -q "$package") || skip "$package cannot be fetched"
        dpkg-deb -x "$work/$package"_*.deb "$work/kernel"
        rm "$work/$package"_*.deb
    fi
    kernel=$(ls "$work"/kernel/boot/vmlinuz-*)
    version=${kernel##*/vmlinuz-}
    modules=$work/kernel/lib/modules/$version
    depmod -b "$work/kernel" "$version"
}

# Makes a root file system with busybox: guest_root FOLDER
guest_root() {
    root=$1
    rm -rf "$root"
    mkdir -p "$root"/{bin,proc,sys,dev,mnt,modules,tmp}
    cp "$(command -v busybox)" "$root/bin/busybox"
}

# Adds a program with its libraries to the root: guest_program FILE NAME
guest_program() {
    local library
    cp -L "$1" "$root/bin/$2"
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$root${library%/*}"
        cp -L "$library" "$root$library"
    done
}

# Adds modules of the kernel in the order in which they are loaded: guest_modules NAME...
#
# From the list of dependencies, because modprobe leaves out what this machine's kernel has built in.
# A line names a module, then what it needs, the last one first.
guest_modules() {
    local module file order=0
    for module in "$@"; do
        for file in $(sed -n "s|^\(.*/$module\.ko\):\(.*\)|\1 \2|p" "$modules/modules.dep" | tr ' ' '\n' | tac); do
            [ -z "$(find "$root/modules" -name "*-${file##*/}")" ] || continue
            cp "$modules/$file" "$root/modules/$(printf '%03d' $order)-${file##*/}"
            order=$((order + 1))
        done
    done
}

# Packs the root, whose init is standard input: guest_pack FILE
guest_pack() {
    cat >"$root/init"
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$1"
}
