//! Segment files: names, and the header that binds a file to its place in a log.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic |
//! | 8..12 | format version: 2; 3 if the checksums of the chunks begin with the identity; 4 if also several chunks may share a unit of the device |
//! | 12..14 | lane |
//! | 14 | commit protocol; 64 added if the log may contain fragments although the protocol keeps numbers after a gap |
//! | 15 | padding of the flushes: the exponent of a power of two, or 0 for 4,096 bytes |
//! | 16..32 | identity of the log |
//! | 32..40 | sequence number of the segment in the lane |
//! | 40..44 | incarnation |
//! | 44..48 | link: CRC-32C of the lane's last chunk before the segment |
//! | 48..56 | base: the last number of older incarnations that is kept |
//! | 56..64 | sequence number of the segment's first chunk |
//! | 64..72 | durable seqno known when the segment was begun |
//! | 72..80 | length of the file in bytes |
//! | 80..84 | lanes of the log |
//! | 84..88 | CRC-32C of the bytes before and after |
//! | 88.. | for each lane: the part kept of the previous incarnation, see [`SegmentHeader::kept`] |
//!
//! All of it lies in the first 512 bytes, so that a torn write leaves the old header or the new
//! one on a disk. Persistent memory may leave words of both, and so no valid header.
//!
//! The next 512 bytes are the *successor mark*. The lane writes it after the header of the next
//! segment is durable, and before anything in that segment is acknowledged. If a marked segment's
//! successor is missing or has an older header, log is lost: no crash explains this.
//!
//! | bytes | field of the successor mark |
//! |---|---|
//! | 512..520 | magic |
//! | 520..524 | incarnation of the next segment |
//! | 524..528 | CRC-32C of the bytes 16..44 (log, sequence and incarnation of this segment) and 512..524 |

use std::io;
use std::sync::Arc;

use braid_io::{AlignedBuf, Device, File};

use crate::LogError;
use crate::base::numbers::{LaneId, SeqNo};
use crate::format::BLOCK;
use crate::format::chunk::{ChunkSeed, INCARNATIONS_MAX, NUMBERS_MAX, get_u16, get_u32, get_u64};
use crate::format::padding::Padding;

/// Most lanes a log can have: as many as a segment header has room for in its first sector.
pub(crate) const LANES_MAX: usize = 32;

const MAGIC: &[u8; 8] = b"BRAIDLOG";
const FORMAT_WITHOUT_SEED: u32 = 2;
const FORMAT_OF_WHOLE_UNITS: u32 = 3;
const FORMAT: u32 = 4;
const HEADER_BYTES: usize = 88;

/// Offset of the successor mark, which has its own sector.
const MARK_AT: usize = 512;
const MARK_BYTES: usize = 16;
const MARK_MAGIC: &[u8; 8] = b"BRAIDNXT";

/// A name of a segment file, for asking a device about the medium of the log.
pub(crate) const ANY_LOG_FILE: &str = "log-00-00000000.seg";

/// Whether a name is that of a file of a log: of a segment, or of an unfinished one. A
/// [`SplitDevice`](braid_io::SplitDevice) can put these files on a device of their own.
pub fn is_log_name(name: &str) -> bool {
    parse_segment_name(name).is_some() || is_unfinished_name(name)
}

/// The name of a segment file.
pub(crate) fn segment_name(lane: LaneId, sequence: u64) -> String {
    format!("log-{lane:02}-{sequence:08}.seg")
}

/// The name of a segment file while it is prepared.
pub(crate) fn unfinished_name(lane: LaneId, sequence: u64) -> String {
    format!("log-{lane:02}-{sequence:08}.new")
}

/// Returns the lane of a log file's name: of a segment's, or of an unfinished one's. Devices for
/// [side lanes](crate::LogOptions::side_lanes) have the files of their lanes.
pub fn lane_of_name(name: &str) -> Option<usize> {
    let (lane, _) = parse_name(name, ".seg").or_else(|| parse_name(name, ".new"))?;
    is_log_name(name).then_some(lane.get())
}

/// Lane and sequence number of a segment file's name.
pub(crate) fn parse_segment_name(name: &str) -> Option<(LaneId, u64)> {
    let (lane, sequence) = parse_name(name, ".seg")?;
    (segment_name(lane, sequence) == name).then_some((lane, sequence))
}

/// Whether a name is that of an unfinished segment, which a crash left.
pub(crate) fn is_unfinished_name(name: &str) -> bool {
    parse_name(name, ".new").is_some_and(|(lane, sequence)| unfinished_name(lane, sequence) == name)
}

