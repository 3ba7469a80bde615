//! Commit protocols.

use braid::Protocol;

/// Commit protocols: which transactions a commit waits for, and when locks are released. All give
/// the same guarantees.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_protocol {
    /// Parallel logs with one sequence number for each transaction; the default.
    BRAID_PROTOCOL_GLSN = 1,
    /// One log; locks are held until the flush has ended.
    BRAID_PROTOCOL_SERIAL = 2,
    /// One log; locks are released before the flush.
    BRAID_PROTOCOL_AETHER = 3,
    /// Parallel logs; commits are acknowledged by epochs.
    BRAID_PROTOCOL_EPOCH = 4,
    /// Parallel logs; a commit waits for other logs only as far as it depends on them.
    BRAID_PROTOCOL_GSN = 5,
    /// Parallel logs with a number for each flush; locks are held until the flush is durable.
    BRAID_PROTOCOL_GWSN_STRICT = 6,
    /// Parallel logs with a number for each flush; locks are released once the flush has its
    /// number.
    BRAID_PROTOCOL_GWSN = 7,
    /// A protocol that this version of the interface has no name for.
    BRAID_PROTOCOL_OTHER = 0,
}

use braid_protocol::*;

const PROTOCOLS: &[(braid_protocol, Protocol)] = &[
    (BRAID_PROTOCOL_GLSN, Protocol::Glsn),
    (BRAID_PROTOCOL_SERIAL, Protocol::Serial),
    (BRAID_PROTOCOL_AETHER, Protocol::Aether),
    (BRAID_PROTOCOL_EPOCH, Protocol::Epoch),
    (BRAID_PROTOCOL_GSN, Protocol::Gsn),
    (BRAID_PROTOCOL_GWSN_STRICT, Protocol::GwsnStrict),
    (BRAID_PROTOCOL_GWSN, Protocol::Gwsn),
];

impl braid_protocol {
    /// Returns the protocol with a number.
    pub(crate) fn parse(number: u64) -> Option<Protocol> {
        let mut known = PROTOCOLS.iter();
        let found = known.find(|(known, _)| *known as u64 == number);
        found.map(|(_, protocol)| *protocol)
    }

    pub(crate) fn of(protocol: Protocol) -> Self {
        let found = PROTOCOLS.iter().find(|(_, known)| *known == protocol);
        found.map_or(BRAID_PROTOCOL_OTHER, |(number, _)| *number)
    }
}
