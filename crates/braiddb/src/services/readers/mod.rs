//! Readers in other processes alongside one writer; see
//! `docs/decisions/0022-readers-in-other-processes.md`.
//!
//! A reader pins the newest checkpoint in the [`ReaderTable`], checks that it is still the newest,
//! replays the log up to the durable position that the writer announces, and keeps its changes in
//! memory. The writer checks the pins once per checkpoint, after the new superblock is durable and
//! before it frees anything that the previous checkpoint needs. In this order, either the writer
//! sees the pin, or the reader sees the new superblock.

mod announcing;
mod paced;
mod view;
mod writer;

pub(crate) use self::announcing::Commits;
#[cfg(all(test, loom))]
pub(crate) use self::announcing::{Announcements, FlushAnnouncer};
pub(crate) use self::view::{Attempt, LogPin, Pace, Pins, Source, View};
pub(crate) use self::writer::Readers;
