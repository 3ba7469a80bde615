//! Objects that many threads work with at once.
//!
//! A use is counted, in a counter of the thread's own ([`user`]), so that no call waits for another processor. An object
//! that shall end is marked; then nobody can begin to use it, and whoever sees the mark and no use drops it: the one
//! who marked it, or the last user.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use super::free::FreeList;
use super::slots::{self, Header, LIVE, Slots, TAKEN};
use super::user::{self, COUNTERS, OF_ALL};
use super::{Ended, HandleError, Opaque, Owner, Parts, barrier};

/// Beside an object: who uses it.
#[derive(Default)]
pub(super) struct Users {
    uses: [CachePadded<AtomicUsize>; COUNTERS],
    /// How it shall end.
    ending: AtomicU8,
}

type Slot<T> = slots::Slot<T, Users>;

impl<T> Slot<T> {
    /// Takes the object out if it shall end and nobody uses it.
    ///
    /// A user counts itself, passes the light side of the barrier, then looks at the state; and so when it takes its
    /// count back. One who ends the object changes the state, passes the heavy side, then looks at the counters. So a
    /// user that found the object live is seen here until it is gone. One that comes later finds the mark, and touches
    /// nothing but the counter; if that keeps this look from finding zero, it looks itself when it has taken its count
    /// back.
    #[cold]
    fn reap(&self) -> Option<(T, Ended)> {
        let state = self.header.state.load(Ordering::Acquire);
        let marked = state & (LIVE | TAKEN) == LIVE | TAKEN;
        let used = || {
            barrier::heavy();
            self.beside
                .uses
                .iter()
                // Acquire: pairs with the release of a user that is gone.
                .any(|uses| uses.load(Ordering::Acquire) != 0)
        };
        if !marked || used() {
            return None;
        }
        let ended = Ended::from_number(self.beside.ending.load(Ordering::Relaxed));
        // The generation is in it: what was looked at is what ends.
        self.header
            .state
            .compare_exchange(state, state & !LIVE, Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        // SAFETY: the exchange succeeds once for a generation, and there is no user, as said above.
        let value = unsafe { (*self.value.get()).take() };
        Some((value?, ended.unwrap_or(Ended::Freed)))
    }
}

/// The objects of one kind.
pub(crate) struct Shared<H, T> {
    slots: Slots<T, Users>,
    kind: PhantomData<fn(*mut H)>,
}

impl<H: Opaque, T: Send + Sync> Shared<H, T> {
    /// Those of the process, of which there is one table.
    pub(crate) const fn new() -> Self {
        Self::with(FreeList::of(H::KIND))
    }

    const fn with(free: &'static FreeList) -> Self {
        Self {
            slots: Slots::new(free),
            kind: PhantomData,
        }
    }

    /// Puts an object into a slot, and says by which handle it goes.
    pub(crate) fn insert(&self, value: T, owner: Owner) -> Result<*mut H, HandleError> {
        barrier::prepare();
        self.slots.insert(value, owner)
    }

    /// Uses the object of a handle until the guard goes.
    #[inline(always)]
    pub(crate) fn pin(&self, handle: *mut H) -> Result<Pinned<'_, H, T>, HandleError> {
        let parts = Parts::of(handle)?;
        let slot = self.slots.of(parts, H::KIND)?;
        let pinned = Pinned {
            objects: self,
            slot,
            user: user::counter(),
            index: parts.index,
            of_thread: PhantomData,
        };
        pinned.count(1);
        // See `reap`. Acquire: pairs with the release of `publish`.
        barrier::light();
        if slot.header.state.load(Ordering::Acquire) != Header::live(parts.generation) {
            drop(pinned);
            return Err(self.gone(slot, parts));
        }
        Ok(pinned)
    }

    #[cold]
    fn gone(&self, slot: &Slot<T>, parts: Parts) -> HandleError {
        match slot.header.misfit(H::KIND, parts.generation) {
            // It is marked: to this handle that is the end.
            HandleError::Busy(kind) => {
                let ended = slot.beside.ending.load(Ordering::Relaxed);
                HandleError::Stale(kind, Ended::from_number(ended))
            }
            error => error,
        }
    }

    /// Ends the object of a handle. It goes when its last user does.
    pub(crate) fn end(&self, handle: *mut H, ended: Ended) -> Result<(), HandleError> {
        let parts = Parts::of(handle)?;
        let slot = self.slots.of(parts, H::KIND)?;
        if !self.try_end(parts.index, slot, Header::live(parts.generation), ended) {
            return Err(self.gone(slot, parts));
        }
        Ok(())
    }

