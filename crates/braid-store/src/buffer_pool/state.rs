//! The state word of a page: `version:32 | frame:30 | MARK | LATCH`, and the steps that change it.
//!
//! It is the exclusive latch, the version for optimistic readers, and the translation to a frame,
//! all at once (frame `NONE`, or when it was evicted: not in memory; a word of 0 was never used). The version grows with
//! every change, load and eviction, so a word does not recur, and a step that exchanges it acts on
//! the page that it read or has no effect. (A word recurs after exactly 2^32 changes of a page in
//! one frame, or a multiple of that. Readers keep a word for microseconds; a [hint] may keep it for
//! hours, and then has a chance of one in 2^32 to meet it again.) `MARK` is the clock's second
//! chance: set by the evictor, cleared by the next reader.
//!
//! A page in persistent memory may be read in place: its frame number is then that of its block, from
//! `IN_PLACE` on, and it is in no frame of the pool. Such a page is not changed. A thread that wants
//! to change it sets `COPY`, so that the next access loads the page into a frame. See
//! [`super::in_place`].
//!
//! [`latch`] has the memory order. There is no count of readers: a reader holds nothing, and
//! detects an eviction afterwards. Only the latch pins a page.
//!
//! [hint]: crate::LeafHint

use std::sync::atomic::Ordering;

use braid_rt::to_usize;

use super::latch;
use crate::limits::POOL_BYTES_MAX;
use crate::page::PAGE_SIZE;
use crate::sync::AtomicU64;

const LATCH: u64 = 1;
const MARK: u64 = 2;
const FRAME_SHIFT: u32 = 2;
const FRAME_BITS: u32 = 30;
const FRAME_MASK: u64 = (1 << FRAME_BITS) - 1;
const VERSION_SHIFT: u32 = FRAME_SHIFT + FRAME_BITS;

/// The frame of a page that is not in memory.
pub(crate) const NONE: u64 = FRAME_MASK;

/// As [`NONE`], for a page that the next load brings into the pool.
pub(crate) const COPY: u64 = NONE - 1;

/// Times at which a page was evicted; later ones recur.
pub(crate) const EVICTED_TIMES: u64 = 1 << 20;

/// As [`NONE`], for an evicted page: one number for each time, up to `COPY`.
const EVICTED: u64 = COPY - EVICTED_TIMES;

/// The first number of pages that are read in place: that of block 0.
pub(crate) const IN_PLACE: u64 = 1 << (FRAME_BITS - 1);

/// Blocks after these are not read in place.
pub(crate) const IN_PLACE_MAX: u64 = EVICTED - IN_PLACE;

const _: () = assert!(
    POOL_BYTES_MAX / PAGE_SIZE as u64 <= IN_PLACE,
    "all frames have a number"
);

#[inline]
pub(crate) fn frame_of(word: u64) -> u64 {
    word >> FRAME_SHIFT & FRAME_MASK
}

#[inline]
pub(crate) fn with_frame(word: u64, frame: u64) -> u64 {
    (word & !(FRAME_MASK << FRAME_SHIFT) & !MARK) | frame << FRAME_SHIFT
}

#[inline]
pub(crate) fn next_version(word: u64) -> u64 {
    word.wrapping_add(1 << VERSION_SHIFT)
}

#[inline]
pub(crate) fn is_latched(word: u64) -> bool {
    word & LATCH != 0
}

#[inline]
pub(crate) fn latched(word: u64) -> u64 {
    word | LATCH
}

#[inline]
pub(crate) fn is_marked(word: u64) -> bool {
    word & MARK != 0
}

#[inline]
pub(crate) fn without_mark(word: u64) -> u64 {
    word & !MARK
}

#[inline]
pub(crate) fn is_resident(word: u64) -> bool {
    word != 0 && frame_of(word) < EVICTED
}

/// The frame number of a page that is evicted at a time.
pub(crate) fn evicted_at(time: u64) -> u64 {
    EVICTED + time % EVICTED_TIMES
}

/// The time from a page's eviction to `now`; `None` if the page was not evicted.
pub(crate) fn since_eviction(word: u64, now: u64) -> Option<u64> {
    let frame = frame_of(word);
    let is_evicted = word != 0 && (EVICTED..COPY).contains(&frame);
    is_evicted.then(|| now.wrapping_sub(frame - EVICTED) % EVICTED_TIMES)
}

/// Whether the page is read in place, if it is in memory.
#[inline]
pub(crate) fn is_in_place(word: u64) -> bool {
    word & IN_PLACE << FRAME_SHIFT != 0
}

/// The frame of a page in the pool.
#[inline]
pub(crate) fn pooled(word: u64) -> Option<usize> {
    (word != 0 && !is_in_place(word)).then(|| to_usize(frame_of(word)))
}

/// The block of a page that is read in place.
pub(crate) fn block_in_place(word: u64) -> Option<u64> {
    (is_resident(word) && is_in_place(word)).then(|| frame_of(word) - IN_PLACE)
}

/// Ends reads in place of a page whose word is still `word`; the next load brings the page to
/// `next`, which is [`NONE`] or [`COPY`].
pub(crate) fn leave_place(state: &AtomicU64, word: u64, next: u64) {
    let _ = latch::take(state, word, next_version(with_frame(word, next)));
}

