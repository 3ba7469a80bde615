//! The decisions in which commit protocols differ, behind one trait.
//!
//! The log asks its protocol three things: when a transaction's locks may go, how the durable horizon
//! follows from the state of the strands, and which cut of a scanned log recovery keeps.

mod glsn;
mod serial;

use crate::{LogError, ProtocolKind};

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

    /// Whether locks go at precommit, before the log is durable.
    fn releases_locks_early(&self) -> bool;

    /// The greatest number `h` so that everything up to `h` is durable and finished.
    fn horizon(&self, frontier: &Frontier) -> u64;

    /// The last number that recovery keeps.
    ///
    /// # Errors
    /// `Corrupted` if something that was acknowledged is missing.
    fn cut(&self, scanned: &ScannedNumbers) -> Result<u64, LogError>;
}

/// The protocol of a kind.
pub(crate) fn of(kind: ProtocolKind) -> &'static dyn Protocol {
    match kind {
        ProtocolKind::Serial => &serial::Serial,
        ProtocolKind::Glsn => &glsn::Glsn,
    }
}

/// The protocol with an identifier, if there is one.
pub(crate) fn by_id(id: u8) -> Option<&'static dyn Protocol> {
    ProtocolKind::ALL
        .iter()
        .map(|&kind| of(kind))
        .find(|p| p.id() == id)
}
