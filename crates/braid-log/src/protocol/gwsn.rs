//! GWSN: one number for each flush of the log instead of one for each record.
//!
//! A flush takes all that the strands of its lane hold at one instant and assigns the *global
//! WAL-flush sequence number* while it does. What a transaction depends on lies in the same flush
//! or in one with a smaller number: in its own lane because the instant is one for all strands, in
//! other lanes because the transaction waits for it, either at a lock or before it appends. So the
//! order of the flushes embeds the order of the dependencies (the paper's Lemmas 4 to 6).
//!
//! Versions still have the transactions' own numbers, since a snapshot needs a total order that is known when
//! a version is made; what is durable and what recovery keeps goes by flushes.

use super::LockRelease;
use super::{Dependence, Kept, Protocol, Scanned, check_acknowledged};
use crate::LogError;

/// The paper's theorem's setting: strict two-phase locking. What a transaction depends on is durable before
/// its own flush has a number, so every flush that arrived counts, gap or not.
pub(crate) struct GwsnStrict;

impl Protocol for GwsnStrict {
    fn id(&self) -> u8 {
        6
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Durable
    }

    fn numbers_flushes(&self) -> bool {
        true
    }

    fn dependence(&self) -> Dependence {
        Dependence::Durable
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        check_acknowledged(scanned)?;
        let newest = scanned.flushes.last().copied();
        Ok(Kept::Flushes(newest.unwrap_or(0).max(scanned.flush_base)))
    }

    fn kept(&self, _base: u64, words: &[u64]) -> Kept {
        Kept::Flushes(words.first().copied().unwrap_or(0))
    }
}

/// With early lock release: locks go once the flush has its number, and recovery keeps the flushes below
/// the first missing number.
pub(crate) struct Gwsn;

impl Protocol for Gwsn {
    fn id(&self) -> u8 {
        4
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Numbered
    }

    fn numbers_flushes(&self) -> bool {
        true
    }

    fn dependence(&self) -> Dependence {
        Dependence::Sealed
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        check_acknowledged(scanned)?;
        let mut cut = scanned.flush_base;
        for &flush in &scanned.flushes {
            if flush > cut + 1 && !braid_rt::mutant!("skip_gap_rule") {
                braid_rt::coverage_point("gap rule: flushes behind a gap");
                break;
            }
            cut = cut.max(flush);
        }
        Ok(Kept::Flushes(cut))
    }

    fn kept(&self, _base: u64, words: &[u64]) -> Kept {
        Kept::Flushes(words.first().copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_count_up_to_the_first_gap() {
        let scanned = Scanned {
            flush_base: 3,
            flushes: vec![2, 4, 5, 7],
            ..Scanned::default()
        };
        assert_eq!(Gwsn.cut(&scanned).unwrap(), Kept::Flushes(5));
        assert_eq!(GwsnStrict.cut(&scanned).unwrap(), Kept::Flushes(7));
        let covered = Scanned {
            flush_base: 3,
            flushes: vec![2, 3],
            ..Scanned::default()
        };
        assert_eq!(Gwsn.cut(&covered).unwrap(), Kept::Flushes(3));
        assert_eq!(GwsnStrict.cut(&covered).unwrap(), Kept::Flushes(3));
        let lost = Scanned {
            durable_seqno: 2,
            found_to_durable: 1,
            ..scanned
        };
        assert!(matches!(Gwsn.cut(&lost), Err(LogError::Corrupted { .. })));
    }
}
