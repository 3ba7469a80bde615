//! The bulk loader: builds a tree from ascending records as full pages, written once, from left to
//! right.
//!
//! Pages are written from a buffer directly to free blocks, past the pool, while the next ones are
//! being filled. Until [`TreeLoader::attach`] nothing refers to them, neither the page map nor a
//! checkpoint: a crash, or dropping the loader, leaves free space. From then on they are ordinary
//! pages, clean and not in memory, and the next checkpoint makes them durable.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use braid_rt::thread::JoinHandle;
use braid_rt::{Mutex, Process};

use crate::SHORT_KEY_MAX;
use crate::buffer_pool::frames::Frames;
use crate::data_file::block_of;
use crate::error::StoreError;
use crate::inner::StoreInner;
use crate::node::value_page;
use crate::node::{
    self, FIRST_SLOT, FLAG_OVERFLOW, KEY_MAX, KIND_INNER, KIND_LEAF, Node, inline_max,
    shortest_separator, words_of,
};
use crate::page::{PAGE_SIZE, Page, PageId, WORDS};
use crate::store::Store;
use crate::tree::Tree;

/// An entry that is not in a page yet owns its bytes.
type Entry = node::Entry<Vec<u8>>;
type Contents = node::Contents<Vec<u8>>;

/// Pages written at once.
const BATCH: usize = if cfg!(miri) { 64 << 10 } else { 2 << 20 } / PAGE_SIZE;

/// Batches in flight at once: the medium stays busy while a finished thread waits for a processor.
const IN_FLIGHT: usize = 6;

/// Pages written at once while others need the device.
const PIECE: usize = (256 << 10) / PAGE_SIZE;

/// Leaves the device to others between the pieces of a long operation.
pub trait Pacing: Send + Sync {
    /// Whether others need the device, so that the operation should work in small pieces.
    fn is_device_needed(&self) -> bool;

    /// Called after a piece that began at `begun`. May sleep.
    fn pause(&self, begun: Instant);
}

/// The pacing of all batches of a load.
struct LoadPacing {
    pacing: Arc<dyn Pacing>,
    /// Held by the batch whose pieces are written, or pause.
    one_at_a_time: Mutex<()>,
}

/// Pages whose block addresses are known.
type Placed = Vec<(PageId, u64)>;

/// Pages that follow each other in a buffer.
struct Batch {
    ids: Vec<PageId>,
    /// In huge pages, if the system has them: the kernel then pins and maps a batch for the device
    /// in a few pieces instead of hundreds.
    pages: Frames,
}

impl Batch {
    fn new() -> Result<Self, StoreError> {
        let pages = Frames::new(BATCH).ok_or_else(|| {
            StoreError::io(
                "cannot allocate the buffers of a bulk load",
                io::ErrorKind::OutOfMemory.into(),
            )
        })?;
        Ok(Self {
            ids: Vec::with_capacity(BATCH),
            pages,
        })
    }

