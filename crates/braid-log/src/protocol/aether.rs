//! Aether (Johnson et al., VLDB 2010): the serial log with early lock release, flush pipelining, and a buffer
//! that takes many threads at once.
//!
//! A transaction is acknowledged when the strand is durable up to it. Recovery keeps everything up to
//! the first bad chunk.

use super::acknowledgement::Order;
use super::prefix::cut_at_bad_chunk;
use super::{Dependence, Kept, LockRelease, Protocol, Scanned};
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

    fn dependence(&self) -> Dependence {
        Dependence::Implied
    }

    fn order(&self) -> Order {
        Order::Numbers
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        Ok(Kept::Numbers(cut_at_bad_chunk(scanned)))
    }
}