fn parse_name(name: &str, suffix: &str) -> Option<(LaneId, u64)> {
    let (lane, sequence) = name
        .strip_prefix("log-")?
        .strip_suffix(suffix)?
        .split_once('-')?;
    let lane = LaneId::new(lane.parse().ok()?);
    let sequence = sequence.parse().ok().filter(|s| *s < NUMBERS_MAX)?;
    Some((lane, sequence))
}

/// An open segment file.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) sequence: u64,
    /// Length in bytes, rounded down to the block.
    pub(crate) len: u64,
    pub(crate) file: Arc<dyn File>,
}

impl Segment {
    /// Reads the segment's header. Returns `None` if there is no valid one.
    pub(crate) fn header(
        &self,
        device: &dyn Device,
        lane: LaneId,
    ) -> Result<Option<SegmentHeader>, LogError> {
        let name = segment_name(lane, self.sequence);
        SegmentHeader::read(device, &*self.file, &name)
    }

    /// Makes the file durable.
    pub(crate) fn sync(&self, lane: LaneId) -> Result<(), LogError> {
        self.file.sync().map_err(|error| {
            let name = segment_name(lane, self.sequence);
            LogError::io(format!("cannot make {name} durable"), error)
        })
    }

    /// Writes a header block, durably.
    pub(crate) fn write_header(&self, lane: LaneId, block: &[u8]) -> Result<(), LogError> {
        let written = self.file.write_durable_at(&[&block[..BLOCK]], 0);
        written.map_err(|error| {
            let name = segment_name(lane, self.sequence);
            LogError::io(format!("cannot write the header of {name}"), error)
        })
    }
}

/// The contents of a segment's first block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log: u128,
    pub(crate) lane: LaneId,
    pub(crate) lanes: u32,
    pub(crate) protocol: u8,
    pub(crate) sequence: u64,
    pub(crate) incarnation: u32,
    pub(crate) link: u32,
    pub(crate) base: SeqNo,
    pub(crate) first_chunk: u64,
    pub(crate) durable_seqno: SeqNo,
    pub(crate) len: u64,
    /// The padding of its flushes.
    pub(crate) padding: Padding,
    /// Whether several chunks of a flush may share a unit of the padding. In a log of an earlier version,
    /// each chunk takes whole units.
    pub(crate) shares_units: bool,
    /// Whether the checksums of its chunks begin with the log's identity. A log of an earlier version
    /// lacks it.
    pub(crate) has_seed: bool,
    /// For each lane, the last number (of a flush or of a transaction, depending on the protocol)
    /// that is kept of the previous incarnation.
    pub(crate) kept: Vec<u64>,
    /// The successor mark: the incarnation of the next segment, once that was begun.
    pub(crate) successor: Option<u32>,
}

/// The first block of a file that may be a segment.
#[derive(Debug)]
pub(crate) enum HeaderFound {
    Valid(SegmentHeader),
    /// Any part of the first header of a log's file, or nothing.
    Torn,
    Foreign,
}

impl SegmentHeader {
    /// Returns what stands for the header of a lane without log. It is never written.
    pub(crate) fn absent(lane: LaneId) -> Self {
        Self {
            log: 0,
            lane,
            lanes: 0,
            protocol: 0,
            sequence: 0,
            incarnation: 0,
            link: 0,
            base: SeqNo::NONE,
            first_chunk: 0,
            durable_seqno: SeqNo::NONE,
            len: 0,
            padding: Padding::LEAST,
            has_seed: true,
            shares_units: true,
            kept: Vec::new(),
            successor: None,
        }
    }

    /// With what the checksums of the segment's chunks begin.
    pub(crate) fn seed(&self) -> ChunkSeed {
        if self.has_seed {
            ChunkSeed::of(self.log)
        } else {
            ChunkSeed::NONE
        }
    }

    /// The unit at whose multiples chunks begin and end.
    pub(crate) fn chunk_unit(&self) -> Padding {
        if self.shares_units {
            Padding::LEAST
        } else {
            self.padding
        }
    }

    /// Returns the header with a successor mark.
    pub(crate) fn marked(&self, incarnation: u32) -> Self {
        Self {
            successor: Some(incarnation),
            ..self.clone()
        }
    }

