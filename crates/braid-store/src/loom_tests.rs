//! Optimistic readers of a page against its writers and against the reuse of its frame, in every
//! order that the memory model allows, up to a number of preemptions.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p braid-store --lib --profile loom loom`; see
//! docs/testing.md. The pages here have two words, and state words lead to frames as in `pool`; the
//! latch is the real one, and so are the steps of the state word from `SmallPool` on. If a test
//! names orderings, it was seen to need them: it fails if one of them is made `Relaxed`, or a fence
//! is left out. The tests with `SmallPool` were not yet tried in this way.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use braid_loom::{Mutex, explore, spawn};

use crate::buffer_pool::latch;
use crate::buffer_pool::state::{self, NONE};
use crate::sync::AtomicU64;

const LATCH: u64 = 1;
const VERSION: u64 = 2;
/// Set in the state word of a page that is not in memory.
const ABSENT: u64 = 1 << 32;

type Frame = [AtomicU64; 2];

fn frame(value: u64) -> Frame {
    [AtomicU64::new(value), AtomicU64::new(value)]
}

/// Reads a page's contents, if it did not change meanwhile.
fn read(state: &AtomicU64, frame: &Frame) -> Option<[u64; 2]> {
    let word = latch::open(state);
    if word & LATCH != 0 || word >= ABSENT {
        return None;
    }
    let seen = [frame[0].load(Relaxed), frame[1].load(Relaxed)];
    (latch::look_again(state) == word).then_some(seen)
}

/// Adds one to both words, if no other thread holds the latch.
fn add_one(state: &AtomicU64, frame: &Frame) {
    let word = latch::open(state);
    if word & LATCH != 0 || !latch::take(state, word, word | LATCH) {
        return;
    }
    latch::before_changes();
    for at in frame {
        at.store(at.load(Relaxed) + 1, Relaxed);
    }
    latch::release(state, word + VERSION);
}

/// A reader that finds the state word unchanged saw both words of one version; writers see each
/// other's changes.
///
/// Needs Acquire in `open`, Release in `release`, and both fences.
#[test]
fn a_reader_sees_one_version() {
    explore(3, || {
        let page = Arc::new((AtomicU64::new(0), frame(0)));
        let writers = [(), ()].map(|()| {
            let page = page.clone();
            spawn(move || add_one(&page.0, &page.1))
        });
        if let Some([a, b]) = read(&page.0, &page.1) {
            assert_eq!(a, b);
        }
        for writer in writers {
            writer.join().unwrap();
        }
        // Each acquisition of the latch counts, and no thread accepted a stale word.
        let versions = latch::open(&page.0) / VERSION;
        assert_eq!(read(&page.0, &page.1), Some([versions; 2]));
    });
}

/// A writer that does not read the version first, like the evictor and the checkpoint, sees all of
/// the last holder's changes.
///
/// Needs Acquire in `take` and Release in `release`.
#[test]
fn the_next_holder_of_a_latch_sees_the_last_ones_changes() {
    explore(usize::MAX, || {
        let page = Arc::new((AtomicU64::new(0), frame(0)));
        let writer = {
            let page = page.clone();
            spawn(move || add_one(&page.0, &page.1))
        };
        let word = page.0.load(Relaxed);
        if word & LATCH == 0 && latch::take(&page.0, word, word | LATCH) {
            let seen = [page.1[0].load(Relaxed), page.1[1].load(Relaxed)];
            assert_eq!(seen, [word / VERSION; 2]);
            latch::release(&page.0, word);
        }
        writer.join().unwrap();
    });
}

