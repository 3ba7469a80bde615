//! Records the build's profile, and finds the libraries of the peers that features select.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=BRAID_PROFILE={}", profile());
    println!("cargo::rustc-check-cfg=cfg(peer_rocksdb, peer_wiredtiger)");
    for (feature, package, variable) in [
        ("REDB", "redb", "BRAID_BENCH_REDB"),
        ("FJALL", "fjall", "BRAID_BENCH_FJALL"),
        ("RAFT_ENGINE", "raft-engine", "BRAID_BENCH_RAFT_ENGINE"),
    ] {
        if has_feature(feature) {
            let version = locked_version(package).unwrap_or_else(|| "unknown version".to_owned());
            println!("cargo::rustc-env={variable}={version}");
        }
    }
    #[cfg(feature = "system-peer")]
    system::find();
}

/// Returns the name of the build's profile directory: `release`, `fat`, `dist`, or `debug` for the
/// profiles `dev` and `test`.
///
/// Cargo passes no other trace of a custom profile: `PROFILE` is `release` for all that inherit it.
fn profile() -> String {
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let mut above = Path::new(&out)
        .ancestors()
        .skip_while(|dir| !dir.ends_with("build"));
    let directory = above.nth(1).and_then(Path::file_name);
    let name = directory.map(|name| name.to_string_lossy().into_owned());
    name.or_else(|| std::env::var("PROFILE").ok())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Engines whose libraries belong to the system.
#[cfg(feature = "system-peer")]
mod system {
    /// Links each requested library that is installed, and sets its cfg `peer_NAME`.
    pub(crate) fn find() {
        if probe("rocksdb", "7.8", "librocksdb-dev").is_some() {
            println!("cargo::rustc-cfg=peer_rocksdb");
        }
        if let Some(library) = probe("wiredtiger", "3.2", "libwiredtiger-dev") {
            let shim = "src/engines/wiredtiger/shim.c";
            println!("cargo::rerun-if-changed={shim}");
            cc::Build::new()
                .includes(&library.include_paths)
                .file(shim)
                .compile("braid_wiredtiger");
            println!("cargo::rustc-cfg=peer_wiredtiger");
        }
    }

    /// Finds a library by pkg-config, which prints how to link it.
    fn probe(name: &str, at_least: &str, package: &str) -> Option<pkg_config::Library> {
        if !super::has_feature(&name.to_uppercase()) {
            return None;
        }
        match pkg_config::Config::new()
            .atleast_version(at_least)
            .probe(name)
        {
            Ok(library) => {
                let variable = name.to_uppercase();
                println!(
                    "cargo::rustc-env=BRAID_BENCH_{variable}={}",
                    library.version
                );
                Some(library)
            }
            Err(_) => {
                println!(
                    "cargo::warning=built without the peer {name}: pkg-config finds no {name} {at_least} or later \
                     (Debian: install {package})"
                );
                None
            }
        }
    }
}

fn has_feature(peer: &str) -> bool {
    std::env::var_os(format!("CARGO_FEATURE_PEER_{peer}")).is_some()
}

/// Returns the version of a linked package: a Rust library rarely exports its own.
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