    /// Encodes the header block.
    pub(crate) fn encode(&self, device: &dyn Device) -> AlignedBuf {
        let mut block = device.allocate(BLOCK);
        block[0..8].copy_from_slice(MAGIC);
        let format = match (self.has_seed, self.shares_units) {
            (true, true) => FORMAT,
            (true, false) => FORMAT_OF_WHOLE_UNITS,
            (false, _) => FORMAT_WITHOUT_SEED,
        };
        block[8..12].copy_from_slice(&format.to_le_bytes());
        block[12..14].copy_from_slice(&self.lane.to_u16().to_le_bytes());
        block[14] = self.protocol;
        block[15] = self.padding.encode();
        block[16..32].copy_from_slice(&self.log.to_le_bytes());
        block[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        block[40..44].copy_from_slice(&self.incarnation.to_le_bytes());
        block[44..48].copy_from_slice(&self.link.to_le_bytes());
        block[48..56].copy_from_slice(&self.base.get().to_le_bytes());
        block[56..64].copy_from_slice(&self.first_chunk.to_le_bytes());
        block[64..72].copy_from_slice(&self.durable_seqno.get().to_le_bytes());
        block[72..80].copy_from_slice(&self.len.to_le_bytes());
        block[80..84].copy_from_slice(&self.lanes.to_le_bytes());
        for (place, kept) in block[HEADER_BYTES..].chunks_exact_mut(8).zip(&self.kept) {
            place.copy_from_slice(&kept.to_le_bytes());
        }
        let crc = checksum(&block, self.kept.len());
        block[84..88].copy_from_slice(&crc.to_le_bytes());
        if let Some(incarnation) = self.successor {
            block[MARK_AT..MARK_AT + 8].copy_from_slice(MARK_MAGIC);
            block[MARK_AT + 8..MARK_AT + 12].copy_from_slice(&incarnation.to_le_bytes());
            let crc = mark_checksum(&block);
            block[MARK_AT + 12..MARK_AT + MARK_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
        block
    }

    /// Reads a header. Returns `None` if the block is not a header, or is torn.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        if block.len() < HEADER_BYTES || &block[0..8] != MAGIC {
            return None;
        }
        let (has_seed, shares_units) = match get_u32(block, 8) {
            FORMAT => (true, true),
            FORMAT_OF_WHOLE_UNITS => (true, false),
            FORMAT_WITHOUT_SEED => (false, false),
            _ => return None,
        };
        let lanes = get_u32(block, 80) as usize;
        let end = HEADER_BYTES + 8 * lanes;
        if lanes > LANES_MAX || block.len() < end || checksum(block, lanes) != get_u32(block, 84) {
            return None;
        }
        let header = Self {
            log: u128::from(get_u64(block, 16)) | u128::from(get_u64(block, 24)) << 64,
            lane: get_u16(block, 12).into(),
            lanes: get_u32(block, 80),
            protocol: block[14],
            padding: Padding::decode(block[15])?,
            has_seed,
            shares_units,
            sequence: get_u64(block, 32),
            incarnation: get_u32(block, 40),
            link: get_u32(block, 44),
            base: SeqNo::new(get_u64(block, 48)),
            first_chunk: get_u64(block, 56),
            durable_seqno: SeqNo::new(get_u64(block, 64)),
            len: get_u64(block, 72),
            kept: (HEADER_BYTES..end)
                .step_by(8)
                .map(|at| get_u64(block, at))
                .collect(),
            successor: successor(block),
        };
        let numbers = [
            header.sequence,
            header.base.get(),
            header.first_chunk,
            header.durable_seqno.get(),
        ];
        let is_possible = header.incarnation < INCARNATIONS_MAX
            && numbers.iter().all(|number| *number < NUMBERS_MAX);
        is_possible.then_some(header)
    }

    /// Reads the header of a file of the log with an identity.
    pub(crate) fn read_or_torn(
        device: &dyn Device,
        file: &dyn File,
        name: &str,
        identity: u128,
    ) -> Result<HeaderFound, LogError> {
        let mut block = device.allocate(BLOCK);
        file.read_at(&mut block[..BLOCK], 0)
            .map_err(|error| LogError::io(format!("cannot read the header of {name}"), error))?;
        if let Some(header) = Self::decode(&block) {
            return Ok(HeaderFound::Valid(header));
        }
        let [low, high] = braid_io::identity_words(16, identity);
        let known = [(0, u64::from_le_bytes(*MAGIC)), low, high];
        Ok(if braid_io::may_be_torn(&block[..BLOCK], &known) {
            HeaderFound::Torn
        } else {
            HeaderFound::Foreign
        })
    }

    /// Reads the header of a file. Returns `None` if the file has no valid header, or is too short.
    pub(crate) fn read(
        device: &dyn Device,
        file: &dyn File,
        name: &str,
    ) -> Result<Option<Self>, LogError> {
        let mut block = device.allocate(BLOCK);
        match file.read_at(&mut block[..BLOCK], 0) {
            Ok(()) => Ok(Self::decode(&block)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(LogError::io(
                format!("cannot read the header of {name}"),
                error,
            )),
        }
    }
}

/// Reads the successor mark, if the block has one that belongs to its header.
fn successor(block: &[u8]) -> Option<u32> {
    let mark = block.get(MARK_AT..MARK_AT + MARK_BYTES)?;
    let is_mark = &mark[..8] == MARK_MAGIC && get_u32(mark, 12) == mark_checksum(block);
    is_mark.then(|| get_u32(mark, 8))
}

fn mark_checksum(block: &[u8]) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c(&block[16..44]),
        &block[MARK_AT..MARK_AT + 12],
    )
}

