//! Epochs (Silo, Tu et al., SOSP 2013; FOEDUS, Kimura, SIGMOD 2015): transactions are acknowledged
//! by epochs.
//!
//! A transaction releases its locks at precommit. It is acknowledged when every number up to the
//! end of its epoch is durable ([`Protocol::durable_seqno`]); [`Epochs`] says where that end is.
//! Recovery keeps everything below the first missing number.

use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;

use super::acknowledgement::Order;
use super::prefix::cut_at_gap;
use super::{Dependence, Frontier, Kept, LockRelease, Protocol, Scanned};
use crate::LogError;
use crate::base::numbers::{AtomicSeqNo, SeqNo};

/// Many strands; an epoch is the run of numbers between two ticks, and is acknowledged once all of
/// it is durable in every strand.
///
/// Silo's recovery keeps whole epochs, since its log does not order the transactions inside an
/// epoch. Braid's log does: every transaction has a number, and every prefix of the numbers is
/// closed. So recovery keeps the same transactions as P-WAL's: all acknowledged epochs, and all
/// later transactions up to the first gap.
pub(crate) struct Epoch;

impl Protocol for Epoch {
    fn id(&self) -> u8 {
        5
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Precommit
    }

    fn dependence(&self) -> Dependence {
        Dependence::Implied
    }

    fn order(&self) -> Order {
        Order::Epochs
    }

    fn durable_seqno(&self, frontier: &Frontier) -> SeqNo {
        let durable = frontier.durable();
        if frontier.epoch_end <= durable {
            frontier.epoch_end
        } else {
            SeqNo::NONE
        }
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        cut_at_gap(scanned).map(Kept::Numbers)
    }
}

/// The end of the newest epoch. The next one ends with a tick, or because a thread waits for it.
#[derive(Debug)]
pub(crate) struct Epochs {
    end: CachePadded<AtomicSeqNo>,
}

impl Epochs {
    pub(crate) fn new(base: SeqNo) -> Self {
        Self {
            end: CachePadded::new(AtomicSeqNo::new(base)),
        }
    }

    /// The last number of the newest epoch that has ended.
    pub(crate) fn end(&self) -> SeqNo {
        // Acquire: pairs with `end_with`.
        self.end.load(Ordering::Acquire)
    }

    /// Ends the epoch with the newest number assigned. Returns whether the epoch held any number.
    /// No epoch ends before the one before it is acknowledged, so that a waiter's epoch is
    /// acknowledged however fast numbers are assigned.
    pub(crate) fn end_with(&self, newest: SeqNo, durable_seqno: SeqNo) -> bool {
        let before = self.end.load(Ordering::Relaxed);
        if before > durable_seqno || newest == before {
            return false;
        }
        // Release: pairs with `end`. If several threads end the epoch at once, one success is
        // enough.
        let _ = self
            .end
            .replace(before, newest, Ordering::Release, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_acknowledged_as_a_whole() {
        let frontier = Frontier {
            assigned: SeqNo::new(9),
            commit_slots: SeqNo::MAX,
            strands: SeqNo::new(7),
            epoch_end: SeqNo::new(6),
        };
        assert_eq!(Epoch.durable_seqno(&frontier).get(), 6);
        let unfinished = Frontier {
            epoch_end: SeqNo::new(7),
            ..frontier
        };
        assert_eq!(Epoch.durable_seqno(&unfinished), SeqNo::NONE);
    }

    #[test]
    fn an_epoch_ends_after_the_one_before_it_is_acknowledged() {
        let epochs = Epochs::new(SeqNo::new(4));
        let end = |newest, durable| epochs.end_with(SeqNo::new(newest), SeqNo::new(durable));
        assert!(!end(4, 4), "an epoch without numbers");
        assert!(end(6, 4));
        assert_eq!(epochs.end().get(), 6);
        assert!(!end(9, 5), "the epoch before is not durable");
        assert_eq!(epochs.end().get(), 6);
        assert!(end(9, 6));
        assert_eq!(epochs.end().get(), 9);
    }
}
