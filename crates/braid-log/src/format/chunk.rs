//! The unit of flush on the medium: a header and the log records of one strand.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic |
//! | 4 | format version |
//! | 5 | padding: the exponent of a power of two, or 0 for 4,096 bytes |
//! | 6..8 | lane |
//! | 8..10 | strand |
//! | 10..12 | chunks of the same flush that follow |
//! | 12..16 | incarnation |
//! | 16..24 | chunk sequence number in the lane |
//! | 24..32 | least number in the chunk; 0 if it has none |
//! | 32..40 | greatest number in the chunk; 0 if it has none |
//! | 40..48 | durable seqno known when the chunk was sealed |
//! | 48..52 | payload length in bytes |
//! | 52..56 | log records |
//! | 56..64 | number of the flush, with a protocol that numbers flushes; else 0 |
//! | 64..68 | link: CRC-32C of the lane's chunk before |
//! | 68..72 | CRC-32C of the log's identity, the bytes before and the payload |
//!
//! Numbers are little-endian. The payload follows, and zeroes up to the next offset of the segment
//! that is a multiple of the padding. The next chunk begins there. Small chunks of one flush share a
//! unit of the device: each but the last has the least padding, so they begin within the unit.
//!
//! The identity, which is not stored in the chunk, makes a chunk of another log invalid here. A user
//! may store such bytes as a value, and a crash may tear the chunk around them. The checksums of an
//! earlier version do not begin with it; the header of the segment says so.

use braid_rt::to_usize;

use crate::base::numbers::{FlushNo, LaneId, SeqNo, StrandId};
use crate::format::padding::Padding;

/// Upper bound of the numbers of transactions, flushes, chunks and segments: no number from here on
/// is ever assigned, so counting on from a number read from the medium never overflows.
pub(crate) const NUMBERS_MAX: u64 = 1 << 62;

/// Upper bound of incarnations.
pub(crate) const INCARNATIONS_MAX: u32 = 1 << 31;

/// Bytes of the header.
pub(crate) const CHUNK_HEADER: usize = 72;

const CRC_AT: usize = CHUNK_HEADER - 4;

const MAGIC: u32 = 0x4b48_4342; // "BCHK"
const FORMAT: u8 = 2;

/// The checksum of a log's identity, with which the checksum of each of its chunks begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSeed(u32);

impl ChunkSeed {
    /// Of a log of an earlier version.
    pub(crate) const NONE: Self = Self(0);

    /// The seed of the log with this identity.
    pub(crate) fn of(log: u128) -> Self {
        if braid_rt::mutant!("believe_chunks_of_other_logs") {
            return Self::NONE;
        }
        Self(crc32c::crc32c(&log.to_le_bytes()))
    }
}

/// A chunk header, without its CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub(crate) lane: LaneId,
    pub(crate) strand: StrandId,
    pub(crate) incarnation: u32,
    pub(crate) sequence: u64,
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    pub(crate) durable_seqno: SeqNo,
    pub(crate) payload_len: u32,
    pub(crate) log_records: u32,
    pub(crate) link: u32,
    /// Number of chunks of the same flush that follow. The flush is complete with the chunk where
    /// this is 0.
    pub(crate) more: u16,
    /// The number of the flush.
    pub(crate) flush: FlushNo,
    pub(crate) padding: Padding,
}

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl ChunkHeader {
    /// Bytes on the medium of the chunk at `offset` of a segment, padding included.
    pub(crate) fn size_at(&self, offset: u64) -> usize {
        let unit = self.padding.bytes() as u64;
        let before = if braid_rt::mutant!("pad_from_the_beginning_of_a_chunk") {
            0
        } else {
            to_usize(offset % unit)
        };
        self.padding
            .pad(before + CHUNK_HEADER + self.payload_len as usize)
            - before
    }

    /// The offset of a segment after the chunk at `offset`, padding included.
    pub(crate) fn end_at(&self, offset: u64) -> u64 {
        offset + self.size_at(offset) as u64
    }

    /// Writes header and CRC in front of the payload that already lies in `chunk`, and returns the
    /// CRC.
    pub(crate) fn seal(&self, seed: ChunkSeed, chunk: &mut [u8]) -> u32 {
        let end = CHUNK_HEADER + self.payload_len as usize;
        chunk[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        chunk[4..6].copy_from_slice(&[FORMAT, self.padding.encode()]);
        chunk[6..8].copy_from_slice(&self.lane.to_u16().to_le_bytes());
        chunk[8..10].copy_from_slice(&self.strand.to_u16().to_le_bytes());
        chunk[10..12].copy_from_slice(&self.more.to_le_bytes());
        chunk[12..16].copy_from_slice(&self.incarnation.to_le_bytes());
        chunk[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        chunk[24..32].copy_from_slice(&self.first.get().to_le_bytes());
        chunk[32..40].copy_from_slice(&self.last.get().to_le_bytes());
        chunk[40..48].copy_from_slice(&self.durable_seqno.get().to_le_bytes());
        chunk[48..52].copy_from_slice(&self.payload_len.to_le_bytes());
        chunk[52..56].copy_from_slice(&self.log_records.to_le_bytes());
        chunk[56..64].copy_from_slice(&self.flush.get().to_le_bytes());
        chunk[64..68].copy_from_slice(&self.link.to_le_bytes());
        let crc = checksum(seed, chunk, end);
        chunk[CRC_AT..CHUNK_HEADER].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Whether these bytes may begin with a header.
    #[inline]
    pub(crate) fn may_begin(bytes: &[u8]) -> bool {
        bytes.first_chunk() == Some(&MAGIC.to_le_bytes())
    }

    /// Reads a header. Returns `None` if the bytes are not a header. The CRC is not checked: see
    /// [`ChunkHeader::check`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < CHUNK_HEADER || get_u32(bytes, 0) != MAGIC || bytes[4] != FORMAT {
            return None;
        }
        Some(Self {
            lane: get_u16(bytes, 6).into(),
            strand: get_u16(bytes, 8).into(),
            incarnation: get_u32(bytes, 12),
            sequence: get_u64(bytes, 16),
            first: SeqNo::new(get_u64(bytes, 24)),
            last: SeqNo::new(get_u64(bytes, 32)),
            durable_seqno: SeqNo::new(get_u64(bytes, 40)),
            payload_len: get_u32(bytes, 48),
            log_records: get_u32(bytes, 52),
            link: get_u32(bytes, 64),
            more: get_u16(bytes, 10),
            flush: FlushNo::new(get_u64(bytes, 56)),
            padding: Padding::decode(bytes[5])?,
        })
    }

    /// Returns the payload and the CRC of a complete chunk, if the CRC matches.
    pub(crate) fn check<'a>(&self, seed: ChunkSeed, chunk: &'a [u8]) -> Option<(&'a [u8], u32)> {
        let end = CHUNK_HEADER + self.payload_len as usize;
        let stored = get_u32(chunk, CRC_AT);
        let fits = chunk.len() >= end
            && (checksum(seed, chunk, end) == stored || braid_rt::mutant!("skip_chunk_checksum"));
        fits.then(|| (&chunk[CHUNK_HEADER..end], stored))
    }
}

