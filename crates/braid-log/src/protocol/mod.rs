//! The rules in which commit protocols differ. The file of a protocol holds all of its rules: when
//! a transaction is acknowledged, when it releases its locks, how it treats the transactions that
//! it depends on, and what recovery keeps. `prefix.rs` holds the rules that several protocols
//! share.

pub(crate) mod acknowledgement;
mod aether;
pub(crate) mod epoch;
mod glsn;
pub(crate) mod gsn;
pub(crate) mod gwsn;
pub(crate) mod kind;
mod prefix;
mod serial;
pub(crate) mod torn;

use self::acknowledgement::Order;
use self::gsn::lane_of;
use self::kind::{LockRelease, ProtocolKind};

use crate::LogError;
use crate::base::numbers::{FlushNo, SeqNo};
use crate::format::chunk::NUMBERS_MAX;
use crate::format::log_record::Rest;

/// The inputs from which the durable seqno is computed. The order of collection matters: `assigned`
/// first, then the commits, then the strands; see [`Protocol::durable_seqno`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frontier {
    /// The newest number assigned when the collection began.
    pub(crate) assigned: SeqNo,
    /// The smallest number that a pending commit has, or may still assign; [`SeqNo::MAX`] if there
    /// is none.
    pub(crate) commit_slots: SeqNo,
    /// The smallest number that lies in a strand's buffer and is not durable; [`SeqNo::MAX`] if
    /// none.
    pub(crate) strands: SeqNo,
    /// The last number of the newest epoch that has ended.
    pub(crate) epoch_end: SeqNo,
}

/// A run of numbers that lies in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    /// The number of the flush that wrote the run, or its last part.
    pub(crate) flush: FlushNo,
    /// The rest of the transaction, if the run is a fragment of it.
    pub(crate) rest: Rest,
}

impl Run {
    /// I15: returns `whole`, up to which no number is missing and which ends with this run, or the
    /// number before this run's transaction if its last numbers are missing.
    pub(crate) fn cut_before_torn(self, whole: SeqNo) -> SeqNo {
        if self.last != whole
            || self.rest.after == 0
            || self.rest.shares_number
            || braid_rt::mutant!("cut_within_transactions")
        {
            return whole;
        }
        braid_rt::coverage_point("recovery: the cut moves to before a torn transaction");
        let before = u64::from(self.rest.before);
        SeqNo::new(self.first.get() - before).prev()
    }
}

#[cfg(test)]
impl Run {
    /// A fragment with the numbers from `first` to `last`, before and after which the transaction has
    /// as many others.
    fn fragment(first: u64, last: u64, before: u32, after: u32) -> Self {
        Self {
            first: SeqNo::new(first),
            last: SeqNo::new(last),
            rest: Rest {
                before,
                after,
                shares_number: false,
            },
            ..Self::default()
        }
    }

    /// A fragment of a transaction with one number, before and after which there are as many others.
    fn sharing_fragment(seqno: u64, before: u32, after: u32) -> Self {
        let mut run = Self::fragment(seqno, seqno, before, after);
        run.rest.shares_number = true;
        run
    }
}

/// A transaction that recovery keeps only if it keeps the transactions that it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependent {
    pub(crate) seqno: SeqNo,
    pub(crate) on: Vec<SeqNo>,
}

/// The result of scanning the newest incarnation.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// Everything up to here was settled before the incarnation began, or by the checkpoint.
    pub(crate) base: SeqNo,
    /// The greatest durable seqno that a chunk of the incarnation records: everything up to here
    /// was durable.
    pub(crate) durable_seqno: SeqNo,
    /// How many numbers in `base + 1 ..= durable_seqno` were found.
    pub(crate) found_to_durable: u64,
    /// The runs after the durable seqno, of all lanes, sorted.
    pub(crate) tail: Vec<Run>,
    /// The last flush that the checkpoint covers.
    pub(crate) flush_base: FlushNo,
    /// Flushes that were found complete, sorted. Flushes that the checkpoint covers have no effect.
    pub(crate) flushes: Vec<FlushNo>,
    /// The number of lanes with which the incarnation was written: the lane of a number is its
    /// remainder by it, if numbers are assigned by lane. Side lanes may have begun or ended since.
    pub(crate) lanes: usize,
    /// For each lane, its transactions with dependencies, sorted.
    pub(crate) dependents: Vec<Vec<Dependent>>,
}

/// The part of an incarnation that recovery keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Transactions up to a number.
    Numbers(SeqNo),
    /// Transactions up to the number `up_to` that lie in flushes up to `last`.
    Flushes { last: FlushNo, up_to: SeqNo },
    /// Transactions with the numbers of each of `lanes` lanes up to that lane's last.
    Lanes { lanes: usize, last: Vec<SeqNo> },
}

