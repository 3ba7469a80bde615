//! A reader of changes, and the changes as C sees them.

use std::ffi::c_void;
use std::time::Duration;

use braid::changes::{Change, ChangeSet, Changes, Position};

use crate::memory::braid_slice;

/// Position in the order of a database's transactions, after one of them. A program can store it
/// anywhere, and continue reading changes from it. It stays valid as long as the database exists; a
/// restored database has other positions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_position {
    /// Opaque; the same in every process and on every machine.
    pub bytes: [u8; 24],
}

impl braid_position {
    pub(crate) fn of(position: Position) -> Self {
        let bytes = position.to_bytes();
        Self { bytes }
    }

    pub(crate) fn get(&self) -> Position {
        Position::from_bytes(self.bytes)
    }
}

/// Change of one key by a transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_change {
    /// Identifier of the table, which stays the same when the table is renamed.
    pub table_id: u32,
    /// Name of the table, in UTF-8 without a terminating NUL. `data` is NULL if the table was
    /// dropped before the change was read.
    pub table: braid_slice,
    /// The key.
    pub key: braid_slice,
    /// The new value; `data` is NULL if the key was removed, and only then.
    pub value: braid_slice,
}

/// A committed transaction and its changes; each key occurs once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_change_set {
    /// Sequence number of the transaction, its place in the serial order.
    pub seqno: u64,
    /// Position after the transaction.
    pub position: braid_position,
    /// The changes.
    pub changes: *const braid_change,
    /// Number of changes.
    pub change_count: usize,
    /// Names of tables that a bulk load (`braid_loader`) made visible with this transaction. Their
    /// entries are not listed as changes; read them from a snapshot.
    pub loaded: *const braid_slice,
    /// Number of loaded tables.
    pub loaded_count: usize,
}

/// Object of a reader's handle.
pub(crate) struct Reader {
    pub(crate) changes: Changes,
    /// The set that the caller is reading.
    set: Option<ChangeSet>,
    views: Vec<braid_change>,
    loaded: Vec<braid_slice>,
}

// SAFETY: only the pointers in `views` and `loaded` make the type not `Send`. They point into
// `set`, which moves with them, and only the caller dereferences them.
unsafe impl Send for Reader {}

const NONE: braid_slice = braid_slice {
    data: std::ptr::null::<c_void>(),
    len: 0,
};

fn view(change: &Change) -> braid_change {
    let table = change.table.as_ref();
    braid_change {
        table_id: change.table_id,
        table: table.map_or(NONE, |name| braid_slice::of(name.as_bytes())),
        key: braid_slice::of(&change.key),
        value: change.value.as_deref().map_or(NONE, braid_slice::of),
    }
}

impl Reader {
    pub(crate) fn new(changes: Changes) -> Self {
        Self {
            changes,
            set: None,
            views: Vec::new(),
            loaded: Vec::new(),
        }
    }

    pub(crate) fn next_within(
        &mut self,
        time: Duration,
    ) -> braid::Result<Option<braid_change_set>> {
        self.views.clear();
        self.loaded.clear();
        self.set = if time.is_zero() {
            self.changes.next().transpose()?
        } else {
            self.changes.next_within(time)?
        };
        let Some(set) = &self.set else {
            return Ok(None);
        };
        self.views.extend(set.changes.iter().map(view));
        let loaded = set.loaded.iter();
        self.loaded
            .extend(loaded.map(|name| braid_slice::of(name.as_bytes())));
        Ok(Some(braid_change_set {
            seqno: set.seqno,
            position: braid_position::of(set.position),
            changes: self.views.as_ptr(),
            change_count: self.views.len(),
            loaded: self.loaded.as_ptr(),
            loaded_count: self.loaded.len(),
        }))
    }
}