pub(crate) fn checksum(block: &[u8], lanes: usize) -> u32 {
    let bounds = &block[HEADER_BYTES..HEADER_BYTES + 8 * lanes];
    crc32c::crc32c_append(crc32c::crc32c(&block[..HEADER_BYTES - 4]), bounds)
}

#[cfg(test)]
mod tests {
    use braid_io::{MemoryDevice, OpenMode};

    use super::*;

    #[test]
    fn names_round_trip() {
        assert_eq!(segment_name(LaneId::new(3), 17), "log-03-00000017.seg");
        for (lane, sequence) in [(0, 0), (3, 17), (63, 123_456_789_012)] {
            let lane = LaneId::new(lane);
            assert_eq!(
                parse_segment_name(&segment_name(lane, sequence)),
                Some((lane, sequence))
            );
        }
        for name in [
            "log-3-00000017.seg",
            "log-03-17.seg",
            "log-03-00000017.new",
            "data.seg",
            "",
        ] {
            assert_eq!(parse_segment_name(name), None, "{name}");
        }
        assert!(is_unfinished_name(&unfinished_name(LaneId::new(1), 2)));
        for name in ["log-of-a-voyage.new", "log-1-2.new", "log-01-00000002.seg"] {
            assert!(!is_unfinished_name(name), "{name}");
        }
        for name in [ANY_LOG_FILE, "log-01-00000002.new"] {
            assert!(is_log_name(name), "{name}");
        }
        assert!(!is_log_name("log-1-2.seg") && !is_log_name("data.braid"));
    }

    #[test]
    fn a_file_shorter_than_a_header_has_none() {
        let device = MemoryDevice::new();
        let file = device.open("log", OpenMode::CreateNew).unwrap();
        file.set_len(100).unwrap();
        assert_eq!(SegmentHeader::read(&device, &*file, "log").unwrap(), None);
    }

    #[test]
    fn header_round_trips() {
        let header = SegmentHeader {
            log: 0x1234_5678_9abc_def0_1122_3344_5566_7788,
            lane: LaneId::new(2),
            lanes: 4,
            protocol: 1,
            sequence: 5,
            incarnation: 3,
            link: 9,
            base: SeqNo::new(77),
            first_chunk: 12,
            durable_seqno: SeqNo::new(70),
            len: 1 << 20,
            padding: Padding::LEAST,
            has_seed: true,
            shares_units: true,
            kept: vec![5, 6, 7, 8],
            successor: Some(4),
        };
        let mut block = header.encode(&MemoryDevice::new());
        assert_eq!(SegmentHeader::decode(&block).as_ref(), Some(&header));
        for at in 0..HEADER_BYTES + 32 {
            block[at] ^= 4;
            assert_eq!(
                SegmentHeader::decode(&block),
                None,
                "a flipped bit in byte {at}"
            );
            block[at] ^= 4;
        }
        // A mark that does not belong to the header is ignored; the header remains valid.
        let unmarked = SegmentHeader {
            successor: None,
            ..header
        };
        for at in MARK_AT..MARK_AT + MARK_BYTES {
            block[at] ^= 4;
            assert_eq!(SegmentHeader::decode(&block).as_ref(), Some(&unmarked));
            block[at] ^= 4;
        }
        let mut later = SegmentHeader {
            sequence: 6,
            ..unmarked
        };
        let encoded = later.encode(&MemoryDevice::new());
        block[..MARK_AT].copy_from_slice(&encoded[..MARK_AT]);
        assert_eq!(SegmentHeader::decode(&block).as_ref(), Some(&later));
        later.successor = Some(4);
        assert_ne!(SegmentHeader::decode(&block), Some(later));
    }
}
