//! The records of a log.
//!
//! A record is a header of 32 bytes and a body, padded with zeros to a multiple of 8. All numbers
//! are in little-endian order.
//!
//! | bytes | frame | commit record |
//! |---|---|---|
//! | 0–3 | checksum of everything after it, and of identity, generation and position | same |
//! | 4–7 | length with header and padding | same |
//! | 8 | kind: 1 whole page, 2 difference | 3 |
//! | 9 | number of differences since the whole page | 0 |
//! | 10–11 | number of ranges | 0 |
//! | 12–15 | the caller's tag | checksum of all earlier records of the generation |
//! | 16–23 | page number | the caller's tag |
//! | 24–31 | position of the page's previous frame; all ones without one | number of the opening |
//!
//! The body of a frame has the descriptors of its ranges, then their bytes: ranges of a difference
//! to the previous frame, and those of a whole page to a page of zeros.

use std::ops::Range;

use braid_rt::mutant;

use crate::difference;

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 32;

/// Position of a frame that does not exist.
pub(crate) const NONE: u64 = u64::MAX;

/// A place between two transactions of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Number of the generation.
    pub generation: u64,
    /// Bytes of the generation's log before the place.
    pub position: u64,
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Whole,
    Difference,
    Commit,
}

/// What checksums include so that records of other logs and generations are invalid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Salt {
    pub(crate) identity: u64,
    pub(crate) generation: u64,
    /// The checksum from which those of the generation continue.
    seed: u32,
}

impl Salt {
    pub(crate) fn new(identity: u64, generation: u64) -> Self {
        let salt = match generation {
            _ if mutant!("nvwal_accept_stale_records") => 0,
            generation => generation,
        };
        let seed = crc32c::crc32c(&identity.to_le_bytes());
        Self {
            identity,
            generation,
            seed: crc32c::crc32c_append(seed, &salt.to_le_bytes()),
        }
    }

    /// The checksum from which those of a generation continue.
    pub(crate) fn seed(self) -> u32 {
        self.seed
    }

    fn checksum(self, position: u64, record: &[u8]) -> u32 {
        let seed = crc32c::crc32c_append(self.seed, &position.to_le_bytes());
        crc32c::crc32c_append(seed, &record[4..])
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) checksum: u32,
    pub(crate) len: u32,
    pub(crate) kind: Kind,
    pub(crate) depth: u8,
    pub(crate) ranges: u16,
    /// Of a commit record: checksum of all earlier records. Of a frame: the caller's tag.
    pub(crate) earlier: u32,
    /// Page number, or the caller's tag.
    pub(crate) page: u64,
    /// Position of the page's previous frame, or number of the opening.
    pub(crate) previous: u64,
}

impl Header {
    fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Some(Self {
            checksum: half(0),
            len: half(4),
            kind: match bytes[8] {
                1 => Kind::Whole,
                2 => Kind::Difference,
                3 => Kind::Commit,
                _ => return None,
            },
            depth: bytes[9],
            ranges: u16::from_le_bytes([bytes[10], bytes[11]]),
            earlier: half(12),
            page: word(16),
            previous: word(24),
        })
    }

    /// Length of the record that starts with these bytes; `None` if no record of a log with such
    /// pages does.
    pub(crate) fn len_of(bytes: &[u8; HEADER], page_size: usize) -> Option<usize> {
        let len = usize::try_from(Self::decode(bytes)?.len).ok()?;
        (len >= HEADER && len <= max_len(page_size) && len.is_multiple_of(8)).then_some(len)
    }

    fn encode_into(&self, record: &mut [u8]) {
        record[..4].copy_from_slice(&self.checksum.to_le_bytes());
        record[4..8].copy_from_slice(&self.len.to_le_bytes());
        record[8] = match self.kind {
            Kind::Whole => 1,
            Kind::Difference => 2,
            Kind::Commit => 3,
        };
        record[9] = self.depth;
        record[10..12].copy_from_slice(&self.ranges.to_le_bytes());
        record[12..16].copy_from_slice(&self.earlier.to_le_bytes());
        record[16..24].copy_from_slice(&self.page.to_le_bytes());
        record[24..32].copy_from_slice(&self.previous.to_le_bytes());
    }
}

/// Bytes of the longest record: a whole page in one range.
pub(crate) fn max_len(page_size: usize) -> usize {
    (HEADER + difference::descriptor_len(page_size) + page_size).next_multiple_of(8)
}

