//! Sleeping and waking without a lock: futex words.

use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;

use crate::base::numbers::GroupNo;
use crate::base::sync::{AtomicU32, wait, wake_all, wake_one};

/// The bit of a word that says that a thread may sleep on it.
const SLEEPERS: u32 = 1;

/// The least change of a word that ends sleep: the other bits are a generation.
const GENERATION: u32 = 2;

/// Wakes all threads that announced themselves in the word, and withdraws their announcements: until
/// the next, this only loads the word.
fn wake_sleepers(word: &AtomicU32) {
    // SeqCst: pairs with the announcement.
    let mut seen = word.load(Ordering::SeqCst);
    loop {
        if seen & SLEEPERS == 0 {
            return;
        }
        match word.compare_exchange_weak(
            seen,
            (seen & !SLEEPERS).wrapping_add(GENERATION),
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            Ok(_) => break,
            Err(now) => seen = now,
        }
    }
    wake_all(word);
}

/// A word that threads sleep on until it changes. Waking costs a system call only if a thread sleeps
/// that was not woken yet.
///
/// Protocol of a waiter: [`Event::listen`], check the condition, [`Listener::wait`]. Protocol of a
/// notifier: make the condition true, [`Event::notify`]. Both sides use sequentially consistent
/// operations on `sleepers`/`word`, so either the waiter sees the condition (or the moved word), or
/// the notifier sees the sleeper. The condition itself must be read and written `SeqCst`, or under
/// a lock, for that argument to hold.
#[derive(Debug, Default)]
pub(crate) struct Event {
    /// A generation and [`SLEEPERS`].
    word: AtomicU32,
    sleepers: AtomicU32,
}

/// A thread about to sleep on an [`Event`].
pub(crate) struct Listener<'a> {
    event: &'a Event,
    key: u32,
}

impl Event {
    /// Announces a waiter. Any later notification ends its [`Listener::wait`].
    pub(crate) fn listen(&self) -> Listener<'_> {
        // SeqCst on both: pairs with `notify` and `notify_one`, see the type.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        Listener {
            event: self,
            key: self.word.fetch_or(SLEEPERS, Ordering::SeqCst) | SLEEPERS,
        }
    }

    /// Ends the wait of all listeners.
    pub(crate) fn notify(&self) {
        // If no announcement is seen, every later listener reads the condition after it was made
        // true, and the word has moved for every earlier one. A thread that was woken takes a while
        // to run; meanwhile there is nothing to do.
        wake_sleepers(&self.word);
    }

    /// Ends the wait of one listener at least.
    pub(crate) fn notify_one(&self) {
        // SeqCst on both: pairs with `listen`. The others' announcements stay.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.word.fetch_add(GENERATION, Ordering::SeqCst);
            wake_one(&self.word);
        }
    }

    /// Number of threads that listen.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn sleepers(&self) -> usize {
        self.sleepers.load(Ordering::SeqCst) as usize
    }

    /// Whether a thread listens. `SeqCst`, as in [`Event::notify`].
    pub(crate) fn has_listeners(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }
}

impl Listener<'_> {
    /// Whether [`Listener::wait`] would return at once.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_notified(&self) -> bool {
        self.event.word.load(Ordering::SeqCst) != self.key
    }

    /// Sleeps until notified. May also wake spuriously.
    pub(crate) fn wait(self) {
        wait(&self.event.word, self.key);
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        // Relaxed: a count too high for a moment only costs a wake-up.
        self.event.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Flush groups whose waiters sleep at the same time; more alias and wake too early, which is
/// harmless.
const RING: u64 = if cfg!(all(test, loom)) { 2 } else { 64 };

/// One futex word per flush group, in a ring, so that the end of a flush wakes its own waiters and
/// not those of the next one (no thundering herd).
///
/// A word is a generation in the upper 31 bits and [`SLEEPERS`] in the lowest.
#[derive(Debug)]
pub(crate) struct GroupWords {
    words: Box<[CachePadded<AtomicU32>]>,
}

impl GroupWords {
    pub(crate) fn new() -> Self {
        Self {
            words: (0..RING)
                .map(|_| CachePadded::new(AtomicU32::new(0)))
                .collect(),
        }
    }

    fn word(&self, group: GroupNo) -> &AtomicU32 {
        &self.words[(group.get() % RING) as usize]
    }

    /// Announces a waiter of `group`; check the condition again, then [`GroupWords::wait`].
    pub(crate) fn listen(&self, group: GroupNo) -> u32 {
        // SeqCst: pairs with `finish` and `wake_one`: either they see the bit, or the caller's
        // check after this sees their earlier effects.
        self.word(group).fetch_or(SLEEPERS, Ordering::SeqCst) | SLEEPERS
    }

    /// Whether a waiter has announced itself since the last [`GroupWords::finish`].
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_waiters(&self, group: GroupNo) -> bool {
        self.word(group).load(Ordering::SeqCst) & SLEEPERS != 0
    }

    /// Sleeps until the word moves from `key`.
    pub(crate) fn wait(&self, group: GroupNo, key: u32) {
        wait(self.word(group), key);
    }

    /// Wakes all waiters of `group`. The caller made their condition true before.
    pub(crate) fn finish(&self, group: GroupNo) {
        wake_sleepers(self.word(group));
    }

    /// Wakes one waiter of `group`, if there is one, to make it leader.
    pub(crate) fn wake_one(&self, group: GroupNo) {
        let word = self.word(group);
        // SeqCst: pairs with `listen`.
        if word.load(Ordering::SeqCst) & SLEEPERS == 0 {
            return;
        }
        // The word must move: the waiter may not sleep yet.
        word.fetch_add(GENERATION, Ordering::SeqCst);
        wake_one(word);
    }

    /// Wakes all waiters, and keeps every later one from sleeping.
    pub(crate) fn finish_all(&self) {
        (0..RING).for_each(|group| self.finish(GroupNo::new(group)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A thread takes a while to run after it was woken. Threads that notify meanwhile make no
    /// further system calls.
    #[test]
    fn a_listener_is_woken_once() {
        let event = Event::default();
        let word = || event.word.load(Ordering::SeqCst);
        let (first, second) = (event.listen(), event.listen());
        assert!(!first.is_notified() && !second.is_notified());
        event.notify();
        assert!(first.is_notified() && second.is_notified());
        let woken = word();
        event.notify();
        assert_eq!(word(), woken);
        let third = event.listen();
        assert!(!third.is_notified());
        event.notify_one();
        assert!(third.is_notified());
        event.notify();
        assert_eq!(word() & SLEEPERS, 0);
        assert!(event.has_listeners(), "it has not run yet");
        [first, second, third].into_iter().for_each(Listener::wait);
        assert!(!event.has_listeners());
    }
}
