//! Checkpoints: the pages as of one instant, written out of place, switched to by one superblock.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_io::AlignedBuf;
use braid_rt::{numa, to_usize};

use crate::buffer_pool::{ABSENT, OpenCheckpoint, UNWRITTEN, Wake};
use crate::copy::PinnedCheckpoint;
use crate::data_file::room::BorrowedRoom;
use crate::data_file::{
    BLOB, DataFile, Entry, LEAF_ADDRESSES, LOST, Moved, Packing, Root, block_of, encode_leaf,
};
use crate::error::StoreError;
use crate::inner::StoreInner;
use crate::page::{PAGE_SIZE, PageId, low32};

/// Most images written at once: enough to keep the device busy, and few enough that a flush of the
/// log, which the device queues after them, is not delayed for long.
const BATCH: usize = 16;

/// The share of the pool's pages whose images may be in flight at once, as a divisor: meanwhile
/// these pages can't be evicted, and other pages need frames, too.
const BATCH_SHARE: usize = 4;

/// Pages whose entries are looked at, or switched, while the checkpoint's lock is held once: writers
/// and evictors wait for the lock.
const STEP: usize = 32;

/// Progress of a checkpoint; see [`Checkpoint::write`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CheckpointProgress {
    /// Page images written.
    pub pages_written: u64,
    /// Page images to write in all, as far as known.
    pub pages_total: u64,
}

/// Statistics of a published checkpoint.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// Page images written.
    pub pages_written: u64,
    /// Blocks of the page map written.
    pub map_blocks_written: u64,
    /// The superblock's sequence number.
    pub sequence: u64,
}

/// A checkpoint between its epoch switch and its publication. Dropping it abandons it: the previous
/// superblock stays the newest, and the next checkpoint writes its pages.
#[derive(Debug)]
pub struct Checkpoint {
    store: Arc<StoreInner>,
    epoch: u64,
    next_page: PageId,
    trees: BTreeMap<u32, PageId>,
    meta: Vec<u8>,
    pages_written: u64,
    /// Pages moved to the beginning of the file, which count as written, too.
    pages_moved: u64,
    complete: bool,
    /// Whether the checkpoint shortens the file as far as possible.
    shrinks: bool,
    /// Whether the checkpoint moves pages to the beginning of the file, and so leaves no spares.
    moves: bool,
    /// Whether a write failed, with which images may be lost.
    failed: bool,
    closed: bool,
}

impl Checkpoint {
    pub(crate) fn begin(store: Arc<StoreInner>, meta: Vec<u8>) -> Result<Self, StoreError> {
        store.check_not_poisoned()?;
        let pool = &store.pool;
        let next_page = pool.ids.lock().next;
        let trees = store.trees.read().clone();
        let mut open = pool.lock_checkpoint();
        assert!(open.is_none(), "one checkpoint at a time");
        *open = Some(OpenCheckpoint::new());
        // Release: the epoch switch, under the lock that evictors acquire; see the pool's epochs.
        let epoch = pool.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        drop(open);
        Ok(Self {
            store,
            epoch,
            next_page,
            trees,
            meta,
            pages_written: 0,
            pages_moved: 0,
            complete: false,
            shrinks: false,
            moves: false,
            failed: false,
            closed: false,
        })
    }

    /// Makes this checkpoint move as many pages as possible to the beginning of the file. The
    /// blocks that it replaces become free only when it is published, so the file reaches its
    /// shortest length after a few such checkpoints.
    pub fn shrink(&mut self) {
        self.shrinks = true;
    }

    /// Replaces the metadata, before the checkpoint is published: what its owner learned meanwhile.
    pub fn set_meta(&mut self, meta: Vec<u8>) {
        self.meta = meta;
    }

    /// Sets a function that is called when many images wait that writers copied for this checkpoint:
    /// it should then not pause, because at some number writers write these images themselves. See
    /// [`Store::has_many_copies`](crate::Store::has_many_copies). Writers call the function, so it
    /// must be quick.
    pub fn wake_for_copies(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        if let Some(open) = self.store.pool.lock_checkpoint().as_mut() {
            open.wake = Some(Wake(wake));
        }
    }

    /// Writes the page images as of the epoch switch, while others change the pages.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`] or [`StoreError::Io`]; the checkpoint must then be dropped.
    ///
    /// # Panics
    /// If an earlier call failed.
    pub fn write(&mut self, progress: &dyn Fn(CheckpointProgress)) -> Result<(), StoreError> {
        assert!(!self.failed, "a checkpoint that failed is dropped");
        self.failed = true;
        let _on_its_node = numa::visit(self.store.pool.memory.node());
        self.write_images(progress)?;
        self.failed = false;
        self.complete = true;
        Ok(())
    }

