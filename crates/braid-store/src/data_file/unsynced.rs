//! Syncs of the data file, and how much background work writes before it syncs.
//!
//! A system reports a write that was lost to one sync, and forgets it: on Linux the first one that asks,
//! although several threads may be waiting for their syncs. What they wrote may be lost, too.
//!
//! - I18: one sync of the file at a time, and none after one that failed. So a sync that succeeds has
//!   made everything durable that was written before it began, and a checkpoint whose sync succeeds
//!   refers to no block that a failed one of another thread has lost.

use braid_rt::Mutex;
use braid_rt::atomic::Ordering;

use super::DataFile;
use crate::error::StoreError;
use crate::sync::Counter;

/// Bytes that background work may have written before it makes them durable. Otherwise the sync of
/// the next superblock would write everything at once, and a commit next to it would wait for all of
/// it.
const UNSYNCED_MAX: u64 = if cfg!(test) { 1 << 20 } else { 32 << 20 };

/// What was written since the last sync.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    pub(super) bytes: Counter,
    /// Held by the thread that syncs (I18).
    syncing: Mutex<()>,
}

impl DataFile {
    /// Makes all writes durable.
    ///
    /// # Errors
    /// Poisons the file: after a failed sync it is unknown which writes are lost. Fails if the file is
    /// poisoned.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        if braid_rt::mutant!("sync_at_once") {
            return self.sync_alone();
        }
        let _syncing = self.unsynced.syncing.lock();
        self.sync_alone()
    }

    /// [`DataFile::sync`] of the thread that holds `syncing`.
    fn sync_alone(&self) -> Result<(), StoreError> {
        if let Some(cause) = self.poison.get()
            && !braid_rt::mutant!("sync_after_a_failed_sync")
        {
            let cause = cause.clone();
            return Err(StoreError::Poisoned { cause });
        }
        // Before the sync, which may miss later writes.
        self.unsynced.bytes.store(0, Ordering::Relaxed);
        self.file.sync().map_err(|error| {
            braid_rt::coverage_point("store: poisoned by a sync");
            let error = self.failed("cannot sync", error);
            self.poison_unsynced(&error);
            error
        })
    }

    /// Makes all writes durable if there are many, from background work that has written a part of
    /// them. Returns whether it did. Threads that find another one at it leave it alone.
    ///
    /// # Errors
    /// See [`DataFile::sync`].
    pub(crate) fn bound_unsynced(&self) -> Result<bool, StoreError> {
        // The files of simulations are small.
        let most = if braid_rt::simulation::is_on() {
            UNSYNCED_MAX >> 9
        } else {
            UNSYNCED_MAX
        };
        let is_much = || self.unsynced.bytes.load(Ordering::Relaxed) >= most;
        if !is_much() || braid_rt::mutant!("sync_once_at_the_end") {
            return Ok(false);
        }
        let Some(_syncing) = self.unsynced.syncing.try_lock() else {
            return Ok(false);
        };
        if is_much() {
            braid_rt::coverage_point("store: background work syncs what it wrote");
            self.sync_alone()?;
        }
        Ok(true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use braid_io::{File, Layer, LayeredDevice, MemoryDevice};

    use super::UNSYNCED_MAX;
    use crate::{Change, PAGE_SIZE, Store, StoreOptions};

    const OPTIONS: StoreOptions = StoreOptions::of_pool(8 << 20);

    /// Counts syncs.
    #[derive(Clone, Debug, Default)]
    struct Syncs(Arc<AtomicU64>);

    impl Layer for Syncs {
        fn sync(&self, file: &dyn File) -> io::Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            file.sync()
        }
    }

    fn store() -> (Store, Syncs) {
        let syncs = Syncs::default();
        let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), syncs.clone());
        let store = Store::create(Arc::new(device), OPTIONS).unwrap();
        syncs.0.store(0, Ordering::Relaxed);
        (store, syncs)
    }

    fn unsynced(store: &Store) -> u64 {
        store.inner.pool.file.unsynced.bytes.load(Ordering::Relaxed)
    }

    /// The last sync writes no more than the limit and what is written at once.
    #[test]
    fn a_load_syncs_part_by_part() {
        let (store, syncs) = store();
        let mut loader = store.load(1, false).unwrap();
        let most = UNSYNCED_MAX + (2 << 20);
        for key in 0..6_000u64 {
            loader.append(&key.to_be_bytes(), 1, &[7; 1_500]).unwrap();
            assert!(unsynced(&store) < most);
        }
        loader.finish().unwrap();
        assert!(unsynced(&store) < most);
        let written = store.stats().block_bytes_written;
        assert!(written > 8 << 20, "{written}");
        assert!(syncs.0.load(Ordering::Relaxed) >= written / most);
    }

    #[test]
    fn a_checkpoint_syncs_part_by_part() {
        let (store, syncs) = store();
        let tree = store.tree(1).unwrap();
        for key in 0..2_000u32 {
            let (version, value) = (1, &[7; 1_500][..]);
            let put = Change::Put { version, value };
            tree.modify(&key.to_be_bytes(), |_| (put, ())).unwrap();
        }
        let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
        let most = UNSYNCED_MAX + (1_000 * PAGE_SIZE / 2) as u64;
        checkpoint
            .write(&|_| assert!(unsynced(&store) < most))
            .unwrap();
        assert!(syncs.0.load(Ordering::Relaxed) > 0);
        assert!(unsynced(&store) < most);
        checkpoint.publish().unwrap();
        assert_eq!(unsynced(&store), 0);
    }
}
