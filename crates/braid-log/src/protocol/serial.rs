//! The classic serial log: one strand, locks held until the flush.

use super::{Frontier, Protocol, ScannedNumbers};
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

    fn releases_locks_early(&self) -> bool {
        false
    }

    fn horizon(&self, frontier: &Frontier) -> u64 {
        frontier
            .drawn
            .min(frontier.entries - 1)
            .min(frontier.strands - 1)
    }

    /// Everything up to the first bad chunk. A number may be missing when a transaction had drawn but
    /// not appended; nothing kept can depend on it, since its locks were still held.
    fn cut(&self, scanned: &ScannedNumbers) -> Result<u64, LogError> {
        let last = scanned
            .tail
            .iter()
            .map(|&(_, last)| last)
            .max()
            .unwrap_or(0);
        Ok(scanned.base.max(scanned.horizon).max(last))
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
