//! The archive of the log: every transaction that was ever durable, in order, in separate files.
//!
//! An archive is written by reading the log, not by copying its segments. So its transactions are
//! committed, durable and ordered by sequence number, whatever the protocol, the lanes and the
//! crashes in between. Each batch records its range of sequence numbers, so a hole can be reported
//! exactly, and the time of its writing, so a time can be mapped to a sequence number. Format:
//! `docs/backup.md`.

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
