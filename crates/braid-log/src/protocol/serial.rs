//! The classic serial log: one strand, locks held until the flush.
//!
//! A transaction is acknowledged, and releases its locks, when the strand is durable up to it.
//! Recovery keeps everything up to the first bad chunk.

use super::acknowledgement::Order;
use super::prefix::cut_at_bad_chunk;
use super::{Dependence, Kept, LockRelease, Protocol, Scanned};
use crate::LogError;

/// Serial write-ahead logging, the baseline.
pub(crate) struct Serial;

impl Protocol for Serial {
    fn id(&self) -> u8 {
        1
    }

    fn forced_strands(&self) -> Option<usize> {
        Some(1)
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Durable
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

#[cfg(test)]
mod tests {
    use super::super::Run;
    use super::*;
    use crate::base::numbers::SeqNo;

    #[test]
    fn cut_keeps_records_after_a_gap() {
        let scanned = Scanned {
            base: SeqNo::new(3),
            durable_seqno: SeqNo::new(5),
            found_to_durable: 2,
            tail: [(6, 6), (8, 9)]
                .map(|(first, last)| Run {
                    first: SeqNo::new(first),
                    last: SeqNo::new(last),
                    ..Run::default()
                })
                .to_vec(),
            ..Scanned::default()
        };
        assert_eq!(Serial.cut(&scanned).unwrap(), Kept::Numbers(SeqNo::new(9)));
        // The header of a new segment may be the only place that says how much was durable.
        let empty = Scanned {
            tail: Vec::new(),
            ..scanned
        };
        assert_eq!(Serial.cut(&empty).unwrap(), Kept::Numbers(SeqNo::new(5)));
    }
}