    fn write_images(&mut self, progress: &dyn Fn(CheckpointProgress)) -> Result<(), StoreError> {
        self.relocate_tail(progress)?;
        let store = self.store.clone();
        let pool = &store.pool;
        let mut pages: Vec<_> = pool.dirty_before(self.epoch).collect();
        // The pages of a large value usually have consecutive ids, so they become consecutive in
        // the file, too.
        pages.sort_unstable();
        let pages_total = pages.len() as u64;
        let most = BATCH.min(pool.frame_count() / BATCH_SHARE);
        let mut images = AlignedBuf::new(most * PAGE_SIZE);
        let mut batch = Vec::with_capacity(most);
        for ids in pages.chunks(most) {
            batch.clear();
            for &id in ids {
                let image = &mut images[batch.len() * PAGE_SIZE..][..PAGE_SIZE];
                if pool.capture(id, image) {
                    batch.push(id);
                }
            }
            let images = &mut images[..batch.len() * PAGE_SIZE];
            let written = pool.file.write_run(&batch, images);
            for (i, &id) in batch.iter().enumerate() {
                let address = written.as_ref().ok().map(|addresses| addresses[i]);
                pool.captured_written(id, self.epoch, address);
            }
            if written.is_err() {
                braid_rt::coverage_point("store: a checkpoint's pages can't be written");
            }
            self.pages_written += written?.len() as u64;
            self.write_copies()?;
            pool.file.bound_unsynced()?;
            progress(CheckpointProgress {
                pages_written: self.pages_written,
                pages_total,
            });
        }
        self.write_copies()
    }

    /// Writes the images that writers copied.
    fn write_copies(&mut self) -> Result<(), StoreError> {
        let pool = &self.store.pool;
        loop {
            // All at once, so that nothing is freed under the lock: a thread that frees memory waits
            // for one that allocates from the same arena, which the system may have suspended.
            let mut copies = {
                let mut checkpoint = pool.lock_checkpoint();
                let open = checkpoint.as_mut().expect("this checkpoint is open");
                std::mem::take(&mut open.copies)
            };
            if copies.is_empty() {
                return Ok(());
            }
            while !copies.is_empty() {
                let images = std::iter::from_fn(|| copies.pop_first());
                let mut batch: Vec<_> = images.take(BATCH).collect();
                let written = pool.file.write_blocks(&mut batch);
                // Written or not, the images no longer wait.
                pool.file.room.add(batch.len() as u64);
                if written.is_err() && !braid_rt::mutant!("keep_room_of_lost_copies") {
                    pool.file.room.add(copies.len() as u64);
                }
                let addresses = written?;
                let mut checkpoint = pool.lock_checkpoint();
                let open = checkpoint.as_mut().expect("this checkpoint is open");
                for ((id, _), address) in batch.iter().zip(addresses) {
                    open.addresses.insert(*id, address);
                    self.pages_written += 1;
                }
            }
        }
    }

    /// Returns the first block that should become free in a file that shrinks, if shrinking is
    /// worthwhile.
    fn cutoff(&self) -> Option<u64> {
        let file = &self.store.pool.file;
        let space = file.holds.space.of(file.space.lock());
        let used = space.end() - space.free_blocks();
        if self.shrinks {
            return Some(used);
        }
        // Each page may have a spare.
        let spares = if space.keeps_spares() { used } else { 0 };
        (space.free_blocks() > spares + used / 2 + 16).then_some(spares + used + used / 8)
    }

    /// Moves pages from the end of a file with much free space to its beginning, so that it can
    /// shrink.
    fn relocate_tail(&mut self, progress: &dyn Fn(CheckpointProgress)) -> Result<(), StoreError> {
        let Some(cutoff) = self.cutoff() else {
            return Ok(());
        };
        self.moves = true;
        let store = self.store.clone();
        let pool = &store.pool;
        pool.file.space.lock().release_spares();
        let mut batch = Vec::with_capacity(BATCH);
        for id in 1..self.next_page {
            let from = pool.address(id);
            let stays = [UNWRITTEN, LOST].contains(&from)
                || block_of(from) < cutoff
                || pool.is_detached(id);
            // A page whose image is to be written gets another block address anyway.
            if stays || pool.file.durable_address(id) != from || pool.may_await_image(id) {
                continue;
            }
            batch.push((id, from));
            if batch.len() == BATCH {
                if !self.move_pages(&batch)? {
                    return Ok(());
                }
                pool.file.bound_unsynced()?;
                batch.clear();
                // The images, which count, are still to be written.
                progress(CheckpointProgress {
                    pages_written: 0,
                    pages_total: self.next_page,
                });
            }
        }
        self.move_pages(&batch)?;
        Ok(())
    }