pub(crate) fn checksum(seed: ChunkSeed, chunk: &[u8], end: usize) -> u32 {
    let header = crc32c::crc32c_append(seed.0, &chunk[..CRC_AT]);
    crc32c::crc32c_append(header, &chunk[CHUNK_HEADER..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_and_checks() {
        let header = ChunkHeader {
            lane: LaneId::new(3),
            strand: StrandId::new(7),
            incarnation: 2,
            sequence: 99,
            first: SeqNo::new(5),
            last: SeqNo::new(11),
            durable_seqno: SeqNo::new(4),
            payload_len: 100,
            log_records: 3,
            link: 0xdead_beef,
            more: 2,
            flush: FlushNo::new(1 << 40),
            padding: Padding::LEAST,
        };
        let mut chunk = vec![0xaa; 172];
        chunk.resize(header.size_at(4096), 0);
        assert_eq!(chunk.len(), 192);
        let seed = ChunkSeed::of(1 << 100);
        let crc = header.seal(seed, &mut chunk);
        assert_eq!(ChunkHeader::decode(&chunk), Some(header));
        assert_eq!(header.check(seed, &chunk).unwrap(), (&[0xaa; 100][..], crc));
        let other = ChunkSeed::of(1 << 100 | 1);
        assert!(header.check(other, &chunk).is_none(), "of another log");
        assert!(chunk[172..].iter().all(|&b| b == 0));
        for at in (0..CRC_AT).chain([72, 171]) {
            chunk[at] ^= 1;
            let accepted = ChunkHeader::decode(&chunk)
                .and_then(|h| h.check(seed, &chunk))
                .is_some();
            assert!(!accepted, "a flipped bit in byte {at} went unseen");
            chunk[at] ^= 1;
        }
    }

    /// A chunk that begins within a unit ends with it, so that the next flush begins a unit.
    #[test]
    fn a_chunk_ends_with_a_unit_of_the_segment() {
        let size = |padding, payload_len, offset| {
            let header = ChunkHeader {
                lane: LaneId::new(0),
                strand: StrandId::new(0),
                incarnation: 1,
                sequence: 1,
                first: SeqNo::NONE,
                last: SeqNo::NONE,
                durable_seqno: SeqNo::NONE,
                payload_len,
                log_records: 0,
                link: 0,
                more: 0,
                flush: FlushNo::NONE,
                padding,
            };
            assert_eq!(
                header.end_at(offset),
                offset + header.size_at(offset) as u64
            );
            header.size_at(offset)
        };
        assert_eq!(size(Padding::BLOCK, 28, 8192), 4096);
        assert_eq!(size(Padding::BLOCK, 28, 8192 + 128), 4096 - 128);
        assert_eq!(size(Padding::BLOCK, 28, 8192 + 4032), 64 + 4096);
        assert_eq!(size(Padding::BLOCK, 4024, 4096), 4096);
        assert_eq!(size(Padding::LEAST, 28, 8192 + 128), 128);
    }
}
