//! Handles: C's references to the library's objects.
//!
//! To C, a handle is a pointer to an incomplete type, so its compiler distinguishes a table from a
//! transaction. The value of the pointer is a number, which is never dereferenced:
//!
//! ```text
//! bits 63..31   generation   counted up when the slot's object ends
//! bits 30..5    slot         in the table of this kind of object
//! bits 4..1     kind
//! bit  0        1            no object that C itself points to has an odd address, NULL is even
//! ```
//!
//! A slot is reused with another generation each time, and retired once it has used all
//! generations. So a handle names one object forever. While an object exists, its slot contains the
//! object's handle. A use of a handle after the object's end, or of a number that was never a
//! handle, is detected by comparing two numbers.
//!
//! There are two kinds of table. [`exclusive`] contains the objects for one thread at a time
//! (transactions, cursors, tickets, options, loaders, readers of changes): a second thread gets
//! `BRAID_BUSY`. [`shared`] contains the objects for many threads at once (databases, tables,
//! snapshots, feeds): they are dropped after their last use.

mod barrier;
mod exclusive;
mod free;
#[cfg(all(test, loom))]
mod loom_tests;
mod recent;
mod shared;
mod slots;
mod sync;
mod user;

use std::fmt;

pub(crate) use exclusive::{Exclusive, Locked};
pub(crate) use shared::{Pinned, Process, Shared};

use crate::status::braid_status;

const KIND_SHIFT: u32 = 1;
const INDEX_SHIFT: u32 = 5;
const INDEX_BITS: u32 = 26;
const GENERATION_SHIFT: u32 = INDEX_SHIFT + INDEX_BITS;
const GENERATION_MAX: u64 = u64::MAX >> GENERATION_SHIFT;

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
    const ALL: [Self; 10] = [
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

/// A type that C sees as the target of a handle.
pub(crate) trait Opaque {
    const KIND: Kind;
}

macro_rules! opaque {
    ($($type:ident: $kind:ident;)*) => {$(
        impl Opaque for $type {
            const KIND: Kind = Kind::$kind;
        }
    )*};
}

/// An open database.
#[derive(Debug)]
pub struct braid_db {
    _private: (),
}

/// A table of a database.
#[derive(Debug)]
pub struct braid_table {
    _private: (),
}

/// A running transaction.
#[derive(Debug)]
pub struct braid_tx {
    _private: (),
}

/// A read-only view of the durable state at one moment.
#[derive(Debug)]
pub struct braid_snapshot {
    _private: (),
}

/// A cursor over a range of keys, readable from both ends.
#[derive(Debug)]
pub struct braid_cursor {
    _private: (),
}

/// Reports when an asynchronous commit is durable.
#[derive(Debug)]
pub struct braid_ticket {
    _private: (),
}

/// Options for opening a database.
#[derive(Debug)]
pub struct braid_options {
    _private: (),
}

/// A bulk load of a new table.
#[derive(Debug)]
pub struct braid_loader {
    _private: (),
}

/// A named position of a consumer of changes, stored in the database.
#[derive(Debug)]
pub struct braid_feed {
    _private: (),
}

/// A reader of committed transactions, in the order of sequence numbers.
#[derive(Debug)]
pub struct braid_changes {
    _private: (),
}

opaque! {
    braid_db: Database;
    braid_table: Table;
    braid_tx: Transaction;
    braid_snapshot: Snapshot;
    braid_cursor: Cursor;
    braid_ticket: Ticket;
    braid_options: Options;
    braid_loader: Loader;
    braid_feed: Feed;
    braid_changes: Changes;
}

/// The database that an object belongs to, as the number of its handle; 0 for none.
pub(crate) type Owner = u64;

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
    fn from_number(number: u8) -> Option<Self> {
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

/// Set in every handle.
const HANDLE: u64 = 1;
/// Bits of the kind, and the bit of every handle.
const KIND_AND_HANDLE: u64 = (1 << INDEX_SHIFT) - 1;

/// Returns the value of these bits for a kind.
#[inline(always)]
const fn bits_of(kind: Kind) -> u64 {
    (kind as u64) << KIND_SHIFT | HANDLE
}

/// Returns the slot that a handle names.
#[inline(always)]
const fn index_of(number: u64) -> u32 {
    (number >> INDEX_SHIFT & ((1 << INDEX_BITS) - 1)) as u32
}

/// Returns why a number cannot be a handle of the requested kind, if it cannot.
fn misfit(number: u64, asked: Kind) -> Option<HandleError> {
    if number == 0 {
        return Some(HandleError::Null(asked));
    }
    let bits = number & KIND_AND_HANDLE;
    let found = Kind::ALL.into_iter().find(|kind| bits_of(*kind) == bits);
    match found {
        Some(found) if found == asked => None,
        Some(found) => Some(HandleError::WrongKind { asked, found }),
        None => Some(HandleError::NoHandle(asked)),
    }
}

/// Returns a handle's number.
#[inline(always)]
pub(crate) fn number<H: Opaque>(handle: *mut H) -> u64 {
    handle.addr() as u64
}

/// Returns the handle with a number.
#[inline(always)]
fn handle_of<H: Opaque>(number: u64) -> *mut H {
    std::ptr::without_provenance_mut(braid_rt::to_usize(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_what_it_is() {
        let table = bits_of(Kind::Table) | u64::MAX << INDEX_SHIFT;
        assert_eq!(index_of(table), (1 << INDEX_BITS) - 1);
        assert_eq!(misfit(table, Kind::Table), None);
        let (asked, found) = (Kind::Transaction, Kind::Table);
        let wrong = HandleError::WrongKind { asked, found };
        assert_eq!(misfit(table, asked), Some(wrong));
        let on_the_stack = 7u64;
        let pointer = std::ptr::from_ref(&on_the_stack).cast_mut();
        let none = HandleError::NoHandle(asked);
        assert_eq!(
            misfit(number(pointer.cast::<braid_tx>()), asked),
            Some(none)
        );
        assert_eq!(misfit(0, asked), Some(HandleError::Null(asked)));
    }
}