    /// Moves pages from their block addresses to the beginning of the file, in one batch. Returns
    /// whether there may be room for more.
    fn move_pages(&mut self, pages: &[(PageId, u64)]) -> Result<bool, StoreError> {
        let store = self.store.clone();
        let pool = &store.pool;
        let Some(moved) = pool.file.copy_down(pages)? else {
            return Ok(false);
        };
        for Moved { id, from, to } in moved {
            if pool.relocate(id, from, to) {
                self.pages_written += 1;
                self.pages_moved += 1;
            } else {
                pool.file.free(&[to]);
            }
        }
        // Writers do not wait for the end of the moves: beyond some copies, each writes its image
        // itself.
        if !braid_rt::mutant!("move_pages_while_copies_wait") {
            self.write_copies()?;
        }
        Ok(true)
    }

    /// Publishes the checkpoint, so that the next open begins with it. The caller has made durable
    /// everything on which its images depend (I5). Then cuts off the end of the file that is not
    /// needed any more.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`] or [`StoreError::Io`]; the previous superblock stays the newest.
    /// After a failed sync all later checkpoints fail, too (I8).
    ///
    /// # Panics
    /// If [`Checkpoint::write`] has not succeeded.
    pub fn publish(self) -> Result<CheckpointReport, StoreError> {
        let store = self.store.clone();
        let (report, _) = self.publish_keeping(|_| false)?;
        while store.pool.file.cut_off_some() {}
        Ok(report)
    }

    /// As [`Checkpoint::publish`], but leaves the end of the file to
    /// [`Store::cut_off_some`](crate::Store::cut_off_some). After the new superblock is durable, and
    /// before any block of the previous checkpoint is free, `keep` receives the sequence number of the
    /// previous one and returns whether to pin it.
    ///
    /// # Errors
    /// As [`Checkpoint::publish`].
    ///
    /// # Panics
    /// As [`Checkpoint::publish`].
    pub fn publish_keeping(
        mut self,
        keep: impl FnOnce(u64) -> bool,
    ) -> Result<(CheckpointReport, Option<PinnedCheckpoint>), StoreError> {
        assert!(
            self.complete,
            "a checkpoint is written before it is published"
        );
        let store = self.store.clone();
        store.check_not_poisoned()?;
        let pool = &store.pool;
        let _on_its_node = numa::visit(pool.memory.node());
        let old_root = store.root.lock().clone();
        let changes = self.map_changes(&old_root);
        let mut borrowed = BorrowedRoom::new(&pool.file.room);
        let (root, blob, map_blocks_written) =
            self.write_root(&changes, &old_root, &mut borrowed)?;
        if braid_rt::mutant!("free_blocks_early") {
            self.free_replaced(&old_root, &root);
        }
        pool.file.write_superblock(&root, blob)?;
        let kept = keep(old_root.sequence).then(|| PinnedCheckpoint::newest_of(&store));
        // From here on the new superblock is valid; blocks that only the old one used are free (I6
        // for blocks). In this order; see `DataFile::read_page`.
        pool.file.set_sequence(root.sequence);
        let old_len = pool.ids.lock().next.max(old_root.next_page);
        if !braid_rt::mutant!("free_superseded_late") {
            while !self.free_superseded(&changes, &mut pool.lock_checkpoint()) {}
        }
        self.switch_entries(&changes);
        if !braid_rt::mutant!("free_blocks_early") {
            self.free_replaced(&old_root, &root);
        }
        drop(borrowed);
        let root_blocks = root.blob_blocks.len();
        *store.root.lock() = root;
        let open = self.close(&changes);
        let report = CheckpointReport {
            pages_written: self.pages_written,
            map_blocks_written,
            sequence: old_root.sequence + 1,
        };
        self.end(open, root_blocks, old_len);
        Ok((report, kept))
    }

