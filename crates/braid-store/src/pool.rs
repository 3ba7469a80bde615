//! The buffer pool: which pages are in memory, who may touch them, and what a checkpoint must keep.
//!
//! # The state word
//!
//! Each page id has one word: the exclusive latch, the version for optimistic readers, and the translation
//! to a frame, all at once. A reader loads it, reads the frame, and loads it again: unchanged means that
//! what it read is consistent. [`state`] has its steps, [`latch`] the memory order.
//!
//! # Epochs
//!
//! The *epoch* counts checkpoint flips. A frame's `dirty` is 0 if its page equals its image on the
//! medium, or else the epoch of the first change since. With a checkpoint of the flip to epoch `E` open:
//!
//! | `dirty` | means | a writer first | the evictor |
//! |---|---|---|---|
//! | 0 | clean | sets `E` | drops the page |
//! | `E` | changed after the flip | nothing | writes it to a new place, keeps the old one for the checkpoint |
//! | `< E` | belongs to the checkpoint | copies the page aside, sets `E` | writes it: that is the checkpoint's image too |
//! | `< E`, captured | its image is being written | sets `E` | leaves it alone |
//!
//! Pages that no tree leads to any more do not change, and belong to the checkpoint only if they were taken out
//! of their tree after the flip; see [`crate::detached`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use braid_io::AlignedBuf;
use braid_rt::Mutex;

use crate::error::StoreError;
use crate::file::DataFile;
use crate::frames::Frames;
use crate::latch;
use crate::node;
use crate::page::{PAGE_SIZE, Page, PageId};
use crate::read_ahead::Cluster;
use crate::state::{self, NONE, frame_of};
use crate::sync::{AtomicU64, Counter};
use crate::table::{PAGES_MAX, PageTable};

/// The place of a page that was never written to the medium.
pub(crate) const UNWRITTEN: u64 = u64::MAX >> 1;

/// Set beside the place of a page that is detached; see [`crate::detached`].
pub(crate) const DETACHED: u64 = 1 << 63;

/// The place of a page that does not exist.
pub(crate) const ABSENT: u64 = 0;

/// That a page's contents are those of a page.
pub(crate) fn check_page(id: PageId, bytes: &[u8]) -> Result<(), StoreError> {
    let page = bytes.first_chunk().ok_or("it is too short");
    let checked = page.and_then(node::check);
    checked.map_err(|what| StoreError::damaged_page(id, what))
}

#[derive(Debug, Default)]
struct FrameInfo {
    page: AtomicU64,
    /// Written under the page's latch.
    dirty: AtomicU64,
    captured: AtomicBool,
}

/// What an open checkpoint collects. What is gone through in an order that can be told from outside is ordered: else a
/// simulation could not be repeated.
#[derive(Debug)]
pub(crate) struct OpenCheckpoint {
    /// Places of images written for it.
    pub(crate) places: HashMap<PageId, u64>,
    /// Places, as of the flip, of pages whose place changed since without an image for it.
    pub(crate) frozen: HashMap<PageId, u64>,
    /// Images that writers put aside before they changed the page.
    pub(crate) copies: BTreeMap<PageId, AlignedBuf>,
    /// Detached pages that nobody needs but this checkpoint, for their images.
    pub(crate) to_free: BTreeSet<PageId>,
}