/// A reader of a page that is evicted meanwhile never accepts the frame's next page as its own, and
/// a thread that finds that next page in memory sees its contents.
///
/// Needs Acquire in `open`, Release in `release`, and both fences.
#[test]
fn a_frame_is_used_again() {
    explore(3, || {
        // Page 0 is in the frame, with sevens; page 1 is not in memory.
        let pool = Arc::new((AtomicU64::new(0), AtomicU64::new(ABSENT), frame(7)));
        let evictor = {
            let pool = pool.clone();
            spawn(move || {
                let (old, new, frame) = &*pool;
                assert!(latch::take(old, 0, LATCH));
                latch::release(old, VERSION + ABSENT);
                assert!(latch::take(new, ABSENT, ABSENT | LATCH));
                latch::before_changes();
                frame.iter().for_each(|word| word.store(9, Relaxed));
                latch::release(new, VERSION);
            })
        };
        let (old, new, frame) = &*pool;
        if let Some(seen) = read(old, frame) {
            assert_eq!(seen, [7; 2]);
        }
        if let Some(seen) = read(new, frame) {
            assert_eq!(seen, [9; 2]);
        }
        evictor.join().unwrap();
    });
}

/// Two pages, one frame, and the medium: the pool's real steps of a state word, with a small model
/// of the code around them. A page's value is in both words of the frame, and once on the medium.
struct SmallPool {
    states: [AtomicU64; 2],
    frame: Frame,
    /// Whether the frame is free.
    free: Mutex<bool>,
    /// As in `FrameInfo`; written under the latch of the page in the frame.
    page: AtomicU64,
    dirty: AtomicU64,
    /// Each written under the page's latch.
    medium: [AtomicU64; 2],
}

impl SmallPool {
    /// Both pages are on the medium, with their numbers as values, and nothing is in memory.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            states: [AtomicU64::new(0), AtomicU64::new(0)],
            frame: frame(0),
            free: Mutex::new(true),
            page: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            medium: [AtomicU64::new(0), AtomicU64::new(100)],
        })
    }

    /// As `Pool::evict`, for one step of the clock. Returns whether the frame became free.
    fn evict(&self) -> bool {
        let page = self.page.load(Relaxed) as usize;
        let Some(word) = state::pick(&self.states[page], 0) else {
            return false;
        };
        if self.dirty.load(Relaxed) == 1 {
            let image = self.frame.each_ref().map(|word| word.load(Relaxed));
            assert_eq!(image[0], image[1], "an image is of one version");
            self.medium[page].store(image[0], Relaxed);
            self.dirty.store(0, Relaxed);
        }
        state::moved(&self.states[page], word, NONE);
        true
    }

    /// As `Pool::load`; gives up if the frame is not available.
    fn load(&self, page: usize, word: u64) {
        let Some(empty) = state::take(&self.states[page], word) else {
            return;
        };
        let taken = std::mem::take(&mut *self.free.lock());
        if !taken && !self.evict() {
            state::moved(&self.states[page], empty, NONE);
            return;
        }
        latch::before_changes();
        for word in &self.frame {
            word.store(self.medium[page].load(Relaxed), Relaxed);
        }
        self.page.store(page as u64, Relaxed);
        self.dirty.store(0, Relaxed);
        state::moved(&self.states[page], empty, 0);
    }

    /// As `Pool::read`, for at most `steps` steps. Returns the word that opens the page.
    fn open(&self, page: usize, steps: usize) -> Option<u64> {
        let at = &self.states[page];
        for _ in 0..steps {
            if let Some(word) = state::readable(at) {
                return Some(word);
            }
            let word = latch::open(at);
            if state::is_latched(word) {
                return None;
            } else if !state::is_resident(word) {
                self.load(page, word);
            } else if state::is_marked(word) {
                state::unmark(at, word);
            }
        }
        None
    }

    /// As an optimistic reader of the page. Returns its value, if the read is valid.
    fn read(&self, page: usize) -> Option<u64> {
        let word = self.open(page, 2)?;
        let seen = self.frame.each_ref().map(|word| word.load(Relaxed));
        state::is_unchanged(&self.states[page], word).then(|| {
            assert_eq!(seen[0], seen[1], "what counts is of one version");
            seen[0]
        })
    }

    /// As a writer. Returns whether it added one.
    fn add_one(&self, page: usize) -> bool {
        let at = &self.states[page];
        let Some(word) = self.open(page, 2).filter(|word| state::upgrade(at, *word)) else {
            return false;
        };
        self.dirty.store(1, Relaxed);
        for word in &self.frame {
            word.store(word.load(Relaxed) + 1, Relaxed);
        }
        latch::release(at, state::next_version(word));
        true
    }

    /// Returns a page's value once all threads are joined, from memory or the medium.
    fn value(&self, page: usize) -> u64 {
        let word = latch::open(&self.states[page]);
        assert!(!state::is_latched(word));
        if state::is_resident(word) {
            assert_eq!(self.page.load(Relaxed), page as u64);
            self.frame[0].load(Relaxed)
        } else {
            self.medium[page].load(Relaxed)
        }
    }
}

