//! The state of a table that moves to another tablespace, and of one that moved.
//!
//! A table that moves gets another number and another tree, so it gets another [`TableCore`], its
//! successor; see `services::moving`. Handles refer to the core that they were opened with, and
//! follow the successors ([`TableCore::newest`]). A snapshot from before the move follows the
//! predecessors of the newest core instead ([`TableCore::as_of`]).

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use braid_log::SeqNo;
use braid_rt::atomic::{AtomicU32, Ordering};
use braid_rt::{Condvar, Mutex, RwLock};

use super::table::TableCore;

/// The table was dropped.
const DROPPED: u32 = 1;
/// The table is being copied: its transactions note the keys that they change.
const COPIED: u32 = 2;
/// The copy is being completed: no transaction writes to the table.
const SEALED: u32 = 4;
/// The table has a successor.
const MOVED: u32 = 8;

/// The state of a table: in use, or dropped, moving, or moved.
///
/// A drop and a move set a flag before they assign their sequence number, and a commit loads the
/// flags after it was assigned its own, so a commit that does not see a flag precedes its cause.
#[derive(Debug, Default)]
pub(crate) struct TableState {
    /// SeqCst, all accesses: in one total order with the assignments.
    flags: AtomicU32,
    /// Keys that were changed since the copy last asked for them.
    changed: Mutex<BTreeSet<Box<[u8]>>>,
    /// Held while `SEALED` is cleared.
    seal: Mutex<()>,
    unsealed: Condvar,
    successor: OnceLock<Arc<TableCore>>,
    /// The core before the move, as long as snapshots may need it.
    predecessor: RwLock<Option<Arc<TableCore>>>,
}

impl TableState {
    fn set(&self, flag: u32) -> bool {
        self.flags.fetch_or(flag, Ordering::SeqCst) & flag == 0
    }

    fn clear(&self, flags: u32) {
        self.flags.fetch_and(!flags, Ordering::SeqCst);
    }

    #[inline]
    fn has(&self, flags: u32) -> bool {
        self.flags.load(Ordering::SeqCst) & flags != 0
    }
}

impl TableCore {
    /// Sets whether the table is dropped, see [`TableState`].
    pub(crate) fn set_dropped(&self, dropped: bool) {
        if dropped {
            self.state.set(DROPPED);
        } else {
            self.state.clear(DROPPED);
        }
    }

    /// Whether the table is neither dropped, nor moving, nor moved.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        !self.state.has(u32::MAX)
    }

    /// Whether the table was dropped, or has a successor.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.state.has(DROPPED | MOVED)
    }

    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.state.has(DROPPED)
    }

    #[inline]
    pub(crate) fn is_moved(&self) -> bool {
        self.state.has(MOVED)
    }

    /// Whether a move that is being completed keeps transactions from writing to the table.
    pub(crate) fn is_sealed(&self) -> bool {
        self.state.has(SEALED)
    }

    /// Returns the core of the table after its last move.
    pub(crate) fn newest(self: &Arc<Self>) -> &Arc<Self> {
        let mut core = self;
        while let Some(successor) = core.successor() {
            core = successor;
        }
        core
    }

    /// Returns the core that a move has replaced this one with.
    #[inline]
    pub(crate) fn successor(&self) -> Option<&Arc<Self>> {
        if self.is_moved() {
            return self.state.successor.get();
        }
        None
    }

    /// Returns the successor if a snapshot of this sequence number reads that one.
    #[inline]
    pub(crate) fn replaced_by(&self, snapshot: SeqNo) -> Option<&Arc<Self>> {
        if self.is_moved() {
            return self.replacement(snapshot);
        }
        None
    }

    #[cold]
    fn replacement(&self, snapshot: SeqNo) -> Option<&Arc<Self>> {
        self.successor()
            .filter(|successor| successor.since() <= snapshot)
    }

    /// Returns the core before the move, if a snapshot may need it.
    #[cold]
    pub(crate) fn predecessor(&self) -> Option<Arc<Self>> {
        self.state.predecessor.read().clone()
    }

    /// Returns the core that a snapshot of this sequence number reads; `None` if the table did not
    /// exist.
    pub(crate) fn as_of(self: Arc<Self>, snapshot: SeqNo) -> Option<Arc<Self>> {
        let mut core = self;
        while snapshot < core.since() {
            core = core.predecessor()?;
            braid_rt::coverage_point("move: a snapshot reads the old tree");
        }
        Some(core)
    }

    // What a move does ----------------------------------------------------------------------------

    /// Makes transactions note the keys that they change. Returns `false` if the table is already
    /// moving.
    pub(crate) fn begin_copy(&self) -> bool {
        self.state.set(COPIED)
    }

    /// Notes that a transaction that has its sequence number is about to change a key.
    #[cold]
    pub(crate) fn note_change(&self, key: &[u8]) {
        if self.state.has(COPIED) && !braid_rt::mutant!("forget_writes_during_a_move") {
            braid_rt::coverage_point("move: a key changes while its table is copied");
            self.state.changed.lock().insert(key.into());
        }
    }

    /// Returns the keys that were noted since the last call.
    pub(crate) fn take_changed(&self) -> BTreeSet<Box<[u8]>> {
        std::mem::take(&mut self.state.changed.lock())
    }

    /// Keeps transactions that have no sequence number yet from writing to the table.
    pub(crate) fn seal(&self) {
        self.state.set(SEALED);
    }

    /// Waits until the table is not sealed.
    #[cold]
    pub(crate) fn wait_unsealed(&self) {
        let mut seal = self.state.seal.lock();
        while self.is_sealed() {
            self.state.unsealed.wait(&mut seal);
        }
    }

    /// Ends a copy that did not complete, or whose successor is known.
    pub(crate) fn end_copy(&self) {
        let seal = self.state.seal.lock();
        self.state.clear(COPIED | SEALED);
        drop(seal);
        self.state.unsealed.notify_all();
        self.state.changed.lock().clear();
    }

    /// Makes the table's copy, which commit `since` has published, its successor.
    pub(crate) fn replace_by(self: &Arc<Self>, successor: &Arc<Self>, since: SeqNo) {
        successor.set_since(since);
        *successor.state.predecessor.write() = Some(self.clone());
        let _ = self.state.successor.set(successor.clone());
        self.state.set(MOVED);
    }

    /// Releases the predecessor, which no snapshot needs any more.
    pub(crate) fn forget_predecessor(&self) {
        let predecessor = self.state.predecessor.write().take();
        drop(predecessor);
    }
}
