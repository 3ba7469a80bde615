//! The store: trees over one buffer pool and one data file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_io::Device;
use braid_rt::HoldTime;
use braid_rt::numa::Place;
use bytes::Bytes;

use crate::buffer_pool::Pool;
use crate::checkpoint::Checkpoint;
use crate::copy::{PinnedCheckpoint, PinnedFile};
use crate::data_file::room::{self, WriterRoom};
use crate::data_file::{DataFile, Root};
use crate::error::StoreError;
use crate::inner::StoreInner;
use crate::missing_pages::MissingPages;
use crate::node::Node;
use crate::page::{PAGE_SIZE, PageId};
use crate::tree::layers::LAYERS;
use crate::tree::{DetachedValue, DroppedTree, Tree, dropped};

/// Options for creating or opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory for pages, in bytes: from 512 KiB to [`POOL_BYTES_MAX`](crate::POOL_BYTES_MAX).
    pub pool_bytes: usize,
    /// Where the memory for pages is to lie. On a node, checkpoints are written by its processors.
    pub memory: Place,
    /// Distinguishes the store from others whose trees the same caller uses: what was learned of a
    /// tree of one is no hint for a tree of another.
    pub number: u8,
}

impl StoreOptions {
    /// The default options with a buffer pool of this many bytes.
    pub const fn of_pool(pool_bytes: usize) -> Self {
        Self {
            pool_bytes,
            memory: Place::Spread,
            number: 0,
        }
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::of_pool(256 << 20)
    }
}

/// Statistics of a store: counts since it was opened, and sizes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct StoreStats {
    /// The size of a page, in bytes.
    pub page_size: usize,
    /// Pages that the pool can hold.
    pub pool_pages: usize,
    /// Pages in memory.
    pub resident_pages: usize,
    /// Pages that exist.
    pub pages: u64,
    /// Pages read from the medium.
    pub page_loads: u64,
    /// Number of pages that were first read in place, in persistent memory, instead of a load.
    pub pages_read_in_place: u64,
    /// Of these, pages that were read along with a neighbour before any request for them.
    pub pages_read_ahead: u64,
    /// Pages evicted from memory.
    pub evictions: u64,
    /// Of these, pages that had to be written.
    pub eviction_writes: u64,
    /// Pages copied because a checkpoint still needed their image.
    pub checkpoint_copies: u64,
    /// Blocks of the data file written: pages, the page map and the root.
    pub blocks_written: u64,
    /// Of these, blocks of which only the changed cache lines were written.
    pub blocks_written_by_line: u64,
    /// The cache lines written in these.
    pub lines_written: u64,
    /// Bytes written into blocks of the data file.
    pub block_bytes_written: u64,
    /// Transactions that waited while the data file was extended.
    pub extension_waits: u64,
    /// The data file's length, in bytes.
    pub file_bytes: u64,
    /// Of these, the free bytes.
    pub file_free_bytes: u64,
    /// The newest superblock's sequence number.
    pub checkpoint_sequence: u64,
}

/// Trees over a buffer pool and a data file; see the crate's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<StoreInner>,
}

impl Store {
    /// Creates the data file on a device. Nothing is durable before the first checkpoint is
    /// published.
    ///
    /// # Errors
    /// [`StoreError::Io`] (also if the file exists), [`StoreError::Options`].
    pub fn create(device: Arc<dyn Device>, options: StoreOptions) -> Result<Self, StoreError> {
        Self::create_as(device, options, 0)
    }

