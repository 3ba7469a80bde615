//! Repeats a record of writes on a drive in memory.

use std::io::{Error, Read, Result};
use std::ops::Range;
use std::sync::Arc;

use super::log::{LogEntry, WriteLog};
use super::{NOTE, Note};
use crate::{Blocking, MemoryDrive, MemoryOptions};

/// Bytes of a block: the smallest unit that a drive writes whole or not at all.
const BLOCK: u64 = 512;

/// The state of a drive after a part of its record of writes.
#[derive(Debug)]
pub struct Replay<R> {
    log: WriteLog<R>,
    drive: MemoryDrive,
    blocks: Blocking,
    /// Bytes without those of the notes.
    len: u64,
    /// Bytes whose next write is durable.
    durable: Vec<Range<u64>>,
    acknowledged: Option<Vec<u8>>,
}

impl<R: Read> Replay<R> {
    /// Begins with an empty drive of `bytes` bytes, notes included.
    pub fn new(log: WriteLog<R>, bytes: u64) -> Self {
        let len = bytes - NOTE as u64;
        let drive = MemoryDrive::with_options(MemoryOptions {
            blocks: len / BLOCK,
            ..MemoryOptions::default()
        });
        let blocks = Blocking::new(Arc::new(drive.clone()));
        Self {
            log,
            drive,
            blocks,
            len,
            durable: Vec::new(),
            acknowledged: None,
        }
    }

    /// Repeats the next entry. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// The record's error, or that of an entry beyond the end of the drive.
    pub fn advance(&mut self) -> Result<bool> {
        match self.log.next().transpose()? {
            None => return Ok(false),
            Some(LogEntry::Flush) => self.blocks.flush()?,
            // The contents are unspecified until the next write; they stay.
            Some(LogEntry::Discard { .. }) => {}
            Some(LogEntry::Write { offset, data, fua }) if offset < self.len => {
                let end = offset + data.len() as u64;
                let fua = self.take_durable(offset..end) || fua;
                let lba = offset / BLOCK;
                if fua {
                    self.blocks.write_durable(lba, &data)?;
                } else {
                    self.blocks.write(lba, &data)?;
                }
            }
            Some(LogEntry::Write { data, .. }) => match Note::decode(&data) {
                Some(Note::Durable { offset, len }) => {
                    self.durable.push(offset..offset.saturating_add(len));
                }
                Some(Note::Acknowledged(payload)) => self.acknowledged = Some(payload),
                None => return Err(Error::other("a note is damaged")),
            },
        }
        Ok(true)
    }

    /// Whether a note said that this write is durable. The kernel may divide and merge writes.
    fn take_durable(&mut self, write: Range<u64>) -> bool {
        let mut covered = 0;
        let mut left = Vec::new();
        for range in self.durable.drain(..) {
            let (start, end) = (range.start.max(write.start), range.end.min(write.end));
            if start >= end {
                left.push(range);
                continue;
            }
            covered += end - start;
            left.extend([range.start..start, end..range.end]);
        }
        left.retain(|range| !range.is_empty());
        self.durable = left;
        covered == write.end - write.start
    }

    /// Returns the payload of the last acknowledgement.
    pub fn acknowledged(&self) -> Option<&[u8]> {
        self.acknowledged.as_deref()
    }

    /// Returns a drive with what a power failure leaves now, as `seed` determines.
    pub fn image(&self, seed: u64) -> MemoryDrive {
        self.drive.crash(seed)
    }
}
