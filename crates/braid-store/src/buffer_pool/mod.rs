//! The buffer pool: it keeps pages in memory, latches them, and preserves the images that a
//! checkpoint needs (see [`epochs`]).
//!
//! # The state word
//!
//! Each page id has one word: the exclusive latch, the version for optimistic readers, and the
//! translation to a frame, all at once. A reader loads it, reads the frame, and loads it again: an
//! unchanged word means that the bytes read are consistent. [`state`] has its steps, [`latch`] the
//! memory order.

mod arrivals;
mod batch_read;
pub(crate) mod detached;
mod epochs;
mod eviction;
pub(crate) mod frames;
mod guards;
mod heat;
mod in_place;
pub(crate) mod latch;
mod read_ahead;
mod refusal;
mod spare;
pub(crate) mod state;
mod wait_hint;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use braid_rt::atomic::{AtomicBool, AtomicUsize, Ordering};
use braid_rt::numa::Place;
use braid_rt::thread::Backoff;
use braid_rt::{Held, Mark, Mutex, MutexGuard, SEQUENCE_NUMBER, excused, narrow};

use crate::data_file::DataFile;
use crate::data_file::room::Room;
use crate::error::StoreError;
use crate::limits::POOL_BYTES_MAX;
use crate::node;
use crate::number_set::NumberSet;
use crate::page::{PAGE_SIZE, PageId};
use crate::page_table::{PAGES_MAX, PageTable};
use crate::sync::{AtomicU64, Counter};

pub use self::refusal::LoadRefusal;

use self::arrivals::Arrivals;
use self::frames::Frames;
use self::heat::{FrameHeat, Heat, HotPages};
use self::read_ahead::Cluster;
use self::state::NONE;
use self::wait_hint::WaitHint;

pub(crate) use crate::addresses::{ABSENT, UNWRITTEN};
pub(crate) use epochs::{OpenCheckpoint, Wake};
pub(crate) use guards::{ReadPage, WritePage};
pub(crate) use spare::SpareFrames;

/// The longest sleep of a thread that waits for a page's latch.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// See [`Pool::frames_low`].
const FRAMES_LOW: usize = 512;

/// Checks that the bytes are valid contents of a page.
fn check_page(bytes: &[u8]) -> Result<(), &'static str> {
    let page = bytes.first_chunk().ok_or("it is too short");
    page.and_then(node::check)
}

#[derive(Debug, Default)]
struct FrameInfo {
    page: AtomicU64,
    /// Written under the page's latch.
    dirty: AtomicU64,
    captured: AtomicBool,
    heat: FrameHeat,
}

/// The number of frames of a pool with so many bytes.
fn frames_for(pool_bytes: usize) -> Result<usize, StoreError> {
    let count = pool_bytes / PAGE_SIZE;
    if count < 64 || pool_bytes as u64 > POOL_BYTES_MAX {
        return Err(StoreError::Options {
            option: "pool_bytes",
            reason: format!("{pool_bytes} given; must be from 512 KiB to 4 TiB"),
        });
    }
    Ok(count)
}

/// The buffer pool; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Number of the store.
    pub(crate) number: u8,
    /// Where the frames lie.
    pub(crate) memory: Place,
    pub(crate) file: DataFile,
    frames: Frames,
    info: Box<[FrameInfo]>,
    pub(crate) states: PageTable,
    pub(crate) epoch: AtomicU64,
    pub(crate) checkpoint: Mutex<Option<OpenCheckpoint>>,
    pub(crate) free_frames: Mutex<Vec<u32>>,
    next_frame: AtomicUsize,
    hand: AtomicUsize,
    hot: HotPages,
    pub(crate) ids: Mutex<PageIds>,
    copies_max: usize,
    pub(crate) counters: PoolCounters,
    /// Pages that stay unreadable, with the cause; see [`Pool::condemn`].
    condemned: Mutex<BTreeMap<PageId, StoreError>>,
    has_condemned: AtomicBool,
    /// Whether pages may be missing in memory, or frames or copies may run out: set before they do,
    /// and cleared by [`Pool::note_residency`].
    may_wait: WaitHint,
    arrivals: Arrivals,
    /// Whether pages of a file in persistent memory are read in place.
    reads_in_place: AtomicBool,
}

/// Which page ids are free.
#[derive(Debug)]
pub(crate) struct PageIds {
    pub(crate) next: PageId,
    pub(crate) free: NumberSet,
    room: Arc<Room>,
}

