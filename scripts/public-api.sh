#!/usr/bin/env bash
# Compares the public interface of braiddb with crates/braiddb/public-api.txt, or writes that file.
# Needs a nightly compiler and cargo-public-api, and installs both; skips what it cannot install.
#
#     scripts/public-api.sh [check|update]
set -euo pipefail
cd "$(dirname "$0")/.."

# A nightly compiler and a version of the tool that understand each other.
nightly=${BRAID_NIGHTLY:-nightly-2026-05-20}
version=0.52.0
listed=crates/braiddb/public-api.txt
out=target/public-api

skip() {
    echo "skipped: $*"
    exit 0
}

command -v rustup >/dev/null || skip "no rustup, so no nightly compiler"
rustup run "$nightly" rustc --version >/dev/null 2>&1 ||
    rustup toolchain install "$nightly" --profile minimal --no-self-update ||
    skip "$nightly cannot be installed"
PATH=$PWD/$out/tool/bin:$PATH
if ! cargo public-api --version 2>/dev/null | grep -qF "$version"; then
    cargo install cargo-public-api --version "$version" --locked --debug --quiet \
        --root "$out/tool" --target-dir "$out/tool-build" ||
        skip "cargo-public-api $version cannot be installed"
fi

# -sss leaves out implementations of blanket, auto and derived traits.
interface() {
    CARGO_TARGET_DIR=$out cargo "+$nightly" public-api -p braiddb --features derive,metrics,tracing -sss
}

case ${1:-check} in
update)
    interface >"$listed"
    ;;
check)
    mkdir -p "$out"
    interface >"$out/found.txt"
    if ! diff -u "$listed" "$out/found.txt"; then
        echo "The public interface differs from $listed. If that is on purpose, run scripts/public-api.sh update." >&2
        exit 1
    fi
    ;;
*)
    sed -n '5s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
