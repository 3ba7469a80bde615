//! The registry: the table of each kind of handle, and what its handles refer to.
//!
//! A function that C calls finds its objects here, and puts new ones here. [`crate::handles`]
//! explains how a table works and what it checks.

use std::sync::Arc;

use braid::changes::Feed;
use braid::{Snapshot, Ticket};

use crate::boundary::Outcome;
use crate::handle_error::Ended;
use crate::handles::{
    Exclusive, Owner, Pinned, Process, Shared, braid_changes, braid_cursor, braid_db, braid_feed,
    braid_loader, braid_options, braid_snapshot, braid_table, braid_ticket, braid_tx,
};
use crate::objects::{Cursor, Loading, OpenDatabase, OpenTable, Options, Reader, Tx};

// Many threads at once use one of these.
pub(crate) static DATABASES: Shared<braid_db, OpenDatabase> = Shared::new();
pub(crate) static TABLES: Shared<braid_table, OpenTable> = Shared::new();
/// A cursor over a snapshot keeps the snapshot alive.
pub(crate) static SNAPSHOTS: Shared<braid_snapshot, Arc<Snapshot>> = Shared::new();
pub(crate) static FEEDS: Shared<braid_feed, Feed> = Shared::new();

// One thread at a time uses one of these.
pub(crate) static TRANSACTIONS: Exclusive<braid_tx, Tx> = Exclusive::new();
pub(crate) static CURSORS: Exclusive<braid_cursor, Cursor> = Exclusive::new();
pub(crate) static TICKETS: Exclusive<braid_ticket, Ticket> = Exclusive::new();
pub(crate) static OPTIONS: Exclusive<braid_options, Options> = Exclusive::new();
pub(crate) static LOADERS: Exclusive<braid_loader, Loading> = Exclusive::new();
pub(crate) static CHANGES: Exclusive<braid_changes, Reader> = Exclusive::new();

impl Process for braid_db {
    type Object = OpenDatabase;
}

impl Process for braid_table {
    type Object = OpenTable;
}

impl Process for braid_snapshot {
    type Object = Arc<Snapshot>;
}

impl Process for braid_feed {
    type Object = Feed;
}

#[inline(always)]
pub(crate) fn database(handle: *mut braid_db) -> Outcome<Pinned<'static, braid_db, OpenDatabase>> {
    DATABASES.pin(handle)
}

#[inline(always)]
pub(crate) fn table(handle: *mut braid_table) -> Outcome<Pinned<'static, braid_table, OpenTable>> {
    TABLES.pin(handle)
}

/// Ends all objects of a database, except for those that a thread is using now. Tickets belong to
/// no database.
pub(crate) fn end_all_of(owner: Owner, ended: Ended) {
    CURSORS.end_all_of(owner, ended);
    TRANSACTIONS.end_all_of(owner, ended);
    SNAPSHOTS.end_all_of(owner, ended);
    TABLES.end_all_of(owner, ended);
    LOADERS.end_all_of(owner, ended);
    CHANGES.end_all_of(owner, ended);
    FEEDS.end_all_of(owner, ended);
}