impl OpenCheckpoint {
    pub(crate) fn new() -> Self {
        Self {
            places: HashMap::new(),
            frozen: HashMap::new(),
            copies: BTreeMap::new(),
            to_free: BTreeSet::new(),
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) file: DataFile,
    frames: Frames,
    info: Box<[FrameInfo]>,
    pub(crate) states: PageTable,
    /// Where each page lies on the medium: a block, `ABSENT` or `UNWRITTEN`, and whether it is `DETACHED`. Changed
    /// with the lock of `checkpoint`.
    pub(crate) places: PageTable,
    pub(crate) epoch: AtomicU64,
    pub(crate) checkpoint: Mutex<Option<OpenCheckpoint>>,
    pub(crate) free_frames: Mutex<Vec<u32>>,
    next_frame: AtomicUsize,
    hand: AtomicUsize,
    pub(crate) ids: Mutex<PageIds>,
    copies_max: usize,
    pub(crate) counters: PoolCounters,
}

/// Which page ids are free.
#[derive(Debug)]
pub(crate) struct PageIds {
    pub(crate) next: PageId,
    pub(crate) free: Vec<PageId>,
}

impl PageIds {
    /// Takes an id for a new page.
    pub(crate) fn take(&mut self) -> Result<PageId, StoreError> {
        match self.free.pop() {
            Some(id) => Ok(id),
            None if self.next >= PAGES_MAX => Err(StoreError::OutOfSpace {
                what: "page numbers".into(),
            }),
            None => {
                self.next += 1;
                Ok(self.next - 1)
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PoolCounters {
    pub(crate) loads: Counter,
    pub(crate) read_ahead: Counter,
    pub(crate) evictions: Counter,
    pub(crate) eviction_writes: Counter,
    pub(crate) copies: Counter,
}

impl Pool {
    pub(crate) fn new(
        file: DataFile,
        pool_bytes: usize,
        places: &[u64],
        next: PageId,
    ) -> Result<Self, StoreError> {
        let count = pool_bytes / PAGE_SIZE;
        if count < 64 || count as u64 >= NONE {
            return Err(StoreError::Options {
                option: "pool_bytes",
                reason: "from 512 KiB to 127 GiB".into(),
            });
        }
        let table = PageTable::new();
        let mut free = Vec::new();
        for (id, &place) in places.iter().enumerate().skip(1) {
            table.get_or_make(id as u64).store(place, Ordering::Relaxed);
            if place == ABSENT && (id as u64) < next {
                free.push(id as u64);
            }
        }
        free.reverse();
        Ok(Self {
            file,
            frames: Frames::new(count).ok_or_else(|| StoreError::Options {
                option: "pool_bytes",
                reason: "more memory than the system gives".into(),
            })?,
            info: (0..count).map(|_| FrameInfo::default()).collect(),
            states: PageTable::new(),
            places: table,
            epoch: AtomicU64::new(1),
            checkpoint: Mutex::new(None),
            free_frames: Mutex::default(),
            next_frame: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            ids: Mutex::new(PageIds { next, free }),
            copies_max: (count / 8).max(16),
            counters: PoolCounters::default(),
        })
    }

    #[inline]
    fn state(&self, id: PageId) -> Option<&AtomicU64> {
        self.states.get(id)
    }

    pub(crate) fn place(&self, id: PageId) -> u64 {
        self.places
            .get(id)
            .map_or(ABSENT, |place| place.load(Ordering::Acquire) & !DETACHED)
    }

    /// Opens a page for optimistic reading; `None` if there is no such page, which a reader that came
    /// from a page which changed meanwhile may meet.
    #[inline]
    pub(crate) fn read(&self, id: PageId) -> Result<Option<ReadPage<'_>>, StoreError> {
        match self.read_resident(id) {
            None => self.read_slow(id),
            page => Ok(page),
        }
    }

    /// Opens a page for optimistic reading if there is nothing to do for that.
    #[inline]
    pub(crate) fn read_resident(&self, id: PageId) -> Option<ReadPage<'_>> {
        let state = self.state(id)?;
        state::readable(state).map(|word| ReadPage {
            pool: self,
            state,
            id,
            word,
        })
    }

    /// Opens a page for optimistic reading if it is in memory and nobody is changing it.
    #[inline]
    pub(crate) fn read_if_there(&self, id: PageId) -> Option<ReadPage<'_>> {
        let state = self.state(id)?;
        let word = latch::open(state);
        if state::is_latched(word) || !state::is_resident(word) {
            return None;
        }
        if state::is_marked(word) {
            state::unmark(state, word);
        }
        Some(ReadPage {
            pool: self,
            state,
            id,
            word: state::without_mark(word),
        })
    }

    /// Whether a page is not in memory.
    #[inline]
    pub(crate) fn is_missing(&self, id: PageId) -> bool {
        let word = self.state(id).map_or(0, latch::open);
        !state::is_latched(word) && !state::is_resident(word)
    }

    #[cold]
    fn read_slow(&self, id: PageId) -> Result<Option<ReadPage<'_>>, StoreError> {
        if id == 0 || id >= PAGES_MAX {
            return Ok(None);
        }
        let state = self.states.get_or_make(id);
        let mut waits = Waits::default();
        loop {
            let word = latch::open(state);
            if state::is_latched(word) {
                waits.wait();
                continue;
            }
            if state::is_resident(word) {
                if state::is_marked(word) {
                    state::unmark(state, word);
                    continue;
                }
                return Ok(Some(ReadPage {
                    pool: self,
                    state,
                    id,
                    word,
                }));
            }
            if self.place(id) == ABSENT {
                return Ok(None);
            }
            self.load(id, state, word)?;
        }
    }

