//! Aether (Johnson et al., VLDB 2010): the serial log with early lock release, flush pipelining, and a buffer
//! that takes many threads at once.

use super::LockRelease;
use super::{Kept, Protocol, Scanned, cut_at_bad_chunk};
use crate::LogError;

/// One strand whose byte order is the dependency order: a transaction's locks go once its log
/// record is in the buffer, so whoever depends on it appends behind it, and the durable prefix of
/// the strand is closed.
pub(crate) struct Aether;

impl Protocol for Aether {
    fn id(&self) -> u8 {
        3
    }

    fn forced_strands(&self) -> Option<usize> {
        Some(1)
    }

    /// §5: what keeps one buffer from being the bottleneck of many cores.
    fn consolidates(&self) -> bool {
        true
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Precommit
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        Ok(Kept::Numbers(cut_at_bad_chunk(scanned)))
    }
}