/// A valid record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) header: Header,
    body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Checks the bytes of a record, of the length that its header says.
    pub(crate) fn decode(
        bytes: &'a [u8],
        salt: Salt,
        position: u64,
        page_size: usize,
    ) -> Option<Self> {
        let (head, body) = bytes.split_first_chunk::<HEADER>()?;
        let header = Header::decode(head)?;
        if Header::len_of(head, page_size) != Some(bytes.len())
            || header.checksum != salt.checksum(position, bytes)
        {
            return None;
        }
        let record = Self { header, body };
        let is_valid = match header.kind {
            Kind::Commit => body.is_empty() && header.ranges == 0,
            Kind::Whole | Kind::Difference => {
                let is_linked = header.previous == NONE || header.previous < position;
                let is_whole = header.kind == Kind::Whole;
                is_linked
                    && is_whole == (header.depth == 0)
                    && (is_whole || header.previous != NONE)
                    && record.apply(page_size, |_, _| {}).is_some()
            }
        };
        is_valid.then_some(record)
    }

    /// Calls `each` with the offset and the bytes of each range of a frame.
    pub(crate) fn apply(&self, page_size: usize, each: impl FnMut(usize, &'a [u8])) -> Option<()> {
        difference::decode(self.body, usize::from(self.header.ranges), page_size, each)
    }
}

/// A page's frame as the writer and recovery remember it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) position: u64,
    /// Number of differences since the whole page.
    pub(crate) depth: u8,
    /// The caller's tag.
    pub(crate) tag: u32,
}

/// The bytes of a page that its frame has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    /// All of them.
    Everything,
    /// Those that are not in long ranges of zeros.
    NonZero,
    /// Those that differ from the image of the previous frame, unless they are most of the page.
    Since(&'a [u8]),
}

/// Encodes frames, in memory that it uses again.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// The newest record, without its checksum.
    pub(crate) record: Vec<u8>,
    /// Its ranges.
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Encoder {
    /// Encodes the frame of a page; returns its depth.
    pub(crate) fn frame(
        &mut self,
        (number, tag): (u64, u32),
        page: &[u8],
        previous: Option<Frame>,
        content: Content<'_>,
    ) -> u8 {
        let Self { record, ranges } = self;
        let mut kind = Kind::Whole;
        if let Content::Since(base) = content {
            difference::differing(Some(base), page, ranges);
            // A longer difference saves too little to lengthen the chain.
            if difference::encoded_len(ranges, page.len()) <= page.len() / 4 * 3 {
                kind = Kind::Difference;
            }
        }
        match (kind, content) {
            (Kind::Difference, _) => {}
            (_, Content::Everything) => {
                ranges.clear();
                ranges.push(0..page.len());
            }
            _ => difference::differing(None, page, ranges),
        }
        let count = match u16::try_from(ranges.len()) {
            Ok(count) => count,
            // More ranges than a header can say: everything from the first to the last.
            Err(_) => {
                let whole = ranges[0].start..ranges[ranges.len() - 1].end;
                ranges.clear();
                ranges.push(whole);
                1
            }
        };
        record.clear();
        record.resize(HEADER, 0);
        difference::encode(ranges, page, record);
        record.resize(record.len().next_multiple_of(8), 0);
        // Ranges are far enough apart that several never take more bytes than a single one.
        debug_assert!(record.len() <= max_len(page.len()));
        let depth = match (kind, previous) {
            (Kind::Difference, Some(previous)) => previous.depth + 1,
            _ => 0,
        };
        let header = Header {
            checksum: 0,
            len: u32::try_from(record.len()).expect("a page of at most 16 MiB"),
            kind,
            depth,
            ranges: count,
            earlier: tag,
            page: number,
            previous: previous.map_or(NONE, |previous| previous.position),
        };
        header.encode_into(record);
        depth
    }
}

/// Encodes a commit record.
pub(crate) fn encode_commit(tag: u64, opening: u64, earlier: u32) -> [u8; HEADER] {
    let mut record = [0; HEADER];
    let header = Header {
        checksum: 0,
        len: 32,
        kind: Kind::Commit,
        depth: 0,
        ranges: 0,
        earlier,
        page: tag,
        previous: opening,
    };
    header.encode_into(&mut record);
    record
}

/// Writes the checksum of a record at its position, and returns the checksum of all records up to
/// this one.
pub(crate) fn seal(record: &mut [u8], salt: Salt, position: u64, earlier: u32) -> u32 {
    let checksum = salt.checksum(position, record);
    record[..4].copy_from_slice(&checksum.to_le_bytes());
    with(earlier, checksum)
}

/// The checksum of all records up to one with this checksum.
pub(crate) fn with(earlier: u32, checksum: u32) -> u32 {
    crc32c::crc32c_append(earlier, &checksum.to_le_bytes())
}
