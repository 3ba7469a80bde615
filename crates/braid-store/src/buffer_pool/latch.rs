//! The memory order of a page's state word: exclusive latch and version for optimistic readers in
//! one.
//!
//! A reader opens the word, reads the page, and checks that the word is unchanged. A writer
//! acquires the latch, changes the page, and releases the latch with a new version. The words of
//! the page are relaxed, so two pairs of fences keep a reader from accepting inconsistent bytes:
//!
//! - a reader that opens the new word sees everything written before the latch was released;
//! - a reader that sees any of a writer's changes also sees the writer's latch, or a later word.

use std::sync::atomic::Ordering;

use crate::sync::{AtomicU64, fence};

/// Loads the word, to read the page that it refers to.
#[cfg_attr(braid_counts, track_caller)]
#[inline]
pub(crate) fn open(state: &AtomicU64) -> u64 {
    // Acquire: pairs with the Release in `release`.
    state.load(Ordering::Acquire)
}

/// Loads the word again, after all earlier reads of the page.
#[cfg_attr(braid_counts, track_caller)]
#[inline]
pub(crate) fn look_again(state: &AtomicU64) -> u64 {
    // Acquire fence: keeps the reads of the page before the load; pairs with the fence in
    // `before_changes`.
    fence(Ordering::Acquire);
    state.load(Ordering::Relaxed)
}

/// Acquires the latch by changing the word from `word` to `latched`, if it is unchanged.
#[cfg_attr(braid_counts, track_caller)]
#[inline]
pub(crate) fn take(state: &AtomicU64, word: u64, latched: u64) -> bool {
    braid_rt::yield_point();
    // Acquire: pairs with the Release in `release` of the last holder.
    state
        .compare_exchange(word, latched, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Orders the latch before the first change. The holder of the latch must call this before changing
/// a page, or a frame that held another page, whose latch was acquired before.
#[inline]
pub(crate) fn before_changes() {
    // Release fence: the latch before the changes; pairs with the fence in `look_again`.
    fence(Ordering::Release);
}

/// Releases the latch.
#[cfg_attr(braid_counts, track_caller)]
#[inline]
pub(crate) fn release(state: &AtomicU64, word: u64) {
    braid_rt::yield_point();
    // Release: the changes before the word; pairs with `open` and `take`.
    state.store(word, Ordering::Release);
}