    /// Brings a page into memory. Returns without effect if another thread was faster.
    fn load(&self, id: PageId, state: &AtomicU64, word: u64) -> Result<(), StoreError> {
        let Some(empty) = state::take(state, word) else {
            return Ok(());
        };
        let mut neighbours = None;
        let result = self.load_latched(id, &mut neighbours);
        let (frame, result) = match result {
            Ok(frame) => (frame, Ok(())),
            Err(error) => (NONE, Err(error)),
        };
        state::moved(state, empty, frame);
        if let Some(neighbours) = neighbours {
            self.adopt(&neighbours);
        }
        result
    }

    fn load_latched(
        &self,
        id: PageId,
        neighbours: &mut Option<Cluster>,
    ) -> Result<u64, StoreError> {
        let place = self.place(id);
        if place == ABSENT || place == UNWRITTEN {
            return Ok(NONE);
        }
        let frame = self.take_frame()?;
        let mut buf = self.file.buffer();
        *neighbours = self.read_cluster(id, place, &mut buf);
        let read = match neighbours {
            Some(_) => Ok(()),
            None => self.file.read_page(id, place, &mut buf),
        };
        if let Err(error) = read.and_then(|()| check_page(id, &buf)) {
            self.free_frames.lock().push(frame as u32);
            return Err(error);
        }
        self.counters.loads.fetch_add(1, Ordering::Relaxed);
        // Who still reads the page that was in this frame and sees any of the new contents sees the
        // eviction, too.
        latch::before_changes();
        self.fill(frame, id, &buf);
        Ok(frame as u64)
    }

    /// Puts a page that was read into a frame, both of which are the caller's, and gives the page's latch back, for
    /// which there are its state and the word to go on from.
    pub(crate) fn bring_in(
        &self,
        (state, empty): (&AtomicU64, u64),
        frame: usize,
        id: PageId,
        bytes: &[u8],
    ) {
        self.counters.loads.fetch_add(1, Ordering::Relaxed);
        // As in `load_latched`.
        latch::before_changes();
        self.fill(frame, id, bytes);
        state::moved(state, empty, frame as u64);
    }

    /// Puts a clean page into a frame, both of which are the caller's.
    pub(crate) fn fill(&self, frame: usize, id: PageId, bytes: &[u8]) {
        self.frames.page(frame).copy_from(bytes);
        let info = &self.info[frame];
        info.page.store(id, Ordering::Relaxed);
        info.dirty.store(0, Ordering::Relaxed);
        info.captured.store(false, Ordering::Relaxed);
    }

    /// Takes the exclusive latch of a page; `None` if there is none.
    pub(crate) fn write(&self, id: PageId) -> Result<Option<WritePage<'_>>, StoreError> {
        let mut waits = Waits::default();
        loop {
            let Some(page) = self.read(id)? else {
                return Ok(None);
            };
            if let Some(page) = page.upgrade() {
                return Ok(Some(page));
            }
            waits.wait();
        }
    }

