//! The archive of the log: every transaction that was ever durable, in order, in files of its own.
//!
//! An archive is written by following the log, not by copying its segments: what is in it is committed,
//! durable and in the order of the numbers, whatever the protocol, the lanes and the crashes in between. Each
//! batch says from which number to which it goes, so a hole has a name, and when it was written, so a time has
//! a number. Format: `docs/backup.md`.

mod batch;
mod owner;
mod read;
mod service;
mod until;
mod write;

pub(crate) use read::{Archive, ArchivedTransaction};
pub(crate) use service::ArchiveWriter;
pub use until::Until;
pub(crate) use write::Archiver;

pub(crate) use batch::nanos;
pub(crate) use batch::seal;
