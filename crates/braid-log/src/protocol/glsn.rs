//! P-WAL's protocol: parallel strands ordered by one global number (digest in the crate's docs).

use super::{Frontier, Protocol, ScannedNumbers};
use crate::LogError;

/// P-WAL: early lock release, prefix acknowledgement over all strands, gap rule in recovery.
pub(crate) struct Glsn;

impl Protocol for Glsn {
    fn id(&self) -> u8 {
        2
    }

    fn releases_locks_early(&self) -> bool {
        true
    }

    /// P-WAL takes the minimum of what every strand has flushed, which an idle strand holds back for
    /// ever. Here a strand counts only with what lies in its buffers, and what is drawn but not yet
    /// appended counts through its entry, so the minimum is exact.
    fn horizon(&self, frontier: &Frontier) -> u64 {
        if cfg!(braid_mutant = "acknowledge_before_flush") {
            return frontier.drawn;
        }
        frontier
            .drawn
            .min(frontier.entries - 1)
            .min(frontier.strands - 1)
    }

    /// Below the first missing number: a later transaction may have read what an earlier one wrote.
    fn cut(&self, scanned: &ScannedNumbers) -> Result<u64, LogError> {
        let start = scanned.base.max(scanned.horizon);
        // I1: what a chunk calls durable was acknowledged. That it is gone is no crash's doing.
        if scanned.found_to_horizon != start - scanned.base {
            return Err(LogError::corrupted(
                format!(
                    "acknowledged transactions are missing: {} of the {} numbers from {} to {start}",
                    (start - scanned.base).abs_diff(scanned.found_to_horizon),
                    start - scanned.base,
                    scanned.base + 1
                ),
                "the log",
                0,
            ));
        }
        let mut cut = start;
        for &(first, last) in &scanned.tail {
            if first > cut + 1 && !cfg!(braid_mutant = "skip_gap_rule") {
                break;
            }
            cut = cut.max(last);
        }
        Ok(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn horizon_is_the_least_of_all() {
        let free = Frontier {
            drawn: 9,
            entries: u64::MAX,
            strands: u64::MAX,
        };
        assert_eq!(Glsn.horizon(&free), 9);
        assert_eq!(Glsn.horizon(&Frontier { entries: 4, ..free }), 3);
        assert_eq!(
            Glsn.horizon(&Frontier {
                entries: 4,
                strands: 2,
                ..free
            }),
            1
        );
    }

    #[test]
    fn cut_ends_at_the_first_gap() {
        let mut scanned = ScannedNumbers {
            base: 10,
            horizon: 12,
            found_to_horizon: 2,
            tail: vec![],
        };
        assert_eq!(Glsn.cut(&scanned).unwrap(), 12);
        scanned.tail = vec![(13, 13), (14, 16), (18, 20)];
        assert_eq!(Glsn.cut(&scanned).unwrap(), 16);
        scanned.tail[0] = (14, 14);
        assert_eq!(Glsn.cut(&scanned).unwrap(), 12);
        scanned.found_to_horizon = 1;
        assert!(matches!(
            Glsn.cut(&scanned),
            Err(LogError::Corrupted { .. })
        ));
    }
}
