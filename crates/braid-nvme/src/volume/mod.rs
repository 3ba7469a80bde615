//! Named files on a drive, without a file system.
//!
//! A [`Volume`] divides a drive into allocation units and keeps a directory: names, lengths, and the
//! units of each file. The directory is in memory; its changes reach the drive as entries of a
//! journal. The contents of files are written in place, and no entry is needed for that.
//!
//! ```text
//! 0        superblock                     512 KiB  its second copy
//! 1 MiB    journal, half 0                         journal, half 1
//! then     allocation units
//! ```
//!
//! # Rules
//!
//! - **V1** No unit belongs to two files, or lies outside the drive; the units of a file cover its
//!   length.
//! - **V2** A unit that leaves a file is deallocated and reused only after the entry that removes it
//!   is durable.
//! - **V3** An entry is written after the one before it is durable, and applies as a whole or not at
//!   all. So only the last entry can be torn; a damaged entry before a good one is an error.
//! - **V4** The snapshot that begins a generation is durable before a superblock names it, and the
//!   previous generation stays as it is until the next one begins.
//! - **V5** No entry is appended to a generation before both superblocks name it. So each of them
//!   leads to a complete directory, and losing either loses nothing.
//! - **V6** An entry that exposes contents (units, valid bytes) is written after these contents are
//!   durable. Bytes that the journal does not call valid read as zero.
//! - **V7** An opening makes durable what it has read before it acts on it: it flushes the drive,
//!   and writes the last entry and the superblocks again. A process may have been killed while they
//!   were in the drive's cache, or have ended because their write failed.
//! - **V8** After a failed write of the directory or a failed flush, nothing is acknowledged (I8).
//! - **V9** Units beyond the former end of a drive that has grown are used only after the
//!   superblocks contain its new size.

mod detect;
mod error;
mod file;
mod fsck;
mod image;
mod journal;
mod medium;
mod open;
mod space;
mod superblock;
#[cfg(test)]
mod tests;

pub use error::VolumeError;
pub use file::VolumeFile;
pub use fsck::{Contents, Report, contents, fsck};
pub use open::{FormatOptions, Volume, VolumeInfo};
