//! Compaction: making the data file as short as possible.

use std::sync::Arc;
use std::time::Instant;

use braid_log::SeqNo;
use braid_store::{StoreError, Tree, WriterRoom};

use super::instance::Instance;
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::schema::entry::space_of;
use crate::schema::table::TableCore;

/// Maximum number of pages that one step changes, not counting inner nodes.
const PAGES_PER_STEP: usize = 3;

/// Steps between two pauses for commits. A step reads a leaf, and the next one.
const STEPS_PER_PIECE: usize = 16;

/// Maximum number of checkpoints in a compaction: blocks that one replaces are free only for the
/// next.
const ROUNDS_MAX: u32 = 16;

/// Checkpoints in a row that do not shorten a file after which its compaction ends. One may only free
/// the blocks in which the next one finds space.
const ROUNDS_IN_VAIN: u32 = 2;

/// The least part by which a checkpoint must shorten a file that transactions change meanwhile, as a
/// divisor: a few blocks more or less are theirs.
const LEAST_PART: u64 = 64;

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
        let (mut checkpoints, mut in_vain) = (1, 0);
        while checkpoints < ROUNDS_MAX && in_vain < ROUNDS_IN_VAIN {
            let before = engine.log.last_seqno();
            self.shrinking_checkpoint()?;
            checkpoints += 1;
            let is_idle = self.release_room_of_idle_writers(before);
            let bytes = self.data_file_bytes();
            let least = if is_idle { 0 } else { bytes_after / LEAST_PART };
            if bytes_after.saturating_sub(bytes) > least {
                in_vain = 0;
            } else {
                in_vain += 1;
            }
            bytes_after = bytes_after.min(bytes);
        }
        Ok(CompactReport {
            bytes_before,
            bytes_after: self.data_file_bytes(),
            checkpoints,
        })
    }

    /// Releases the room that is promised to writers, if none has committed after `before`, and returns
    /// whether that is so. Writers that commit would have to extend the file at once.
    fn release_room_of_idle_writers(&self, before: SeqNo) -> bool {
        let is_idle = self.engine.log.last_seqno() == before;
        if is_idle || braid_rt::mutant!("take_room_from_busy_writers") {
            self.engine.release_idle_room();
        }
        is_idle
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
                    self.checkpoint_for(space_of(core.id))?;
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::SimDevice;

    use crate::{Bytes, Database};

    #[test]
    fn writers_that_commit_keep_their_room() {
        let builder = Database::builder().background_threads(false);
        let builder = builder.pool_bytes(1 << 20);
        let db = builder.open_on(Arc::new(SimDevice::new(1))).unwrap();
        let t = db.open_table::<u64, Bytes>("t").unwrap();
        let instance = db.instance();
        let insert = |key| db.transact(|tx| tx.insert(&t, &key, &[1; 1_000])).unwrap();
        (0..100).for_each(insert);
        db.checkpoint().unwrap();
        let before = db.engine().log.last_seqno();
        insert(100);
        let bytes = || instance.data_file_bytes();
        let long = bytes();
        assert!(!instance.release_room_of_idle_writers(before));
        assert_eq!(bytes(), long);
        assert!(instance.release_room_of_idle_writers(db.engine().log.last_seqno()));
        assert!(bytes() < long);
    }
}