    /// The pages whose entries in this checkpoint's page map differ from the previous ones. All
    /// images are written, so the entries are final, whatever happens to the pages.
    fn map_changes(&self, old: &Root) -> MapChanges {
        let pool = &self.store.pool;
        let mut entries = Vec::new();
        // Pages of later ids appeared after the epoch switch.
        assert!(old.next_page <= self.next_page, "page ids stay assigned");
        for first in (0..self.next_page).step_by(STEP) {
            let ids = first..self.next_page.min(first + STEP as u64);
            // Without the lock: the list of a large checkpoint moves when it grows.
            for (id, &address) in ids.clone().zip(&self.addresses_of(ids)) {
                let Some(address) = address else { continue };
                assert!(
                    address != UNWRITTEN,
                    "page {id} of the checkpoint was not written"
                );
                if address != pool.file.durable_address(id) {
                    entries.push((id, address));
                }
            }
        }
        MapChanges {
            born: low32(old.sequence + 1),
            entries,
        }
    }

    /// The addresses that a step of pages has in this checkpoint, as far as they may differ from the
    /// durable ones.
    fn addresses_of(&self, ids: Range<PageId>) -> [Option<u64>; STEP] {
        let pool = &self.store.pool;
        let first = ids.start;
        let mut addresses = [None; STEP];
        let checkpoint = pool.lock_checkpoint();
        let open = checkpoint.as_ref().expect("this checkpoint is open");
        // All other pages have the durable address now, and had it at the epoch switch.
        pool.file.addresses.for_changed(ids.clone(), |id, address| {
            addresses[to_usize(id - first)] = Some(address);
        });
        let written = open.addresses.range(ids.clone());
        for (&id, &address) in open.frozen.range(ids).chain(written) {
            addresses[to_usize(id - first)] = Some(address);
        }
        addresses
    }

    /// Writes the page map and the root. Returns the root, its block address and length for the
    /// superblock, and the number of map blocks written.
    fn write_root(
        &mut self,
        changes: &MapChanges,
        old: &Root,
        borrowed: &mut BorrowedRoom<'_>,
    ) -> Result<(Root, (u64, u64), u64), StoreError> {
        let store = self.store.clone();
        let file = &store.pool.file;
        let (leaf_addresses, new_blocks) = self.write_map(changes, old, borrowed)?;
        let mut root = Root {
            sequence: old.sequence + 1,
            next_page: self.next_page,
            leaf_addresses,
            trees: std::mem::take(&mut self.trees),
            meta: std::mem::take(&mut self.meta),
            ..Root::default()
        };
        let written = file.write_blob(&mut root);
        let blob = written.inspect_err(|_| file.free(&new_blocks))?;
        borrowed.take(root.blob_blocks.len() as u64);
        Ok((root, blob, new_blocks.len() as u64))
    }

    /// Makes the entries of this checkpoint the durable ones, and frees the blocks that are no longer
    /// used. They become spares of their pages: the next checkpoint writes there what changed since
    /// the previous one.
    ///
    /// The checkpoint stays open meanwhile, so that the pages whose entries are not switched yet
    /// keep their blocks. For a page whose entry is switched, an open checkpoint changes nothing:
    /// the block that it keeps is the durable one.
    fn switch_entries(&self, changes: &MapChanges) {
        let pool = &self.store.pool;
        // Room for all of a step: under the lock, an allocation would wait for a thread that was
        // suspended while it allocated from the same arena.
        let (mut freed, mut removed) = (Vec::with_capacity(2 * STEP), Vec::with_capacity(STEP));
        for changed in changes.entries.chunks(STEP) {
            let checkpoint = pool.lock_checkpoint();
            for &(id, address) in changed {
                let old = pool.file.addresses.set_durable(id, address);
                let current = pool.address(id);
                let left = pool.adopt_image(id, address);
                if old != ABSENT && (current != old || left.is_some()) {
                    freed.push((id, old));
                }
                // Nothing durable refers to it, nor does the open checkpoint, which has the image.
                freed.extend(left.filter(|&left| left != old).map(|left| (id, left)));
                if address == ABSENT {
                    removed.push(id);
                }
            }
            drop(checkpoint);
            if braid_rt::mutant!("leak_blocks") {
                freed.pop();
            }
            self.free_as_spares(&freed);
            pool.file.forget_spares(&removed);
            freed.clear();
            removed.clear();
        }
    }

    /// Frees blocks, and keeps them for their identities unless the checkpoint shortens the file.
    fn free_as_spares(&self, blocks: &[(u64, u64)]) {
        let file = &self.store.pool.file;
        if self.moves {
            let blocks: Vec<u64> = blocks.iter().map(|(_, block)| *block).collect();
            file.free(&blocks);
        } else {
            file.free_as_spares(blocks);
        }
    }

