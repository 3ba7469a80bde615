//! The decisions in which commit protocols differ, behind one trait.
//!
//! The log asks its protocol three things: when a transaction's locks may go, how the durable seqno
//! follows from the state of the strands, and which cut of a scanned log recovery keeps.

mod aether;
mod epoch;
mod glsn;
mod gsn;
mod gwsn;
pub(crate) mod hardening;
pub(crate) mod kind;
mod serial;

use self::kind::{LockRelease, ProtocolKind};

use crate::LogError;
use crate::format::chunk::NUMBERS_MAX;

/// What the durable seqno is computed from. The order of collection matters: `assigned` first,
/// then the commits, then the strands; see [`Protocol::durable_seqno`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frontier {
    /// The newest number assigned when the collection began.
    pub(crate) assigned: u64,
    /// The smallest number that a pending commit has, or may still assign; `u64::MAX` if there is
    /// none.
    pub(crate) commit_slots: u64,
    /// The smallest number that lies in a strand's buffer and is not durable; `u64::MAX` if none.
    pub(crate) strands: u64,
    /// The last number of the newest epoch that has ended.
    pub(crate) epoch_end: u64,
}

impl Frontier {
    /// The greatest number up to which everything is durable and finished.
    ///
    /// P-WAL takes the minimum of what every strand has flushed, which an idle strand holds back for
    /// ever. Here a strand counts only with what lies in its buffers, and what is assigned but not
    /// yet appended counts through its commit, so the minimum is exact.
    pub(crate) fn durable(&self) -> u64 {
        if braid_rt::mutant!("acknowledge_before_flush") {
            return self.assigned;
        }
        if braid_rt::mutant!("durable_seqno_ignores_pending") {
            return self.assigned.min(self.strands - 1);
        }
        self.assigned
            .min(self.commit_slots - 1)
            .min(self.strands - 1)
    }
}

/// A run of numbers that lies in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The number of the flush that brought (the last part of) it.
    pub(crate) flush: u64,
}

/// A transaction that counts only if others do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependent {
    pub(crate) seqno: u64,
    pub(crate) on: Vec<u64>,
}

/// What a scan found of the newest incarnation.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// Everything up to here was settled before the incarnation began, or by the checkpoint.
    pub(crate) base: u64,
    /// The greatest durable seqno that a chunk of the incarnation names: so far everything was
    /// durable.
    pub(crate) durable_seqno: u64,
    /// How many numbers in `base + 1 ..= durable_seqno` were found.
    pub(crate) found_to_durable: u64,
    /// Behind the durable seqno, sorted, of all lanes.
    pub(crate) tail: Vec<Run>,
    /// The last flush that the checkpoint covers.
    pub(crate) flush_base: u64,
    /// Flushes that are there as a whole, sorted. Those that the checkpoint covers change nothing.
    pub(crate) flushes: Vec<u64>,
    /// For each lane, its transactions with dependencies, sorted.
    pub(crate) dependents: Vec<Vec<Dependent>>,
}

/// What of an incarnation counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Transactions up to a number.
    Numbers(u64),
    /// Flushes up to a number.
    Flushes(u64),
    /// Of each lane, transactions up to a number.
    Lanes(Vec<u64>),
}

impl Kept {
    /// Of a log that another process writes, which is read up to a number only: see
    /// [`Log::recover_up_to`](crate::Log::recover_up_to).
    pub(crate) const ALL_FLUSHES: Self = Kept::Flushes(NUMBERS_MAX - 1);

    /// The same in a segment header's form.
    pub(crate) fn words(&self, lanes: usize) -> Vec<u64> {
        match self {
            Kept::Numbers(last) | Kept::Flushes(last) => vec![*last; lanes],
            Kept::Lanes(last) => last.clone(),
        }
    }

    /// Whether a transaction counts.
    pub(crate) fn holds(&self, lane: usize, seqno: u64, flush: u64) -> bool {
        match self {
            Kept::Numbers(last) => seqno <= *last,
            Kept::Flushes(last) => flush <= *last,
            Kept::Lanes(last) => last.get(lane).is_some_and(|&last| seqno <= last),
        }
    }
}

