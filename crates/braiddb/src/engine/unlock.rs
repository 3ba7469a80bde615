//! Release of a transaction's locks, at once or after a flush, and of its snapshot.

use std::sync::Arc;

use braid_log::UnlockPoint;

use super::Engine;
use super::context::Context;

impl Engine {
    /// Releases the transaction's locks.
    pub(crate) fn unlock_all(&self, state: &mut Context) {
        let owner = state.owner;
        // One by one: a commit usually has few, and `drain` is slow for few.
        while let Some(hash) = state.locks.pop() {
            self.locks.unlock(hash, owner);
        }
    }

    pub(crate) fn close_snapshot(&self, state: &mut Context) {
        if let Some(snapshot) = state.snapshot.take() {
            self.snapshots.close(&snapshot);
        }
    }

    /// Keeps the transaction's locks until `point` is reached. The context can be reused at once.
    pub(crate) fn defer_unlocks(self: &Arc<Self>, state: &mut Context, point: UnlockPoint) {
        let owner = state.renew_owner();
        let is_armed = self
            .deferred_unlocks
            .push(point, owner, state.locks.drain(..));
        if !is_armed {
            self.arm_unlocks(point);
        }
    }

    fn arm_unlocks(self: &Arc<Self>, point: UnlockPoint) {
        // Weak: the engine owns the log, which keeps the callback.
        let engine = Arc::downgrade(self);
        self.log.when_unlockable(point, move || {
            if let Some(engine) = engine.upgrade() {
                engine.release_deferred(point);
            }
        });
    }

    /// Releases the deferred locks of the point's strand whose unlock point is reached.
    #[cold]
    fn release_deferred(self: &Arc<Self>, point: UnlockPoint) {
        let unlockable = || self.log.unlockable(point.strand());
        let unlock = |hash, owner| self.locks.unlock(hash, owner);
        if let Some(next) = self.deferred_unlocks.release(point, unlockable, unlock) {
            self.arm_unlocks(next);
        }
    }
}
