//! The files of a lane, and the lengths of new ones.

use std::collections::VecDeque;

use crate::format::BLOCK;
use crate::format::segment::Segment;

/// The files of one lane.
#[derive(Debug, Default)]
pub(crate) struct PoolFiles {
    /// Segments with log in them, oldest first; the last is the one being written.
    pub(crate) live: VecDeque<Segment>,
    /// Segments ready for use, in sequence after the live ones.
    pub(crate) ready: VecDeque<Segment>,
    /// Released segments to be recycled, under their old names.
    pub(crate) free: Vec<Segment>,
    /// Released segments to be deleted.
    pub(crate) retired: Vec<Segment>,
}

impl PoolFiles {
    fn usable(&self) -> impl Iterator<Item = &Segment> {
        self.live.iter().chain(&self.ready).chain(&self.free)
    }

    /// All files.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Segment> {
        self.usable().chain(&self.retired)
    }

    /// Bytes of files that hold log or are ready to hold it.
    pub(super) fn usable_bytes(&self) -> u64 {
        self.usable().map(|file| file.len).sum()
    }
}

/// The part of a long segment that a segment made in need takes: 4 MiB of 64 MiB are filled with
/// zeroes in a few milliseconds.
const URGENT_PART: u64 = 16;

/// The files of a lane, and the lengths of new ones.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) files: PoolFiles,
    /// The sequence number of the next segment to be prepared.
    pub(super) next_sequence: u64,
    /// The first segment that was taken into use since the log was opened.
    pub(super) first: Option<u64>,
    /// The length of the segment that is being prepared in a turn; 0 if there is none.
    pub(super) preparing: u64,
    /// The length of the file that is being made ahead of need; 0 if there is none.
    pub(super) ahead: u64,
    /// The least length of a segment that is prepared.
    pub(super) least: u64,
    /// The initial value of `least`.
    pub(super) shortest: u64,
    /// Whether the lane has grown: `least` no longer changes.
    pub(super) has_grown: bool,
    /// Whether the device refused a segment of `least` bytes while the lane was to grow. The lane
    /// stays small until log is released.
    pub(super) is_stunted: bool,
    /// The greatest length of a segment.
    pub(super) most: u64,
    /// Whether all segments have the length `most`.
    pub(super) preallocated: bool,
}

impl State {
    /// Bytes of the segments that this opening has written, or will write next, and that are kept.
    pub(super) fn in_use(&self) -> u64 {
        let first = self.first.unwrap_or(u64::MAX);
        let live = self.files.live.iter().filter(|file| file.sequence >= first);
        live.chain(&self.files.ready).map(|file| file.len).sum()
    }

    /// The length of the next segment: the bytes in use, so that the log doubles.
    pub(super) fn next_len(&self) -> u64 {
        if self.preallocated {
            return self.most;
        }
        let doubled = self.in_use().checked_next_power_of_two();
        doubled.unwrap_or(u64::MAX).max(self.least).min(self.most)
    }

    /// The length of a shorter segment after the device had no room for `len` bytes; `None` if no
    /// segment may be that short. A lane that has not grown then stays small.
    pub(super) fn shorter(&mut self, len: u64) -> Option<u64> {
        if self.preallocated || braid_rt::mutant!("insist_on_long_segments") {
            return None;
        }
        if len <= self.least && !self.has_grown && self.least > self.shortest {
            self.is_stunted = true;
            self.least = self.shortest;
        }
        let half = (len / 2).next_multiple_of(BLOCK as u64).max(self.least);
        (half < len).then_some(half)
    }

    /// The length of a segment that a commit or a flush lacks: short while a longer one is made
    /// ahead, so that its own file is all that the commit waits for, and long enough that a fast
    /// writer does not divide the log into hundreds of files. At least `whole`, so that one segment
    /// suffices for a large commit, and the ends of short segments do not use up the limit.
    pub(super) fn urgent_len(&self, whole: u64) -> u64 {
        let len = self.next_len();
        if self.ahead == 0 || self.preallocated || braid_rt::mutant!("make_long_files_in_need") {
            return len;
        }
        braid_rt::coverage_point("log: a commit makes a segment beside one made ahead");
        let whole = if braid_rt::mutant!("make_many_short_segments") {
            0
        } else {
            whole
        };
        (len / URGENT_PART)
            .max(whole)
            .next_multiple_of(BLOCK as u64)
            .max(self.least)
            .min(len)
    }

    /// Whether all segments that are being prepared have at least `least` bytes.
    pub(super) fn prepares_only(&self, least: u64) -> bool {
        let is_long = |len: u64| len == 0 || len >= least;
        is_long(self.preparing) && is_long(self.ahead)
    }

    /// Whether a released segment can be recycled. If all are too short, they are to be deleted.
    pub(super) fn has_free(&mut self) -> bool {
        let files = &mut self.files;
        if files.free.iter().all(|file| file.len < self.least) {
            files.retired.append(&mut files.free);
        }
        !files.free.is_empty()
    }

    /// Removes the longest released segment, to recycle it. If all are too short, they are to be
    /// deleted.
    pub(super) fn pop_free(&mut self) -> Option<Segment> {
        if !self.has_free() {
            return None;
        }
        let free = self.files.free.iter().enumerate();
        let (at, _) = free.max_by_key(|(_, file)| file.len)?;
        Some(self.files.free.swap_remove(at))
    }

    /// Removes a released segment that is to be deleted, whose number no later segment takes.
    pub(super) fn pop_retired(&mut self) -> Option<Segment> {
        let next = self.next_sequence;
        let is_past = |file: &Segment| file.sequence < next;
        let at = self.files.retired.iter().rposition(is_past)?;
        let segment = self.files.retired.swap_remove(at);
        let oldest = self.files.live.front();
        assert!(
            oldest.is_none_or(|oldest| segment.sequence < oldest.sequence),
            "I6: only released log is deleted"
        );
        Some(segment)
    }

    /// Removes a segment that is to be deleted before the next one takes its number.
    pub(super) fn pop_unpublished(&mut self) -> Option<Segment> {
        let next = self.next_sequence;
        let is_taken = |file: &Segment| file.sequence >= next;
        let at = self.files.retired.iter().position(is_taken)?;
        Some(self.files.retired.swap_remove(at))
    }
}
