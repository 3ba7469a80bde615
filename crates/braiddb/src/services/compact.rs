//! Making the data file as short as it can be.

use std::sync::Arc;

use braid_store::{StoreError, Tree, WriterRoom};

use crate::database::Database;
use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::schema::table::TableCore;

/// Pages that one step of filling leaves changes at most, but for inner nodes.
const PAGES_PER_STEP: usize = 3;

/// Checkpoints that a compaction makes at most: what one replaces is free only for the next.
const ROUNDS_MAX: u32 = 16;

/// Fills one leaf of a tree, or of its long keys, and returns the key to continue with.
type Repack = fn(&Tree, &[u8]) -> std::result::Result<Option<Vec<u8>>, StoreError>;

/// Result of [`Database::compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Length of the data file before, in bytes.
    pub bytes_before: u64,
    /// Length of the data file afterwards, in bytes.
    pub bytes_after: u64,
    /// Number of checkpoints written.
    pub checkpoints: u32,
}

impl Database {
    /// Shrinks the data file: fills partly empty pages, moves pages from the end of the file into
    /// free blocks, and truncates the file.
    ///
    /// Checkpoints write to free blocks and switch atomically, so a crash at any moment leaves the
    /// state before or after one of them. Transactions, snapshots and scans continue meanwhile.
    /// Filling pages needs space for the changed pages until the next checkpoint; if the device is
    /// full, pages stay partly empty. The rest needs free space for the page map of one checkpoint.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let logs = db.open_table::<u32, String>("logs")?;
    /// db.transact(|tx| (0..1_000).try_for_each(|n| tx.insert(&logs, &n, "a line".repeat(20).as_str())))?;
    /// db.checkpoint()?;
    /// db.drop_table("logs")?;
    /// drop(logs);
    /// let report = db.compact()?;
    /// assert!(report.bytes_after <= report.bytes_before);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::checkpoint`]; the previous checkpoint stays valid.
    pub fn compact(&self) -> Result<CompactReport> {
        let inner = self.inner();
        inner.check_writable()?;
        let bytes_before = self.stats().store.file_bytes;
        // What was dropped or removed gives its pages back first.
        inner.collect_all_versions();
        inner.free_dropped_tables()?;
        self.fill_leaves()?;
        inner.checkpoint()?;
        let mut bytes_after = self.stats().store.file_bytes;
        let mut checkpoints = 1;
        while checkpoints < ROUNDS_MAX {
            inner.shrinking_checkpoint()?;
            checkpoints += 1;
            inner.release_idle_room();
            let bytes = self.stats().store.file_bytes;
            if bytes >= bytes_after {
                break;
            }
            bytes_after = bytes;
        }
        Ok(CompactReport {
            bytes_before,
            bytes_after: self.stats().store.file_bytes,
            checkpoints,
        })
    }

    /// Moves records together, so that no leaf is much emptier than it needs to be.
    fn fill_leaves(&self) -> Result<()> {
        let inner = self.inner();
        let mut cores = vec![inner.catalog.clone()];
        for name in self.table_names()? {
            cores.extend(inner.find_table(&name)?);
        }
        let mut room = WriterRoom::default();
        let filled = cores.iter().try_for_each(|core| {
            let mut fill = |repack| inner.fill_leaves_of(core, &mut room, repack);
            match fill(Tree::repack).and_then(|()| fill(Tree::repack_long_keys)) {
                // What is damaged, or finds no space, stays as it is. A table may be dropped meanwhile.
                Err(
                    Error::OutOfSpace { .. } | Error::Corrupted { .. } | Error::TableDropped { .. },
                ) => Ok(()),
                filled => filled,
            }
        });
        inner.store.release_room(&mut room);
        filled
    }
}

impl Inner {
    fn fill_leaves_of(
        &self,
        core: &Arc<TableCore>,
        room: &mut WriterRoom,
        repack: Repack,
    ) -> Result<()> {
        let mut from = Vec::new();
        let mut is_full = false;
        loop {
            match self.fill_leaf(core, room, repack, &from) {
                Ok(Some(next)) => from = next,
                Ok(None) => return Ok(()),
                // Once: what this has changed so far is in free space after a checkpoint.
                Err(Error::OutOfSpace { .. }) if !is_full => {
                    is_full = true;
                    self.checkpoint()?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            is_full = false;
        }
    }

    /// One step, between two flips of checkpoints.
    fn fill_leaf(
        &self,
        core: &TableCore,
        room: &mut WriterRoom,
        repack: Repack,
        from: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let _gate = self.page_gate.read();
        self.check_writable()?;
        core.check_alive()?;
        self.store.admit(room, (PAGES_PER_STEP, 0), || false)?;
        Ok(repack(&core.tree, from)?)
    }
}
