//! Copies of a store: reading a published checkpoint while other threads continue, and writing one
//! to a new file.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use braid_io::{AlignedBuf, Device};
use braid_rt::to_usize;

use crate::data_file::{
    DataFile, Entry, FILE_NAME, LEAF_ADDRESSES, Root, block_of, change_of, encode_leaf,
};
use crate::error::StoreError;
use crate::inner::StoreInner;
use crate::number_set::NumberSet;
use crate::page::{PageId, low32};
use crate::page_table::PAGES_MAX;

/// A published checkpoint that stays readable unchanged through all later checkpoints, until this
/// is dropped. Meanwhile its blocks are not reused, so the data file may grow.
#[derive(Debug)]
pub struct PinnedCheckpoint {
    store: Arc<StoreInner>,
    pin: u64,
    root: Root,
    addresses: Vec<u64>,
    entries: OnceLock<Vec<u64>>,
}

impl PinnedCheckpoint {
    /// See [`Store::pin_checkpoint`](crate::Store::pin_checkpoint).
    pub(crate) fn newest_of(store: &Arc<StoreInner>) -> Self {
        let root = store.root.lock().clone();
        let file = &store.pool.file;
        let addresses = file.addresses.durable_of(0..root.next_page);
        let own = root.leaf_addresses.iter().chain(&root.blob_blocks);
        let mut blocks = NumberSet::default();
        blocks.extend(own.map(|&address| block_of(address)));
        let existing = addresses.iter().filter(|address| **address != 0);
        blocks.extend(existing.map(|&address| block_of(address)));
        let pin = file.holds.space.of(file.space.lock()).pin(blocks);
        Self {
            store: store.clone(),
            pin,
            root,
            addresses,
            entries: OnceLock::new(),
        }
    }

    /// The caller's bytes of the checkpoint.
    pub fn meta(&self) -> &[u8] {
        &self.root.meta
    }

    /// The superblock's sequence number.
    pub fn sequence(&self) -> u64 {
        self.root.sequence
    }

    /// The root page of each tree.
    pub fn trees(&self) -> &BTreeMap<u32, PageId> {
        &self.root.trees
    }

    /// For each page id, a number that changes whenever the page is written again; 0 if there is no
    /// such page. Comparable with the numbers of an earlier checkpoint of the same store, even one
    /// before the store was reopened. The first call reads the page map; pages of an unreadable
    /// leaf count as written by this checkpoint.
    pub fn entries(&self) -> &[u64] {
        self.entries.get_or_init(|| {
            let mut entries = Vec::with_capacity(self.addresses.len());
            for (leaf, addresses) in self.addresses.chunks(LEAF_ADDRESSES).enumerate() {
                let first = (leaf * LEAF_ADDRESSES) as u64;
                let born = low32(self.root.sequence);
                let file = &self.store.pool.file;
                let of_leaf = file.entries_of(&self.root, first, addresses, born);
                entries.extend(of_leaf.into_iter().map(change_of));
            }
            entries
        })
    }

    /// Reads and checks pages, each into its buffer of [`PAGE_SIZE`](crate::PAGE_SIZE) bytes.
    ///
    /// # Errors
    /// [`StoreError::Corrupted`] or [`StoreError::Io`].
    ///
    /// # Panics
    /// If an id has no page.
    pub fn read(&self, pages: &mut [(PageId, AlignedBuf)]) -> Result<(), StoreError> {
        let mut placed: Vec<(PageId, u64, &mut AlignedBuf)> = Vec::with_capacity(pages.len());
        for (id, buf) in pages {
            placed.push((*id, self.addresses[to_usize(*id)], buf));
        }
        self.store
            .pool
            .file
            .read_pages(&mut placed, self.root.sequence)
    }

    /// A buffer for a page.
    pub fn buffer(&self) -> AlignedBuf {
        self.store.pool.file.buffer()
    }
}

/// All blocks that a file had when it was opened, which are not reused until this is dropped.
#[derive(Debug)]
pub struct PinnedFile {
    store: Arc<StoreInner>,
    pin: u64,
}

impl PinnedFile {
    /// See [`Store::pin_file`](crate::Store::pin_file).
    pub(crate) fn pin(store: &Arc<StoreInner>) -> Result<Self, StoreError> {
        let file = &store.pool.file;
        let end = file.len_blocks()?;
        let pin = file.holds.space.of(file.space.lock()).pin_all(end);
        let store = store.clone();
        Ok(Self { store, pin })
    }
}

impl Drop for PinnedFile {
    fn drop(&mut self) {
        unpin(&self.store, self.pin);
    }
}

impl Drop for PinnedCheckpoint {
    fn drop(&mut self) {
        unpin(&self.store, self.pin);
    }
}

fn unpin(store: &StoreInner, pin: u64) {
    let file = &store.pool.file;
    file.holds.space.of(file.space.lock()).unpin(pin);
}

/// Writes a data file from pages that were read with [`PinnedCheckpoint::read`].
///
/// The file can be opened only after [`StoreWriter::finish`] has returned.
#[derive(Debug)]
pub struct StoreWriter {
    file: DataFile,
    /// The block address of each page, by id. Only ids of existing pages take memory, since ids
    /// come from outside.
    addresses: HashMap<PageId, u64>,
}

