#!/usr/bin/env bash
# Build and install the C library: header, shared and static library, pkg-config file.
#
#     scripts/install-c.sh PREFIX
#
# Environment:
#     DESTDIR               directory that stands for / during the installation, for packagers
#     LIBDIR, INCLUDEDIR    absolute directories instead of PREFIX/lib and PREFIX/include
#     BUILT                 directory with libraries that are already built; nothing is built
#     STATIC_LIMIT          largest static library to install, in bytes; 12000000 unless BUILT is given
set -euo pipefail

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

absolute() {
    case $1 in
        /*) printf '%s' "$1" ;;
        *) printf '%s/%s' "$PWD" "$1" ;;
    esac
}

(($# == 1)) || usage
[[ $1 == -* || -z $1 ]] && usage
prefix=$(absolute "${1%/}")
destdir=${DESTDIR:+$(absolute "${DESTDIR%/}")}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
built=${BUILT:+$(absolute "$BUILT")}
# The limit is for the profile dist; given libraries may have been built with another one.
limit=${STATIC_LIMIT:-${BUILT:+0}}
limit=${limit:-12000000}
cd "$(dirname "$0")/.."

if [[ -z $built ]]; then
    # The other libraries are linked with LTO, which the Rust library does not support.
    cargo rustc --locked --profile dist -p braid-c --lib --crate-type staticlib,cdylib
    built=${CARGO_TARGET_DIR:-target}/dist
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# Version of the interface, as in crates/braid-c/build.rs.
case $version in
    0.*) interface=$(cut -d . -f 1,2 <<<"$version") ;;
    *) interface=${version%%.*} ;;
esac

static=$(mktemp)
trap 'rm -f "$static"' EXIT
cp "$built/libbraid_c.a" "$static"
# The compiler does not strip static libraries. A strip that does not know the format leaves the
# library unchanged, and its size says nothing then.
strip -S "$static" || limit=0
size=$(wc -c <"$static")
if ((limit > 0 && size > limit)); then
    printf 'cannot install %s: it has %d bytes without debug information, more than the limit of %d; %s\n' \
        "$built/libbraid_c.a" "$size" "$limit" \
        'check the profile dist in Cargo.toml (link-time optimization), or set STATIC_LIMIT' >&2
    exit 1
fi

lib=$destdir$libdir
include=$destdir$includedir
mkdir -p "$lib/pkgconfig" "$include"
install -m 644 crates/braid-c/include/braid.h "$include/braid.h"
install -m 644 "$static" "$lib/libbraid_c.a"
if [[ -e $built/libbraid_c.dylib ]]; then
    install -m 755 "$built/libbraid_c.dylib" "$lib/libbraid_c.$interface.dylib"
    ln -sf "libbraid_c.$interface.dylib" "$lib/libbraid_c.dylib"
else
    install -m 755 "$built/libbraid_c.so" "$lib/libbraid_c.so.$version"
    ln -sf "libbraid_c.so.$version" "$lib/libbraid_c.so.$interface"
    ln -sf "libbraid_c.so.$interface" "$lib/libbraid_c.so"
fi
cat >"$lib/pkgconfig/braid.pc" <<EOF
prefix=$prefix
libdir=$libdir
includedir=$includedir

Name: braid
Description: Embeddable transactional storage engine
URL: https://github.com/braid-db/braid
Version: $version
Libs: -L"\${libdir}" -lbraid_c
Libs.private: -lpthread -ldl -lm
Cflags: -I"\${includedir}"
EOF
printf 'installed braid %s in %s\n' "$version" "$destdir$prefix"
