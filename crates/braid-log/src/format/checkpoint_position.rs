//! Where recovery starts: the log's half of a checkpoint.

use braid_rt::narrow;

use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::format::chunk::{INCARNATIONS_MAX, NUMBERS_MAX};
use crate::format::segment::LANES_MAX;

/// The place of the next chunk of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePosition {
    /// Sequence number of the segment.
    pub segment: u64,
    /// Byte offset in the segment.
    pub offset: u64,
    /// Sequence number of the next chunk.
    pub chunk: u64,
    /// CRC-32C of the chunk before.
    pub link: u32,
    /// The log's incarnation.
    pub incarnation: u32,
}

impl LanePosition {
    /// The position of a side lane that has no log: none of it counts.
    pub const ABSENT: Self = Self {
        segment: 0,
        offset: 0,
        chunk: 0,
        link: 0,
        incarnation: 0,
    };

    /// Whether the lane has no log at the position.
    pub fn is_absent(&self) -> bool {
        self.segment == 0
    }
}

/// Where recovery starts, as given by [`Log::quiesce`](crate::Log::quiesce): everything up to
/// `seqno` is covered by the checkpoint that stores this; all later log records lie at or after the
/// positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPosition {
    /// The last number that the checkpoint covers.
    pub seqno: SeqNo,
    /// The last number of a flush before the positions; [`FlushNo::NONE`] with a protocol that does
    /// not number flushes.
    pub flush: FlushNo,
    /// One position per lane. The last side lanes may be missing: they have no log.
    pub lanes: Vec<LanePosition>,
}

impl CheckpointPosition {
    /// Returns the position of a lane.
    pub(crate) fn lane(&self, lane: LaneId) -> LanePosition {
        let position = self.lanes.get(lane.get()).copied();
        position.unwrap_or(LanePosition::ABSENT)
    }

    /// Whether this can be a position of a log with this number of lanes, not counting side lanes. A
    /// position may have side lanes that were given up since.
    pub(crate) fn fits(&self, lanes: usize) -> bool {
        let main = self.lanes.get(..lanes);
        main.is_some_and(|main| !main.iter().any(LanePosition::is_absent))
    }

    /// Whether the position is before another one of the same log. Two positions can have the same
    /// number and different places, for example if an incarnation has begun between them: then there
    /// is no transaction from one to the other, but a scan that begins at the earlier one needs its
    /// segment.
    pub fn is_before(&self, other: &Self) -> bool {
        if self.seqno != other.seqno || braid_rt::mutant!("order_positions_by_number") {
            return self.seqno < other.seqno;
        }
        let place = |lane: &LanePosition| (lane.segment, lane.offset);
        // Each lane only advances. A side lane may begin and end, but then the others advance, too.
        let mut lanes = self.lanes.iter().zip(&other.lanes);
        let is_in_both =
            |own: &LanePosition, other: &LanePosition| !own.is_absent() && !other.is_absent();
        lanes.any(|(own, other)| is_in_both(own, other) && place(own) < place(other))
    }

    /// Returns the one of two positions of the same log that is before the other.
    pub fn older(self, other: Self) -> Self {
        if other.is_before(&self) { other } else { self }
    }

    /// Drops the last side lanes as far as they have no log.
    pub(crate) fn trim(&mut self, lanes: usize) {
        while self.lanes.len() > lanes && self.lanes.last().is_some_and(LanePosition::is_absent) {
            self.lanes.pop();
        }
    }
}

const LANE_BYTES: usize = 32;