impl PageIds {
    /// Assigns an id to a new page.
    pub(crate) fn take(&mut self) -> Result<PageId, StoreError> {
        match self.free.pop_first() {
            Some(id) => Ok(id),
            None if self.next >= PAGES_MAX => Err(StoreError::OutOfSpace {
                what: "all page numbers are in use".into(),
            }),
            None => {
                self.next += 1;
                self.room.page_added(self.next);
                Ok(self.next - 1)
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PoolCounters {
    pub(crate) loads: Counter,
    pub(crate) reads_in_place: Counter,
    pub(crate) read_ahead: Counter,
    pub(crate) evictions: Counter,
    pub(crate) eviction_writes: Counter,
    pub(crate) copies: Counter,
}

impl Pool {
    /// Adds the bytes of the frames on each memory node; see [`Store::count_pool`](crate::Store).
    pub(crate) fn count(&self, bytes: &mut [u64]) -> bool {
        self.frames.count_bytes(bytes)
    }

    pub(crate) fn new(
        file: DataFile,
        (pool_bytes, memory, number): (usize, Place, u8),
        next: PageId,
    ) -> Result<Self, StoreError> {
        let count = frames_for(pool_bytes)?;
        let mut frames = Frames::new(count).ok_or_else(|| StoreError::Options {
            option: "pool_bytes",
            reason: format!("cannot allocate {pool_bytes} bytes of memory; choose a smaller pool"),
        })?;
        frames.place(memory);
        in_place::add_blocks(&mut frames, &file);
        let mut free = NumberSet::default();
        let mut has_pages = false;
        for id in 1..next {
            if file.addresses.current(id) == ABSENT {
                free.insert(id);
            } else {
                has_pages = true;
            }
        }
        let room = file.room.clone();
        room.take_for_map(next);
        Ok(Self {
            number,
            memory,
            file,
            frames,
            info: (0..count).map(|_| FrameInfo::default()).collect(),
            states: PageTable::new(),
            epoch: AtomicU64::new(1),
            checkpoint: Mutex::new(None),
            free_frames: Mutex::default(),
            next_frame: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            hot: HotPages::default(),
            ids: Mutex::new(PageIds { next, free, room }),
            copies_max: (count / 8).max(16),
            counters: PoolCounters::default(),
            condemned: Mutex::default(),
            has_condemned: AtomicBool::new(false),
            arrivals: Arrivals::new(LONGEST_SLEEP),
            may_wait: WaitHint::new(has_pages),
            reads_in_place: AtomicBool::new(true),
        })
    }

    /// Returns whether a change of some pages may wait for the medium: a page may be missing in memory,
    /// the last frames or copies may be taken meanwhile, so that a page has to be written first. A hint.
    #[inline]
    pub(crate) fn may_wait(&self) -> bool {
        self.may_wait.is_set()
    }

    /// Sets [`Pool::may_wait`].
    pub(crate) fn expect_waits(&self) {
        if !braid_rt::mutant!("take_the_last_frames_unannounced") {
            self.may_wait.set();
        }
    }

    /// Updates [`Pool::may_wait`].
    pub(crate) fn note_residency(&self) {
        self.may_wait.update(|| {
            let ids = self.lock_ids();
            let used = ids.next - 1 - ids.free.len();
            drop(ids);
            let resident = self.resident();
            self.has_many_copies()
                || (resident as u64) < used
                || self.frames.count() - resident < self.frames_low()
        });
    }

    /// Below so many free frames, commits expect to wait: far more than those that have not seen that
    /// yet may take.
    fn frames_low(&self) -> usize {
        (self.frames.count() / 2).min(FRAMES_LOW)
    }

    /// Writes a latched page to make room for the caller, which may have a sequence number.
    fn write_for_room(&self, id: PageId, frame: usize) -> Result<(), StoreError> {
        let write = || self.write_out(id, frame);
        // A commit that needs room from now on says that it takes long before it is applied. Those
        // that looked before are few.
        if self.may_wait() {
            excused(SEQUENCE_NUMBER, "frames or copies are short", write)
        } else {
            write()
        }
    }

    #[inline]
    fn state(&self, id: PageId) -> Option<&AtomicU64> {
        self.states.get(id)
    }

    /// The current block address of a page. Changed under the lock of `checkpoint`.
    pub(crate) fn address(&self, id: PageId) -> u64 {
        self.file.addresses.current(id)
    }

    /// Opens a page for optimistic reading. Returns `None` if the page does not exist, which can
    /// happen to a reader whose previous page changed meanwhile.
    #[inline]
    pub(crate) fn read(&self, id: PageId) -> Result<Option<ReadPage<'_>>, StoreError> {
        match self.read_resident(id) {
            None => self.read_slow(id),
            page => Ok(page),
        }
    }

    /// Opens a page for optimistic reading if that needs no further work.
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

    /// Opens a page for optimistic reading if it is in memory and no thread is changing it.
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
        let mut backoff = Backoff::default();
        loop {
            let word = latch::open(state);
            if !state::is_resident(word) && self.refuses_to_load(id) {
                return Err(self.not_in_memory(&[id]));
            }
            if state::is_latched(word) {
                self.arrivals.wait(id, state, &mut backoff);
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
            if self.address(id) == ABSENT {
                return Ok(None);
            }
            self.load(id, state, word)?;
        }
    }

    /// Makes a damaged page that is not in memory permanently unreadable, even if a later read
    /// would succeed.
    pub(crate) fn condemn(&self, id: PageId, error: &StoreError) {
        self.condemned.lock().insert(id, error.clone());
        self.has_condemned.store(true, Ordering::Release);
    }

    /// Checks that a page was not condemned.
    pub(crate) fn check_condemned(&self, id: PageId) -> Result<(), StoreError> {
        if !self.has_condemned.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.condemned.lock().get(&id) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Loads a page into memory. Returns without effect if another thread was faster.
    fn load(&self, id: PageId, state: &AtomicU64, word: u64) -> Result<(), StoreError> {
        let Some(empty) = state::take(state, word) else {
            return Ok(());
        };
        let mut neighbours = None;
        let result = self.load_latched(id, word, &mut neighbours);
        let (frame, result) = match result {
            Ok(frame) => (frame, Ok(())),
            Err(error) => (NONE, Err(error)),
        };
        state::moved(state, empty, frame);
        self.arrivals.notify(id);
        if let Some(neighbours) = neighbours {
            self.adopt(&neighbours);
        }
        result
    }

    fn load_latched(
        &self,
        id: PageId,
        word: u64,
        neighbours: &mut Option<Cluster>,
    ) -> Result<u64, StoreError> {
        let address = self.address(id);
        if address == ABSENT || address == UNWRITTEN {
            return Ok(NONE);
        }
        self.check_condemned(id)?;
        if let Some(frame) = self.open_in_place(id, address, word)? {
            return Ok(frame);
        }
        let frame = self.take_frame()?;
        let mut buf = self.file.buffer();
        if !self.reads_in_place() {
            *neighbours = self.read_cluster(id, address, &mut buf);
        }
        let read = match neighbours {
            Some(_) => Ok(()),
            None => self.file.read_page(id, address, &mut buf),
        };
        if let Err(error) = read.and_then(|()| self.check_page(id, &buf)) {
            self.free_frames.lock().push(narrow(frame));
            return Err(error);
        }
        self.counters.loads.fetch_add(1, Ordering::Relaxed);
        // A reader of the page that was in this frame also sees the eviction if it sees any of the
        // new contents.
        latch::before_changes();
        self.fill(frame, id, &buf);
        self.set_heat(frame, self.heat_of_loaded(word));
        Ok(frame as u64)
    }

    /// Puts a page that was read into a frame, and releases the page's latch through `state` and
    /// `word`. The caller owns the latch and the frame.
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
        self.set_heat(frame, self.heat_of_loaded(empty));
        state::moved(state, empty, frame as u64);
        self.arrivals.notify(id);
    }

    /// Checks that the bytes are valid contents of a page.
    fn check_page(&self, id: PageId, bytes: &[u8]) -> Result<(), StoreError> {
        check_page(bytes).map_err(|what| self.damaged_page(id, what))
    }

    /// The error of a damaged page.
    #[cold]
    pub(crate) fn damaged_page(&self, id: PageId, what: &str) -> StoreError {
        StoreError::damaged_page(self.file.name(), id, what)
    }

    /// Puts a clean page into a frame. The caller owns both.
    pub(crate) fn fill(&self, frame: usize, id: PageId, bytes: &[u8]) {
        self.frames.page(frame).copy_from(bytes);
        let info = &self.info[frame];
        info.page.store(id, Ordering::Relaxed);
        info.dirty.store(0, Ordering::Relaxed);
        info.captured.store(false, Ordering::Relaxed);
    }

    /// Acquires the exclusive latch of a page. Returns `None` if the page does not exist.
    pub(crate) fn write(&self, id: PageId) -> Result<Option<WritePage<'_>>, StoreError> {
        let mut backoff = Backoff::default();
        loop {
            let Some(page) = self.read(id)? else {
                return Ok(None);
            };
            if let Some(page) = page.upgrade() {
                return Ok(Some(page));
            }
            backoff.wait();
        }
    }

    /// Allocates a zeroed page, latched.
    pub(crate) fn allocate(&self) -> Result<WritePage<'_>, StoreError> {
        Ok(self.allocate_unfilled()?.zeroed())
    }

    /// Allocates a page, latched, with the old contents of its frame.
    pub(crate) fn allocate_unfilled(&self) -> Result<WritePage<'_>, StoreError> {
        self.allocate_in(self.take_frame()?)
    }

