//! The names of the commit protocols, and the points at which they release locks.

use std::fmt;
use std::str::FromStr;

use super::of;
use crate::LogError;

/// Added to the protocol's identifier in segment headers if the log may contain fragments although
/// the protocol keeps numbers after a gap.
pub(crate) const FRAGMENTS_MARK: u8 = 0x40;

/// Commit protocol, which orders and acknowledges transactions.
///
/// ```
/// use braid_log::{LockRelease, ProtocolKind};
///
/// let protocol: ProtocolKind = "gwsn".parse()?;
/// assert_eq!(protocol.lock_release(), LockRelease::Numbered);
/// assert_eq!(ProtocolKind::default().lock_release(), LockRelease::Precommit);
/// # Ok::<(), braid_log::LogError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ProtocolKind {
    /// One strand; locks are held until the flush; recovery keeps everything up to the first bad
    /// chunk.
    Serial,
    /// Aether: as `Serial`, but locks are released at precommit.
    Aether,
    /// P-WAL: many strands, one global sequence number, locks are released at precommit; recovery
    /// keeps everything before the first missing number.
    #[default]
    Glsn,
    /// GWSN as in its theorem: many strands, a number for each flush instead of each transaction;
    /// locks are held until the flush is durable, and a reader waits until what it read is durable.
    GwsnStrict,
    /// GWSN with early lock release: locks are released once the flush has its number; recovery
    /// keeps the flushes before the first missing number.
    Gwsn,
    /// Silo's epochs: as `Glsn`, but transactions are acknowledged by epochs, which end at every
    /// [tick](crate::LogOptions::epoch).
    Epoch,
    /// Passive group commit with remote flush avoidance (GSN): each lane assigns its own numbers; a
    /// transaction waits for the flush of its lane, and for other lanes only if it depends on
    /// transactions in them.
    Gsn,
}

/// Point at which a transaction's locks are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockRelease {
    /// At precommit: once its record is in the log's buffer (early lock release).
    Precommit,
    /// Once the flush with its record has a number.
    Numbered,
    /// Once the transaction is durable.
    Durable,
}

impl ProtocolKind {
    /// All protocols, in the order of their publication.
    pub const ALL: &[Self] = &[
        Self::Serial,
        Self::Aether,
        Self::Epoch,
        Self::Gsn,
        Self::Glsn,
        Self::GwsnStrict,
        Self::Gwsn,
    ];

    /// Point at which a transaction's locks are released.
    pub fn lock_release(self) -> LockRelease {
        of(self).lock_release()
    }

    /// Returns the protocol's number in files.
    pub fn id(self) -> u8 {
        of(self).id()
    }

    /// Returns the protocol with this number, if this build knows it.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.id() == id)
    }

    /// Returns the protocol of a segment header, if this build knows it.
    pub(crate) fn from_header_id(id: u8) -> Option<Self> {
        let kind = Self::from_id(id & !FRAGMENTS_MARK)?;
        let side_lanes = usize::from(id & FRAGMENTS_MARK != 0);
        (of(kind).header_id(side_lanes) == id).then_some(kind)
    }

    /// Returns whether a log with this protocol can have
    /// [side lanes](crate::LogOptions::side_lanes).
    pub fn has_side_lanes(self) -> bool {
        of(self).has_side_lanes()
    }

    /// Returns the number of strands, if the protocol requires one.
    pub fn forced_strands(self) -> Option<usize> {
        of(self).forced_strands()
    }
}

impl fmt::Display for ProtocolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolKind::Serial => "serial",
            ProtocolKind::Aether => "aether",
            ProtocolKind::Glsn => "glsn",
            ProtocolKind::GwsnStrict => "gwsn-strict",
            ProtocolKind::Gwsn => "gwsn",
            ProtocolKind::Epoch => "epoch",
            ProtocolKind::Gsn => "gsn",
        })
    }
}

impl FromStr for ProtocolKind {
    type Err = LogError;

    fn from_str(name: &str) -> Result<Self, LogError> {
        let found = Self::ALL.iter().find(|kind| kind.to_string() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            LogError::Options {
                option: "protocol",
                reason: format!(
                    "{name:?} is not a commit protocol; choose one of {}",
                    names.join(", ")
                ),
            }
        })
    }
}
