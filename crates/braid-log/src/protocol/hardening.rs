//! Acknowledgement lane by lane, for the protocol that records dependencies: how far each lane's
//! transactions are durable together with everything that they depend on.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use braid_rt::to_usize;
use crossbeam_utils::CachePadded;

use crate::base::sync::{AtomicU64, Mutex};

/// See the module's text. The lane of a number is its remainder by the number of lanes.
#[derive(Debug)]
pub(crate) struct Hardening {
    lanes: Box<[CachePadded<LaneHardening>]>,
}

#[derive(Debug)]
struct LaneHardening {
    /// Every transaction of the lane up to this number is durable, and what it depends on is hardened.
    /// Grows only.
    hardened: AtomicU64,
    /// The lane's own bytes are durable up to this number, and its commits finished, as far as
    /// anybody saw.
    durable: AtomicU64,
    /// Transactions with dependencies in other lanes that were not hardened, and these dependencies.
    waiting: Mutex<BTreeMap<u64, Vec<u64>>>,
}

impl Hardening {
    pub(crate) fn new(lanes: usize, base: u64) -> Self {
        let lane = || {
            CachePadded::new(LaneHardening {
                hardened: AtomicU64::new(base),
                durable: AtomicU64::new(base),
                waiting: Mutex::default(),
            })
        };
        Self {
            lanes: (0..lanes).map(|_| lane()).collect(),
        }
    }

    /// How far a lane is hardened.
    pub(crate) fn hardened(&self, lane: usize) -> u64 {
        // SeqCst: waiters announce themselves before this look, as with the durable seqno.
        self.lanes[lane].hardened.load(Ordering::SeqCst)
    }

    /// The greatest number that is hardened in any lane.
    pub(crate) fn greatest(&self) -> u64 {
        let lanes = (0..self.lanes.len()).map(|lane| self.hardened(lane));
        lanes.max().unwrap_or(0)
    }

    fn lane_of(&self, seqno: u64) -> usize {
        to_usize(seqno % self.lanes.len() as u64)
    }

    /// Whether a transaction is hardened.
    pub(crate) fn is_hardened(&self, seqno: u64) -> bool {
        self.hardened(self.lane_of(seqno)) >= seqno
    }

    /// Those of `numbers` that lie in other lanes than `seqno` and are not hardened.
    pub(crate) fn open(&self, seqno: u64, numbers: &[u64]) -> Vec<u64> {
        let lane = self.lane_of(seqno);
        let open = |&on: &u64| self.lane_of(on) != lane && !self.is_hardened(on);
        let mut open: Vec<u64> = numbers.iter().copied().filter(open).collect();
        open.sort_unstable();
        open.dedup();
        open
    }

    /// Notes what a transaction waits for; to be called before it is appended.
    pub(crate) fn add(&self, seqno: u64, on: Vec<u64>) {
        let lane = &self.lanes[self.lane_of(seqno)];
        lane.waiting.lock().insert(seqno, on);
    }

    /// The transaction did not happen.
    pub(crate) fn forget(&self, seqno: u64) {
        self.lanes[self.lane_of(seqno)]
            .waiting
            .lock()
            .remove(&seqno);
    }

    /// Raises what is hardened, given how far each lane's own bytes are durable and its commits
    /// finished. Says whether it rose in any.
    pub(crate) fn advance(&self, durable: &[u64]) -> bool {
        let mut rose = false;
        for (lane, &durable) in self.lanes.iter().zip(durable) {
            // SeqCst: before the looks at what other lanes' transactions wait for. Who raises a lane that one of
            // ours waits for either is seen by us, or sees how far ours could go.
            lane.durable.fetch_max(durable, Ordering::SeqCst);
        }
        // A lane that rises may be what a transaction of one before it waited for.
        let mut again = true;
        while again {
            again = false;
            for (lane, &seen) in self.lanes.iter().zip(durable) {
                // SeqCst: see above.
                let durable = match braid_rt::mutant!("own_look_only") {
                    true => seen,
                    false => lane.durable.load(Ordering::SeqCst),
                };
                if durable <= lane.hardened.load(Ordering::Relaxed) {
                    continue;
                }
                let mut to = durable;
                let mut waiting = lane.waiting.lock();
                while let Some(first) = waiting.first_entry().filter(|e| *e.key() <= durable) {
                    if !first.get().iter().all(|&on| self.is_hardened(on)) {
                        to = first.key() - 1;
                        break;
                    }
                    first.remove();
                }
                // SeqCst: before the looks at who waits, see `hardened`. Under the lock, so that nobody
                // raises it past a transaction that we saw waiting.
                if lane.hardened.fetch_max(to, Ordering::SeqCst) < to {
                    rose = true;
                    again = true;
                }
            }
        }
        rose
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_waits_for_its_dependencies_only() {
        let hardening = Hardening::new(3, 8);
        // 10 (lane 1) depends on 12 (lane 0), which depends on 11 (lane 2); 13 (lane 1) on nothing.
        assert_eq!(hardening.open(10, &[12, 7, 13, 12]), [12]);
        hardening.add(10, vec![12]);
        hardening.add(12, vec![11]);
        assert!(hardening.advance(&[15, 9, 8]));
        assert_eq!((hardening.hardened(1), hardening.hardened(2)), (9, 8));
        assert_eq!(hardening.hardened(0), 11, "up to before the one that waits");
        assert!(!hardening.advance(&[15, 13, 8]));
        // Lane 2 is durable: both go, in whatever order the lanes are looked at.
        assert!(hardening.advance(&[15, 13, 14]));
        assert_eq!([0, 1, 2].map(|lane| hardening.hardened(lane)), [15, 13, 14]);
        assert_eq!(hardening.greatest(), 15);
        assert!(hardening.is_hardened(12) && !hardening.is_hardened(16));
    }
}
