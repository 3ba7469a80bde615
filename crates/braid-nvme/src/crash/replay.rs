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

    /// Whether notes said that this write is durable. The kernel may divide and merge writes, and
    /// several writes of the same bytes may be in flight, each with a note of its own.
    fn take_durable(&mut self, write: Range<u64>) -> bool {
        let mut missing = vec![write];
        let mut left = Vec::new();
        for range in self.durable.drain(..) {
            let part = missing.iter().find_map(|missing| overlap(missing, &range));
            let Some(part) = part else {
                left.push(range);
                continue;
            };
            left.extend(without(&range, &part));
            missing = missing.iter().flat_map(|m| without(m, &part)).collect();
        }
        self.durable = left;
        missing.is_empty()
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

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// The parts of a range before and after another one.
fn without(range: &Range<u64>, part: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = range.start..part.start.min(range.end);
    let after = part.end.max(range.start)..range.end;
    [before, after].into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::log::{first_sector, header};
    use super::*;

    fn write(record: &mut Vec<u8>, offset: u64, data: &[u8]) {
        record.extend(header(
            BLOCK,
            [offset / BLOCK, data.len() as u64 / BLOCK, 0, 0],
        ));
        record.extend_from_slice(data);
    }

    /// Two durable writes of the same bytes are in flight: both notes precede both writes. Then one
    /// of two blocks, and two blocks in one write.
    #[test]
    fn each_write_takes_a_note_of_its_own() {
        const BYTES: u64 = 1 << 20;
        let block = |byte: u8, count: usize| vec![byte; count * 512];
        let mut record = first_sector(BLOCK);
        let note = |record: &mut Vec<u8>, offset, len| {
            let note = Note::Durable { offset, len }.encode();
            write(record, BYTES - NOTE as u64, &note);
        };
        note(&mut record, 512, 512);
        note(&mut record, 512, 512);
        write(&mut record, 512, &block(1, 1));
        write(&mut record, 512, &block(2, 1));
        note(&mut record, 2048, 1024);
        write(&mut record, 2048, &block(3, 1));
        write(&mut record, 2560, &block(4, 1));
        note(&mut record, 4096, 512);
        note(&mut record, 4608, 512);
        write(&mut record, 4096, &block(5, 2));
        // No note says that this one is durable.
        write(&mut record, 8192, &block(6, 1));
        let mut replay = Replay::new(WriteLog::new(&record[..]).unwrap(), BYTES);
        while replay.advance().unwrap() {}
        let images = (0..100).map(|seed| replay.image(seed));
        let mut lost = 0;
        for image in images {
            let found = [1, 4, 5, 8, 9].map(|lba| image.block(lba)[0]);
            assert_eq!(found, [2, 3, 4, 5, 5]);
            lost += u32::from(image.block(16)[0] != 6);
        }
        assert!(lost > 0);
    }
}
