//! GSN: logical clocks and per-lane acknowledgement, after passive group commit (Wang and Johnson, VLDB
//! 2014), remote flush avoidance (LeanStore: Haubenschild et al., SIGMOD 2020) and GoldenX.
//!
//! A transaction is acknowledged when its own lane is durable up to it and everything is that it depends on in
//! other lanes. An idle or slow lane that it does not depend on costs it nothing. The dependencies are exact:
//! the transactions in other lanes that it read from or overwrote and that were not yet acknowledged; it says
//! so in its log record. Within a lane acknowledgement follows the numbers, so that a dependency on
//! one transaction covers what that one depends on.

use braid_rt::to_usize;

use super::LockRelease;
use super::{Dependence, Kept, Numbering, Protocol, Scanned};
use crate::LogError;

/// See the module's text.
pub(crate) struct Gsn;

impl Protocol for Gsn {
    fn id(&self) -> u8 {
        7
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Precommit
    }

    fn numbering(&self) -> Numbering {
        Numbering::ByLane
    }

    fn dependence(&self) -> Dependence {
        Dependence::Recorded
    }

    /// Of each lane, everything before the first transaction that depends on one that is not kept: the
    /// greatest fixpoint.
    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        let lanes = scanned.dependents.len() as u64;
        let mut kept = vec![u64::MAX; scanned.dependents.len()];
        let arrived = |seqno: u64| {
            let at = scanned.tail.partition_point(|run| run.last < seqno);
            seqno <= scanned.durable_seqno.max(scanned.base)
                || scanned.tail.get(at).is_some_and(|run| run.first <= seqno)
        };
        let mut settled = false;
        while !settled {
            settled = true;
            for (lane, dependents) in scanned.dependents.iter().enumerate() {
                let is_kept = |&seqno: &u64| {
                    braid_rt::mutant!("forget_dependencies")
                        || (arrived(seqno) && seqno <= kept[to_usize(seqno % lanes)])
                };
                let lost = dependents
                    .iter()
                    .take_while(|dependent| dependent.seqno <= kept[lane])
                    .find(|dependent| !dependent.on.iter().all(is_kept));
                if let Some(lost) = lost {
                    braid_rt::coverage_point("gap rule: a dependency in another lane is lost");
                    kept[lane] = lost.seqno - 1;
                    settled = false;
                }
            }
        }
        // What is kept is a number that was assigned, so that the next incarnation's lie behind it.
        for (lane, kept) in kept.iter_mut().enumerate() {
            let last = scanned.tail.iter().rev().map(|run| run.last);
            let last = last
                .filter(|&last| last % lanes == lane as u64 && last <= *kept)
                .max();
            *kept = last
                .unwrap_or(0)
                .max(scanned.durable_seqno)
                .max(scanned.base);
        }
        Ok(Kept::Lanes(kept))
    }

    fn kept(&self, _base: u64, words: &[u64]) -> Kept {
        Kept::Lanes(words.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dependent, Run};
    use super::*;

    fn run(seqno: u64) -> Run {
        Run {
            first: seqno,
            last: seqno,
            flush: 0,
        }
    }

    fn dependent(seqno: u64, on: &[u64]) -> Dependent {
        Dependent {
            seqno,
            on: on.to_vec(),
        }
    }

    /// Three lanes: what depends on a lost transaction goes, and what depends on that, and what comes
    /// later in their lanes; another lane's later transactions stay.
    #[test]
    fn the_cut_is_closed() {
        let scanned = Scanned {
            base: 9,
            durable_seqno: 9,
            tail: [12, 13, 14, 16, 18, 20].map(run).to_vec(),
            dependents: vec![
                // Lane 0 has 12 and 18, lane 1 has 13 and 16, lane 2 has 14 and 20; 11 was lost.
                vec![dependent(18, &[14])],
                vec![dependent(13, &[9, 12]), dependent(16, &[18])],
                vec![dependent(14, &[10]), dependent(20, &[12])],
            ],
            ..Scanned::default()
        };
        assert_eq!(Gsn.cut(&scanned).unwrap(), Kept::Lanes(vec![12, 13, 9]));
    }
}
