//! GSN: logical clocks and per-lane acknowledgement, after passive group commit (Wang and Johnson,
//! VLDB 2014), remote flush avoidance (LeanStore: Haubenschild et al., SIGMOD 2020) and GoldenX.
//!
//! - **Numbers.** Each lane assigns its own numbers: the lane of a number is its remainder by the
//!   number of lanes. An assignment takes as many numbers as there are lanes and uses one
//!   (`buffer/commit_slots.rs`).
//! - **Dependencies.** Dependencies are exact: they are the transactions in other lanes that a
//!   transaction read from or overwrote and that were not yet acknowledged. It names them in its
//!   log record ([`Hardening::depend`]). Within a lane, acknowledgement follows the numbers, so a
//!   dependency on a transaction covers that transaction's own dependencies.
//! - **Acknowledgement.** A transaction is acknowledged when its own lane is durable up to it and
//!   everything that it depends on in other lanes is acknowledged ([`Hardening::advance`]). A
//!   transaction never waits for an idle or slow lane that it does not depend on.
//! - **Several lanes.** A transaction with fragments in several lanes is ordered in its home lane,
//!   that of its number. All its fragments have this number. It is acknowledged when the other lanes,
//!   too, are durable up to it (I13, [`Hardening::add_parts`]); their own transactions do not wait
//!   for it.
//! - **Lock release.** At precommit.
//! - **Recovery.** Recovery keeps, in each lane, everything before the first transaction that
//!   depends on a lost one, or lacks a fragment (I15).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use braid_rt::to_usize;
use crossbeam_utils::CachePadded;

use super::acknowledgement::Order;
use super::torn::torn;
use super::{Dependence, Kept, LockRelease, Protocol, Scanned};
use crate::LogError;
use crate::base::numbers::{AtomicSeqNo, LaneId, SeqNo};
use crate::base::sync::Mutex;

/// Most dependencies that a log record names. A transaction with more waits until they are durable.
pub(crate) const DEPENDENCIES_MAX: usize = 32;

/// The GSN protocol; see the module's documentation.
pub(crate) struct Gsn;

impl Protocol for Gsn {
    fn id(&self) -> u8 {
        7
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Precommit
    }

    fn dependence(&self) -> Dependence {
        Dependence::Recorded
    }

    fn order(&self) -> Order {
        Order::Lanes
    }

    /// Keeps, in each lane, everything before the first transaction that lacks a fragment, or depends
    /// on one that is not kept: the greatest fixpoint.
    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        let lanes = scanned.lanes;
        let mut kept = vec![SeqNo::MAX; lanes.max(scanned.dependents.len())];
        for torn in torn(scanned.tail.iter()) {
            let kept = &mut kept[lane_of(torn, lanes).get()];
            *kept = torn.prev().min(*kept);
        }
        let arrived = |seqno: SeqNo| {
            let at = scanned.tail.partition_point(|run| run.last < seqno);
            seqno <= scanned.durable_seqno.max(scanned.base)
                || scanned.tail.get(at).is_some_and(|run| run.first <= seqno)
        };
        let mut settled = false;
        while !settled {
            settled = true;
            for (lane, dependents) in scanned.dependents.iter().enumerate() {
                let is_kept = |&seqno: &SeqNo| {
                    braid_rt::mutant!("forget_dependencies")
                        || (arrived(seqno) && seqno <= kept[lane_of(seqno, lanes).get()])
                };
                let lost = dependents
                    .iter()
                    .take_while(|dependent| dependent.seqno <= kept[lane])
                    .find(|dependent| !dependent.on.iter().all(is_kept));
                if let Some(lost) = lost {
                    braid_rt::coverage_point("gap rule: a dependency in another lane is lost");
                    kept[lane] = lost.seqno.prev();
                    settled = false;
                }
            }
        }
        // The number kept was assigned, so the numbers of the next incarnation are greater.
        for (lane, kept) in kept.iter_mut().enumerate() {
            let last = scanned.tail.iter().rev().map(|run| run.last);
            let last = last
                .filter(|&last| lane_of(last, lanes).get() == lane && last <= *kept)
                .max();
            *kept = last
                .unwrap_or(SeqNo::NONE)
                .max(scanned.durable_seqno)
                .max(scanned.base);
        }
        Ok(Kept::Lanes { lanes, last: kept })
    }

    fn kept(&self, _base: SeqNo, words: &[u64], lanes: usize) -> Kept {
        let last = words.iter().copied().map(SeqNo::new).collect();
        Kept::Lanes { lanes, last }
    }

    /// An assignment takes as many numbers as there are lanes, and uses the one whose remainder is
    /// its lane.
    fn stride(&self, lanes: usize) -> u64 {
        lanes as u64
    }

    /// The durable seqno may have been any value below the next number used.
    fn next_base(&self, base: SeqNo, cut: SeqNo, lanes: usize) -> SeqNo {
        if lanes == 1 {
            return cut;
        }
        braid_rt::coverage_point("recovery: the cut moves to a whole assignment");
        let stride = self.stride(lanes);
        SeqNo::new(base.get() + (cut.count_after(base).div_ceil(stride) + 1) * stride)
    }
}

