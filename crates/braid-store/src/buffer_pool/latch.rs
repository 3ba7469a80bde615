//! The memory order of a page's state word: exclusive latch and version for optimistic readers in one.
//!
//! A reader opens the word, reads the page, and asks whether the word is unchanged. A writer takes the
//! latch, changes the page, and gives the latch back with a new version. The words of the page are
//! relaxed, so two pairs of fences keep a reader from taking for good what it should not:
//!
//! - what was written before the latch was given back is seen by whoever opens the new word;
//! - who sees any of a writer's changes sees its latch, too, or what came after it.

use std::sync::atomic::Ordering;

use crate::sync::{AtomicU64, fence};

/// The word, to read what it leads to.
#[inline]
pub(crate) fn open(state: &AtomicU64) -> u64 {
    // Acquire: pairs with the Release in `release`.
    state.load(Ordering::Acquire)
}

/// The word after all that was read of the page so far.
#[inline]
pub(crate) fn look_again(state: &AtomicU64) -> u64 {
    // Acquire fence: keeps the reads of the page before the load; pairs with the fence in
    // `before_changes`.
    fence(Ordering::Acquire);
    state.load(Ordering::Relaxed)
}

/// Takes the latch by changing the word from `word` to `latched`, if it is unchanged.
#[inline]
pub(crate) fn take(state: &AtomicU64, word: u64, latched: u64) -> bool {
    braid_rt::yield_point();
    // Acquire: pairs with the Release in `release` of the last holder.
    state
        .compare_exchange(word, latched, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// To be called by who has the latch before the first change: of a page, or of a frame that another
/// page was in, whose latch was had before.
#[inline]
pub(crate) fn before_changes() {
    // Release fence: the latch before the changes; pairs with the fence in `look_again`.
    fence(Ordering::Release);
}

/// Releases the latch.
#[inline]
pub(crate) fn release(state: &AtomicU64, word: u64) {
    braid_rt::yield_point();
    // Release: the changes before the word; pairs with `open` and `take`.
    state.store(word, Ordering::Release);
}