impl Kept {
    /// Restricts the part that is kept to `limit`, up to which another process says its log is
    /// durable. See [`Log::recover_up_to`](crate::Log::recover_up_to).
    pub(crate) fn up_to(self, limit: SeqNo) -> Self {
        match self {
            Kept::Numbers(_) => Kept::Numbers(limit),
            Kept::Flushes { .. } => Kept::Flushes {
                last: FlushNo::new(NUMBERS_MAX - 1),
                up_to: limit,
            },
            Kept::Lanes { lanes, last } => Kept::Lanes {
                lanes,
                last: vec![limit; last.len()],
            },
        }
    }

    /// Returns the part that is kept, in the form of a segment header.
    pub(crate) fn words(&self, lanes: usize) -> Vec<u64> {
        match self {
            Kept::Numbers(last) => vec![last.get(); lanes],
            Kept::Flushes { last, .. } => vec![last.get(); lanes],
            // Of a lane that begins later, there is nothing to keep.
            Kept::Lanes { last, .. } => {
                let none = std::iter::repeat(&SeqNo::NONE);
                let all = last.iter().chain(none).take(lanes);
                all.map(|last| last.get()).collect()
            }
        }
    }

    /// Whether recovery keeps a transaction.
    pub(crate) fn holds(&self, seqno: SeqNo, flush: FlushNo) -> bool {
        match self {
            Kept::Numbers(last) => seqno <= *last,
            Kept::Flushes { last, up_to } => flush <= *last && seqno <= *up_to,
            // Also a fragment in another lane is kept with its transaction.
            Kept::Lanes { lanes, last } => {
                let last = last.get(lane_of(seqno, *lanes).get());
                last.is_some_and(|&last| seqno <= last)
            }
        }
    }

    /// Whether recovery keeps all transactions up to a number and a flush.
    pub(crate) fn holds_up_to(&self, seqno: SeqNo, flush: FlushNo) -> bool {
        match self {
            Kept::Lanes { lanes, last } => last.iter().take(*lanes).all(|&last| seqno <= last),
            _ => self.holds(seqno, flush),
        }
    }
}

/// How a transaction, before its append, treats the transactions that it read from or overwrote and
/// that may not be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependence {
    /// Nothing: its sequence number is greater than theirs.
    Implied,
    /// It waits until they are sealed in flushes with smaller numbers.
    Sealed,
    /// It waits until they are durable.
    Durable,
    /// It names them in its log record, and is acknowledged after them.
    Recorded,
}

impl Dependence {
    /// Whether transactions of a log with `lanes` lanes must name their dependencies.
    pub(crate) fn is_wanted(self, lanes: usize) -> bool {
        match self {
            Dependence::Implied => false,
            Dependence::Durable => true,
            // A dependency in the transaction's own lane is sealed no later than the transaction.
            Dependence::Sealed | Dependence::Recorded => lanes > 1,
        }
    }
}

/// A commit protocol.
pub(crate) trait Protocol: Sync {
    /// The identifier in segment headers.
    fn id(&self) -> u8;

    /// The number of strands, if the protocol requires one.
    fn forced_strands(&self) -> Option<usize> {
        None
    }

    /// Whether threads that meet at a strand's latch append together; see
    /// `buffer/consolidation.rs`.
    fn consolidates(&self) -> bool {
        false
    }

    /// When a transaction releases its locks.
    fn lock_release(&self) -> LockRelease;

    /// How a transaction treats its dependencies.
    fn dependence(&self) -> Dependence;

    /// Whether a flush takes everything that its lane's strands hold at one instant, so that a
    /// transaction's dependencies in its own lane are in the same flush or in an earlier one.
    fn has_closed_flushes(&self) -> bool {
        self.dependence() != Dependence::Implied
    }

    /// Whether a log can have side lanes. A protocol with a single strand has none.
    fn has_side_lanes(&self) -> bool {
        self.forced_strands().is_none()
    }

    /// Whether recovery may keep numbers after one that is missing, so that only the fragments of a
    /// transaction themselves show that one of them is missing (I15).
    fn keeps_after_gaps(&self) -> bool {
        self.dependence() != Dependence::Implied
    }

    /// The identifier in the headers of a log with `side_lanes` side lanes. Versions that take each
    /// fragment for a whole transaction after a gap do not know it.
    fn header_id(&self, side_lanes: usize) -> u8 {
        let is_marked = side_lanes > 0 && self.keeps_after_gaps();
        self.id() | if is_marked { kind::FRAGMENTS_MARK } else { 0 }
    }

    /// The order in which transactions are acknowledged.
    fn order(&self) -> Order;

    /// The greatest number `h` that may be acknowledged: every transaction up to `h` is durable and
    /// finished. May be less than the durable seqno already published, which does not decrease.
    fn durable_seqno(&self, frontier: &Frontier) -> SeqNo {
        frontier.durable()
    }

    /// What recovery keeps.
    ///
    /// # Errors
    /// `Corrupted` if an acknowledged transaction is missing.
    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError>;

    /// Decodes what a later incarnation's header says about an incarnation of this protocol, which had
    /// `lanes` lanes: `base` and [`Kept::words`].
    fn kept(&self, base: SeqNo, _words: &[u64], _lanes: usize) -> Kept {
        Kept::Numbers(base)
    }

