//! Aether (Johnson et al., VLDB 2010): the serial log with early lock release, flush pipelining,
//! and a buffer that many threads fill at once.
//!
//! A transaction is acknowledged when the strand is durable up to it. Recovery keeps everything up
//! to the first bad chunk.

use super::acknowledgement::Order;
use super::prefix::cut_at_bad_chunk;
use super::{Dependence, Kept, LockRelease, Protocol, Scanned};
use crate::LogError;

/// One strand whose byte order is the dependency order: a transaction releases its locks once its
/// log record is in the buffer, so a transaction that depends on it appends after it, and the
/// durable prefix of the strand is closed.
pub(crate) struct Aether;

impl Protocol for Aether {
    fn id(&self) -> u8 {
        3
    }

    fn forced_strands(&self) -> Option<usize> {
        Some(1)
    }

    /// §5 of the paper: consolidation keeps the single buffer from being a bottleneck for many
    /// cores.
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
