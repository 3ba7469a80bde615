//! The classic serial log: one strand, locks held until the flush.

use super::{Protocol, ScannedNumbers, cut_at_bad_chunk};
use crate::{LockRelease, LogError};

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

    fn cut(&self, scanned: &ScannedNumbers) -> Result<u64, LogError> {
        Ok(cut_at_bad_chunk(scanned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_keeps_what_is_behind_a_gap() {
        let scanned = ScannedNumbers {
            base: 3,
            horizon: 5,
            found_to_horizon: 2,
            tail: vec![(6, 6), (8, 9)],
        };
        assert_eq!(Serial.cut(&scanned).unwrap(), 9);
    }
}
