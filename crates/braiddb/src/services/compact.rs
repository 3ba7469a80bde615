//! Compaction: making the data file as short as possible.

use std::sync::Arc;
use std::time::Instant;

use braid_store::{StoreError, Tree, WriterRoom};

use super::instance::Instance;
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::schema::table::TableCore;

/// Maximum number of pages that one step changes, not counting inner nodes.
const PAGES_PER_STEP: usize = 3;

/// Steps between two pauses for commits. A step reads a leaf, and the next one.
const STEPS_PER_PIECE: usize = 16;

/// Maximum number of checkpoints in a compaction: blocks that one replaces are free only for the
/// next.
const ROUNDS_MAX: u32 = 16;

/// Function that fills one leaf of a tree, or of its long keys, and returns the key to continue
/// with.
type Repack = fn(&Tree, &[u8]) -> std::result::Result<Option<Vec<u8>>, StoreError>;

/// Result of [`Database::compact`](crate::Database::compact).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Length of the data files of all tablespaces before, in bytes.
    pub bytes_before: u64,
    /// Length of the data files afterwards, in bytes.
    pub bytes_after: u64,
    /// Number of checkpoints written.
    pub checkpoints: u32,
}

impl Instance {
    /// Makes the data files as short as possible.
    pub(crate) fn compact(&self) -> Result<CompactReport> {
        let engine = &self.engine;
        engine.check_writable()?;
        let bytes_before = self.data_file_bytes();
        // First free the pages of dropped tables and removed entries.
        engine.collect_all_versions();
        engine.free_dropped_tables()?;
        self.fill_leaves()?;
        self.checkpoint()?;
        let mut bytes_after = self.data_file_bytes();
        let mut checkpoints = 1;
        while checkpoints < ROUNDS_MAX {
            self.shrinking_checkpoint()?;
            checkpoints += 1;
            engine.release_idle_room();
            let bytes = self.data_file_bytes();
            if bytes >= bytes_after {
                break;
            }
            bytes_after = bytes;
        }
        Ok(CompactReport {
            bytes_before,
            bytes_after: self.data_file_bytes(),
            checkpoints,
        })
    }

    fn data_file_bytes(&self) -> u64 {
        self.engine
            .stores()
            .map(|store| store.stats().file_bytes)
            .sum()
    }

    /// Moves records together, so that no leaf is much emptier than necessary.
    pub(super) fn fill_leaves(&self) -> Result<()> {
        let engine = &self.engine;
        let catalog = Catalog::of(engine);
        let mut cores = vec![engine.tables.catalog.clone()];
        for name in catalog.names()? {
            cores.extend(catalog.find(&name)?);
        }
        cores.iter().try_for_each(|core| {
            let store = engine.store_of(core.id)?;
            let mut room = WriterRoom::default();
            let mut fill = |repack| self.fill_leaves_of(core, &mut room, repack);
            let filled = fill(Tree::repack).and_then(|()| fill(Tree::repack_long_keys));
            store.release_room(&mut room);
            match filled {
                // Damaged pages, and pages for which there is no space, stay unchanged. A table may
                // be dropped meanwhile.
                Err(
                    Error::OutOfSpace { .. } | Error::Corrupted { .. } | Error::TableDropped { .. },
                ) => Ok(()),
                filled => filled,
            }
        })
    }

    fn fill_leaves_of(
        &self,
        core: &Arc<TableCore>,
        room: &mut WriterRoom,
        repack: Repack,
    ) -> Result<()> {
        let mut from = Vec::new();
        let mut is_full = false;
        let (mut steps, mut begun) = (0, braid_rt::now());
        loop {
            match self.fill_leaf(core, room, repack, &from) {
                Ok(Some(next)) => from = next,
                Ok(None) => return Ok(()),
                // Once: after a checkpoint, the blocks changed so far are free space.
                Err(Error::OutOfSpace { .. }) if !is_full => {
                    is_full = true;
                    self.checkpoint()?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            is_full = false;
            steps += 1;
            if steps % STEPS_PER_PIECE == 0 {
                self.pause_filling(begun);
                begun = braid_rt::now();
            }
        }
    }

    /// Leaves the device to commits after some steps, which began at `begun`.
    fn pause_filling(&self, begun: Instant) {
        if braid_rt::mutant!("fill_leaves_without_pauses") {
            return;
        }
        let held = braid_rt::mutant!("hold_the_page_gate_while_pausing");
        let _gate = held.then(|| self.engine.change_pages());
        self.engine.log.pause_background(begun);
    }

    /// Fills one leaf, between two epoch switches of checkpoints.
    fn fill_leaf(
        &self,
        core: &TableCore,
        room: &mut WriterRoom,
        repack: Repack,
        from: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let _gate = self.engine.change_pages();
        self.engine.check_writable()?;
        core.check_alive()?;
        let store = self.engine.store_of(core.id)?;
        store.admit(room, (PAGES_PER_STEP, 0), || false)?;
        Ok(repack(&core.tree, from)?)
    }
}
