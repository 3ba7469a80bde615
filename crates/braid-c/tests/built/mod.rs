//! The libraries that cargo built for a test.

use std::path::PathBuf;

/// Version of the interface in the shared library's name.
pub(crate) const INTERFACE: &str = env!("BRAID_INTERFACE");

/// Returns the path of a library of this package, as cargo built it for the integration tests.
pub(crate) fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let library = deps.join(name);
    if library.exists() {
        return library;
    }
    let above = deps.parent().unwrap().join(name);
    assert!(above.exists(), "no {name} in {deps:?} or above");
    above
}
