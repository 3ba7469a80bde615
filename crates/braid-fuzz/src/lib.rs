//! Fuzz targets: reading arbitrary bytes from the disk must not panic, hang, allocate without
//! bound, or accept data that fails its checksum.
//!
//! Each [`Target`] is a function of bytes, so any fuzzer can run it: the tests of this crate with
//! [`mutate`], for a few seconds, and libFuzzer through the wrappers in `fuzz/`.
//!
//! There are three kinds. *Decoders* read the bytes unchanged. *Images* read them as an [`edit`]
//! script for a small log, data file or database that the code itself wrote. Afterwards they may
//! repair its checksums, because otherwise no edit would reach the code after the checks.
//! *Operations* read the bytes as a program for the API, and compare the result with a `BTreeMap`.

pub mod edit;
pub mod mutate;
mod targets;

pub use targets::{TARGETS, Target};

/// Runs a target by its name.
///
/// # Panics
///
/// If no target has this name, and whenever the target finds a defect.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target's name").run)(bytes);
}
