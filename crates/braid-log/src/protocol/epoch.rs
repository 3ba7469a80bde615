//! Epochs (Silo, Tu et al., SOSP 2013; FOEDUS, Kimura, SIGMOD 2015): clients are answered by epochs.

use super::LockRelease;
use super::{Frontier, Kept, Protocol, Scanned, cut_at_gap};
use crate::LogError;

/// Many strands; an epoch is the run of numbers between two ticks, and is acknowledged once all of it is
/// durable in every strand.
///
/// Silo's recovery keeps whole epochs, since its log does not order the transactions inside of one. Ours
/// does: every transaction has a number, and every prefix of the numbers is closed. So recovery keeps
/// what P-WAL's keeps, which holds all acknowledged epochs and whatever more arrived without a gap.
pub(crate) struct Epoch;

impl Protocol for Epoch {
    fn id(&self) -> u8 {
        5
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Precommit
    }

    fn durable_seqno(&self, frontier: &Frontier) -> u64 {
        let durable = frontier.durable();
        match frontier.epoch_end <= durable {
            true => frontier.epoch_end,
            false => 0,
        }
    }

    fn has_epochs(&self) -> bool {
        true
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        cut_at_gap(scanned).map(Kept::Numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_acknowledged_as_a_whole() {
        let frontier = Frontier {
            assigned: 9,
            commit_slots: u64::MAX,
            strands: 7,
            epoch_end: 6,
        };
        assert_eq!(Epoch.durable_seqno(&frontier), 6);
        let unfinished = Frontier {
            epoch_end: 7,
            ..frontier
        };
        assert_eq!(Epoch.durable_seqno(&unfinished), 0);
    }
}
