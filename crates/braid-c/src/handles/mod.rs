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

pub(crate) use exclusive::{Exclusive, Locked};
pub(crate) use shared::{Pinned, Process, Shared};

use crate::handle_error::{Ended, HandleError, Kind};

const KIND_SHIFT: u32 = 1;
const INDEX_SHIFT: u32 = 5;
const INDEX_BITS: u32 = 26;
const GENERATION_SHIFT: u32 = INDEX_SHIFT + INDEX_BITS;
const GENERATION_MAX: u64 = u64::MAX >> GENERATION_SHIFT;

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
    fn a_handle_knows_its_kind() {
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
