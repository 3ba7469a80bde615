//! Sets `cfg(uring)` on systems with io_uring.

use std::env;

/// Processors that the crate `io-uring` supports; Cargo.toml lists them, too.
const PROCESSORS: [&str; 5] = ["x86_64", "aarch64", "riscv64", "loongarch64", "powerpc64"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(uring)");
    let target = |what| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    if target("OS") == "linux" && PROCESSORS.contains(&&*target("ARCH")) {
        println!("cargo::rustc-cfg=uring");
    }
}
