//! Turns in which the segments of a lane get their numbers and names.

use std::sync::atomic::Ordering;

use braid_rt::LongestHold;

use crate::base::event::Event;
use crate::base::sync::{AtomicBool, Mutex};

/// Gives turns to threads, one after the other.
///
/// The thread that makes files ahead of need keeps nothing locked while the device gives a file its
/// name: it has announced the turn. A commit or a flush that lacks a segment waits for the end of
/// that turn, since a file that is made already is ready sooner than another one could be.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Held by a commit or a flush for its whole turn.
    need: Mutex<()>,
    /// Whether a turn of the other kind has been announced. Set under `need`.
    is_ahead: AtomicBool,
    ended: Event,
}

/// A turn of the thread that makes files ahead of need, until dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct AheadTurn<'a>(&'a Turns);

impl Turns {
    /// Waits for the turn of a commit or a flush, which ends when the result is dropped.
    #[must_use]
    pub(super) fn take(&self) -> impl Sized {
        let need = self.need.lock();
        // SeqCst: the condition of the event. A turn that ended has published its segment before.
        while self.is_ahead.load(Ordering::SeqCst) && !braid_rt::mutant!("take_turns_at_once") {
            let listener = self.ended.listen();
            if self.is_ahead.load(Ordering::SeqCst) {
                listener.wait();
            }
        }
        need
    }

    /// Whether a commit or a flush has the turn, or waits for the end of one.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_needed(&self) -> bool {
        self.need.try_lock().is_none()
    }

    /// Waits for the turn of a thread that makes files ahead of need, of which there is one at a
    /// time. Measures for how long the thread keeps commits from taking theirs to announce it.
    pub(super) fn take_ahead(&self, hold: &LongestHold) -> AheadTurn<'_> {
        let _need = hold.of(self.need.lock());
        // SeqCst: see `take`, which reads it under the lock first.
        let was_ahead = self.is_ahead.swap(true, Ordering::SeqCst);
        debug_assert!(!was_ahead, "files are made ahead by one thread at a time");
        AheadTurn(self)
    }
}

impl Drop for AheadTurn<'_> {
    fn drop(&mut self) {
        // SeqCst: the condition of the event.
        self.0.is_ahead.store(false, Ordering::SeqCst);
        self.0.ended.notify();
    }
}
