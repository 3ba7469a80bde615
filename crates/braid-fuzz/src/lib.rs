//! Fuzz targets: whatever bytes lie on the disk, reading them must not panic, hang, take memory without
//! bound, or accept what a checksum says is damaged.
//!
//! Each [`Target`] is a function of bytes, so that anything can drive it: the tests of this crate do with
//! [`mutate`], a few seconds long, and libFuzzer does through the wrappers in `fuzz/`.
//!
//! There are three kinds. *Decoders* take the bytes as they are. *Images* take them as an [`edit`] script
//! for a small log, data file or database that the code itself made, and may make its checksums fit again
//! afterwards: else nothing behind them would ever be reached. *Operations* take them as a program for the
//! API, and compare what that does with a `BTreeMap`.

pub mod edit;
pub mod mutate;
mod targets;

pub use targets::{TARGETS, Target};

/// Runs a target by its name.
///
/// # Panics
/// If there is none of this name, and whenever the target finds something.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target's name").run)(bytes);
}
