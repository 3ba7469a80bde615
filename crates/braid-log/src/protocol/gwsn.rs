//! GWSN: one number for each flush of the log instead of one for each record.
//!
//! A flush takes everything that the strands of its lane hold at one instant, and is assigned the
//! *global WAL-flush sequence number* at that instant: [`FlushOrder::assign`] runs while the leader
//! holds the latches of all these strands.
//!
//! - **Dependencies.** A transaction's dependencies are in the same flush or in one with a smaller
//!   number: in its own lane because the flush takes all strands at one instant, in other lanes
//!   because the transaction waits for them, either at a lock or before it appends
//!   ([`Dependence`]). So the order of the flushes embeds the order of the dependencies (the
//!   paper's Lemmas 4 to 6).
//! - **Acknowledgement.** A flush is acknowledged when all flushes with smaller numbers are durable
//!   ([`FlushOrder::finish`]). Only then do its numbers count as durable in the durable seqno.
//! - **Lock release.** With [`GwsnStrict`] once the transaction is durable, with [`Gwsn`] once its
//!   flush has its number.
//! - **Recovery.** [`GwsnStrict`] keeps every flush that arrived, [`Gwsn`] those below the first
//!   missing number.
//! - **Several lanes.** A transaction with fragments in several lanes has dependents whose last
//!   flushes lie after all of its own (I14). Recovery ends before the number of the first
//!   transaction that lacks a fragment in a kept flush (I15): everything that was acknowledged has
//!   smaller numbers, and so has everything that a smaller number depends on.
//!
//! Versions still carry the transactions' own numbers, since a snapshot needs a total order that is
//! known when a version is created. Durability and recovery depend on flushes.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use super::acknowledgement::Order;
use super::prefix::check_acknowledged;
use super::torn::first_torn;
use super::{Dependence, Kept, LockRelease, Protocol, Scanned};
use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::base::sync::{AtomicU64, Mutex};

/// The setting of the paper's theorem: strict two-phase locking. A transaction's dependencies are
/// durable before its own flush has a number, so recovery keeps every flush that arrived, even
/// after a gap.
pub(crate) struct GwsnStrict;

impl Protocol for GwsnStrict {
    fn id(&self) -> u8 {
        6
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Durable
    }

    fn dependence(&self) -> Dependence {
        Dependence::Durable
    }

    fn order(&self) -> Order {
        Order::Flushes
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        check_acknowledged(scanned)?;
        let newest = scanned.flushes.last().copied();
        let last = newest.unwrap_or_default().max(scanned.flush_base);
        Ok(whole_up_to(last, scanned))
    }

    fn kept(&self, base: SeqNo, words: &[u64], _lanes: usize) -> Kept {
        kept_flushes(base, words)
    }
}

/// Keeps the flushes up to `last`, except the first transaction that lacks a fragment there, and all
/// with greater numbers (I15).
fn whole_up_to(last: FlushNo, scanned: &Scanned) -> Kept {
    let kept = scanned.tail.iter().filter(|run| run.flush <= last);
    Kept::Flushes {
        last,
        up_to: first_torn(kept).prev(),
    }
}

/// Decodes what is kept. `base` is the newest number that is kept: in kept flushes, only numbers
/// from the first torn transaction on are greater.
fn kept_flushes(base: SeqNo, words: &[u64]) -> Kept {
    Kept::Flushes {
        last: FlushNo::new(words.first().copied().unwrap_or(0)),
        up_to: base,
    }
}

/// With early lock release: a transaction releases its locks once its flush has its number, and
/// recovery keeps the flushes below the first missing number.
pub(crate) struct Gwsn;

impl Protocol for Gwsn {
    fn id(&self) -> u8 {
        4
    }

    fn lock_release(&self) -> LockRelease {
        LockRelease::Numbered
    }

    fn dependence(&self) -> Dependence {
        Dependence::Sealed
    }

    fn order(&self) -> Order {
        Order::Flushes
    }

    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError> {
        check_acknowledged(scanned)?;
        let mut cut = scanned.flush_base;
        for &flush in &scanned.flushes {
            if flush > cut.next() && !braid_rt::mutant!("skip_gap_rule") {
                braid_rt::coverage_point("gap rule: flushes after a gap");
                break;
            }
            cut = cut.max(flush);
        }
        Ok(whole_up_to(cut, scanned))
    }