    /// Frees some of the blocks that only the open checkpoint kept: block addresses as of the epoch
    /// switch that nothing durable ever referred to, of pages whose images for this checkpoint are
    /// elsewhere. Neither superblock refers to them, and the page has another address by now.
    /// Returns whether there are no more.
    ///
    /// First called before the entries are switched, since it must not free a block that is durable
    /// until then. A page that leaves its block after its entry was removed here has another entry
    /// for that block afterwards, unless it is detached.
    fn free_superseded(
        &self,
        changes: &MapChanges,
        checkpoint: &mut Option<OpenCheckpoint>,
    ) -> bool {
        let pool = &self.store.pool;
        let is_superseded = |&(id, address): &(PageId, u64)| {
            address != ABSENT
                && address != UNWRITTEN
                && changes.address(id) != Some(address)
                && address != pool.address(id)
                && address != pool.file.durable_address(id)
        };
        let open = checkpoint.as_mut().expect("this checkpoint is open");
        let frozen = std::iter::from_fn(|| open.frozen.pop_first()).take(STEP);
        let frozen: Vec<_> = frozen.collect();
        for &(id, address) in &frozen {
            // The new superblock refers to this block, and until the entry is switched, only the
            // open checkpoint keeps it. A detached page gets no other entry.
            if changes.address(id) == Some(address)
                && address != ABSENT
                && !braid_rt::mutant!("forget_what_is_published")
            {
                open.addresses.insert(id, address);
            }
        }
        let superseded = frozen.into_iter().filter(is_superseded);
        let blocks: Vec<u64> = superseded.map(|(_, address)| address).collect();
        pool.file.free(&blocks);
        open.frozen.is_empty()
    }

    /// Ends the time in which the checkpoint is open.
    fn close(&self, changes: &MapChanges) -> OpenCheckpoint {
        loop {
            let mut checkpoint = self.store.pool.lock_checkpoint();
            if self.free_superseded(changes, &mut checkpoint) {
                return checkpoint.take().expect("this checkpoint is open");
            }
        }
    }

    /// Ends a checkpoint that was published: updates the promised room, frees the pages that waited
    /// for the end, and gives up the unneeded end of the file.
    fn end(&mut self, open: OpenCheckpoint, root_blocks: usize, old_len: PageId) {
        let store = self.store.clone();
        let pool = &store.pool;
        pool.file.room.add(open.copies.len() as u64);
        pool.file.room.set_root(root_blocks);
        pool.file.room.set_refused(false);
        pool.file.allow_growth();
        self.closed = true;
        let to_free = open.to_free.into_iter();
        to_free.for_each(|id| pool.free_detached(id));
        // Transactions will probably change as many pages until the next checkpoint, or as many as they
        // have changed during this one.
        let changed = pool.dirty_before(u64::MAX).count() as u64;
        (pool.file).trim(old_len, changed.max(self.pages_written - self.pages_moved));
        if braid_rt::simulation::is_on() {
            self.check_owners();
        }
    }

    /// Checks that no block has two owners, and that none with an owner is free. A block that is
    /// freed twice has two owners only once somebody else has taken it, which may be much later, so
    /// simulations check after each checkpoint.
    fn check_owners(&self) {
        let pool = &self.store.pool;
        // Addresses of existing pages change, and their blocks are freed, under this lock.
        let _checkpoint = pool.lock_checkpoint();
        let space = pool.file.space.lock();
        let mut owners = BTreeMap::new();
        for id in 1..self.next_page {
            pool.check_place(id);
            for address in [pool.address(id), pool.file.durable_address(id)] {
                if [ABSENT, UNWRITTEN, LOST].contains(&address) {
                    continue;
                }
                let block = block_of(address);
                assert!(!space.is_free(block), "block {block} of page {id} is free");
                let owner = *owners.entry(block).or_insert(id);
                assert_eq!(owner, id, "both pages have block {block}");
            }
        }
    }

