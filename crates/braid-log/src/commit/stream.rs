//! Streams: the bytes of large commits, which are in the log before their commits have sequence
//! numbers.
//!
//! A commit that has a number delays the acknowledgement of all greater numbers. So a large commit
//! writes its bytes first, as parts that carry the number of a stream. Then it is committed like a
//! small one: its log record, the commit record, names the stream.
//!
//! I2: recovery takes all parts of a stream that has a commit record, and ignores the others. The
//! parts lie in front of the commit record in the same strand. So a reader that finds the commit
//! record has found the parts, unless log was lost.
//!
//! No checkpoint takes its position while a commit has a stream, so the parts are never before the
//! position and the commit record after it.

use std::sync::atomic::Ordering;

use braid_rt::RwLockReadGuard;

use crate::LogError;
use crate::commit::ticket::StrandHandle;
use crate::flush::core::Core;
use crate::flush::reservation::Reservation;
use crate::format::log_record::COMMIT_BYTES;

/// Bytes of a commit from which on it is large, even if its log record fits into a buffer.
pub(crate) const LARGE_BYTES: usize = 256 << 10;

/// Most bytes of a part, so that a flush which small commits share stays short.
const PART_BYTES: usize = 128 << 10;

/// The bytes of a large commit, or of a large fragment, in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) number: u64,
    /// Bytes of all parts.
    pub(crate) total: u64,
}

/// Keeps threads from quiescing the log, and from closing it, until a large commit is finished.
#[derive(Debug)]
pub(crate) struct Large<'a> {
    _held: Option<RwLockReadGuard<'a, ()>>,
}

impl<'a> Large<'a> {
    /// # Errors
    /// [`LogError::Closed`].
    pub(crate) fn hold(core: &'a Core) -> Result<Self, LogError> {
        let is_held = !braid_rt::mutant!("checkpoint_within_streams");
        let held = is_held.then(|| core.large_commits.read());
        // The thread that closes the log holds the lock exclusively.
        if core.commit_slots.is_sealed() && !braid_rt::mutant!("stream_into_a_closed_log") {
            return Err(LogError::Closed);
        }
        Ok(Self { _held: held })
    }
}

/// The length of a payload.
#[inline]
pub(crate) fn payload_len(payload: &[&[u8]]) -> usize {
    payload.iter().map(|part| part.len()).sum()
}

impl Stream {
    /// Returns the beginning of the commit record's payload.
    pub(crate) fn named(self) -> [u8; COMMIT_BYTES] {
        let mut named = [0; COMMIT_BYTES];
        named[..8].copy_from_slice(&self.number.to_le_bytes());
        named[8..].copy_from_slice(&self.total.to_le_bytes());
        named
    }

    /// Writes the payload of a large commit, which the caller [holds](Large::hold). Each part that is
    /// in a buffer needs no reservation any more.
    ///
    /// # Errors
    /// [`LogError::Closed`] or [`LogError::Poisoned`]: what was written counts for nothing.
    #[cold]
    pub(crate) fn write(
        strand_handle: &StrandHandle,
        payload: &[&[u8]],
        reservation: &mut Reservation,
    ) -> Result<Self, LogError> {
        let core = &*strand_handle.core;
        let strand = &core.strands[strand_handle.strand];
        // Relaxed: the number only has to be unique.
        let number = core.streams.fetch_add(1, Ordering::Relaxed) + 1;
        let total = payload_len(payload);
        let mut written = 0;
        for mut rest in payload.iter().copied() {
            while !rest.is_empty() {
                let mut step = || {
                    let part = &rest[..rest.len().min(PART_BYTES)];
                    let taken = strand.try_append_part(number, written as u64, part);
                    if let Some(taken) = taken {
                        rest = &rest[taken..];
                        written += taken;
                    }
                    taken.is_some()
                };
                if !step() && !core.wait_for_buffer(strand_handle.strand, &mut step) {
                    return Err(core.poison().unwrap_or(LogError::Closed));
                }
                core.shrink_reservation(strand_handle.lane, reservation, total - written);
            }
        }
        Ok(Self {
            number,
            total: total as u64,
        })
    }
}