/// How numbers are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbering {
    /// One after the other.
    Dense,
    /// So that `seqno % lanes` is the transaction's lane.
    ByLane,
}

/// What a transaction does about those that it read from or overwrote and that may not be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependence {
    /// Nothing: the numbers tell.
    Implied,
    /// Waits until they are sealed in flushes with smaller numbers.
    Sealed,
    /// Waits until they are durable.
    Durable,
    /// Says in its log record which they are, and is acknowledged after them.
    Recorded,
}

/// A commit protocol.
pub(crate) trait Protocol: Sync {
    /// The identifier in segment headers.
    fn id(&self) -> u8;

    /// The number of strands the protocol insists on, if it does.
    fn forced_strands(&self) -> Option<usize> {
        None
    }

    /// Whether threads that meet at a strand's latch append together; see [`crate::buffer::consolidation`].
    fn consolidates(&self) -> bool {
        false
    }

    /// When locks go.
    fn lock_release(&self) -> LockRelease;

    /// The greatest number `h` that may be acknowledged: everything up to `h` is durable and finished.
    /// May be less than what was acknowledged before, which stays.
    fn durable_seqno(&self, frontier: &Frontier) -> u64 {
        frontier.durable()
    }

    /// Whether transactions are acknowledged by epochs.
    fn has_epochs(&self) -> bool {
        false
    }

    /// How numbers are assigned.
    fn numbering(&self) -> Numbering {
        Numbering::Dense
    }

    /// Whether flushes have numbers of their own, and are acknowledged in their order over all lanes.
    fn numbers_flushes(&self) -> bool {
        false
    }

    /// Whether a flush takes all that its lane's strands have at one instant, so that what a
    /// transaction depends on in its own lane is in the same flush or in one before.
    fn has_closed_flushes(&self) -> bool {
        self.dependence() != Dependence::Implied
    }

    /// What is done about dependencies.
    fn dependence(&self) -> Dependence {
        Dependence::Implied
    }

    /// What recovery keeps.
    ///
    /// # Errors
    /// `Corrupted` if something that was acknowledged is missing.
    fn cut(&self, scanned: &Scanned) -> Result<Kept, LogError>;

    /// What a later incarnation's header says about an incarnation of this protocol: `base` and
    /// [`Kept::words`].
    fn kept(&self, base: u64, _words: &[u64]) -> Kept {
        Kept::Numbers(base)
    }
}

/// The recovery rule of one strand: everything up to the first bad chunk. A number may be missing when a
/// transaction had assigned but not appended; nothing kept can depend on it, since it had released
/// nothing.
fn cut_at_bad_chunk(scanned: &Scanned) -> u64 {
    let last = scanned.tail.iter().map(|run| run.last).max();
    scanned
        .base
        .max(scanned.durable_seqno)
        .max(last.unwrap_or(0))
}

/// I1: what a chunk calls durable was acknowledged. That it is gone is no crash's doing.
fn check_acknowledged(scanned: &Scanned) -> Result<(), LogError> {
    let expected = scanned.durable_seqno.saturating_sub(scanned.base);
    if scanned.found_to_durable == expected {
        return Ok(());
    }
    braid_rt::coverage_point("damage: acknowledged numbers are missing");
    Err(LogError::corrupted(
        format!(
            "acknowledged transactions are missing: {} of the {expected} sequence numbers from {} to {}",
            expected.abs_diff(scanned.found_to_durable),
            scanned.base + 1,
            scanned.durable_seqno
        ),
        "the log",
        0,
    ))
}

/// P-WAL's recovery rule: everything below the first missing number.
fn cut_at_gap(scanned: &Scanned) -> Result<u64, LogError> {
    check_acknowledged(scanned)?;
    let mut cut = scanned.base.max(scanned.durable_seqno);
    for run in &scanned.tail {
        if run.first > cut + 1 && !braid_rt::mutant!("skip_gap_rule") {
            braid_rt::coverage_point("gap rule: numbers behind a gap");
            break;
        }
        cut = cut.max(run.last);
    }
    Ok(cut)
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