/// The lane whose remainder by the number of lanes a number has.
pub(crate) fn lane_of(seqno: SeqNo, lanes: usize) -> LaneId {
    LaneId::new(to_usize(seqno.get() % lanes as u64))
}

/// How far each lane's transactions are durable together with everything that they depend on. The
/// lane of a number is its remainder by the number of lanes.
#[derive(Debug)]
pub(crate) struct Hardening {
    lanes: Box<[CachePadded<LaneHardening>]>,
}

#[derive(Debug)]
struct LaneHardening {
    /// Every transaction of the lane up to this number is durable, and its dependencies are
    /// hardened. Never decreases.
    hardened: AtomicSeqNo,
    /// The lane's own bytes are durable up to this number, and its commits are finished, as far as
    /// any thread has observed.
    durable: AtomicSeqNo,
    /// Transactions that wait for other lanes.
    waiting: Mutex<BTreeMap<SeqNo, Waiting>>,
}

/// What a transaction waits for in other lanes than its own.
#[derive(Debug, Default)]
struct Waiting {
    /// Dependencies that must be hardened.
    on: Vec<SeqNo>,
    /// Lanes with fragments of the transaction, which must be durable up to its number.
    parts: Vec<LaneId>,
}

/// How a transaction treats its dependencies; see [`Hardening::depend`].
#[derive(Debug)]
pub(crate) enum Dependencies {
    /// The transaction names them in its log record.
    Named(Vec<SeqNo>),
    /// The transaction waits until everything up to a number is durable.
    Awaited(SeqNo),
}

impl Hardening {
    pub(crate) fn new(lanes: usize, base: SeqNo) -> Self {
        let lane = || {
            CachePadded::new(LaneHardening {
                hardened: AtomicSeqNo::new(base),
                durable: AtomicSeqNo::new(base),
                waiting: Mutex::default(),
            })
        };
        Self {
            lanes: (0..lanes).map(|_| lane()).collect(),
        }
    }

    /// The number up to which a lane is hardened.
    pub(crate) fn hardened(&self, lane: LaneId) -> SeqNo {
        // SeqCst: waiters announce themselves before this load, as with the durable seqno.
        self.lanes[lane.get()].hardened.load(Ordering::SeqCst)
    }

    /// The greatest number that is hardened in any lane.
    pub(crate) fn greatest(&self) -> SeqNo {
        let lanes = (0..self.lanes.len()).map(|lane| self.hardened(LaneId::new(lane)));
        lanes.max().unwrap_or(SeqNo::NONE)
    }

    fn lane_of(&self, seqno: SeqNo) -> LaneId {
        lane_of(seqno, self.lanes.len())
    }

    /// Whether a transaction is hardened.
    pub(crate) fn is_hardened(&self, seqno: SeqNo) -> bool {
        self.hardened(self.lane_of(seqno)) >= seqno
    }