/// A writer pins its page: the evictor evicts the page before the change or with it, and never
/// during the change. No change is lost.
#[test]
fn a_change_pins_the_page_and_is_kept() {
    explore(3, || {
        let pool = SmallPool::new();
        pool.load(0, 0);
        // Marked already, so that the next step of the clock takes it.
        assert!(!pool.evict());
        let evictor = {
            let pool = pool.clone();
            spawn(move || pool.open(1, 2))
        };
        let added = (0..2).filter(|_| pool.add_one(0)).count() as u64;
        evictor.join().unwrap();
        assert_eq!((pool.value(0), pool.value(1)), (added, 100));
    });
}

/// A reader never accepts another page's bytes in the frame, nor half of a change, whether it reads
/// before the mark, clears the mark, or loads the page itself.
#[test]
fn readers_of_two_pages_in_one_frame() {
    explore(2, || {
        let pool = SmallPool::new();
        pool.load(0, 0);
        let others = [0, 1].map(|page| {
            let pool = pool.clone();
            spawn(move || match page {
                0 => pool.add_one(0),
                _ => {
                    let seen = pool.read(1);
                    assert!(matches!(seen, None | Some(100)), "{seen:?}");
                    false
                }
            })
        });
        let seen = pool.read(0);
        let [added, _] = others.map(|other| other.join().unwrap());
        assert!(seen <= Some(added.into()), "{seen:?}");
        assert_eq!((pool.value(0), pool.value(1)), (added.into(), 100));
    });
}

/// Of two threads that miss the same page, one loads it, and the other finds it complete.
#[test]
fn a_page_is_loaded_once() {
    explore(usize::MAX, || {
        let pool = SmallPool::new();
        let other = {
            let pool = pool.clone();
            spawn(move || pool.read(1))
        };
        let seen = [pool.read(1), other.join().unwrap()];
        assert!(seen.iter().flatten().all(|v| *v == 100), "{seen:?}");
        assert_eq!(pool.open(1, 1).map(state::frame_of), Some(0));
        assert!(!*pool.free.lock());
    });
}

/// A released frame is reused for another page: a reader of the old page detects that, and a reader
/// of the new page reads it completely.
#[test]
fn a_freed_frame_is_reused_for_another_page() {
    explore(3, || {
        let pool = SmallPool::new();
        pool.load(0, 0);
        let word = state::readable(&pool.states[0]).unwrap();
        let others = [0, 1].map(|page| {
            let pool = pool.clone();
            spawn(move || match page {
                // As `WritePage::free`.
                0 if state::upgrade(&pool.states[0], word) => {
                    state::moved(&pool.states[0], word, NONE);
                    *pool.free.lock() = true;
                }
                // As `Pool::allocate`: the thread that takes the frame shares no latch with the
                // thread that released it.
                1 if std::mem::take(&mut *pool.free.lock()) => {
                    let at = &pool.states[1];
                    let empty = state::take(at, 0).unwrap();
                    latch::before_changes();
                    pool.frame.iter().for_each(|word| word.store(7, Relaxed));
                    pool.page.store(1, Relaxed);
                    state::moved(at, empty, 0);
                }
                _ => {}
            })
        });
        let seen = pool.frame.each_ref().map(|word| word.load(Relaxed));
        if state::is_unchanged(&pool.states[0], word) {
            assert_eq!(seen, [0; 2]);
        }
        if let Some(word) = state::readable(&pool.states[1]) {
            let seen = pool.frame.each_ref().map(|word| word.load(Relaxed));
            assert_eq!((seen, state::frame_of(word)), ([7; 2], 0));
        }
        for other in others {
            other.join().unwrap();
        }
    });
}