    /// A new, zeroed page, latched.
    pub(crate) fn allocate(&self) -> Result<WritePage<'_>, StoreError> {
        let page = self.allocate_unfilled()?;
        page.page().clear_from(0);
        page.page().set_word(1, page.id);
        Ok(page)
    }

    /// A new page, latched, that holds what was in its frame before.
    pub(crate) fn allocate_unfilled(&self) -> Result<WritePage<'_>, StoreError> {
        let frame = self.take_frame()?;
        let id = {
            let taken = self.ids.lock().take();
            taken.inspect_err(|_| self.free_frames.lock().push(frame as u32))?
        };
        let state = self.states.get_or_make(id);
        // A reader with a stale reference may hold the latch for a moment.
        let mut waits = Waits::default();
        let word = loop {
            let word = state.load(Ordering::Relaxed);
            if !state::is_latched(word)
                && let Some(empty) = state::take(state, word)
            {
                break empty;
            }
            waits.wait();
        };
        debug_assert_eq!(frame_of(word), NONE, "a free page id is not in memory");
        self.appear(id, UNWRITTEN);
        // As in `load_latched`.
        latch::before_changes();
        let info = &self.info[frame];
        info.page.store(id, Ordering::Relaxed);
        info.dirty
            .store(self.epoch.load(Ordering::Acquire), Ordering::Relaxed);
        info.captured.store(false, Ordering::Relaxed);
        let word = state::with_frame(word, frame as u64);
        state.store(state::latched(word), Ordering::Relaxed);
        Ok(WritePage {
            pool: self,
            state,
            id,
            word,
            changed: true,
        })
    }

    /// Makes a page exist whose id was taken; for an open checkpoint it does not.
    pub(crate) fn appear(&self, id: PageId, place: u64) {
        let mut checkpoint = self.checkpoint.lock();
        if let Some(open) = checkpoint.as_mut() {
            open.frozen.entry(id).or_insert(ABSENT);
        }
        self.places.get_or_make(id).store(place, Ordering::Release);
    }

    /// The page's present version word, for stamps.
    pub(crate) fn version(&self, id: PageId) -> u64 {
        self.state(id)
            .map_or(0, |state| state::without_mark(latch::open(state)))
    }

    pub(crate) fn take_frame(&self) -> Result<usize, StoreError> {
        if let Some(frame) = self.free_frames.lock().pop() {
            return Ok(frame as usize);
        }
        match self.unused_frame() {
            Some(frame) => Ok(frame),
            None => self.evict(),
        }
    }

    /// A frame that nothing was in yet.
    pub(crate) fn unused_frame(&self) -> Option<usize> {
        if !self.has_unused_frames(1) {
            return None;
        }
        let frame = self.next_frame.fetch_add(1, Ordering::Relaxed);
        (frame < self.frames.count()).then_some(frame)
    }

    /// Whether there seem to be so many frames that nothing was in yet.
    pub(crate) fn has_unused_frames(&self, count: usize) -> bool {
        self.next_frame
            .load(Ordering::Relaxed)
            .saturating_add(count)
            <= self.frames.count()
    }

    /// Frees a frame. Latches are only tried for, so a caller's own latches can't stop it for good.
    fn evict(&self) -> Result<usize, StoreError> {
        let mut last_error = None;
        for step in 0..8 * self.frames.count() {
            if let Some(frame) = self.free_frames.lock().pop() {
                return Ok(frame as usize);
            }
            let frame = self.hand.fetch_add(1, Ordering::Relaxed) % self.frames.count();
            let info = &self.info[frame];
            let id = info.page.load(Ordering::Relaxed);
            let Some(state) = self.state(id).filter(|_| id != 0) else {
                continue;
            };
            let Some(word) = state::pick(state, frame as u64) else {
                continue;
            };
            let clean = info.dirty.load(Ordering::Relaxed) == 0;
            let pinned = !clean && info.captured.load(Ordering::Relaxed);
            let evicted = if pinned {
                false
            } else if clean {
                true
            } else {
                match self.write_out(id, frame) {
                    Ok(()) => true,
                    Err(error) => {
                        last_error = Some(error);
                        false
                    }
                }
            };
            if evicted {
                self.counters.evictions.fetch_add(1, Ordering::Relaxed);
                state::moved(state, word, NONE);
                return Ok(frame);
            }
            latch::give_back(state, word);
            if last_error.is_some() && step > self.frames.count() {
                break;
            }
            if step > 2 * self.frames.count() && step % 64 == 0 {
                // Others hold the rest, for a moment.
                braid_rt::thread::yield_now();
            }
        }
        Err(last_error.unwrap_or(StoreError::PoolExhausted))
    }

    /// Writes a latched dirty page to a new place.
    fn write_out(&self, id: PageId, frame: usize) -> Result<(), StoreError> {
        let mut buf = self.file.buffer();
        self.frames.page(frame).copy_to(&mut buf);
        let place = self.file.write_page(id, &mut buf)?;
        self.counters
            .eviction_writes
            .fetch_add(1, Ordering::Relaxed);
        let mut checkpoint = self.checkpoint.lock();
        let info = &self.info[frame];
        let of_checkpoint = info.dirty.load(Ordering::Relaxed) < self.epoch.load(Ordering::Acquire);
        if of_checkpoint
            && let Some(open) = checkpoint.as_mut()
            && (!self.is_detached(id) || open.has_detached(id))
        {
            open.places.insert(id, place);
        }
        self.set_place(&mut checkpoint, id, place);
        info.dirty.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Moves a page's place; frees the old one unless a checkpoint, durable or open, refers to it.
    pub(crate) fn set_place(
        &self,
        checkpoint: &mut Option<OpenCheckpoint>,
        id: PageId,
        place: u64,
    ) {
        let word = self.places.get_or_make(id);
        let detached = word.load(Ordering::Relaxed) & DETACHED;
        let new = if place == ABSENT {
            ABSENT
        } else {
            place | detached
        };
        let old = word.swap(new, Ordering::AcqRel) & !DETACHED;
        let mut kept = old == ABSENT || old == UNWRITTEN || self.file.durable_place(id) == old;
        if let Some(open) = checkpoint.as_mut() {
            if !open.places.contains_key(&id) {
                // One that was detached after the flip has its entry already.
                let before = if detached == 0 { old } else { ABSENT };
                let as_of_flip = *open.frozen.entry(id).or_insert(before);
                kept |= as_of_flip == old;
            } else {
                kept |= open.places[&id] == old;
            }
        }
        if !kept {
            self.file.space.lock().free(old);
        }
    }

    /// Before the first change of a latched page since the flip: keeps the image that an open checkpoint
    /// needs, and marks the page dirty.
    #[inline]
    fn prepare_change(&self, id: PageId, word: u64) -> Result<(), StoreError> {
        let frame = frame_of(word) as usize;
        let epoch = self.epoch.load(Ordering::Acquire);
        let dirty = self.info[frame].dirty.load(Ordering::Relaxed);
        if dirty == epoch {
            return Ok(());
        }
        self.prepare_first_change(id, frame, dirty, epoch)
    }

    #[cold]
    fn prepare_first_change(
        &self,
        id: PageId,
        frame: usize,
        dirty: u64,
        epoch: u64,
    ) -> Result<(), StoreError> {
        let info = &self.info[frame];
        if dirty != 0 && !info.captured.load(Ordering::Relaxed) {
            let mut checkpoint = self.checkpoint.lock();
            if let Some(open) = checkpoint.as_mut() {
                if open.copies.len() < self.copies_max {
                    let mut copy = self.file.buffer();
                    self.frames.page(frame).copy_to(&mut copy);
                    open.copies.insert(id, copy);
                    self.counters.copies.fetch_add(1, Ordering::Relaxed);
                } else {
                    drop(checkpoint);
                    // Too many copies wait for the checkpoint: this writer writes its own, which also
                    // slows it down to what the medium takes.
                    self.write_out(id, frame)?;
                }
            }
        }
        info.captured.store(false, Ordering::Relaxed);
        info.dirty.store(epoch, Ordering::Relaxed);
        Ok(())
    }

    /// Pages in frames that belong to the open checkpoint.
    pub(crate) fn dirty_before(&self, epoch: u64) -> Vec<PageId> {
        let is_old = |info: &&FrameInfo| {
            let dirty = info.dirty.load(Ordering::Relaxed);
            dirty != 0 && dirty < epoch
        };
        self.info
            .iter()
            .filter(is_old)
            .map(|info| info.page.load(Ordering::Relaxed))
            .collect()
    }

    /// Latches a page only if it is in memory.
    fn latch_resident(&self, id: PageId) -> Option<(&AtomicU64, u64)> {
        let state = self.state(id)?;
        let mut waits = Waits::default();
        loop {
            let word = state.load(Ordering::Relaxed);
            if state::is_latched(word) {
                waits.wait();
                continue;
            }
            if !state::is_resident(word) {
                return None;
            }
            if state::take(state, word).is_some() {
                return Some((state, word));
            }
        }
    }

    /// Latches a page wherever it is, without loading it.
    pub(crate) fn latch_anywhere(&self, id: PageId) -> (&AtomicU64, u64) {
        let state = self.states.get_or_make(id);
        let mut waits = Waits::default();
        loop {
            let word = state.load(Ordering::Relaxed);
            if !state::is_latched(word)
                && let Some(word) = state::take(state, word)
            {
                return (state, word);
            }
            waits.wait();
        }
    }

    /// Whether a latched page in memory was changed before the flip and its image is neither written nor on its
    /// way.
    pub(crate) fn awaits_image(&self, frame: usize) -> bool {
        let info = &self.info[frame];
        let dirty = info.dirty.load(Ordering::Relaxed);
        let epoch = self.epoch.load(Ordering::Acquire);
        dirty != 0 && dirty < epoch && !info.captured.load(Ordering::Relaxed)
    }

    /// Takes a latched page that goes out of its frame; the frame is then to be given back.
    pub(crate) fn vacate(&self, frame: usize) -> u32 {
        let info = &self.info[frame];
        info.dirty.store(0, Ordering::Relaxed);
        info.page.store(0, Ordering::Relaxed);
        frame as u32
    }

    /// Gives back the id and the frame of a page that is gone.
    pub(crate) fn give_back(&self, id: PageId, frame: Option<u32>) {
        if let Some(frame) = frame {
            self.free_frames.lock().push(frame);
        }
        self.ids.lock().free.push(id);
    }

    /// Takes the image of a page for the checkpoint, if the page still waits for that.
    pub(crate) fn capture(&self, id: PageId, out: &mut [u8]) -> bool {
        let Some((state, word)) = self.latch_resident(id) else {
            return false;
        };
        let frame = frame_of(word) as usize;
        let info = &self.info[frame];
        let has_detached = || {
            let checkpoint = self.checkpoint.lock();
            checkpoint
                .as_ref()
                .is_some_and(|open| open.has_detached(id))
        };
        let waits = self.awaits_image(frame) && (!self.is_detached(id) || has_detached());
        if waits {
            self.frames.page(frame).copy_to(out);
            info.captured.store(true, Ordering::Relaxed);
        }
        // The page is unchanged, and so is its version.
        latch::give_back(state, word);
        waits
    }

    /// After the image of a captured page was written (`Some` place), or could not be.
    pub(crate) fn captured_written(&self, id: PageId, epoch: u64, place: Option<u64>) {
        let resident = self.latch_resident(id);
        let mut checkpoint = self.checkpoint.lock();
        let mut is_free = false;
        if let (Some(place), Some(open)) = (place, checkpoint.as_mut()) {
            open.places.insert(id, place);
            is_free = open.to_free.remove(&id);
        }
        if let Some((state, word)) = resident {
            let info = &self.info[frame_of(word) as usize];
            let dirty = info.dirty.load(Ordering::Relaxed);
            if dirty != 0 && dirty < epoch && info.captured.load(Ordering::Relaxed) {
                info.captured.store(false, Ordering::Relaxed);
                if let Some(place) = place {
                    info.dirty.store(0, Ordering::Relaxed);
                    self.set_place(&mut checkpoint, id, place);
                }
            }
            latch::give_back(state, word);
        }
        drop(checkpoint);
        if is_free {
            self.free_detached(id);
        }
    }

    /// Moves a page that is not changing from one place to another; says whether it did.
    pub(crate) fn relocate(&self, id: PageId, from: u64, to: u64) -> bool {
        // The latch keeps a load from reading the place while that is given away.
        let (state, word) = self.latch_anywhere(id);
        let mut checkpoint = self.checkpoint.lock();
        // A dirty page gets another place anyway.
        let is_dirty = frame_of(word) != NONE
            && self.info[frame_of(word) as usize]
                .dirty
                .load(Ordering::Relaxed)
                != 0;
        let untouched = !is_dirty
            && !self.is_detached(id)
            && self.place(id) == from
            && checkpoint.as_ref().is_some_and(|open| {
                !open.places.contains_key(&id) && !open.frozen.contains_key(&id)
            });
        if untouched {
            if let Some(open) = checkpoint.as_mut() {
                open.places.insert(id, to);
            }
            self.set_place(&mut checkpoint, id, to);
        }
        latch::give_back(state, word);
        untouched
    }

    /// Pages in memory.
    pub(crate) fn resident(&self) -> usize {
        let handed_out = self
            .next_frame
            .load(Ordering::Relaxed)
            .min(self.frames.count());
        handed_out.saturating_sub(self.free_frames.lock().len())
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.frames.count()
    }
}