    /// As [`Pool::allocate_unfilled`], in a frame that the caller has taken.
    fn allocate_in(&self, frame: usize) -> Result<WritePage<'_>, StoreError> {
        let id = {
            let taken = self.ids.lock().take();
            taken.inspect_err(|_| self.free_frames.lock().push(narrow(frame)))?
        };
        let state = self.states.get_or_make(id);
        // A thread with a stale reference may hold the latch briefly.
        let mut backoff = Backoff::default();
        let word = loop {
            let word = state.load(Ordering::Relaxed);
            if !state::is_latched(word)
                && let Some(empty) = state::take(state, word)
            {
                break empty;
            }
            self.arrivals.wait(id, state, &mut backoff);
        };
        debug_assert!(!state::is_resident(word), "a free page id is not in memory");
        self.appear(id, UNWRITTEN);
        self.file.room.take(1);
        // As in `load_latched`.
        latch::before_changes();
        let info = &self.info[frame];
        info.page.store(id, Ordering::Relaxed);
        info.dirty
            .store(self.epoch.load(Ordering::Acquire), Ordering::Relaxed);
        info.captured.store(false, Ordering::Relaxed);
        self.set_heat(frame, Heat::Cold);
        let word = state::with_frame(word, frame as u64);
        state.store(state::latched(word), Ordering::Relaxed);
        Ok(WritePage {
            pool: self,
            state,
            id,
            word,
            changed: true,
            // Nothing refers to it yet.
            _mark: Mark::none(),
        })
    }

    /// The page's current version word, for stamps.
    pub(crate) fn version(&self, id: PageId) -> u64 {
        self.state(id)
            .map_or(0, |state| state::without_mark(latch::open(state)))
    }

    /// Latches a page wherever it is, without loading it.
    pub(crate) fn latch_anywhere(&self, id: PageId) -> (&AtomicU64, u64) {
        let state = self.states.get_or_make(id);
        let mut backoff = Backoff::default();
        loop {
            let word = state.load(Ordering::Relaxed);
            if !state::is_latched(word)
                && let Some(word) = state::take(state, word)
            {
                return (state, word);
            }
            self.arrivals.wait(id, state, &mut backoff);
        }
    }

    /// Locks the page ids for work on many of them, and measures for how long.
    pub(crate) fn lock_ids(&self) -> Held<'_, MutexGuard<'_, PageIds>> {
        self.file.holds.ids.of(self.ids.lock())
    }

    /// Releases the id and the frame of a freed page.
    pub(crate) fn recycle(&self, id: PageId, frame: Option<u32>) {
        if let Some(frame) = frame {
            self.free_frames.lock().push(frame);
        }
        self.ids.lock().free.insert(id);
    }

    /// Pages in memory.
    pub(crate) fn resident(&self) -> usize {
        let handed_out = self
            .next_frame
            .load(Ordering::Relaxed)
            .min(self.frames.count());
        handed_out.saturating_sub(self.free_frames.lock().len())
    }

    /// Number of pages ever created, of which some may be free again.
    pub(crate) fn page_ids(&self) -> u64 {
        self.ids.lock().next
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.frames.count()
    }
}

#[cfg(all(test, not(loom), target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_up_to_four_tebibytes() {
        assert_eq!(frames_for(4 << 40).unwrap(), 1 << 29);
        assert_eq!(frames_for(512 << 10).unwrap(), 64);
        for bytes in [0, (512 << 10) - 1, (4 << 40) + 1, usize::MAX] {
            let error = frames_for(bytes).unwrap_err();
            let option = "pool_bytes";
            assert!(matches!(&error, StoreError::Options { option: name, .. } if *name == option));
            assert!(
                error.to_string().contains("from 512 KiB to 4 TiB"),
                "{error}"
            );
        }
    }
}
