//! The libraries that cargo built beside a test.

use std::path::PathBuf;

/// The version of the interface in the shared library's name.
pub(crate) const INTERFACE: &str = env!("BRAID_INTERFACE");

/// The path of a library of this package, as cargo built it for the integration tests.
pub(crate) fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let beside = deps.join(name);
    if beside.exists() {
        return beside;
    }
    let above = deps.parent().unwrap().join(name);
    assert!(above.exists(), "no {name} in {deps:?} or above");
    above
}
