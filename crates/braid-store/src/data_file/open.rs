//! Opening the file at its newest checkpoint, and rejecting a state that no checkpoint wrote.
//!
//! A checksum proves that a block is unchanged, not that the blocks are consistent with each other.
//! All users of the page map rely on that consistency, so opening checks it once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_io::Device;

use super::free_space::{FIRST_BLOCK, Space};
use super::{DataFile, Entry, FILE_NAME, LOST, Root, block_of, damaged};
use crate::error::StoreError;
use crate::number_set::NumberSet;
use crate::page::PageId;

impl DataFile {
    /// Opens the file without reading its contents.
    pub(crate) fn peek(device: Arc<dyn Device>) -> Result<Self, StoreError> {
        let opened = device.open(FILE_NAME, braid_io::OpenMode::Existing);
        let file = opened.map_err(|e| StoreError::io("cannot open data.braid", e))?;
        Ok(Self::assemble(device, file))
    }

    /// Opens the file at its newest superblock, and reads the page map. Returns the superblock's
    /// state. With `only_read`, leaves of the map may be damaged; their pages are lost.
    pub(crate) fn open(
        device: Arc<dyn Device>,
        only_read: bool,
    ) -> Result<(Self, Root), StoreError> {
        let mut this = Self::peek(device)?;
        let (root, superblock) = this.read_root()?;
        this.sequence.store(root.sequence, Ordering::Release);
        *this.unsettled.lock() = Some((root.sequence, superblock));
        this.settled.store(false, Ordering::Release);
        check_leaf_count(&root)?;
        let used = this.read_map(&root, only_read)?;
        this.check_roots(&root)?;
        *this.space.lock() = Space::new(&used, this.room.clone());
        Ok((this, root))
    }