impl StoreWriter {
    /// Creates the data file on a device.
    ///
    /// # Errors
    /// [`StoreError::Io`], also if the file exists.
    pub fn create(device: Arc<dyn Device>) -> Result<Self, StoreError> {
        Ok(Self {
            file: DataFile::create(device, 0)?,
            addresses: HashMap::new(),
        })
    }

    /// The device that the data file is on.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.file.device()
    }

    /// Writes pages, replacing pages that were written before.
    ///
    /// # Errors
    /// [`StoreError::Corrupted`] if the bytes are not the page with that id,
    /// [`StoreError::OutOfSpace`] or [`StoreError::Io`].
    pub fn put(&mut self, pages: &mut [(PageId, AlignedBuf)]) -> Result<(), StoreError> {
        for (id, bytes) in &*pages {
            if *id == 0 || *id >= PAGES_MAX {
                return Err(StoreError::damaged_page(
                    FILE_NAME,
                    *id,
                    "invalid page number",
                ));
            }
            crate::data_file::check_copied(bytes, *id)
                .map_err(|what| StoreError::damaged_page(FILE_NAME, *id, what))?;
        }
        let blocks = self.file.write_blocks(pages)?;
        for ((id, _), block) in pages.iter().zip(blocks) {
            if let Some(before) = self.addresses.insert(*id, block) {
                self.file.space.lock().free(before);
            }
        }
        self.file.bound_unsynced().map(drop)
    }

    /// Completes a durable store of the pages below `next_page` that `exists` selects. Takes memory
    /// for `next_page` pages.
    ///
    /// # Errors
    /// [`StoreError::Corrupted`] if one of them was not written, [`StoreError::OutOfSpace`] or
    /// [`StoreError::Io`].
    pub fn finish(
        self,
        next_page: PageId,
        trees: BTreeMap<u32, PageId>,
        meta: Vec<u8>,
        exists: impl Fn(PageId) -> bool,
    ) -> Result<(), StoreError> {
        if next_page == 0 || next_page > PAGES_MAX {
            return Err(StoreError::damaged_page(
                FILE_NAME,
                next_page,
                "invalid number of pages",
            ));
        }
        let address = |id: PageId| match (exists(id), self.addresses.get(&id)) {
            (false, _) => Ok(0),
            (true, Some(&address)) => Ok(address),
            (true, None) => Err(StoreError::damaged_page(
                FILE_NAME,
                id,
                "the page is missing",
            )),
        };
        let addresses: Vec<u64> = (0..next_page).map(address).collect::<Result<_, _>>()?;
        if let Some((_, &root)) = trees.iter().find(|(_, root)| !exists(**root)) {
            return Err(StoreError::damaged_page(
                FILE_NAME,
                root,
                "the root page of a tree is missing",
            ));
        }
        let mut leaf_addresses = Vec::new();
        for (index, leaf) in addresses.chunks(LEAF_ADDRESSES).enumerate() {
            let mut buf = self.file.buffer();
            let entry = |&address| Entry {
                address,
                born: u32::from(address != 0),
            };
            encode_leaf(&leaf.iter().map(entry).collect::<Vec<_>>(), &mut buf);
            let identity = DataFile::map_identity(index);
            leaf_addresses.extend(self.file.write_blocks(&mut [(identity, buf)])?);
        }
        let mut root = Root {
            sequence: 1,
            next_page,
            leaf_addresses,
            trees,
            meta,
            ..Root::default()
        };
        let blob = self.file.write_blob(&mut root)?;
        self.file.write_superblock(&root, blob)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use braid_io::{MemoryDevice, OpenMode};

    use super::*;
    use crate::page::PAGE_SIZE;
    use crate::{Change, Store, StoreOptions};

    /// Enough keys for several leaves.
    const KEYS: u32 = if cfg!(miri) { 60 } else { 3_000 };

    /// A pool with room for all of them.
    const OPTIONS: StoreOptions = StoreOptions::of_pool(8 << 20);

    fn checkpoint(store: &Store) {
        let mut checkpoint = store.begin_checkpoint(b"meta".to_vec()).unwrap();
        checkpoint.write(&|_| {}).unwrap();
        checkpoint.publish().unwrap();
    }

    fn put(store: &Store, keys: std::ops::Range<u32>, version: u64) {
        let tree = store.tree(7).unwrap();
        for key in keys {
            let value = [version as u8; 300];
            let put = Change::Put {
                version,
                value: &value,
            };
            tree.modify(&key.to_be_bytes(), |_| (put, ())).unwrap();
        }
    }

    fn version_of(store: &Store, key: u32) -> Option<u64> {
        let found = store.tree(7).unwrap().get(&key.to_be_bytes(), |_| true);
        found.unwrap().map(|found| found.meta.version)
    }

    fn copy(
        pinned: &PinnedCheckpoint,
        changed_since: Option<&[u64]>,
        to: &mut StoreWriter,
    ) -> usize {
        let before = |id: usize| changed_since.and_then(|b| b.get(id)).copied().unwrap_or(0);
        let entries = pinned.entries().iter().enumerate();
        let changed = entries.filter(|(id, entry)| **entry != 0 && **entry != before(*id));
        let mut pages: Vec<_> = changed
            .map(|(id, _)| (id as u64, pinned.buffer()))
            .collect();
        pinned.read(&mut pages).unwrap();
        to.put(&mut pages).unwrap();
        pages.len()
    }

    #[test]
    fn a_pinned_checkpoint_is_copied_while_others_follow() {
        let store = Store::create(Arc::new(MemoryDevice::new()), OPTIONS).unwrap();
        put(&store, 0..KEYS, 1);
        checkpoint(&store);
        let first = store.pin_checkpoint();
        let target = Arc::new(MemoryDevice::new());
        let mut writer = StoreWriter::create(target.clone()).unwrap();
        // Every page is rewritten several times: without the pin, this would reuse the checkpoint's
        // blocks.
        for version in 2..6 {
            put(&store, 0..KEYS, version);
            checkpoint(&store);
        }
        let all = copy(&first, None, &mut writer);
        let entries = first.entries().to_vec();
        drop(first);
        for version in 6..9 {
            put(&store, 0..KEYS, version);
            checkpoint(&store);
        }
        let before = store.pin_checkpoint().entries().to_vec();
        put(&store, 0..5, 9);
        checkpoint(&store);
        let mut findings = Vec::new();
        store.verify(&mut |damage| findings.push(damage)).unwrap();
        assert!(findings.is_empty(), "{findings:?}");
        let last = store.pin_checkpoint();
        let differ = last.entries().iter().zip(&before).filter(|(a, b)| a != b);
        assert_eq!(differ.count(), 1, "one leaf changed");
        let changed = copy(&last, Some(&entries), &mut writer);
        assert_eq!(changed, all - 1, "all but the root");
        let exists = |id: PageId| last.entries().get(id as usize).is_some_and(|e| *e != 0);
        let next = last.entries().len() as u64;
        writer
            .finish(next, last.trees().clone(), b"new".to_vec(), exists)
            .unwrap();
        let (copied, meta) = Store::open(target, OPTIONS).unwrap();
        assert_eq!(meta, b"new");
        assert_eq!(
            (version_of(&copied, 0), version_of(&copied, KEYS - 1)),
            (Some(9), Some(8))
        );
        copied.verify(&mut |damage| panic!("{damage:?}")).unwrap();
    }

    /// A checkpoint reads the births of pages that it does not write. Those that it can't read must
    /// not be numbers that an earlier backup may have recorded for other contents.
    #[test]
    fn pages_of_an_unreadable_map_leaf_count_as_changed() {
        for is_readable in [true, false] {
            let device = Arc::new(MemoryDevice::new());
            let store = Store::create(device.clone(), OPTIONS).unwrap();
            put(&store, 0..KEYS, 1);
            checkpoint(&store);
            checkpoint(&store);
            let before = store.pin_checkpoint();
            let entries = before.entries().to_vec();
            let leaf = block_of(before.root.leaf_addresses[0]);
            if !is_readable {
                let file = device.open("data.braid", OpenMode::Existing).unwrap();
                let garbage = [3; PAGE_SIZE];
                let offset = leaf * PAGE_SIZE as u64;
                file.write_at(&[&garbage], offset).unwrap();
            }
            drop(before);
            let pinned = store.pin_checkpoint();
            assert_eq!(pinned.entries() == entries, is_readable);
            drop(pinned);
            put(&store, 0..1, 2);
            checkpoint(&store);
            let after = store.pin_checkpoint();
            let of_leaf = 1..after.entries().len().min(LEAF_ADDRESSES);
            let born = |id: usize| after.entries()[id] >> 38;
            let new = of_leaf.clone().filter(|&id| born(id) == after.sequence());
            // The changed leaf of the tree, or all pages.
            let all = of_leaf.len();
            assert_eq!(new.count(), if is_readable { 1 } else { all });
            store.verify(&mut |damage| panic!("{damage:?}")).unwrap();
            let (opened, _) = Store::open(device, OPTIONS).unwrap();
            assert_eq!(opened.pin_checkpoint().entries(), after.entries());
        }
    }

    #[test]
    fn missing_and_invalid_pages_are_reported() {
        let store = Store::create(Arc::new(MemoryDevice::new()), OPTIONS).unwrap();
        put(&store, 0..KEYS, 1);
        checkpoint(&store);
        let pinned = store.pin_checkpoint();
        let mut writer = StoreWriter::create(Arc::new(MemoryDevice::new())).unwrap();
        let mut pages = vec![(1, pinned.buffer())];
        pinned.read(&mut pages).unwrap();
        writer.put(&mut pages).unwrap();
        pages[0].1[100] ^= 1;
        assert!(matches!(
            writer.put(&mut pages),
            Err(StoreError::Corrupted { .. })
        ));
        let next = pinned.entries().len() as u64;
        let finished = writer.finish(next, pinned.trees().clone(), Vec::new(), |id| id > 0);
        assert!(matches!(finished, Err(StoreError::Corrupted { .. })));
    }
}
