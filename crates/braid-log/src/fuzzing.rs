//! Entry points for the fuzz targets: the decoders of the log's bytes, and its checksums.
//!
//! A fuzzer never guesses a checksum, so it cannot reach code after a checksum test. So a target
//! edits a log and then recomputes the checksums and links.

use crate::format::BLOCK;
use crate::format::chunk::{CHUNK_HEADER, ChunkHeader, ChunkSeed, get_u32};
use crate::format::log_record::LogRecords;
use crate::format::segment::SegmentHeader;
use crate::options::LogOptions;

/// The unit in which segments are written.
pub const BLOCK_BYTES: usize = BLOCK;

/// Whether the bytes are a valid segment header.
pub fn is_segment_header(bytes: &[u8]) -> bool {
    SegmentHeader::decode(bytes).is_some()
}

/// Counts the log records of a chunk of the log with an identity. Returns `None` if the bytes are not
/// a chunk of valid log records.
pub fn records_of_chunk(bytes: &[u8], log: Option<u128>) -> Option<usize> {
    let header = ChunkHeader::decode(bytes)?;
    let (payload, _) = header.check(seed(log), bytes)?;
    log_records(payload)
}

/// Counts the log records of a payload. Returns `None` if the bytes are not a payload.
pub fn log_records(payload: &[u8]) -> Option<usize> {
    let mut log_records = LogRecords::new(payload);
    let mut count = 0;
    while let Some(log_record) = log_records.next().ok()? {
        let (dependencies, payload) = log_record.split();
        assert!(dependencies.count() * 8 + payload.len() <= log_record.payload.len());
        count += 1;
    }
    Some(count)
}

/// Returns the offsets of the chunks of an undamaged segment.
pub fn chunks(segment: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = BLOCK;
    while let Some(header) = segment.get(at..).and_then(ChunkHeader::decode) {
        places.push(at);
        at += header.size_at(at as u64);
    }
    places
}

/// Recomputes the checksum of a segment's header.
pub fn seal_header(segment: &mut [u8]) {
    if segment.len() < BLOCK || get_u32(segment, 80) as usize > LogOptions::MAX_LANES {
        return;
    }
    let crc = crate::format::segment::checksum(segment, get_u32(segment, 80) as usize);
    segment[84..88].copy_from_slice(&crc.to_le_bytes());
}

/// Makes a segment's header that of an earlier version, whose chunks do not depend on the identity.
/// Then the checksums have to be computed again.
pub fn make_earlier(segment: &mut [u8]) {
    segment[8..12].copy_from_slice(&2_u32.to_le_bytes());
}

/// Returns the identity in a segment's header with which the checksums of the chunks begin, if they do.
pub fn identity(segment: &[u8]) -> Option<u128> {
    let bytes = segment.get(16..32)?;
    (get_u32(segment, 8) != 2).then(|| u128::from_le_bytes(bytes.try_into().expect("16 bytes")))
}

fn seed(log: Option<u128>) -> ChunkSeed {
    log.map_or(ChunkSeed::NONE, ChunkSeed::of)
}

/// Recomputes the checksums of the chunks of a log at these offsets; with `relink`, also their links.
pub fn seal_chunks(segment: &mut [u8], log: Option<u128>, places: &[usize], relink: bool) {
    let seed = seed(log);
    let mut link = None;
    for &at in places {
        let Some(chunk) = segment.get_mut(at..).filter(|c| c.len() >= CHUNK_HEADER) else {
            return;
        };
        if let Some(link) = link.filter(|_| relink) {
            chunk[64..68].copy_from_slice(&u32::to_le_bytes(link));
        }
        let end = CHUNK_HEADER + get_u32(chunk, 48) as usize;
        if end <= chunk.len() {
            let crc = crate::format::chunk::checksum(seed, chunk, end);
            chunk[CHUNK_HEADER - 4..CHUNK_HEADER].copy_from_slice(&crc.to_le_bytes());
        }
        link = Some(get_u32(chunk, CHUNK_HEADER - 4));
    }
}
