//! The decisions in which commit protocols differ, behind one trait.
//!
//! The log asks its protocol three things: when a transaction's locks may go, how the durable horizon
//! follows from the state of the strands, and which cut of a scanned log recovery keeps.

mod aether;
mod epoch;
mod glsn;
mod serial;

use crate::{LockRelease, LogError, ProtocolKind};

/// What the durable horizon is computed from. The order of collection matters: `drawn` first, then
/// the entries, then the strands; see [`Protocol::horizon`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frontier {
    /// The newest number drawn when the collection began.
    pub(crate) drawn: u64,
    /// The smallest number that an entry in flight has, or may still draw; `u64::MAX` if there is none.
    pub(crate) entries: u64,
    /// The smallest number that lies in a strand's buffer and is not durable; `u64::MAX` if none.
    pub(crate) strands: u64,
    /// The last number of the newest epoch that has ended.
    pub(crate) epoch_end: u64,
}

impl Frontier {
    /// The greatest number up to which everything is durable and finished.
    ///
    /// P-WAL takes the minimum of what every strand has flushed, which an idle strand holds back for
    /// ever. Here a strand counts only with what lies in its buffers, and what is drawn but not yet
    /// appended counts through its entry, so the minimum is exact.
    pub(crate) fn durable(&self) -> u64 {
        if cfg!(braid_mutant = "acknowledge_before_flush") {
            return self.drawn;
        }
        self.drawn.min(self.entries - 1).min(self.strands - 1)
    }
}

/// The live pieces of a scanned log's newest incarnation, as number ranges.
#[derive(Debug)]
pub(crate) struct ScannedNumbers {
    /// Everything up to here was settled before the incarnation began, or by the checkpoint.
    pub(crate) base: u64,
    /// The greatest horizon that a chunk of the incarnation names: so far everything was durable.
    pub(crate) horizon: u64,
    /// How many numbers in `base + 1 ..= horizon` were found.
    pub(crate) found_to_horizon: u64,
    /// Ranges (first, last) behind the horizon, sorted.
    pub(crate) tail: Vec<(u64, u64)>,
}

/// A commit protocol.
pub(crate) trait Protocol: Sync {
    /// The identifier in segment headers.
    fn id(&self) -> u8;

    /// The number of strands the protocol insists on, if it does.
    fn forced_strands(&self) -> Option<usize> {
        None
    }

    /// When locks go.
    fn lock_release(&self) -> LockRelease;

    /// The greatest number `h` that may be acknowledged: everything up to `h` is durable and finished.
    /// May be less than what was acknowledged before, which stays.
    fn horizon(&self, frontier: &Frontier) -> u64 {
        frontier.durable()
    }

    /// Whether transactions are acknowledged by epochs.
    fn has_epochs(&self) -> bool {
        false
    }

    /// The last number that recovery keeps.
    ///
    /// # Errors
    /// `Corrupted` if something that was acknowledged is missing.
    fn cut(&self, scanned: &ScannedNumbers) -> Result<u64, LogError>;
}

/// The recovery rule of one strand: everything up to the first bad chunk. A number may be missing when a
/// transaction had drawn but not appended; nothing kept can depend on it, since it had released nothing.
fn cut_at_bad_chunk(scanned: &ScannedNumbers) -> u64 {
    let last = scanned.tail.iter().map(|&(_, last)| last).max();
    scanned.base.max(scanned.horizon).max(last.unwrap_or(0))
}

/// P-WAL's recovery rule: everything below the first missing number.
///
/// # Errors
/// `Corrupted` if a number is missing that was acknowledged.
fn cut_at_gap(scanned: &ScannedNumbers) -> Result<u64, LogError> {
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

/// The protocol of a kind.
pub(crate) fn of(kind: ProtocolKind) -> &'static dyn Protocol {
    match kind {
        ProtocolKind::Serial => &serial::Serial,
        ProtocolKind::Aether => &aether::Aether,
        ProtocolKind::Glsn => &glsn::Glsn,
        ProtocolKind::Epoch => &epoch::Epoch,
    }
}