    /// Adds a page that `fill` fills.
    fn add(&mut self, id: PageId, fill: impl FnOnce(Page<'_>)) {
        let at = self.ids.len();
        // The frame's old contents must not reach the file between this page's parts.
        self.pages.bytes_mut(at..at + 1).fill(0);
        fill(self.pages.page(at));
        self.ids.push(id);
    }

    /// Writes the batch and empties it.
    fn write(
        &mut self,
        store: &StoreInner,
        pacing: Option<&LoadPacing>,
    ) -> Result<Placed, StoreError> {
        let pacing = pacing.filter(|of| of.pacing.is_device_needed());
        let turn = pacing.map(|of| of.one_at_a_time.lock());
        let written = match pacing {
            Some(of) if !braid_rt::mutant!("load_in_large_pieces") => {
                self.write_in_pieces(store, PIECE, &|begun| of.pacing.pause(begun))
            }
            _ => self.write_in_pieces(store, BATCH, &|_| {}),
        };
        drop(turn);
        written
    }

    fn write_in_pieces(
        &mut self,
        store: &StoreInner,
        piece: usize,
        pause: &dyn Fn(Instant),
    ) -> Result<Placed, StoreError> {
        let ids = std::mem::take(&mut self.ids);
        let pages = self.pages.bytes_mut(0..ids.len());
        let (file, blocks) = (&store.pool.file, ids.len() as u64);
        let written = file.claim(blocks).and_then(|()| {
            let written = file.write_run_in_pieces(&ids, pages, piece, pause);
            file.room.add(blocks);
            written
        });
        let written = written.and_then(|addresses| {
            let begun = braid_rt::now();
            match file.bound_unsynced() {
                Ok(is_synced) => {
                    if is_synced {
                        pause(begun);
                    }
                    Ok(addresses)
                }
                Err(error) => {
                    let blocks: Vec<u64> = addresses.iter().map(|&at| block_of(at)).collect();
                    file.free(&blocks);
                    Err(error)
                }
            }
        });
        if written.is_err() {
            braid_rt::coverage_point("store: loaded pages can't be written");
        }
        match written {
            Ok(addresses) => Ok(ids.into_iter().zip(addresses).collect()),
            Err(error) => {
                store.pool.lock_ids().free.extend(ids);
                Err(error)
            }
        }
    }
}

/// A batch, and the result of its write.
type Written = (Batch, Result<Placed, StoreError>);

/// A batch that is being written.
struct PendingWrite {
    thread: JoinHandle,
    outcome: Arc<Mutex<Option<Written>>>,
}

/// A writer of pages: one batch is filled while others are written.
struct Writer {
    store: Arc<StoreInner>,
    background: bool,
    filling: Batch,
    /// The oldest first.
    in_flight: VecDeque<PendingWrite>,
    placed: Placed,
    pacing: Option<Arc<LoadPacing>>,
    process: Process,
}

impl Writer {
    fn new(store: Arc<StoreInner>, background: bool) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            background,
            filling: Batch::new()?,
            in_flight: VecDeque::new(),
            placed: Vec::new(),
            pacing: None,
            process: Process::current(),
        })
    }

    fn take_id(&self) -> Result<PageId, StoreError> {
        self.store.pool.ids.lock().take()
    }

    /// Frees an id that no page was added with.
    fn recycle(&self, id: PageId) {
        self.store.pool.ids.lock().free.insert(id);
    }

    /// Adds a page that `fill` fills. The writer owns the id from now on, also after an error.
    fn add(&mut self, id: PageId, fill: impl FnOnce(Page<'_>)) -> Result<(), StoreError> {
        self.filling.add(id, fill);
        if self.filling.ids.len() < BATCH {
            Ok(())
        } else {
            self.send()
        }
    }

    /// Begins to write the filled batch.
    fn send(&mut self) -> Result<(), StoreError> {
        if !self.background {
            let placed = self.filling.write(&self.store, self.pacing.as_deref())?;
            self.placed.extend(placed);
            return Ok(());
        }
        let waited = if self.in_flight.len() < IN_FLIGHT {
            None
        } else {
            self.wait()?
        };
        let empty = waited.map_or_else(Batch::new, Ok)?;
        let mut batch = std::mem::replace(&mut self.filling, empty);
        let ids = batch.ids.clone();
        let outcome = Arc::new(Mutex::new(None));
        let (store, result) = (self.store.clone(), outcome.clone());
        let pacing = self.pacing.clone();
        // One thread per batch: starting a thread takes microseconds, writing the batch
        // milliseconds.
        let thread = braid_rt::thread::spawn("braid-bulk", move || {
            let written = batch.write(&store, pacing.as_deref());
            *result.lock() = Some((batch, written));
        });
        match thread {
            Ok(thread) => {
                self.in_flight.push_back(PendingWrite { thread, outcome });
                Ok(())
            }
            Err(error) => {
                self.store.pool.lock_ids().free.extend(ids);
                Err(StoreError::io(
                    "cannot start the bulk load's writer thread",
                    error,
                ))
            }
        }
    }

    /// Waits for the oldest batch in flight, and returns its buffer.
    fn wait(&mut self) -> Result<Option<Batch>, StoreError> {
        let Some(PendingWrite { thread, outcome }) = self.in_flight.pop_front() else {
            return Ok(None);
        };
        let _ = thread.join();
        let (batch, written) = outcome.lock().take().ok_or_else(|| StoreError::Poisoned {
            cause: "the bulk load's writer thread panicked".into(),
        })?;
        self.placed.extend(written?);
        Ok(Some(batch))
    }

    /// Writes everything.
    fn finish(&mut self) -> Result<(), StoreError> {
        while self.wait()?.is_some() {}
        let placed = self.filling.write(&self.store, self.pacing.as_deref())?;
        self.placed.extend(placed);
        Ok(())
    }
}