/// Waiting for a latch: it is held for less than a microsecond, unless its holder lost the processor or
/// reads from the medium.
#[derive(Debug, Default)]
pub(crate) struct Waits(u32);

impl Waits {
    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        if self.0 < 100 {
            braid_rt::thread::spin_loop();
        } else {
            braid_rt::thread::yield_now();
        }
    }
}

/// An optimistic read of a page. What it shows counts only if [`ReadPage::validate`] says so afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPage<'a> {
    pool: &'a Pool,
    state: &'a AtomicU64,
    pub(crate) id: PageId,
    word: u64,
}

impl<'a> ReadPage<'a> {
    #[inline]
    pub(crate) fn page(&self) -> Page<'a> {
        self.pool.frames.page(frame_of(self.word) as usize)
    }

    pub(crate) fn version(&self) -> u64 {
        self.word
    }

    /// Whether the page is unchanged since it was opened.
    #[inline]
    pub(crate) fn validate(&self) -> bool {
        state::is_unchanged(self.state, self.word)
    }

    /// Takes the exclusive latch if the page is unchanged.
    #[inline]
    pub(crate) fn upgrade(self) -> Option<WritePage<'a>> {
        if !state::upgrade(self.state, self.word) {
            return None;
        }
        Some(WritePage {
            pool: self.pool,
            state: self.state,
            id: self.id,
            word: self.word,
            changed: false,
        })
    }
}