/// The word, if the page can be read at once.
#[cfg_attr(braid_counts, track_caller)]
#[inline]
pub(crate) fn readable(state: &AtomicU64) -> Option<u64> {
    let word = latch::open(state);
    let ready = word & (LATCH | MARK) == 0 && is_resident(word);
    ready.then_some(word)
}

/// Whether the bytes read since the page was readable with `word` are valid.
#[cfg_attr(braid_counts, track_caller)]
#[inline]
pub(crate) fn is_unchanged(state: &AtomicU64, word: u64) -> bool {
    without_mark(latch::look_again(state)) == word
}

/// Clears the mark, as a reader does: the page was used since the evictor's last visit.
pub(crate) fn unmark(state: &AtomicU64, word: u64) {
    // Relaxed: the bit orders nothing.
    let _ = state.compare_exchange(
        word,
        without_mark(word),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// Acquires the latch of a readable page whose word is still `word`, to change the page.
#[cfg_attr(braid_counts, track_caller)]
#[inline]
pub(crate) fn upgrade(state: &AtomicU64, word: u64) -> bool {
    let taken = latch::take(state, word, latched(word));
    if taken {
        latch::before_changes();
    }
    taken
}

/// Acquires the latch of a page whose word was `word` and not latched, in memory or not. Returns
/// the word to restore if nothing changes.
#[cfg_attr(braid_counts, track_caller)]
pub(crate) fn take(state: &AtomicU64, word: u64) -> Option<u64> {
    let known = if word == 0 { NONE << FRAME_SHIFT } else { word };
    latch::take(state, word, latched(known)).then_some(known)
}

/// Makes one step of the evictor at the frame that probably holds this page: marks the page, or
/// acquires its latch if the mark from the last visit is still set. Returns the word to restore if
/// the page stays.
pub(crate) fn pick(state: &AtomicU64, frame: u64) -> Option<u64> {
    let word = visit(state, frame)?;
    if !is_marked(word) {
        set_mark(state, word);
        return None;
    }
    latch::take(state, word, latched(word)).then_some(word)
}

/// The word, if the page is in this frame, and not latched.
fn visit(state: &AtomicU64, frame: u64) -> Option<u64> {
    let word = state.load(Ordering::Relaxed);
    let is_there = !is_latched(word) && is_resident(word) && frame_of(word) == frame;
    is_there.then_some(word)
}

fn set_mark(state: &AtomicU64, word: u64) {
    // Relaxed: the bit orders nothing.
    let _ = state.compare_exchange(word, word | MARK, Ordering::Relaxed, Ordering::Relaxed);
}

/// Marks a page in this frame that is not latched. Returns whether it was marked before.
pub(crate) fn mark(state: &AtomicU64, frame: u64) -> Option<bool> {
    let word = visit(state, frame)?;
    if !is_marked(word) {
        set_mark(state, word);
    }
    Some(is_marked(word))
}

/// Whether the page in this frame has lost its mark since the evictor's last visit, so was used.
pub(crate) fn was_used(state: &AtomicU64, frame: u64) -> bool {
    visit(state, frame).is_some_and(|word| !is_marked(word))
}

/// Releases the latch with the page in `frame`, or in no frame.
#[cfg_attr(braid_counts, track_caller)]
pub(crate) fn moved(state: &AtomicU64, word: u64, frame: u64) {
    latch::release(state, next_version(with_frame(word, frame)));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_word_do_not_touch_each_other() {
        let frames = POOL_BYTES_MAX / PAGE_SIZE as u64;
        for frame in [
            0,
            1,
            (1 << 24) - 1,
            1 << 24,
            frames - 1,
            IN_PLACE,
            EVICTED - 1,
            EVICTED,
            COPY,
            NONE,
        ] {
            for version in [0, 1, u64::from(u32::MAX)] {
                let word = with_frame(version << VERSION_SHIFT, frame);
                assert_eq!((frame_of(word), word >> VERSION_SHIFT), (frame, version));
                assert!(!is_latched(word) && !is_marked(word));
                let all = latched(word) | MARK;
                assert_eq!((frame_of(all), all >> VERSION_SHIFT), (frame, version));
                let next = next_version(all);
                assert_eq!(next >> VERSION_SHIFT, (version + 1) & u64::from(u32::MAX));
                assert_eq!((frame_of(next), next & 3), (frame, LATCH | MARK));
                assert_eq!(is_resident(latched(word)), frame < EVICTED);
                assert_eq!(pooled(word).is_some(), frame < IN_PLACE && word != 0);
                let block = (IN_PLACE..EVICTED)
                    .contains(&frame)
                    .then(|| frame - IN_PLACE);
                assert_eq!(block_in_place(word), block);
            }
        }
    }

    #[test]
    fn a_word_keeps_the_time_of_an_eviction() {
        let since = |at, now| since_eviction(with_frame(7 << VERSION_SHIFT, evicted_at(at)), now);
        for at in [
            0,
            5,
            EVICTED_TIMES - 1,
            EVICTED_TIMES,
            3 * EVICTED_TIMES + 9,
        ] {
            assert_eq!(since(at, at), Some(0));
            assert_eq!(since(at, at + 100), Some(100));
            assert!(!is_resident(with_frame(1 << VERSION_SHIFT, evicted_at(at))));
        }
        for frame in [0, IN_PLACE, EVICTED - 1, COPY, NONE] {
            assert_eq!(
                since_eviction(with_frame(1 << VERSION_SHIFT, frame), 3),
                None
            );
        }
        assert_eq!(since_eviction(0, 3), None);
    }
}