    /// Writes the leaves of the page map that changed. Returns all leaves' block addresses and the
    /// new blocks.
    fn write_map(
        &self,
        changes: &MapChanges,
        old: &Root,
        borrowed: &mut BorrowedRoom<'_>,
    ) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
        let pool = &self.store.pool;
        let cutoff = self.cutoff().unwrap_or(u64::MAX);
        let leaves = self.next_page.div_ceil(LEAF_ADDRESSES as u64);
        let mut leaf_addresses = Vec::with_capacity(to_usize(leaves));
        let mut new_blocks = Vec::new();
        let mut changed = changes.entries.as_slice();
        for (index, first) in (0..self.next_page).step_by(LEAF_ADDRESSES).enumerate() {
            let ids = first..self.next_page.min(first + LEAF_ADDRESSES as u64);
            let of_leaf = changed.partition_point(|(id, _)| *id < first + LEAF_ADDRESSES as u64);
            let (of_leaf, later) = changed.split_at(of_leaf);
            changed = later;
            let old_address = old.leaf_addresses.get(index).copied();
            if let Some(old_address) = old_address
                && block_of(old_address) < cutoff
                && old.packing == Packing::Present
                && of_leaf.is_empty()
            {
                leaf_addresses.push(old_address);
                continue;
            }
            let mut kept = pool.file.addresses.durable_of(ids.clone());
            for (id, _) in of_leaf {
                kept[to_usize(id - first)] = ABSENT;
            }
            let born = changes.born;
            let mut leaf = pool.file.entries_of(old, first, &kept, born);
            for &(id, address) in of_leaf {
                leaf[to_usize(id - first)] = changes.changed_entry(address);
            }
            let mut buf = pool.file.buffer();
            encode_leaf(&leaf, &mut buf);
            let written = pool
                .file
                .write_blocks(&mut [(DataFile::map_identity(index), buf)]);
            let block = match written {
                Ok(blocks) => blocks[0],
                Err(error) => {
                    pool.file.free(&new_blocks);
                    return Err(error);
                }
            };
            borrowed.take(1);
            new_blocks.push(block);
            leaf_addresses.push(block);
        }
        Ok((leaf_addresses, new_blocks))
    }

    /// Frees the old root's own blocks.
    fn free_replaced(&self, old: &Root, new: &Root) {
        let new_leaves: HashSet<u64> = new.leaf_addresses.iter().copied().collect();
        let leaves = (0..).map(DataFile::map_identity).zip(&old.leaf_addresses);
        let replaced = leaves.filter(|(_, block)| !new_leaves.contains(block));
        // A blob is written from its last block to the first.
        let blob = old.blob_blocks.iter().rev();
        let blob = (0..).map(|i: u64| BLOB | i).zip(blob);
        let blocks = replaced
            .chain(blob)
            .map(|(identity, block)| (identity, *block));
        let blocks: Vec<(u64, u64)> = blocks.collect();
        let steps = blocks.chunks(STEP);
        steps.for_each(|blocks| self.free_as_spares(blocks));
        let gone = new.blob_blocks.len()..old.blob_blocks.len();
        let gone: Vec<u64> = gone.map(|i| BLOB | i as u64).collect();
        self.store.pool.file.forget_spares(&gone);
    }
}

/// What a checkpoint changes in the page map. All other pages keep their entries.
struct MapChanges {
    /// The birth of the pages that it writes.
    born: u32,
    /// Block addresses of the pages whose entries change, in the order of their ids.
    entries: Vec<(PageId, u64)>,
}

impl MapChanges {
    /// The new block address of a page; `None` if it keeps its entry.
    fn address(&self, id: PageId) -> Option<u64> {
        let found = self.entries.binary_search_by_key(&id, |(id, _)| *id);
        found.ok().map(|at| self.entries[at].1)
    }

    /// The new entry of a page that has this new block address.
    fn changed_entry(&self, address: u64) -> Entry {
        match address {
            ABSENT => Entry::default(),
            address => Entry {
                address,
                born: self.born,
            },
        }
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        braid_rt::coverage_point("store: a checkpoint abandoned");
        // Abandoned: a block that was written for it and is not a page's current block is free
        // again.
        let pool = &self.store.pool;
        let mut checkpoint = pool.lock_checkpoint();
        let Some(open) = checkpoint.take() else {
            return;
        };
        let mut space = pool.file.space.lock();
        let mut blocks: Vec<u64> = Vec::new();
        for (&id, &address) in open.addresses.iter().chain(&open.frozen) {
            let is_used = address == ABSENT
                || address == UNWRITTEN
                || pool.address(id) == address
                || pool.file.durable_address(id) == address;
            if !is_used {
                blocks.push(address);
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        if !self.store.is_poisoned() {
            blocks.into_iter().for_each(|block| space.free(block));
        }
        drop((space, checkpoint));
        pool.file.room.add(open.copies.len() as u64);
        let to_free = open.to_free.into_iter();
        to_free.for_each(|id| pool.free_detached(id));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