    /// Decides, before a transaction's append, how the transaction treats its dependencies.
    pub(crate) fn depend(&self, seqno: SeqNo, on: &[SeqNo]) -> Dependencies {
        let open = self.open(seqno, on);
        let Some(&newest) = open.last() else {
            return Dependencies::Named(Vec::new());
        };
        if open.len() > DEPENDENCIES_MAX {
            // Waiting for everything up to the newest dependency replaces a long list.
            return Dependencies::Awaited(newest);
        }
        self.add(seqno, open.clone());
        Dependencies::Named(open)
    }

    /// Returns the numbers of `numbers` that belong to other lanes than `seqno` and are not
    /// hardened.
    pub(crate) fn open(&self, seqno: SeqNo, numbers: &[SeqNo]) -> Vec<SeqNo> {
        let lane = self.lane_of(seqno);
        let open = |&on: &SeqNo| self.lane_of(on) != lane && !self.is_hardened(on);
        let mut open: Vec<SeqNo> = numbers.iter().copied().filter(open).collect();
        open.sort_unstable();
        open.dedup();
        open
    }

    /// Registers the dependencies that a transaction waits for. Must be called before its append.
    pub(crate) fn add(&self, seqno: SeqNo, on: Vec<SeqNo>) {
        let lane = &self.lanes[self.lane_of(seqno).get()];
        lane.waiting.lock().entry(seqno).or_default().on = on;
    }

    /// I13: registers the lanes with fragments of a transaction, other than its home lane. Must be
    /// called before its append.
    pub(crate) fn add_parts(&self, seqno: SeqNo, parts: Vec<LaneId>) {
        if braid_rt::mutant!("acknowledge_after_the_first_part") {
            return;
        }
        let lane = &self.lanes[self.lane_of(seqno).get()];
        lane.waiting.lock().entry(seqno).or_default().parts = parts;
    }

    /// Whether a transaction has what it waits for.
    fn is_settled(&self, seqno: SeqNo, waiting: &Waiting) -> bool {
        // SeqCst: see `advance`.
        let durable = |lane: &LaneId| self.lanes[lane.get()].durable.load(Ordering::SeqCst);
        waiting.on.iter().all(|&on| self.is_hardened(on))
            && waiting.parts.iter().all(|lane| durable(lane) >= seqno)
    }

    /// Removes the dependencies of a transaction that was aborted.
    pub(crate) fn forget(&self, seqno: SeqNo) {
        self.lanes[self.lane_of(seqno).get()]
            .waiting
            .lock()
            .remove(&seqno);
    }