impl CheckpointPosition {
    /// Encodes the position for the checkpoint's superblock: 20 bytes and 32 per lane. The encoding
    /// carries no checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20 + LANE_BYTES * self.lanes.len());
        out.extend_from_slice(&self.seqno.get().to_le_bytes());
        out.extend_from_slice(&self.flush.get().to_le_bytes());
        out.extend_from_slice(&narrow::<u32>(self.lanes.len()).to_le_bytes());
        for lane in &self.lanes {
            out.extend_from_slice(&lane.segment.to_le_bytes());
            out.extend_from_slice(&lane.offset.to_le_bytes());
            out.extend_from_slice(&lane.chunk.to_le_bytes());
            out.extend_from_slice(&lane.link.to_le_bytes());
            out.extend_from_slice(&lane.incarnation.to_le_bytes());
        }
        out
    }

    /// Reads what [`CheckpointPosition::encode`] wrote.
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if the length does not fit, or a number is out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        match Self::decode_first(bytes)? {
            (start, []) => Ok(start),
            _ => Err(LogError::Incompatible {
                what: "cannot read a checkpoint position in the log: bytes follow its end"
                    .to_owned(),
            }),
        }
    }

    /// Reads what [`CheckpointPosition::encode`] wrote at the beginning of `bytes`; returns the
    /// rest, too.
    ///
    /// # Errors
    /// As [`CheckpointPosition::decode`].
    pub fn decode_first(bytes: &[u8]) -> Result<(Self, &[u8]), LogError> {
        let wrong = || LogError::Incompatible {
            what: "cannot read a checkpoint position in the log: it is malformed".to_owned(),
        };
        let (seqno, rest) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (flush, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (count, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let count = u32::from_le_bytes(*count) as usize;
        if count > LANES_MAX {
            return Err(wrong());
        }
        let (lanes, rest) = rest
            .split_at_checked(count * LANE_BYTES)
            .ok_or_else(wrong)?;
        let word = |lane: &[u8], at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&lane[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let lanes = lanes
            .chunks_exact(LANE_BYTES)
            .map(|lane| {
                let tail = word(lane, 24);
                LanePosition {
                    segment: word(lane, 0),
                    offset: word(lane, 8),
                    chunk: word(lane, 16),
                    link: (tail & 0xffff_ffff) as u32,
                    incarnation: (tail >> 32) as u32,
                }
            })
            .collect();
        let start = Self {
            seqno: SeqNo::new(u64::from_le_bytes(*seqno)),
            flush: FlushNo::new(u64::from_le_bytes(*flush)),
            lanes,
        };
        let is_possible = |lane: &LanePosition| {
            lane.segment.max(lane.chunk) < NUMBERS_MAX && lane.incarnation < INCARNATIONS_MAX
        };
        if start.seqno.get().max(start.flush.get()) >= NUMBERS_MAX
            || !start.lanes.iter().all(is_possible)
        {
            return Err(wrong());
        }
        Ok((start, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_positions_is_that_of_the_log() {
        let at = |seqno: u64, segments: &[u64]| CheckpointPosition {
            seqno: SeqNo::new(seqno),
            flush: FlushNo::NONE,
            lanes: (segments.iter())
                .map(|&segment| LanePosition {
                    segment,
                    offset: 4096,
                    ..LanePosition::ABSENT
                })
                .collect(),
        };
        let is_before = |one: &CheckpointPosition, other: &CheckpointPosition| {
            assert!(!other.is_before(one), "{other:?} before {one:?}");
            one.is_before(other)
        };
        assert!(is_before(&at(4, &[5, 7]), &at(5, &[5, 7])));
        assert!(is_before(&at(4, &[5, 7]), &at(4, &[5, 8])));
        assert!(is_before(&at(4, &[5]), &at(4, &[6, 1])), "a lane more");
        assert!(is_before(&at(4, &[5, 7]), &at(4, &[6, 0])), "a lane less");
        assert!(!is_before(&at(4, &[5, 7]), &at(4, &[5, 7])));
    }

    #[test]
    fn encodes_and_decodes() {
        let lane = LanePosition {
            segment: 3,
            offset: 4096,
            chunk: 9,
            link: 77,
            incarnation: 2,
        };
        let start = CheckpointPosition {
            seqno: SeqNo::new(42),
            flush: FlushNo::new(7),
            lanes: vec![lane, LanePosition { segment: 8, ..lane }],
        };
        let bytes = start.encode();
        assert_eq!(CheckpointPosition::decode(&bytes).unwrap(), start);
        for cut in 0..bytes.len() {
            assert!(
                CheckpointPosition::decode(&bytes[..cut]).is_err(),
                "accepted {cut} bytes"
            );
        }
    }
}