    /// Number of consecutive numbers of which exactly one is assigned.
    fn stride(&self, _lanes: usize) -> u64 {
        1
    }

    /// The number from which the next incarnation continues, if the newest number kept is `cut` in
    /// an incarnation that continued from `base`.
    fn next_base(&self, _base: SeqNo, cut: SeqNo, _lanes: usize) -> SeqNo {
        cut
    }
}

/// The protocol of a kind.
pub(crate) fn of(kind: ProtocolKind) -> &'static dyn Protocol {
    match kind {
        ProtocolKind::Serial => &serial::Serial,
        ProtocolKind::Aether => &aether::Aether,
        ProtocolKind::Glsn => &glsn::Glsn,
        ProtocolKind::GwsnStrict => &gwsn::GwsnStrict,
        ProtocolKind::Gwsn => &gwsn::Gwsn,
        ProtocolKind::Epoch => &epoch::Epoch,
        ProtocolKind::Gsn => &gsn::Gsn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cut of these protocols is only right for one strand; the others need no such limit.
    #[test]
    fn protocols_that_cut_at_a_bad_chunk_have_one_strand() {
        for &kind in ProtocolKind::ALL {
            let one = matches!(kind, ProtocolKind::Serial | ProtocolKind::Aether);
            assert_eq!(of(kind).forced_strands(), one.then_some(1), "{kind}");
            assert_eq!(of(kind).consolidates(), kind == ProtocolKind::Aether);
        }
    }

    /// Dependencies that share a lane with their dependents need no names, and only flushes of
    /// transactions with unnumbered dependencies must be closed.
    #[test]
    fn dependencies_are_wanted_where_the_order_does_not_imply_them() {
        let wanted = |of: Dependence| [1, 2, 3].map(|lanes| of.is_wanted(lanes));
        assert_eq!(wanted(Dependence::Implied), [false, false, false]);
        assert_eq!(wanted(Dependence::Durable), [true, true, true]);
        assert_eq!(wanted(Dependence::Sealed), [false, true, true]);
        assert_eq!(wanted(Dependence::Recorded), [false, true, true]);
        for &kind in ProtocolKind::ALL {
            let by_numbers = of(kind).dependence() == Dependence::Implied;
            assert_eq!(of(kind).has_closed_flushes(), !by_numbers, "{kind}");
        }
    }

    /// Versions before this one know the identifiers below 64.
    #[test]
    fn headers_say_that_fragments_may_lie_after_a_gap() {
        for &kind in ProtocolKind::ALL {
            let (id, marked) = (of(kind).header_id(0), of(kind).header_id(2));
            assert_eq!(id, kind.id());
            assert_eq!(marked >= 64, of(kind).keeps_after_gaps(), "{kind}");
            for id in [id, marked] {
                assert_eq!(ProtocolKind::from_header_id(id), Some(kind));
            }
            let other = ProtocolKind::from_header_id(id | 64);
            assert_eq!(other.is_some(), marked >= 64, "{kind}");
        }
        assert_eq!(ProtocolKind::from_header_id(64), None);
        assert_eq!(ProtocolKind::from_header_id(128), None);
    }

    #[test]
    fn only_gsn_leaves_numbers_out() {
        for &kind in ProtocolKind::ALL {
            let is_gsn = kind == ProtocolKind::Gsn;
            assert_eq!(of(kind).stride(3), if is_gsn { 3 } else { 1 }, "{kind}");
            let next = of(kind).next_base(SeqNo::new(6), SeqNo::new(10), 3).get();
            // Numbers 7 to 12 may have been taken, and 13 to 15 by the durable seqno.
            assert_eq!(next, if is_gsn { 15 } else { 10 }, "{kind}");
        }
        let of_one_lane = of(ProtocolKind::Gsn).next_base(SeqNo::new(6), SeqNo::new(10), 1);
        assert_eq!(of_one_lane.get(), 10);
    }

    #[test]
    fn what_is_kept_ends_at_its_limit() {
        let number = SeqNo::new(5);
        let holds = |kept: &Kept| kept.holds(number, FlushNo::new(3));
        let lanes = |last: &[u64]| Kept::Lanes {
            lanes: 2,
            last: last.iter().copied().map(SeqNo::new).collect(),
        };
        for (last, is_kept) in [(4, false), (5, true), (6, true)] {
            assert_eq!(holds(&Kept::Numbers(SeqNo::new(last))), is_kept);
            assert_eq!(holds(&lanes(&[0, last])), is_kept);
            assert_eq!(
                lanes(&[6, last]).holds_up_to(number, FlushNo::NONE),
                is_kept
            );
            assert_eq!(
                lanes(&[last, 6]).holds_up_to(number, FlushNo::NONE),
                is_kept
            );
            let flushes = |last, up_to| Kept::Flushes {
                last: FlushNo::new(last),
                up_to: SeqNo::new(up_to),
            };
            assert_eq!(holds(&flushes(last - 2, 5)), is_kept);
            assert_eq!(holds(&flushes(3, last)), is_kept);
        }
        assert!(!holds(&lanes(&[5])), "no such lane");
    }
}
