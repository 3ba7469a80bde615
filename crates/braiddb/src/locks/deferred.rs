//! Deferred unlocks: write locks that outlive their transaction.
//!
//! Some protocols release a lock only when the flush that carries its transaction has its number
//! (`gwsn`), or is durable (`serial`, `gwsn-strict`). Such locks wait here, apart from the
//! transaction's context, which returns to its pool at once. One callback releases the locks of a
//! whole flush.

use std::collections::VecDeque;

use braid_log::UnlockPoint;
use braid_rt::Mutex;
use crossbeam_utils::CachePadded;

use crate::locks::wait_graph::Owner;

#[derive(Debug)]
struct DeferredUnlock {
    at: u64,
    owner: Owner,
    /// Hash of the key.
    hash: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// Roughly in the order of their unlock points. A lock that is queued late is held one flush
    /// longer.
    locks: VecDeque<DeferredUnlock>,
    /// Whether a callback is registered with the log.
    armed: bool,
}

/// Locks that committed transactions still hold, by the strand that carries the transaction.
#[derive(Debug)]
pub(crate) struct DeferredUnlocks(Box<[CachePadded<Mutex<Queue>>]>);

impl DeferredUnlocks {
    pub(crate) fn new(strands: usize) -> Self {
        Self((0..strands).map(|_| CachePadded::default()).collect())
    }

    /// Adds locks that are held until `point`. Returns whether a callback is already registered; if
    /// not, the caller must register one.
    pub(crate) fn push(
        &self,
        point: UnlockPoint,
        owner: Owner,
        hashes: impl Iterator<Item = u64>,
    ) -> bool {
        let mut queue = self.0[point.strand().get()].lock();
        for hash in hashes {
            queue.locks.push_back(DeferredUnlock {
                at: point.at(),
                owner,
                hash,
            });
        }
        std::mem::replace(&mut queue.armed, true)
    }

    /// Releases the locks of the point's strand whose unlock point is reached. Returns the next
    /// point, for which the caller must register a callback.
    pub(crate) fn release(
        &self,
        point: UnlockPoint,
        unlockable: impl FnOnce() -> u64,
        unlock: impl Fn(u64, Owner),
    ) -> Option<UnlockPoint> {
        let mut queue = self.0[point.strand().get()].lock();
        let reached = unlockable();
        while let Some(lock) = queue.locks.pop_front_if(|lock| lock.at <= reached) {
            unlock(lock.hash, lock.owner);
        }
        let next = queue.locks.front().map(|lock| point.later(lock.at));
        queue.armed = next.is_some();
        next
    }
}