impl Drop for Writer {
    /// Frees everything that was not attached.
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The threads and the locks belong to the parent process.
            return;
        }
        while !self.in_flight.is_empty() {
            // A failed batch has freed its own pages.
            let _ = self.wait();
        }
        let blocks: Vec<u64> = self.placed.iter().map(|(_, address)| *address).collect();
        self.store.pool.file.free(&blocks);
        let mut ids = self.store.pool.lock_ids();
        ids.free.extend(self.filling.ids.drain(..));
        ids.free.extend(self.placed.iter().map(|(id, _)| *id));
    }
}

/// Builds a new tree from records in ascending order of their keys; see [`Store::load`].
///
/// After an error the loader must be dropped, which frees everything.
pub struct TreeLoader {
    writer: Writer,
    tree: u32,
    /// The node that is being filled, of each level from the leaves up.
    levels: Vec<Contents>,
    /// The words that the leaf's records take if all keys share as many bytes as the leaf's first
    /// and last.
    leaf_words: usize,
    leaf_prefix: usize,
    /// Written entries, whose memory is reused.
    spare: Vec<Entry>,
    root: Option<PageId>,
}

impl TreeLoader {
    /// Makes the loader work in small pieces, and pause after each, while others need the device.
    #[must_use]
    pub fn paced(mut self, pacing: Arc<dyn Pacing>) -> Self {
        self.writer.pacing = Some(Arc::new(LoadPacing {
            pacing,
            one_at_a_time: Mutex::new(()),
        }));
        self
    }

    /// Adds a record, whose key must be greater than all previous keys.
    ///
    /// A key longer than [`SHORT_KEY_MAX`] is inserted through the pool into a tree of layers,
    /// which belongs to the store from then on: this is a modifying call, and after dropping the
    /// loader, [`Store::drop_tree`] must remove such keys.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`] or [`StoreError::Io`].
    ///
    /// # Panics
    /// In debug builds, if the key is not greater than the previous one.
    pub fn append(&mut self, key: &[u8], version: u64, value: &[u8]) -> Result<(), StoreError> {
        if key.len() > SHORT_KEY_MAX {
            let long = self.writer.store.long_keys(self.tree);
            return long.make()?.append(key, version, value);
        }
        let mut entry = self.spare.pop().unwrap_or_default();
        entry.stored.clear();
        let flags = if value.len() > inline_max(key.len()) {
            let first = self.write_overflow(value)?;
            entry.stored.extend_from_slice(&first.to_le_bytes());
            FLAG_OVERFLOW
        } else {
            entry.stored.extend_from_slice(value);
            0
        };
        entry.key.clear();
        entry.key.extend_from_slice(key);
        entry.head = version;
        entry.lengths = flags << 32 | value.len() as u64;
        let last = self.levels[0].entries.last();
        debug_assert!(last.is_none_or(|last| last.key < entry.key), "keys ascend");
        if self.fits(&entry) {
            self.push(entry);
            return Ok(());
        }
        self.place(vec![entry])
    }

    /// Puts entries into leaves; `waiting` is in reverse order.
    fn place(&mut self, mut waiting: Vec<Entry>) -> Result<(), StoreError> {
        while let Some(entry) = waiting.pop() {
            if self.fits(&entry) {
                self.push(entry);
            } else {
                let carried = self.seal_leaf(&entry.key)?;
                waiting.push(entry);
                waiting.extend(carried);
            }
        }
        Ok(())
    }

