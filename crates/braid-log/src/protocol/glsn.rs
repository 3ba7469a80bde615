//! P-WAL's protocol: parallel strands ordered by one global number (Nakamura et al., 2019).
//!
//! A transaction releases its locks at precommit. It is acknowledged when it is durable, and every
//! transaction with a smaller number is durable in its strand ([`Frontier::durable`]). Recovery
//! keeps everything below the first missing number.
//!
//! [`Frontier::durable`]: super::Frontier::durable

use super::acknowledgement::Order;
use super::prefix::cut_at_gap;
use super::{Dependence, Kept, LockRelease, Protocol, Scanned};
use crate::LogError;

/// P-WAL: early lock release, prefix acknowledgement over all strands, gap rule in recovery.
pub(crate) struct Glsn;

impl Protocol for Glsn {
    fn id(&self) -> u8 {
        2
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

    /// Keeps everything below the first missing number: a later transaction may have read what an
    /// earlier one wrote.
    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        cut_at_gap(scanned).map(Kept::Numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Frontier, Run};
    use super::*;
    use crate::base::numbers::SeqNo;

    #[test]
    fn durable_seqno_is_the_least_of_all() {
        let free = Frontier {
            assigned: SeqNo::new(9),
            commit_slots: SeqNo::MAX,
            strands: SeqNo::MAX,
            epoch_end: SeqNo::NONE,
        };
        assert_eq!(Glsn.durable_seqno(&free).get(), 9);
        assert_eq!(
            Glsn.durable_seqno(&Frontier {
                commit_slots: SeqNo::new(4),
                ..free
            })
            .get(),
            3
        );
        assert_eq!(
            Glsn.durable_seqno(&Frontier {
                commit_slots: SeqNo::new(4),
                strands: SeqNo::new(2),
                ..free
            })
            .get(),
            1
        );
    }

    #[test]
    fn cut_ends_at_the_first_gap() {
        let runs = |runs: &[(u64, u64)]| {
            let run = |&(first, last): &(u64, u64)| Run {
                first: SeqNo::new(first),
                last: SeqNo::new(last),
                ..Run::default()
            };
            runs.iter().map(run).collect::<Vec<_>>()
        };
        let mut scanned = Scanned {
            base: SeqNo::new(10),
            durable_seqno: SeqNo::new(12),
            found_to_durable: 2,
            ..Scanned::default()
        };
        let cut = |scanned: &Scanned| Glsn.cut(scanned);
        assert_eq!(cut(&scanned).unwrap(), Kept::Numbers(SeqNo::new(12)));
        scanned.tail = runs(&[(13, 13), (14, 16), (18, 20)]);
        assert_eq!(cut(&scanned).unwrap(), Kept::Numbers(SeqNo::new(16)));
        scanned.tail = runs(&[(14, 14), (18, 20)]);
        assert_eq!(cut(&scanned).unwrap(), Kept::Numbers(SeqNo::new(12)));
        // A transaction is kept whole or not at all, whichever of its fragments is missing.
        let whole = runs(&[(13, 13)])[0];
        let parts = [
            Run::fragment(14, 15, 0, 4),
            Run::fragment(16, 16, 2, 3),
            Run::fragment(17, 19, 3, 0),
        ];
        for missing in 0..=3 {
            scanned.tail = vec![whole];
            let present = parts.iter().enumerate().filter(|(at, _)| *at != missing);
            scanned.tail.extend(present.map(|(_, part)| *part));
            let last = if missing == 3 { 19 } else { 13 };
            assert_eq!(cut(&scanned).unwrap(), Kept::Numbers(SeqNo::new(last)));
        }
        scanned.found_to_durable = 1;
        assert!(matches!(cut(&scanned), Err(LogError::Corrupted { .. })));
    }
}
