//! Sets the name of the shared library for the dynamic linker, with the version of the interface.
//!
//! A program requests this name when it starts, so it gets the interface version that it was built
//! with, or fails.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name| env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    // A minor version may change the interface while the version is 0.x.
    let version = match part("MAJOR").as_str() {
        "0" => format!("0.{}", part("MINOR")),
        major => major.to_owned(),
    };
    println!("cargo::rustc-env=BRAID_INTERFACE={version}");
    let argument = match env::var("CARGO_CFG_TARGET_OS").unwrap_or_default().as_str() {
        "linux" | "android" | "freebsd" | "netbsd" | "openbsd" => {
            format!("-Wl,-soname,libbraid_c.so.{version}")
        }
        "macos" => format!("-Wl,-install_name,@rpath/libbraid_c.{version}.dylib"),
        _ => return,
    };
    println!("cargo::rustc-cdylib-link-arg={argument}");
}
