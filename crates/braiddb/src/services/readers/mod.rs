//! Readers in other processes next to one writer; see `docs/decisions/0022-readers-in-other-processes.md`.
//!
//! A reader pins the newest checkpoint in the [`ReaderTable`], makes sure that it still is the newest, replays
//! the log up to where the writer says it is durable, and keeps what it changes in memory. The writer looks
//! at the pins once per checkpoint, after the new superblock is durable and before it frees anything that
//! the checkpoint before needs. In this order, either the writer sees the pin, or the reader sees
//! the new superblock.

mod view;
mod writer;

pub(crate) use self::view::{Attempt, LogPin, Pins, Source, View};
pub(crate) use self::writer::Readers;