    /// Reads the page map of a root. Returns the blocks of the pages, of the map and of the root.
    /// With `only_read`, a damaged leaf is recorded in `lost_leaves`; then all blocks are returned:
    /// the blocks of its pages are unknown, so no block may be treated as free.
    fn read_map(&mut self, root: &Root, only_read: bool) -> Result<NumberSet, StoreError> {
        let mut used = UsedBlocks {
            blocks: NumberSet::default(),
            end: self.len_blocks()?,
        };
        for &address in &root.blob_blocks {
            used.add(address)?;
        }
        let pages = root.leaf_pages() as u64;
        for (index, &address) in root.leaf_addresses.iter().enumerate() {
            let first = index as u64 * pages;
            match self.read_map_leaf(root, index, address) {
                Ok(leaf) => {
                    used.add(address)?;
                    for (id, entry) in (first..root.next_page).zip(leaf) {
                        self.read_entry(id, entry, &mut used)?;
                    }
                }
                Err(error @ StoreError::Corrupted { .. }) if only_read => {
                    self.lost_leaves.push((first..first + pages, error));
                    for id in first.max(1)..root.next_page.min(first + pages) {
                        self.addresses.begin(id, LOST);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        if !self.lost_leaves.is_empty() {
            let mut all = NumberSet::default();
            all.insert_range(FIRST_BLOCK..used.end);
            return Ok(all);
        }
        Ok(used.blocks)
    }

    /// Records an entry of the page map.
    fn read_entry(
        &self,
        id: PageId,
        entry: Entry,
        used: &mut UsedBlocks,
    ) -> Result<(), StoreError> {
        if entry.address == 0 {
            return Ok(());
        }
        if id == 0 {
            return Err(damaged(
                "page 0 has a block, but page numbers begin at 1",
                "the page map".into(),
            ));
        }
        self.addresses.begin(id, entry.address);
        used.add(entry.address)
    }

    /// Checks that the root page of each tree exists.
    fn check_roots(&self, root: &Root) -> Result<(), StoreError> {
        let exists = |page: PageId| page < root.next_page && self.durable_address(page) != 0;
        match root.trees.iter().find(|(_, page)| !exists(**page)) {
            Some((tree, page)) => {
                let what = format!("tree {tree} has no root");
                Err(damaged(&what, format!("data.braid, page {page}")))
            }
            None => Ok(()),
        }
    }
}

/// The blocks of the file to which the page map and the root refer.
struct UsedBlocks {
    blocks: NumberSet,
    /// The file's length.
    end: u64,
}

impl UsedBlocks {
    /// Adds the block of an address, which must be in the file and used once.
    fn add(&mut self, address: u64) -> Result<(), StoreError> {
        let block = block_of(address);
        if !(FIRST_BLOCK..self.end).contains(&block) {
            let what = "the page map points past the end of the file";
            return Err(damaged(what, format!("block {block}")));
        }
        if !self.blocks.insert(block) {
            return Err(damaged("two pages share a block", "the page map".into()));
        }
        Ok(())
    }
}

/// Checks that a root has the leaves for its page ids. Otherwise the first checkpoint would write
/// leaves for ids that were never assigned.
fn check_leaf_count(root: &Root) -> Result<(), StoreError> {
    let leaves = root.next_page.div_ceil(root.leaf_pages() as u64);
    if root.next_page == 0 || root.leaf_addresses.len() as u64 != leaves {
        // As for all states rejected here, the root has a valid checksum, but no checkpoint wrote
        // it.
        let what = "the page map has too many or too few leaves";
        return Err(damaged(what, "data.braid".into()));
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use braid_io::{MemoryDevice, OpenMode};

    use super::*;
    use crate::data_file::FORMAT;
    use crate::data_file::block::{seal, u64_at};
    use crate::page::PAGE_SIZE;
    use crate::page_table::PAGES_MAX;
    use crate::{Store, StoreOptions};

    const OPTIONS: StoreOptions = StoreOptions::of_pool(1 << 20);

    /// Creates a file with one checkpoint.
    fn published() -> Arc<MemoryDevice> {
        let device = Arc::new(MemoryDevice::new());
        let store = Store::create(device.clone(), OPTIONS).unwrap();
        store.tree(1).unwrap();
        let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
        checkpoint.write(&|_| {}).unwrap();
        checkpoint.publish().unwrap();
        device
    }

    /// Changes a block, and recomputes its checksum.
    fn change(device: &MemoryDevice, block: u64, edit: impl Fn(&mut [u8])) {
        let file = device.open(FILE_NAME, OpenMode::Existing).unwrap();
        let mut buf = vec![0; PAGE_SIZE];
        file.read_at(&mut buf, block * PAGE_SIZE as u64).unwrap();
        edit(&mut buf);
        let identity = u64_at(&buf, 8);
        seal(&mut buf, identity, 1);
        file.write_at(&[&buf], block * PAGE_SIZE as u64).unwrap();
        let mut all = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut all, 0).unwrap();
        crate::fuzzing::bind_addresses(&mut all);
        file.write_at(&[&all], 0).unwrap();
    }

    fn opened(device: Arc<MemoryDevice>) -> Result<(), String> {
        let opened = Store::open(device, OPTIONS);
        opened.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn an_invalid_root_is_reported() {
        let blob = std::cell::Cell::new(0);
        let put = |buf: &mut [u8], at: usize, n: u64| {
            buf[at..at + 8].copy_from_slice(&n.to_le_bytes());
        };
        for (at, value, what) in [
            // The next page's number; after it the tree's root, one map leaf and two counts.
            (24, (PAGES_MAX / 2) | (FORMAT << 56), "leaves"),
            (24, FORMAT << 56, "leaves"),
            (24, 1, "root block"),
            (24 + 5 * 8, 77, "no root"),
        ] {
            let device = published();
            change(&device, 1, |buf| blob.set(u64_at(buf, 32)));
            change(&device, block_of(blob.get()), |buf| put(buf, at, value));
            let error = opened(device).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        for sequence in [2, u64::MAX] {
            let device = published();
            change(&device, 1, |buf| put(buf, 24, sequence));
            let error = opened(device).unwrap_err();
            assert!(error.contains("superblock"), "{error}");
        }
    }
}
