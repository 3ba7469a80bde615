//! Optimistic readers of a page against its writers and against the reuse of its frame, in every order
//! that the memory model allows, up to a number of preemptions.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p braid-store --lib --release loom`; see docs/testing.md.
//! The pages here have two words, and state words lead to frames as in `pool`; the latch is the real one.
//! Each test names the orderings it was seen to need: it fails if one of them is made `Relaxed`, or a
//! fence is left out.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use braid_loom::{explore, spawn};

use crate::latch;
use crate::sync::AtomicU64;

const LATCH: u64 = 1;
const VERSION: u64 = 2;
/// In the state word of a page that is not in memory.
const ABSENT: u64 = 1 << 32;

type Frame = [AtomicU64; 2];

fn frame(value: u64) -> Frame {
    [AtomicU64::new(value), AtomicU64::new(value)]
}

/// What a page holds, if it did not change while it was read.
fn read(state: &AtomicU64, frame: &Frame) -> Option<[u64; 2]> {
    let word = latch::open(state);
    if word & LATCH != 0 || word >= ABSENT {
        return None;
    }
    let seen = [frame[0].load(Relaxed), frame[1].load(Relaxed)];
    (latch::look_again(state) == word).then_some(seen)
}

/// Adds one to both words, if nobody else has the latch.
fn add_one(state: &AtomicU64, frame: &Frame) {
    let word = latch::open(state);
    if word & LATCH != 0 || !latch::take(state, word, word | LATCH) {
        return;
    }
    latch::before_changes();
    for at in frame {
        at.store(at.load(Relaxed) + 1, Relaxed);
    }
    latch::give_back(state, word + VERSION);
}

/// A reader whose look at the state word says "unchanged" saw both words of one version; writers see
/// each other's.
///
/// Needs Acquire in `open`, Release in `give_back`, and both fences.
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
        // Each that took the latch counted, and nobody took a stale word for a new one.
        let versions = latch::open(&page.0) / VERSION;
        assert_eq!(read(&page.0, &page.1), Some([versions; 2]));
    });
}

/// A writer that does not look at the version first, as the evictor and the checkpoint do, sees all of
/// the last holder's changes.
///
/// Needs Acquire in `take` and Release in `give_back`.
#[test]
fn who_takes_the_latch_sees_the_last_holders_changes() {
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
            latch::give_back(&page.0, word);
        }
        writer.join().unwrap();
    });
}

/// A reader of a page that is evicted meanwhile never takes the next page in its frame for its own, and
/// whoever finds that page in memory finds its contents.
///
/// Needs Acquire in `open`, Release in `give_back`, and both fences.
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
                latch::give_back(old, VERSION + ABSENT);
                assert!(latch::take(new, ABSENT, ABSENT | LATCH));
                latch::before_changes();
                frame.iter().for_each(|word| word.store(9, Relaxed));
                latch::give_back(new, VERSION);
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