/// The exclusive latch of a page; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct WritePage<'a> {
    pool: &'a Pool,
    state: &'a AtomicU64,
    pub(crate) id: PageId,
    word: u64,
    changed: bool,
}

impl<'a> WritePage<'a> {
    /// The page, to be read.
    #[inline]
    pub(crate) fn page(&self) -> Page<'a> {
        self.pool.frames.page(frame_of(self.word) as usize)
    }

    /// The page, to be changed.
    #[inline]
    pub(crate) fn page_mut(&mut self) -> Result<Page<'a>, StoreError> {
        if !self.changed {
            self.pool.prepare_change(self.id, self.word)?;
            self.changed = true;
        }
        Ok(self.page())
    }

    /// Gives the page and its id back.
    pub(crate) fn free(mut self) -> Result<(), StoreError> {
        // An open checkpoint may need the image.
        self.page_mut()?;
        let pool = self.pool;
        {
            let mut checkpoint = pool.checkpoint.lock();
            if pool.place(self.id) != UNWRITTEN {
                pool.set_place(&mut checkpoint, self.id, ABSENT);
            } else {
                pool.places
                    .get_or_make(self.id)
                    .store(ABSENT, Ordering::Release);
            }
        }
        let frame = pool.vacate(frame_of(self.word) as usize);
        self.word = state::with_frame(self.word, NONE);
        let id = self.id;
        drop(self);
        pool.give_back(id, Some(frame));
        Ok(())
    }
}

impl Drop for WritePage<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = if self.changed {
            state::next_version(self.word)
        } else {
            self.word
        };
        latch::give_back(self.state, state::without_mark(word));
    }
}