    /// Bytes that an entry's key shares with the leaf's lower fence, and so at most with the whole
    /// leaf.
    fn shared_with_fence(&self, key: &[u8]) -> usize {
        let lower = self.levels[0].lower.as_deref().unwrap_or_default();
        lower.iter().zip(key).take_while(|(a, b)| a == b).count()
    }

    /// The words of the leaf's records with a prefix of this length.
    fn words_with_prefix(&self, prefix: usize) -> usize {
        let leaf = &self.levels[0];
        if prefix == self.leaf_prefix {
            self.leaf_words
        } else {
            leaf.entries_words(prefix)
        }
    }

    /// Whether the leaf probably has room for one more entry. Its upper fence is not known yet: it
    /// may be a byte longer than the key, and share fewer bytes with the lower fence.
    fn fits(&self, entry: &Entry) -> bool {
        let leaf = &self.levels[0];
        let prefix = self.shared_with_fence(&entry.key);
        let fences = leaf.lower.as_ref().map_or(0, |lower| words_of(lower.len()))
            + words_of(entry.key.len() + 1);
        let records = self.words_with_prefix(prefix) + leaf.entry_words(entry, prefix);
        leaf.entries.is_empty() || FIRST_SLOT + fences + records <= WORDS
    }

    fn push(&mut self, entry: Entry) {
        let prefix = self.shared_with_fence(&entry.key);
        let leaf_words = self.words_with_prefix(prefix);
        let leaf = &mut self.levels[0];
        self.leaf_words = leaf_words + leaf.entry_words(&entry, prefix);
        self.leaf_prefix = prefix;
        leaf.entries.push(entry);
    }

    /// Writes the leaf, all of whose keys are below `next`. Returns its last entries that have no
    /// room after all, in reverse order.
    fn seal_leaf(&mut self, next: &[u8]) -> Result<Vec<Entry>, StoreError> {
        let leaf = &mut self.levels[0];
        let mut carried: Vec<Entry> = Vec::new();
        loop {
            let last = leaf.entries.last().expect("a leaf that is sealed has one");
            let next = carried.last().map_or(next, |entry| &entry.key[..]);
            leaf.upper = Some(shortest_separator(&last.key, next));
            if leaf.words() <= WORDS {
                break;
            }
            carried.extend(leaf.entries.pop());
        }
        let upper = leaf.upper.clone();
        let fresh = Contents {
            kind: KIND_LEAF,
            lower: upper.clone(),
            ..Contents::default()
        };
        let mut leaf = std::mem::replace(leaf, fresh);
        (self.leaf_words, self.leaf_prefix) = (0, 0);
        let id = self.write_node(&leaf)?;
        self.spare.append(&mut leaf.entries);
        self.levels[0].entries = leaf.entries;
        self.add_child(1, id, upper)?;
        Ok(carried)
    }

    fn write_node(&mut self, contents: &Contents) -> Result<PageId, StoreError> {
        let id = self.writer.take_id()?;
        self.writer.add(id, |page| contents.write(Node(page)))?;
        Ok(id)
    }

    /// Writes a large value; returns its first page.
    fn write_overflow(&mut self, value: &[u8]) -> Result<PageId, StoreError> {
        let first = self.writer.take_id()?;
        let mut id = first;
        let mut parts = value_page::parts(value).peekable();
        while let Some(part) = parts.next() {
            // Each page refers to the next one.
            let next = match parts.peek() {
                Some(_) => self.writer.take_id(),
                None => Ok(0),
            };
            let next = next.inspect_err(|_| self.writer.recycle(id))?;
            self.writer
                .add(id, |page| value_page::write_part(page, part, next))
                .inspect_err(|_| {
                    if next != 0 {
                        self.writer.recycle(next);
                    }
                })?;
            id = next;
        }
        Ok(first)
    }