    fn kept(&self, base: SeqNo, words: &[u64], _lanes: usize) -> Kept {
        kept_flushes(base, words)
    }
}

/// A flush, as [`FlushOrder`] sees it.
pub(crate) trait Flush {
    /// Its lane.
    fn lane(&self) -> LaneId;

    /// Its number; [`FlushNo::NONE`] if it has no chunks.
    fn flush(&self) -> FlushNo;
}

/// Flushes that may be acknowledged, in their order: mostly one.
pub(crate) type Ready<G> = SmallVec<[G; 1]>;

/// The order of flushes over all lanes: a flush is acknowledged once it and all flushes with
/// smaller numbers are durable.
#[derive(Debug)]
pub(crate) struct FlushOrder<G> {
    newest: CachePadded<AtomicU64>,
    finished: Mutex<Finished<G>>,
}

#[derive(Debug)]
struct Finished<G> {
    /// Every flush up to this number is acknowledged.
    acknowledged: FlushNo,
    /// For each lane, durable groups that wait for their acknowledgement, in the lane's order.
    waiting: Box<[VecDeque<G>]>,
}

impl<G> FlushOrder<G> {
    /// Creates the order of a new incarnation, in which numbers restart from 1.
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            newest: CachePadded::new(AtomicU64::new(0)),
            finished: Mutex::new(Finished {
                acknowledged: FlushNo::NONE,
                waiting: (0..lanes).map(|_| VecDeque::new()).collect(),
            }),
        }
    }

    /// The newest number assigned.
    pub(crate) fn newest(&self) -> FlushNo {
        // Acquire: pairs with `assign`. The caller has excluded every thread that could assign a
        // relevant number.
        FlushNo::new(self.newest.load(Ordering::Acquire))
    }

    /// Assigns the next flush's number.
    pub(crate) fn assign(&self) -> FlushNo {
        // AcqRel: the numbers follow the latches under which they are assigned; see `newest`.
        FlushNo::new(self.newest.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

impl<G: Flush> FlushOrder<G> {
    /// Adds groups that a lane finished. Returns the groups, of any lane, that may now be
    /// acknowledged.
    pub(crate) fn finish(&self, groups: Ready<G>) -> Ready<G> {
        let mut finished = self.finished.lock();
        let Finished {
            acknowledged,
            waiting,
        } = &mut *finished;
        for group in groups {
            waiting[group.lane().get()].push_back(group);
        }
        let mut ready = Ready::new();
        let mut again = true;
        while again {
            again = false;
            for waiting in waiting.iter_mut() {
                while let Some(group) = waiting.front() {
                    // A group without chunks has no number.
                    if group.flush() != FlushNo::NONE && group.flush() != acknowledged.next() {
                        break;
                    }
                    *acknowledged = (*acknowledged).max(group.flush());
                    ready.extend(waiting.pop_front());
                    again = true;
                }
            }
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_count_up_to_the_first_gap() {
        let kept = |last| Kept::Flushes {
            last: FlushNo::new(last),
            up_to: SeqNo::MAX.prev(),
        };
        let scanned = Scanned {
            flush_base: FlushNo::new(3),
            flushes: [2, 4, 5, 7].map(FlushNo::new).to_vec(),
            ..Scanned::default()
        };
        assert_eq!(Gwsn.cut(&scanned).unwrap(), kept(5));
        assert_eq!(GwsnStrict.cut(&scanned).unwrap(), kept(7));
        let covered = Scanned {
            flush_base: FlushNo::new(3),
            flushes: [2, 3].map(FlushNo::new).to_vec(),
            ..Scanned::default()
        };
        assert_eq!(Gwsn.cut(&covered).unwrap(), kept(3));
        assert_eq!(GwsnStrict.cut(&covered).unwrap(), kept(3));
        let lost = Scanned {
            durable_seqno: SeqNo::new(2),
            found_to_durable: 1,
            ..scanned
        };
        for protocol in [&Gwsn as &dyn Protocol, &GwsnStrict] {
            let cut = protocol.cut(&lost);
            assert!(matches!(cut, Err(LogError::Corrupted { .. })));
        }
    }
}
