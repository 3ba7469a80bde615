//! Finds what the peers need, if their features ask for them. Without features it does nothing.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for (feature, package, variable) in [
        ("REDB", "redb", "BRAID_BENCH_REDB"),
        ("FJALL", "fjall", "BRAID_BENCH_FJALL"),
    ] {
        if has_feature(feature) {
            let version = locked_version(package).unwrap_or_else(|| "unknown version".to_owned());
            println!("cargo::rustc-env={variable}={version}");
        }
    }
}

fn has_feature(peer: &str) -> bool {
    std::env::var_os(format!("CARGO_FEATURE_PEER_{peer}")).is_some()
}

/// The version of a package that is linked: a library in Rust seldom tells its own.
fn locked_version(package: &str) -> Option<String> {
    let lock = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?)
        .ancestors()
        .map(|dir| dir.join("Cargo.lock"))
        .find(|path| path.exists())?;
    println!("cargo::rerun-if-changed={}", lock.display());
    let text = std::fs::read_to_string(lock).ok()?;
    let named = format!("name = \"{package}\"");
    let mut lines = text.lines().skip_while(|line| *line != named);
    let version = lines.nth(1)?.strip_prefix("version = \"")?;
    Some(version.trim_end_matches('"').to_owned())
}