    /// Adds a node that ends at `upper` to its level's parent.
    fn add_child(
        &mut self,
        level: usize,
        child: PageId,
        upper: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        if level == self.levels.len() {
            self.levels.push(Contents {
                kind: KIND_INNER,
                ..Contents::default()
            });
        }
        let node = &mut self.levels[level];
        if let Some(upper) = &upper {
            let entry = Entry {
                key: upper.clone(),
                head: child,
                lengths: 0,
                stored: Vec::new(),
            };
            // Room for any upper fence is reserved, which the next separator can use later.
            let words = node.words() + node.entry_words(&entry, 0) + words_of(KEY_MAX);
            if words <= WORDS {
                node.entries.push(entry);
                return Ok(());
            }
        }
        node.rightmost = child;
        node.upper = upper.clone();
        let fresh = Contents {
            kind: KIND_INNER,
            lower: upper.clone(),
            ..Contents::default()
        };
        let node = std::mem::replace(node, fresh);
        let id = self.write_node(&node)?;
        if node.lower.is_none() && upper.is_none() {
            self.root = Some(id);
            return Ok(());
        }
        self.add_child(level + 1, id, upper)
    }

    /// Writes the remaining pages. Must be called once, before [`TreeLoader::attach`].
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`] or [`StoreError::Io`].
    pub fn finish(&mut self) -> Result<(), StoreError> {
        // The last leaf has no upper fence, so its keys have no prefix and may not fit any more.
        while self.levels[0].words() > WORDS {
            let entries = &mut self.levels[0].entries;
            let mut waiting = entries.split_off(entries.len() / 2);
            let next = waiting[0].key.clone();
            waiting.reverse();
            waiting.extend(self.seal_leaf(&next)?);
            self.place(waiting)?;
        }
        let leaf = std::mem::take(&mut self.levels[0]);
        let is_root = leaf.lower.is_none();
        let id = self.write_node(&leaf)?;
        if is_root {
            self.root = Some(id);
        } else {
            self.add_child(1, id, None)?;
        }
        self.writer.finish()
    }

    /// Adds the tree to the store. The next checkpoint makes it durable. A modifying call.
    ///
    /// # Panics
    /// If [`TreeLoader::finish`] has not succeeded, or the store already has a tree with this
    /// number.
    pub fn attach(mut self) -> Tree {
        let root = self.root.expect("a tree is finished before it is attached");
        let store = self.writer.store.clone();
        for (id, address) in std::mem::take(&mut self.writer.placed) {
            store.pool.appear(id, address);
        }
        let before = store.trees.write().insert(self.tree, root);
        assert!(before.is_none(), "a loaded tree is new");
        store.handle(self.tree, root)
    }
}

impl std::fmt::Debug for TreeLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeLoader")
            .field("tree", &self.tree)
            .field("pages", &self.writer.placed.len())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Begins to build a tree with a new number from ascending records. The tree becomes a part of
    /// the store when it is attached. With `background`, threads write while the caller fills
    /// pages.
    ///
    /// # Errors
    /// [`StoreError::Io`] if there is no memory for the pages in flight.
    pub fn load(&self, tree: u32, background: bool) -> Result<TreeLoader, StoreError> {
        Ok(TreeLoader {
            writer: Writer::new(self.inner.clone(), background)?,
            tree,
            levels: vec![Contents {
                kind: KIND_LEAF,
                ..Contents::default()
            }],
            leaf_words: 0,
            leaf_prefix: 0,
            spare: Vec::new(),
            root: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_nothing_of_its_buffers_contents() {
        let mut batch = Batch::new().unwrap();
        for i in 0..BATCH {
            let id = i as PageId + 1;
            batch.add(id, |page| page.write_bytes(0, &[0xab; PAGE_SIZE]));
        }
        let full = vec![0xab; BATCH * PAGE_SIZE];
        assert!(batch.pages.bytes_mut(0..BATCH) == full);
        batch.ids.clear();
        batch.add(1, |page| page.set_word(10, 7));
        let page = batch.pages.bytes_mut(0..1);
        assert_eq!(page.iter().filter(|byte| **byte != 0).count(), 1);
        assert_eq!(page[80], 7);
    }
}