    /// Creates the data file as [`Store::create`] does; its superblocks carry the identity, for
    /// which [`creation_of`](crate::creation_of) searches.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn create_as(
        device: Arc<dyn Device>,
        options: StoreOptions,
        identity: u128,
    ) -> Result<Self, StoreError> {
        let file = DataFile::create(device, identity)?;
        let root = Root {
            next_page: 1,
            ..Root::default()
        };
        Self::assemble(file, options, root)
    }

    /// Sets the name of the data file in messages, to distinguish it from those of other stores. Only
    /// the first call counts.
    pub fn name_file(&self, name: String) {
        self.inner.pool.file.set_name(name);
    }

    /// Returns the failure after which no checkpoint is published any more, if there was one.
    pub fn poisoned(&self) -> Option<String> {
        self.inner.pool.file.poisoned().cloned()
    }

    /// Opens the data file at its newest published checkpoint. Returns the checkpoint's caller
    /// bytes.
    ///
    /// # Errors
    /// [`StoreError::Corrupted`], [`StoreError::Incompatible`], [`StoreError::Io`],
    /// [`StoreError::Options`].
    pub fn open(
        device: Arc<dyn Device>,
        options: StoreOptions,
    ) -> Result<(Self, Vec<u8>), StoreError> {
        let (file, root) = DataFile::open(device, false)?;
        let meta = root.meta.clone();
        Ok((Self::assemble(file, options, root)?, meta))
    }

    /// Opens the data file as [`Store::open`] does, for reading only: a damaged leaf of the page
    /// map loses only the pages that it refers to. No checkpoint may be published, so the device
    /// must keep changes to itself.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_read_only(
        device: Arc<dyn Device>,
        options: StoreOptions,
    ) -> Result<(Self, Vec<u8>), StoreError> {
        let (file, root) = DataFile::open(device, true)?;
        let meta = root.meta.clone();
        Ok((Self::assemble(file, options, root)?, meta))
    }

    /// The errors of leaves of the page map that could not be read; only after
    /// [`Store::open_read_only`].
    pub fn lost_map_leaves(&self) -> impl Iterator<Item = &StoreError> {
        let lost = self.inner.pool.file.lost_leaves.iter();
        lost.map(|(_, error)| error)
    }

    /// Returns the number of the newest published checkpoint of a data file that is not open, or
    /// that another process has open.
    ///
    /// # Errors
    /// [`StoreError::Corrupted`], [`StoreError::Incompatible`] or [`StoreError::Io`].
    pub fn newest_checkpoint(device: Arc<dyn Device>) -> Result<u64, StoreError> {
        DataFile::peek(device)?.newest_sequence()
    }

    fn assemble(file: DataFile, options: StoreOptions, root: Root) -> Result<Self, StoreError> {
        let of_pool = (options.pool_bytes, options.memory, options.number);
        let pool = Pool::new(file, of_pool, root.next_page)?;
        pool.file.room.set_root(root.blob_blocks.len());
        if root.trees.keys().any(|id| id & LAYERS != 0) {
            pool.file.room.expect_long_keys();
        }
        pool.file.write_lines(true);
        let inner = Arc::new(StoreInner::new(pool, root));
        Ok(Self { inner })
    }

    /// Sets whether a write to a data file in persistent memory leaves out cache lines that do not
    /// change, which is the default. The file then keeps two blocks for each page that changes, as
    /// far as the medium has room. No effect on other devices.
    pub fn write_lines(&self, on: bool) {
        self.inner.pool.file.write_lines(on);
    }

    /// Sets whether pages of a data file in persistent memory are read in place, which is the default:
    /// only pages that change need room in the buffer pool. If not, no page is read in place any more
    /// when this returns. No effect on other devices.
    pub fn read_in_place(&self, on: bool) {
        self.inner.pool.read_in_place(on);
    }

    /// Loads pages that a read did not find in memory, and the rest of the large values that begin there.
    /// A small pool holds only some of them at a time, and a page may leave again at any time.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn load_missing(&self, missing: &MissingPages) -> Result<(), StoreError> {
        self.inner.pool.load_missing(missing)
    }

    /// Returns the tree with a number, creating an empty one if there is none. Creating a tree is a
    /// modifying call.
    ///
    /// # Errors
    /// What allocating a page can fail with.
    ///
    /// # Panics
    /// If the number is above `u32::MAX / 2`: these numbers are reserved for the store.
    pub fn tree(&self, id: u32) -> Result<Tree, StoreError> {
        assert!(id & LAYERS == 0, "the number of a tree is too large");
        let known = self.inner.trees.read().get(&id).copied();
        let root = match known {
            Some(root) => root,
            None => self.make_root(id)?,
        };
        Ok(self.inner.handle(id, root))
    }

    fn make_root(&self, id: u32) -> Result<PageId, StoreError> {
        let mut trees = self.inner.trees.write();
        if let Some(&root) = trees.get(&id) {
            return Ok(root);
        }
        let page = self.inner.pool.allocate()?;
        Node(page.page()).init_leaf();
        trees.insert(id, page.id);
        Ok(page.id)
    }

    /// Frees a tree with all its pages. No thread may use the tree any more. A modifying call that
    /// reads the whole tree; see [`Store::find_dropped`].
    ///
    /// # Errors
    /// What reading pages can fail with. If pages are damaged, the tree is removed, but some of its
    /// pages are not reused; after another error, the tree stays.
    pub fn drop_tree(&self, id: u32) -> Result<(), StoreError> {
        match self.find_dropped(id, &|| true)? {
            Some(dropped) => {
                self.detach_dropped(&dropped);
                self.free_dropped(dropped)
            }
            None => Ok(()),
        }
    }

    /// Finds the pages of a tree that is to be freed. No thread may use the tree any more. Reads
    /// the whole tree, while other threads change other trees and write checkpoints. Returns `None`
    /// once `goes_on`, which is asked at each node, returns `false`.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Poisoned`]. Damage is reported by
    /// [`Store::free_dropped`].
    pub fn find_dropped(
        &self,
        id: u32,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<DroppedTree>, StoreError> {
        let mut dropped = DroppedTree::new(id);
        for part in [id, id | LAYERS] {
            let root = self.inner.trees.read().get(&part).copied();
            let Some(root) = root else { continue };
            let tree = self.inner.handle(id, root);
            if !tree.find_pages(&mut dropped, goes_on)? {
                return Ok(None);
            }
        }
        Ok(Some(dropped))
    }

    /// Removes a tree and its pages from all later checkpoints. A modifying call, which reads
    /// nothing.
    pub fn detach_dropped(&self, dropped: &DroppedTree) {
        let id = dropped.id;
        self.inner.forget_long_keys(id);
        let mut trees = self.inner.trees.write();
        for part in [id, id | LAYERS] {
            trees.remove(&part);
        }
        drop(trees);
        let steps = dropped.pages.chunks(dropped::STEP);
        steps.for_each(|pages| self.inner.pool.detach_many(pages));
    }

    /// Frees the pages of a tree that was detached. Reads nothing from the medium, and is not a
    /// modifying call.
    ///
    /// # Errors
    /// [`StoreError::Corrupted`] if damage hides some of the pages, which are not reused.
    pub fn free_dropped(&self, dropped: DroppedTree) -> Result<(), StoreError> {
        let pages = dropped.pages.iter();
        pages.for_each(|&id| self.inner.pool.free_detached(id));
        dropped.damage.map_or(Ok(()), Err)
    }

    /// Gives a tree another number, which no tree has. No thread may use the tree. A modifying call.
    pub fn renumber_tree(&self, from: u32, to: u32) {
        self.inner.forget_long_keys(from);
        let mut trees = self.inner.trees.write();
        for part in [0, LAYERS] {
            if let Some(root) = trees.remove(&(from | part)) {
                let other = trees.insert(to | part, root);
                debug_assert!(other.is_none(), "tree {to} exists");
            }
        }
    }

    /// The numbers of all trees.
    pub fn tree_ids(&self) -> Vec<u32> {
        let trees = self.inner.trees.read();
        // A failed load may have left the layers of a tree that was never attached.
        let ids: BTreeSet<u32> = trees.keys().map(|id| id & !LAYERS).collect();
        ids.into_iter().collect()
    }

    /// Begins a checkpoint of the current state, with `meta` as its caller bytes. This takes
    /// microseconds.
    ///
    /// The caller ensures that no modifying call runs meanwhile, on any thread.
    ///
    /// # Errors
    /// [`StoreError::Poisoned`].
    ///
    /// # Panics
    /// If another checkpoint is open.
    pub fn begin_checkpoint(&self, meta: Vec<u8>) -> Result<Checkpoint, StoreError> {
        if braid_rt::mutant!("sync_under_commit_gate") {
            self.inner.pool.file.sync()?;
        }
        Checkpoint::begin(self.inner.clone(), meta)
    }

    /// Pins the newest published checkpoint. The caller ensures that no checkpoint is published
    /// meanwhile.
    pub fn pin_checkpoint(&self) -> PinnedCheckpoint {
        PinnedCheckpoint::newest_of(&self.inner)
    }

    /// Pins all blocks of the file, including the free ones, for readers in other processes, which
    /// may read checkpoints older than the newest one. Must be called before the first change.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn pin_file(&self) -> Result<PinnedFile, StoreError> {
        PinnedFile::pin(&self.inner)
    }

    /// Reads a replaced large value that was not freed.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn read_detached(&self, value: &DetachedValue) -> Result<Bytes, StoreError> {
        value.read(&self.inner.pool)
    }

    /// Frees the pages of a replaced large value that has no readers any more. Reads nothing from
    /// the medium, and is not a modifying call: a checkpoint may switch the epoch meanwhile.
    pub fn free_detached(&self, value: DetachedValue) {
        value.free(&self.inner.pool);
    }

    /// Admits a transaction with the given number of writes and bytes of keys and values: ensures
    /// that the file has a block for every page that the transaction changes, in any tree. The
    /// [entries](crate::layer_entries) of long keys that are not removed count as writes. If room
    /// is short, calls `removes_only`: a transaction that only removes may use a reserve.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`] if the medium is full: free space on the medium, or run a
    /// checkpoint.
    #[inline]
    pub fn admit(
        &self,
        writer: &mut WriterRoom,
        (writes, bytes): (usize, usize),
        removes_only: impl FnOnce() -> bool,
    ) -> Result<(), StoreError> {
        if self.admits(writer, (writes, bytes)) {
            return Ok(());
        }
        self.admit_slowly(writer, (writes, bytes), removes_only())
    }

    /// Whether [`Store::admit`] would admit a transaction without a change: its writer has enough
    /// room, and the file is not short of blocks, nor soon to be extended.
    #[inline]
    pub fn admits(&self, writer: &WriterRoom, (writes, bytes): (usize, usize)) -> bool {
        let room = &self.inner.pool.file.room;
        writer.suffices(writes, bytes) && room.surplus() >= room.low()
    }

    #[cold]
    fn admit_slowly(
        &self,
        writer: &mut WriterRoom,
        (writes, bytes): (usize, usize),
        removes_only: bool,
    ) -> Result<(), StoreError> {
        if braid_rt::mutant!("admit_without_room") {
            return Ok(());
        }
        let file = &self.inner.pool.file;
        file.room.set_has_writers();
        if file.room.surplus() < file.room.low() {
            file.ahead.request();
            if writer.suffices(writes, bytes) && file.room.surplus() >= 0 {
                return Ok(());
            }
        }
        let (need, floor) = if removes_only {
            (writes as u64 + 2, -file.room.removals())
        } else {
            (room::need(writes, bytes, self.inner.pool.page_ids()), 0)
        };
        let missing = writer.missing(need);
        let grown = if file.room.take(missing) < floor {
            file.extension_waits.fetch_add(1, Ordering::Relaxed);
            match file.grow(0) {
                Err(StoreError::OutOfSpace { .. }) if removes_only => file.grow(floor),
                grown => grown,
            }
        } else {
            Ok(())
        };
        match grown {
            Ok(()) => writer.add(missing),
            Err(_) => {
                file.room.add(missing);
                file.room.set_refused(true);
            }
        }
        grown
    }

    /// Has `request` called when a transaction finds that the data file must be extended soon, which
    /// [`Store::extend_ahead`] does. Only the first call counts.
    pub fn extend_ahead_by(&self, request: impl Fn() + Send + Sync + 'static) {
        self.inner.pool.file.extend_ahead_by(Box::new(request));
    }

    /// Extends the data file if transactions would soon have to. May take long, for which
    /// transactions wait only if they use up what is left.
    pub fn extend_ahead(&self) {
        self.inner.pool.file.grow_ahead();
    }

    /// Releases the room that a writer no longer needs, except a little for its next transaction.
    #[inline]
    pub fn trim_room(&self, writer: &mut WriterRoom) {
        debug_assert!(!writer.is_divided(), "its parts are trimmed instead");
        if writer.is_large() {
            self.inner.pool.file.room.add(writer.reduce_to_kept());
        }
    }

    /// Releases all room that a writer was promised.
    pub fn release_room(&self, writer: &mut WriterRoom) {
        debug_assert!(!writer.is_divided(), "its parts are released instead");
        self.inner.pool.file.room.add(writer.reduce(0));
    }

    /// Whether many images wait that writers copied for the open checkpoint; see
    /// [`Checkpoint::wake_for_copies`](crate::Checkpoint::wake_for_copies).
    pub fn has_many_copies(&self) -> bool {
        self.inner.pool.has_many_copies()
    }

    /// Whether a transaction was refused for lack of room since the newest checkpoint.
    pub fn has_refused(&self) -> bool {
        self.inner.pool.file.room.is_refused()
    }

    /// Whether pages were changed and not written since.
    pub fn has_dirty_pages(&self) -> bool {
        self.inner.pool.dirty_before(u64::MAX).next().is_some()
    }

    /// Reserves room in which long keys can be removed from a full file, for as long as the store
    /// is open. Must be called before the first long key is admitted; later calls do nothing.
    pub fn expect_long_keys(&self) {
        self.inner.pool.file.room.expect_long_keys();
    }

    /// Whether there is room to purge a key's obsolete record from its tree. Otherwise a checkpoint
    /// makes room.
    pub fn has_room_to_purge(&self, key: &[u8]) -> bool {
        self.inner.pool.file.has_room_to_purge(key)
    }

    /// Releases the space by which the data file was extended, except for dirty pages and writers.
    /// The next transaction extends the file again.
    pub fn give_room_back(&self) {
        let pool = &self.inner.pool;
        if pool.file.extent.load(Ordering::Relaxed) > 0 {
            pool.file.trim_to(pool.file.room.lowest(pool.page_ids()));
            while pool.file.cut_off_some() {}
        }
    }

    /// Cuts off a piece of the end of the data file that is not needed since a checkpoint was published.
    /// Returns whether there may be more. A file that stays longer does no harm, so an error only ends
    /// the cut; the next checkpoint's continues.
    ///
    /// A piece has 1 MiB. The caller leaves the device to commits between two pieces: a file system
    /// that discards what it frees keeps the device busy meanwhile.
    pub fn cut_off_some(&self) -> bool {
        self.inner.pool.file.cut_off_some()
    }

    /// Makes the checkpoint durable with which the store was opened: a process that failed or was
    /// killed may have written its superblock without making it durable. The store itself does this
    /// before its first write. The caller must do it before reusing anything else that only older
    /// checkpoints need, such as log (I6).
    ///
    /// # Errors
    /// [`StoreError::Io`]; nothing has changed then.
    pub fn settle(&self) -> Result<(), StoreError> {
        self.inner.pool.file.settle()
    }

    /// Returns whether a change of pages may wait for the medium: pages may be missing in memory, so that
    /// it is worthwhile to load them before they are needed, or memory for new ones may be. A hint, set
    /// before memory is short; [`Store::note_residency`] updates it.
    #[inline]
    pub fn may_wait_for_pages(&self) -> bool {
        self.inner.pool.may_wait()
    }

    /// Sets the hint of [`Store::may_wait_for_pages`], for a caller that reads other stores along with
    /// this one.
    pub fn expect_waits(&self) {
        self.inner.pool.expect_waits();
    }

    /// Updates the hint of [`Store::may_wait_for_pages`]; to be called now and then.
    pub fn note_residency(&self) {
        self.inner.pool.note_residency();
    }

    /// Returns the number of pages that the buffer pool can hold.
    pub fn pool_pages(&self) -> usize {
        self.inner.pool.frame_count()
    }

    /// Adds the bytes of the buffer pool that lie on each memory node to `bytes`, which has an
    /// element for [each](braid_rt::numa::nodes). Memory that no page was in yet lies nowhere.
    /// Returns whether the system told it.
    pub fn count_pool(&self, bytes: &mut [u64]) -> bool {
        self.inner.pool.count(bytes)
    }

    /// Returns the memory node that was chosen for the pool, if there is one.
    pub fn memory_node(&self) -> Option<usize> {
        self.inner.pool.memory.node()
    }

    /// Counts and sizes.
    pub fn stats(&self) -> StoreStats {
        let pool = &self.inner.pool;
        // One lock after the other: evictions wait for the space, splits for the ids.
        let (space_end, free_blocks) = {
            let space = pool.file.holds.space.of(pool.file.space.lock());
            (space.end(), space.free_blocks())
        };
        let pages = {
            let ids = pool.lock_ids();
            ids.next - 1 - ids.free.len()
        };
        let end = space_end.max(pool.file.extent.load(Ordering::Relaxed));
        let count = |counter: &crate::sync::Counter| counter.load(Ordering::Relaxed);
        StoreStats {
            page_size: PAGE_SIZE,
            pool_pages: pool.frame_count(),
            resident_pages: pool.resident(),
            pages,
            page_loads: count(&pool.counters.loads),
            pages_read_in_place: count(&pool.counters.reads_in_place),
            pages_read_ahead: count(&pool.counters.read_ahead),
            evictions: count(&pool.counters.evictions),
            eviction_writes: count(&pool.counters.eviction_writes),
            checkpoint_copies: count(&pool.counters.copies),
            blocks_written: count(&pool.file.written.blocks),
            blocks_written_by_line: count(&pool.file.written.blocks_by_line),
            lines_written: count(&pool.file.written.lines),
            block_bytes_written: count(&pool.file.written.bytes),
            extension_waits: count(&pool.file.extension_waits),
            file_bytes: end * PAGE_SIZE as u64,
            file_free_bytes: (end - space_end + free_blocks) * PAGE_SIZE as u64,
            checkpoint_sequence: self.inner.root.lock().sequence,
        }
    }

    /// Returns, by the name of a lock, the longest time for which background work has held it.
    pub fn longest_holds(&self) -> Vec<(&'static str, HoldTime)> {
        self.inner.pool.file.holds.by_gate()
    }

    /// The device that holds the data file.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.inner.pool.file.device()
    }
}
