//! Deferred unlocks: write locks that outlive their transaction.
//!
//! Some protocols let a lock go only when the flush that carries its transaction has its number (`gwsn`),
//! or is durable (`serial`, `gwsn-strict`). Such locks wait here, apart from the transaction's context,
//! which goes back to its pool at once. A whole flush's locks are released together, by one callback.

use std::collections::VecDeque;
use std::sync::Arc;

use braid_log::UnlockPoint;
use braid_rt::Mutex;
use crossbeam_utils::CachePadded;

use crate::engine::Inner;
use crate::engine::context::Context;
use crate::locks::table::Owner;

#[derive(Debug)]
struct DeferredUnlock {
    at: u64,
    owner: Owner,
    stripe: usize,
}

#[derive(Debug, Default)]
struct Queue {
    /// Nearly in the order of their points. One that comes late in it is held a flush longer.
    locks: VecDeque<DeferredUnlock>,
    /// Whether a callback is on its way.
    armed: bool,
}

/// The locks that committed transactions still hold, by the strand that carries them.
#[derive(Debug)]
pub(crate) struct DeferredUnlocks(Box<[CachePadded<Mutex<Queue>>]>);

impl DeferredUnlocks {
    pub(crate) fn new(strands: usize) -> Self {
        Self((0..strands).map(|_| CachePadded::default()).collect())
    }
}

impl Inner {
    /// Keeps the transaction's locks until `point` is reached. The context is free for another transaction.
    pub(crate) fn defer_unlocks(self: &Arc<Self>, state: &mut Context, point: UnlockPoint) {
        let owner = state.renew_owner();
        let mut queue = self.deferred_unlocks.0[point.strand()].lock();
        for stripe in state.locks.drain(..) {
            queue.locks.push_back(DeferredUnlock {
                at: point.at(),
                owner,
                stripe,
            });
        }
        let armed = std::mem::replace(&mut queue.armed, true);
        drop(queue);
        if !armed {
            self.arm(point);
        }
    }

    fn arm(self: &Arc<Self>, point: UnlockPoint) {
        // Weak: the log, which keeps the callback, is the database's own.
        let inner = Arc::downgrade(self);
        self.log.when_unlockable(point, move || {
            if let Some(inner) = inner.upgrade() {
                inner.release_deferred(point);
            }
        });
    }

    /// Releases what may go of the point's strand.
    #[cold]
    fn release_deferred(self: &Arc<Self>, point: UnlockPoint) {
        let mut queue = self.deferred_unlocks.0[point.strand()].lock();
        let reached = self.log.unlockable(point.strand());
        while let Some(lock) = queue.locks.pop_front_if(|lock| lock.at <= reached) {
            self.locks.unlock(lock.stripe, lock.owner);
        }
        let next = queue.locks.front().map(|lock| point.later(lock.at));
        queue.armed = next.is_some();
        drop(queue);
        if let Some(next) = next {
            self.arm(next);
        }
    }
}
