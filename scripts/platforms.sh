#!/usr/bin/env bash
# Checks that every crate compiles for the platforms of docs/quick-start.md.
#
#     scripts/platforms.sh [TARGET...]
#
# Needs rustup, which downloads the standard library of each target; a target that cannot be had is
# skipped with a message. Nothing is linked or run.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=("$@")
if ((${#targets[@]} == 0)); then
    targets=(x86_64-pc-windows-gnu x86_64-apple-darwin aarch64-apple-darwin x86_64-unknown-linux-musl)
fi

for target in "${targets[@]}"; do
    if [[ ! -d $(rustc --print sysroot)/lib/rustlib/$target/lib ]] &&
        ! rustup target add "$target" >/dev/null 2>&1; then
        printf 'SKIPPED: rustup cannot install the standard library of %s\n' "$target"
        continue
    fi
    printf '%s\n' "$target"
    RUSTFLAGS="-D warnings" cargo check --quiet --workspace --target "$target" --target-dir target/platforms
done
