//! A record of writes in the format of dm-log-writes.
//!
//! All numbers are little-endian. The first sector has the magic `0x6a736677736872`, the version 1,
//! the number of entries (64 bits each) and the sector size (32 bits). An entry is a sector with the
//! first sector of the write, its number of sectors, flags and the length of the data in the sector
//! (64 bits each), followed by the sectors that were written. The number of entries may be that of
//! the last flush, so the record ends at an entry of zeros or at the end of the file.

use std::io::{Error, ErrorKind, Read, Result};

use braid_rt::to_usize;

const MAGIC: u64 = 0x006a_7366_7773_6872;
pub(super) const FLUSH: u64 = 1;
const FUA: u64 = 2;
pub(super) const DISCARD: u64 = 4;

/// Returns the first sector of a record.
pub(super) fn first_sector(sector: u64) -> Vec<u8> {
    let size = u32::try_from(sector).expect("a small sector");
    let mut bytes = header(sector, [MAGIC, 1, 0, 0]);
    bytes[24..28].copy_from_slice(&size.to_le_bytes());
    bytes
}

/// Returns a sector that begins with these words.
pub(super) fn header(sector: u64, words: [u64; 4]) -> Vec<u8> {
    let mut bytes = words.map(u64::to_le_bytes).concat();
    bytes.resize(to_usize(sector), 0);
    bytes
}

/// One entry of a [`WriteLog`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEntry {
    /// Bytes that were written.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
        /// Whether they are durable after the write.
        fua: bool,
    },
    /// All earlier writes are durable.
    Flush,
    /// Bytes that are no longer needed.
    Discard {
        /// Where, in bytes.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

/// A record of writes; see the module's documentation. Iterates over its entries.
#[derive(Debug)]
pub struct WriteLog<R> {
    input: R,
    sector: u64,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

/// Largest write that is believed.
const WRITE_MAX: u64 = 64 << 20;

impl<R: Read> WriteLog<R> {
    /// Begins to read a record.
    ///
    /// # Errors
    ///
    /// The input's error; `InvalidData` if it is not a record of this version.
    pub fn new(mut input: R) -> Result<Self> {
        let mut first = [0; 28];
        input.read_exact(&mut first)?;
        let word = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().expect("a word"));
        let sector = u64::from(u32::from_le_bytes(first[24..].try_into().expect("a word")));
        if word(0) != MAGIC || word(8) != 1 {
            return Err(invalid(
                "this is not a record of writes (dm-log-writes, version 1)",
            ));
        }
        if !sector.is_power_of_two() || !(512..=1 << 20).contains(&sector) {
            return Err(invalid(format!("the record has sectors of {sector} bytes")));
        }
        let mut log = Self { input, sector };
        log.pass_over(sector - 28)?;
        Ok(log)
    }

    fn pass_over(&mut self, bytes: u64) -> Result<()> {
        std::io::copy(&mut (&mut self.input).take(bytes), &mut std::io::sink()).map(drop)
    }

    fn entry(&mut self) -> Result<Option<LogEntry>> {
        let mut header = vec![0; to_usize(self.sector)];
        if let Err(error) = self.input.read_exact(&mut header) {
            let is_end = error.kind() == ErrorKind::UnexpectedEof;
            return if is_end { Ok(None) } else { Err(error) };
        }
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("a word"));
        let [start, sectors, flags] = [word(0), word(8), word(16)];
        if header[..32].iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let bytes = |sectors: u64| sectors.checked_mul(self.sector);
        let (Some(offset), Some(len)) = (bytes(start), bytes(sectors)) else {
            return Err(invalid("an entry lies beyond any drive"));
        };
        if flags & DISCARD != 0 {
            return Ok(Some(LogEntry::Discard { offset, len }));
        }
        if sectors == 0 {
            return Ok(Some(LogEntry::Flush));
        }
        if len > WRITE_MAX || flags & !(FLUSH | FUA) != 0 {
            return Err(invalid(format!(
                "an entry has {len} bytes and flags {flags}"
            )));
        }
        let mut data = vec![0; to_usize(len)];
        match self.input.read_exact(&mut data) {
            Ok(()) => Ok(Some(LogEntry::Write {
                offset,
                data,
                fua: flags & FUA != 0,
            })),
            // The recorder was killed.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<R: Read> Iterator for WriteLog<R> {
    type Item = Result<LogEntry>;

    fn next(&mut self) -> Option<Result<LogEntry>> {
        self.entry().transpose()
    }
}