    fn try_end(&self, index: u32, slot: &Slot<T>, live: u64, ended: Ended) -> bool {
        // A reason that comes too late is a word in a message.
        slot.beside.ending.store(ended as u8, Ordering::Relaxed);
        let state = &slot.header.state;
        let marked = state
            .compare_exchange(live, live | TAKEN, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if marked {
            self.reap(index, slot);
        }
        marked
    }

    fn reap(&self, index: u32, slot: &Slot<T>) {
        if let Some((value, ended)) = slot.reap() {
            if slot.header.retire(ended) {
                self.slots.give_back(H::KIND, index);
            }
            drop(value);
        }
    }

    /// Ends what belongs to a database.
    pub(crate) fn end_all_of(&self, owner: Owner, ended: Ended) {
        for (index, slot) in self.slots.iter() {
            if let Some(live) = slot.header.live_of(owner) {
                self.try_end(index, slot, live, ended);
            }
        }
    }
}

/// An object in use by this thread, among others.
pub(crate) struct Pinned<'a, H: Opaque, T: Send + Sync> {
    objects: &'a Shared<H, T>,
    slot: &'a Slot<T>,
    /// The number of this thread's counter.
    user: usize,
    index: u32,
    /// It stays with its thread, whose counter that is.
    of_thread: PhantomData<*const ()>,
}

impl<H: Opaque, T: Send + Sync> Pinned<'_, H, T> {
    /// Adds to the uses; one is taken back by adding its complement.
    #[inline]
    fn count(&self, uses: usize) {
        let counter = &self.slot.beside.uses[self.user];
        // Release: what this thread read of the object comes before it is seen to be gone.
        if self.user == OF_ALL {
            counter.fetch_add(uses, Ordering::Release);
        } else {
            // Nobody else writes to it.
            let sum = counter.load(Ordering::Relaxed).wrapping_add(uses);
            counter.store(sum, Ordering::Release);
        }
    }

    /// The database that the object belongs to.
    pub(crate) fn owner(&self) -> Owner {
        self.slot.header.owner()
    }
}

impl<H: Opaque, T: Send + Sync> Deref for Pinned<'_, H, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard's use is counted, and `pin` gave it out only after it found the object live; so
        // nobody takes it out before the guard is dropped, and until then it is only read.
        let value = unsafe { &*self.slot.value.get() };
        value.as_ref().expect("a slot that is live has an object")
    }
}

impl<H: Opaque, T: Send + Sync> Drop for Pinned<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        self.count(1usize.wrapping_neg());
        // See `Slot::reap`.
        barrier::light();
        if self.slot.header.state.load(Ordering::Relaxed) & TAKEN != 0 {
            self.objects.reap(self.index, self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::handles::{Kind, braid_table};

    type Objects<T> = Shared<braid_table, T>;

    #[test]
    fn an_object_ends_with_its_last_user() {
        let objects = Objects::with(FreeList::leaked());
        let object = Arc::new(());
        let handle = objects.insert(object.clone(), 1).unwrap();
        let users = [(); 2].map(|()| objects.pin(handle).unwrap());
        objects.end(handle, Ended::Freed).unwrap();
        let stale = Some(HandleError::Stale(Kind::Table, Some(Ended::Freed)));
        assert_eq!(objects.pin(handle).err(), stale);
        assert_eq!(objects.end(handle, Ended::Freed).err(), stale);
        let [a, b] = users;
        drop(a);
        assert_eq!(Arc::strong_count(&object), 2);
        drop(b);
        assert_eq!(Arc::strong_count(&object), 1);
        assert_eq!(objects.pin(handle).err(), stale);
        let next = objects.insert(object.clone(), 1).unwrap();
        assert_ne!(next, handle);
        assert_eq!(objects.pin(handle).err(), stale);
        objects.end_all_of(2, Ended::DatabaseClosed);
        assert!(objects.pin(next).is_ok());
        objects.end_all_of(1, Ended::DatabaseClosed);
        let closed = HandleError::Stale(Kind::Table, Some(Ended::DatabaseClosed));
        assert_eq!(objects.pin(next).err(), Some(closed));
    }

    /// Dropped once, after its last user, however users and ends meet.
    #[test]
    fn threads_never_see_what_was_dropped() {
        struct Watched(AtomicBool, Arc<AtomicUsize>);
        impl Drop for Watched {
            fn drop(&mut self) {
                assert!(!self.0.swap(true, Ordering::SeqCst));
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 200 };
        let objects = Objects::<Watched>::with(FreeList::leaked());
        let drops = Arc::new(AtomicUsize::new(0));
        let current = AtomicUsize::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        let handle = current.load(Ordering::SeqCst);
                        let handle = std::ptr::without_provenance_mut(handle);
                        if let Ok(object) = objects.pin(handle) {
                            assert!(!object.0.load(Ordering::SeqCst));
                        }
                    }
                });
            }
            for _ in 0..ROUNDS {
                let object = Watched(AtomicBool::new(false), drops.clone());
                let handle = objects.insert(object, 1).unwrap();
                current.store(handle.addr(), Ordering::SeqCst);
                std::thread::yield_now();
                objects.end(handle, Ended::Freed).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        assert_eq!(drops.load(Ordering::SeqCst), ROUNDS);
    }
}
