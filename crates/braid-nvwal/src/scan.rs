//! Reads the transactions of a generation in their order: for recovery, and for readers.

use braid_rt::mutant;

use crate::chain::Chain;
use crate::error::LogError;
use crate::format::{Frame, HEADER, Header, Kind, NONE, Record, Salt, with};
use crate::index::Index;

/// Where the log of committed transactions ends, as far as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) position: u64,
    /// Checksum of all records before the position.
    pub(crate) earlier: u32,
    /// The tag of the last transaction; zero without one.
    pub(crate) tag: u64,
}

impl End {
    /// The end of an empty generation.
    pub(crate) fn of_empty(salt: Salt) -> Self {
        Self {
            position: 0,
            earlier: salt.seed(),
            tag: 0,
        }
    }
}

/// Reads the valid record at a position into `bytes`. `None` if there is none before the end of the
/// chain.
pub(crate) fn read_record<'a>(
    chain: &Chain,
    position: u64,
    page_size: usize,
    bytes: &'a mut Vec<u8>,
) -> Result<Option<Record<'a>>, LogError> {
    let room = chain.capacity().saturating_sub(position);
    if room < HEADER as u64 {
        return Ok(None);
    }
    let mut head = [0; HEADER];
    chain.read(position, &mut head)?;
    let Some(len) = Header::len_of(&head, page_size) else {
        return Ok(None);
    };
    if len as u64 > room {
        return Ok(None);
    }
    bytes.resize(len, 0);
    chain.read(position, bytes)?;
    Ok(Record::decode(bytes, chain.salt(), position, page_size))
}

/// Reads the transaction at the end, adds its frames to the index and moves the end. Returns whether
/// there is a whole valid one before the end of the chain; if not, nothing changes.
///
/// A record belongs to the transaction only if its checksum is that of its place in the generation,
/// and if its base is the newest frame of its page. A transaction counts only with a commit record
/// whose checksum covers every record before it. Calls `each` with the page and the frame of each
/// record of the transaction, in the order of the log.
pub(crate) fn next_transaction(
    chain: &Chain,
    page_size: usize,
    index: &mut Index,
    end: &mut End,
    each: &mut dyn FnMut(u64, Frame),
) -> Result<bool, LogError> {
    debug_assert_eq!(index.open_frames(), 0);
    let mut bytes = Vec::new();
    let (mut position, mut earlier) = (end.position, end.earlier);
    loop {
        let record = read_record(chain, position, page_size, &mut bytes);
        let header = match record {
            Ok(Some(record)) => record.header,
            Ok(None) => break,
            Err(error) => {
                index.roll_back_to(0);
                return Err(error);
            }
        };
        let next = position + u64::from(header.len);
        if header.kind == Kind::Commit {
            // R1
            if header.earlier != earlier && !mutant!("nvwal_ignore_earlier_records") {
                break;
            }
            for (page, frame) in index.open() {
                each(*page, *frame);
            }
            index.commit();
            *end = End {
                position: next,
                earlier: with(earlier, header.checksum),
                tag: header.page,
            };
            return Ok(true);
        }
        let previous = index.newest(header.page);
        let is_based = previous.map_or(NONE, |frame| frame.position) == header.previous
            && (header.kind == Kind::Whole
                || previous.is_some_and(|frame| frame.depth.checked_add(1) == Some(header.depth)));
        if !is_based {
            break;
        }
        let frame = Frame {
            position,
            depth: header.depth,
            tag: header.earlier,
        };
        index.append(header.page, frame);
        earlier = with(earlier, header.checksum);
        position = next;
    }
    index.roll_back_to(0);
    Ok(false)
}
