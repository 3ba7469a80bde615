//! Why a handle cannot be used.

use std::fmt;

use crate::status::braid_status;

/// Kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Database = 1,
    Table = 2,
    Transaction = 3,
    Snapshot = 4,
    Cursor = 5,
    Ticket = 6,
    Options = 7,
    Loader = 8,
    Feed = 9,
    Changes = 10,
}

impl Kind {
    pub(crate) const ALL: [Self; 10] = [
        Kind::Database,
        Kind::Table,
        Kind::Transaction,
        Kind::Snapshot,
        Kind::Cursor,
        Kind::Ticket,
        Kind::Options,
        Kind::Loader,
        Kind::Feed,
        Kind::Changes,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Database => "database",
            Kind::Table => "table",
            Kind::Transaction => "transaction",
            Kind::Snapshot => "snapshot",
            Kind::Cursor => "cursor",
            Kind::Ticket => "ticket",
            Kind::Options => "options object",
            Kind::Loader => "loader",
            Kind::Feed => "feed",
            Kind::Changes => "reader of changes",
        })
    }
}

/// How a handle's object ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Freed = 1,
    Closed = 2,
    Committed = 3,
    Aborted = 4,
    DatabaseClosed = 5,
    CalledBack = 6,
    Finished = 7,
}

impl Ended {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        use Ended::*;
        let all = [
            Freed,
            Closed,
            Committed,
            Aborted,
            DatabaseClosed,
            CalledBack,
            Finished,
        ];
        all.into_iter().find(|ended| *ended as u8 == number)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ended::Freed => "was freed",
            Ended::Closed => "was closed",
            Ended::Committed => "was committed, or its commit failed",
            Ended::Aborted => "was aborted",
            Ended::DatabaseClosed => "ended when its database was closed",
            Ended::CalledBack => "was exchanged for a callback",
            Ended::Finished => "was finished, or its finish failed",
        })
    }
}

/// Why a handle cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleError {
    Null(Kind),
    NoHandle(Kind),
    WrongKind {
        asked: Kind,
        found: Kind,
    },
    Stale(Kind, Option<Ended>),
    Busy(Kind),
    /// No handle is free for another object of this kind.
    Full(Kind),
}

impl HandleError {
    pub(crate) fn status(&self) -> braid_status {
        match self {
            HandleError::Null(_) => braid_status::BRAID_NULL_ARGUMENT,
            HandleError::NoHandle(_) | HandleError::WrongKind { .. } => {
                braid_status::BRAID_INVALID_HANDLE
            }
            HandleError::Stale(..) => braid_status::BRAID_STALE_HANDLE,
            HandleError::Busy(_) => braid_status::BRAID_BUSY,
            HandleError::Full(_) => braid_status::BRAID_OTHER,
        }
    }
}

impl fmt::Display for HandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandleError::Null(kind) => write!(f, "cannot use the {kind}: it is NULL"),
            HandleError::NoHandle(kind) => write!(
                f,
                "cannot use the {kind}: the argument is not a handle of this library"
            ),
            HandleError::WrongKind { asked, found } => {
                write!(f, "cannot use a {found} as a {asked}")
            }
            HandleError::Stale(kind, Some(ended)) => write!(f, "cannot use the {kind}: it {ended}"),
            HandleError::Stale(kind, None) => write!(f, "cannot use the {kind}: it ended earlier"),
            HandleError::Busy(kind) => {
                write!(
                    f,
                    "cannot use the {kind}: another thread is inside a call with it; wait, or use one per thread"
                )
            }
            HandleError::Full(kind) => write!(
                f,
                "cannot create a {kind}: all handles are in use; free some"
            ),
        }
    }
}