    /// Raises the hardened numbers, given up to which number each lane's own bytes are durable and
    /// its commits finished. Returns whether any lane's hardened number rose.
    pub(crate) fn advance(&self, durable: &[SeqNo]) -> bool {
        let mut rose = false;
        for (lane, &durable) in self.lanes.iter().zip(durable) {
            // SeqCst: before this thread reads what other lanes' transactions wait for. Either this
            // thread sees the raise of a lane that its own transactions wait for, or the raising
            // thread sees the number stored here.
            lane.durable.fetch_max(durable, Ordering::SeqCst);
        }
        // A transaction of an earlier lane may have waited for the lane that rose.
        let mut again = true;
        while again {
            again = false;
            for (lane, &seen) in self.lanes.iter().zip(durable) {
                // SeqCst: see above.
                let durable = if braid_rt::mutant!("own_look_only") {
                    seen
                } else {
                    lane.durable.load(Ordering::SeqCst)
                };
                if durable <= lane.hardened.load(Ordering::Relaxed) {
                    continue;
                }
                let mut to = durable;
                let mut waiting = lane.waiting.lock();
                while let Some(first) = waiting.first_entry().filter(|e| *e.key() <= durable) {
                    if !self.is_settled(*first.key(), first.get()) {
                        to = first.key().prev();
                        break;
                    }
                    first.remove();
                }
                // SeqCst: before the load of the waiters, see `hardened`. Under the lock, so that
                // no thread raises the number past a transaction that this thread saw waiting.
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
    use super::super::{Dependent, Run};
    use super::*;
    use crate::base::numbers::FlushNo;

    fn numbers(numbers: &[u64]) -> Vec<SeqNo> {
        numbers.iter().copied().map(SeqNo::new).collect()
    }

    fn run(seqno: u64) -> Run {
        Run {
            first: SeqNo::new(seqno),
            last: SeqNo::new(seqno),
            flush: FlushNo::NONE,
            ..Run::default()
        }
    }

    fn dependent(seqno: u64, on: &[u64]) -> Dependent {
        Dependent {
            seqno: SeqNo::new(seqno),
            on: numbers(on),
        }
    }

    /// Three lanes: recovery drops the transactions that depend on a lost one, directly or
    /// indirectly, and all later ones in their lanes. It keeps the later transactions of another
    /// lane.
    #[test]
    fn the_cut_is_closed() {
        let scanned = Scanned {
            base: SeqNo::new(9),
            durable_seqno: SeqNo::new(9),
            tail: [12, 13, 14, 16, 18, 20].map(run).to_vec(),
            dependents: vec![
                // Lane 0 has 12 and 18, lane 1 has 13 and 16, lane 2 has 14 and 20; 11 was lost.
                vec![dependent(18, &[14])],
                vec![dependent(13, &[9, 12]), dependent(16, &[18])],
                vec![dependent(14, &[10]), dependent(20, &[12])],
            ],
            lanes: 3,
            ..Scanned::default()
        };
        let kept = |last| Kept::Lanes {
            lanes: 3,
            last: numbers(last),
        };
        let lanes = kept(&[12, 13, 9, 9]);
        let kept = kept(&[12, 13, 9]);
        assert_eq!(Gsn.cut(&scanned).unwrap(), kept);
        assert_eq!(kept.words(3), [12, 13, 9]);
        assert_eq!(kept.words(4), [12, 13, 9, 0], "a lane that begins");
        assert_eq!(kept.words(2), [12, 13], "the last lane has ended");
        // A lane that the incarnation did not have.
        let mut scanned = scanned;
        scanned.dependents.push(Vec::new());
        assert_eq!(Gsn.cut(&scanned).unwrap(), lanes);
    }

    #[test]
    fn a_transaction_waits_for_its_dependencies_only() {
        let hardening = Hardening::new(3, SeqNo::new(8));
        let hardened = |lane| hardening.hardened(LaneId::new(lane)).get();
        let advance = |durable: &[u64]| hardening.advance(&numbers(durable));
        // 10 (lane 1) depends on 12 (lane 0), which depends on 11 (lane 2); 13 (lane 1) on nothing.
        let open = hardening.open(SeqNo::new(10), &numbers(&[12, 7, 13, 12]));
        assert_eq!(open, numbers(&[12]));
        hardening.add(SeqNo::new(10), numbers(&[12]));
        hardening.add(SeqNo::new(12), numbers(&[11]));
        assert!(advance(&[15, 9, 8]));
        assert_eq!((hardened(1), hardened(2)), (9, 8));
        assert_eq!(hardened(0), 11, "up to before the one that waits");
        assert!(!advance(&[15, 13, 8]));
        // Lane 2 is durable: both waiting transactions harden, in any order of visiting the lanes.
        assert!(advance(&[15, 13, 14]));
        assert_eq!([0, 1, 2].map(hardened), [15, 13, 14]);
        assert_eq!(hardening.greatest().get(), 15);
        let is_hardened = |seqno| hardening.is_hardened(SeqNo::new(seqno));
        assert!(is_hardened(12) && !is_hardened(16));
    }

    /// Two lanes, of which lane 1 lacks a fragment of 12: what depends on 12 is lost with it, and what
    /// lane 1 has otherwise is kept.
    #[test]
    fn a_transaction_without_a_fragment_is_cut_in_its_home_lane() {
        let part = Run::sharing_fragment;
        let whole = [part(10, 0, 1), part(10, 1, 0), run(11)];
        let torn = [part(12, 0, 1), run(13), run(14), run(15), run(17)];
        let scanned = Scanned {
            base: SeqNo::new(9),
            durable_seqno: SeqNo::new(9),
            tail: [&whole[..], &torn[..]].concat(),
            dependents: vec![Vec::new(), vec![dependent(13, &[10]), dependent(17, &[12])]],
            lanes: 2,
            ..Scanned::default()
        };
        let kept = Kept::Lanes {
            lanes: 2,
            last: numbers(&[10, 15]),
        };
        assert_eq!(Gsn.cut(&scanned).unwrap(), kept);
        // A part in lane 1 is kept with its transaction.
        assert!(kept.holds(SeqNo::new(10), FlushNo::NONE));
        assert!(!kept.holds(SeqNo::new(12), FlushNo::NONE));
    }

    /// 12 (lane 0) has a fragment in lane 1, whose own transactions do not wait for it.
    #[test]
    fn a_transaction_waits_for_the_lanes_of_its_fragments() {
        let hardening = Hardening::new(2, SeqNo::new(8));
        let hardened = || [0, 1].map(|lane| hardening.hardened(LaneId::new(lane)).get());
        let advance = |durable: &[u64]| hardening.advance(&numbers(durable));
        hardening.add_parts(SeqNo::new(12), vec![LaneId::new(1)]);
        hardening.add(SeqNo::new(12), numbers(&[9]));
        assert!(advance(&[14, 8]));
        assert_eq!(hardened(), [11, 8]);
        assert!(advance(&[14, 11]));
        assert_eq!(
            hardened(),
            [11, 11],
            "the dependency is hardened, the fragment is not"
        );
        assert!(advance(&[14, 12]));
        assert_eq!(hardened(), [14, 12]);
    }

    #[test]
    fn a_transaction_names_its_open_dependencies_unless_they_are_many() {
        let depend =
            |hardening: &Hardening, on: &[SeqNo]| match hardening.depend(SeqNo::new(201), on) {
                Dependencies::Named(on) => Ok(on.iter().map(|on| on.get()).collect::<Vec<_>>()),
                Dependencies::Awaited(newest) => Err(newest.get()),
            };
        let waits = |hardening: &Hardening| !hardening.lanes[1].waiting.lock().is_empty();
        let hardening = Hardening::new(2, SeqNo::new(8));
        // 7 is hardened, and 11 is in the transaction's own lane.
        let on = numbers(&[12, 7, 11, 10, 12]);
        assert_eq!(depend(&hardening, &numbers(&[7, 8, 11])), Ok(vec![]));
        assert!(!waits(&hardening));
        assert_eq!(depend(&hardening, &on), Ok(vec![10, 12]));
        assert!(waits(&hardening));
        hardening.forget(SeqNo::new(201));
        assert!(!waits(&hardening));
        let many: Vec<u64> = (5..).map(|i| 2 * i).take(DEPENDENCIES_MAX + 1).collect();
        let newest = many.last().copied().unwrap();
        assert_eq!(depend(&hardening, &numbers(&many)), Err(newest));
        assert!(!waits(&hardening));
        let named = &many[1..];
        assert_eq!(depend(&hardening, &numbers(named)), Ok(named.to_vec()));
    }

    /// A transaction that is durable to its own number, and no further, waits as well.
    #[test]
    fn the_newest_durable_transaction_waits_for_its_dependency() {
        let hardening = Hardening::new(2, SeqNo::new(2));
        let hardened = || [0, 1].map(|lane| hardening.hardened(LaneId::new(lane)).get());
        hardening.add(SeqNo::new(5), numbers(&[6]));
        assert!(!hardening.advance(&numbers(&[2, 2])), "nothing is new");
        assert!(hardening.advance(&numbers(&[2, 5])));
        assert_eq!(hardened(), [2, 4]);
        assert!(hardening.advance(&numbers(&[6, 5])));
        assert_eq!(hardened(), [6, 5]);
        assert!(hardening.lanes[1].waiting.lock().is_empty());
        // An older observation of the lanes changes nothing.
        assert!(!hardening.advance(&numbers(&[4, 3])));
        assert_eq!(hardened(), [6, 5]);
    }
}
