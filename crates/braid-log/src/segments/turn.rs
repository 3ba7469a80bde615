//! Turns in which the segments of a lane get their numbers and names.

use braid_rt::{Condvar, LongestHold, Mutex, MutexGuard};

/// Gives turns to threads, one after the other.
///
/// The thread that makes files ahead of need keeps nothing locked while the device gives a file its
/// name: it has announced the turn. A commit or a flush that lacks a segment waits for the end of
/// that turn, since a file that is made already is ready sooner than another one could be.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Held by a commit or a flush for its whole turn.
    need: Mutex<()>,
    /// Whether a turn of the other kind has been announced. Acquired after `need`.
    ahead: Mutex<bool>,
    ended: Condvar,
}

/// A turn of the thread that makes files ahead of need, until dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct AheadTurn<'a>(&'a Turns);

impl Turns {
    /// Waits for the turn of a commit or a flush, which ends when the result is dropped.
    pub(super) fn take(&self) -> MutexGuard<'_, ()> {
        let need = self.need.lock();
        let mut is_ahead = self.ahead.lock();
        while *is_ahead && !braid_rt::mutant!("take_turns_at_once") {
            self.ended.wait(&mut is_ahead);
        }
        need
    }

    /// Whether a commit or a flush has the turn, or waits for the end of one.
    #[cfg(test)]
    pub(super) fn is_needed(&self) -> bool {
        self.need.try_lock().is_none()
    }

    /// Waits for the turn of a thread that makes files ahead of need, of which there is one at a
    /// time. Measures for how long the thread keeps commits from taking theirs to announce it.
    pub(super) fn take_ahead(&self, hold: &LongestHold) -> AheadTurn<'_> {
        let _need = hold.of(self.need.lock());
        let mut is_ahead = self.ahead.lock();
        debug_assert!(!*is_ahead, "files are made ahead by one thread at a time");
        *is_ahead = true;
        AheadTurn(self)
    }
}

impl Drop for AheadTurn<'_> {
    fn drop(&mut self) {
        *self.0.ahead.lock() = false;
        self.0.ended.notify_all();
    }
}
