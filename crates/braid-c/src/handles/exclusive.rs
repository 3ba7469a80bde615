//! Objects for one thread at a time.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use crate::boundary::Outcome;

use super::free::FreeList;
use super::slots::{self, Slots, is_usable_after, taken};
use super::{Ended, Opaque, Owner, number};

type Slot<T> = slots::Slot<T, ()>;

/// The objects of one kind.
pub(crate) struct Exclusive<H, T> {
    slots: Slots<T, ()>,
    kind: PhantomData<fn(*mut H)>,
}

impl<H: Opaque, T: Send> Exclusive<H, T> {
    /// Creates the table of the process for this kind.
    pub(crate) const fn new() -> Self {
        Self::with(FreeList::of(H::KIND))
    }

    pub(super) const fn with(free: &'static FreeList) -> Self {
        Self {
            slots: Slots::new(free),
            kind: PhantomData,
        }
    }

    /// Stores an object in a slot; returns its handle.
    #[inline(always)]
    pub(crate) fn insert(&self, value: T, owner: Owner) -> Outcome<*mut H> {
        self.slots.insert(value, owner)
    }

    /// Locks the object of a handle for this thread, until the guard is dropped.
    #[inline]
    pub(crate) fn lock(&self, handle: *mut H) -> Outcome<Locked<'_, H, T>> {
        let live = number(handle);
        let locked = self.slots.of(live).and_then(|slot| {
            // Acquire: pairs with the release of the thread that published or unlocked it.
            slot.header
                .state
                .compare_exchange(live, taken(live), Ordering::Acquire, Ordering::Relaxed)
                .ok()?;
            Some(Locked {
                objects: self,
                slot,
                live,
            })
        });
        locked.ok_or_else(|| self.slots.refuse(handle))
    }

    /// Ends the object of a handle that no thread is using, and returns it. From then on, other
    /// threads find the handle stale, and never busy because of this call.
    pub(crate) fn end(&self, handle: *mut H, ended: Ended) -> Outcome<T> {
        self.end_with(handle, ended, |value| value)
    }

    /// As [`Self::end`], for an object that is to be dropped.
    #[inline(always)]
    pub(crate) fn free(&self, handle: *mut H, ended: Ended) -> Outcome<()> {
        let live = number(handle);
        match self.slots.of(live) {
            Some(slot) if slot.header.try_retire(live, ended) => {
                // SAFETY: as in `try_end`.
                unsafe { *slot.value.get() = None };
                self.recycle(live);
                Ok(())
            }
            _ => Err(self.slots.refuse(handle)),
        }
    }

    /// As [`Self::end`], for an object that `then` converts into a result.
    #[inline(always)]
    pub(crate) fn end_with<R>(
        &self,
        handle: *mut H,
        ended: Ended,
        then: impl FnOnce(T) -> R,
    ) -> Outcome<R> {
        let live = number(handle);
        if let Some(slot) = self.slots.of(live)
            && let Some(value) = self.try_end(slot, live, ended)
        {
            return Ok(then(value));
        }
        Err(self.slots.refuse(handle))
    }

    #[inline(always)]
    fn recycle(&self, ended: u64) {
        if is_usable_after(ended) {
            self.slots.recycle(H::KIND, ended);
        }
    }

    #[inline(always)]
    fn try_end(&self, slot: &Slot<T>, live: u64, ended: Ended) -> Option<T> {
        if !slot.header.try_retire(live, ended) {
            return None;
        }
        // SAFETY: the exchange succeeds once for a generation, and only if no thread uses the
        // object. The slot belongs to this thread until it is recycled.
        let value = unsafe { (*slot.value.get()).take() };
        self.recycle(live);
        value
    }

    /// Ends the objects of a database, except those that a thread is using.
    pub(crate) fn end_all_of(&self, owner: Owner, ended: Ended) {
        for slot in self.slots.iter() {
            if let Some(live) = slot.header.live_of(owner) {
                drop(self.try_end(slot, live, ended));
            }
        }
    }
}

/// An object that this thread has locked.
pub(crate) struct Locked<'a, H: Opaque, T: Send> {
    objects: &'a Exclusive<H, T>,
    slot: &'a Slot<T>,
    /// Number of the handle.
    live: u64,
}

impl<H: Opaque, T: Send> Locked<'_, H, T> {
    /// Returns the database that the object belongs to.
    pub(crate) fn owner(&self) -> Owner {
        self.slot.header.owner()
    }

    /// Takes the object out. Its handle is stale from then on.
    #[inline]
    pub(crate) fn end(self, ended: Ended) -> T {
        // SAFETY: as in `deref_mut`.
        let value = unsafe { (*self.slot.value.get()).take() };
        if self.slot.header.retire(ended) {
            self.objects.slots.recycle(H::KIND, self.live);
        }
        std::mem::forget(self);
        value.expect("a slot that can be taken has an object")
    }
}

impl<H: Opaque, T: Send> Deref for Locked<'_, H, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        let value = unsafe { &*self.slot.value.get() };
        value
            .as_ref()
            .expect("a slot that can be taken has an object")
    }
}

impl<H: Opaque, T: Send> DerefMut for Locked<'_, H, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard locked the slot, so no other thread can until the guard is dropped or
        // ended; the borrow of the guard ensures that there is one reference.
        let value = unsafe { &mut *self.slot.value.get() };
        value
            .as_mut()
            .expect("a slot that can be taken has an object")
    }
}

impl<H: Opaque, T: Send> Drop for Locked<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire of the next thread that locks it.
        self.slot.header.state.store(self.live, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::handles::{HandleError, Kind, braid_tx};

    type Objects = Exclusive<braid_tx, String>;

    fn refused(objects: &Objects, handle: *mut braid_tx) -> Option<HandleError> {
        objects
            .lock(handle)
            .err()
            .and_then(|failure| failure.handle())
    }

    #[test]
    fn an_object_has_one_user_and_one_end() {
        let objects = Objects::with(FreeList::leaked());
        let handle = objects.insert("a".into(), 1).unwrap();
        let mut locked = objects.lock(handle).unwrap();
        locked.push('b');
        let busy = refused(&objects, handle);
        assert_eq!(busy, Some(HandleError::Busy(Kind::Transaction)));
        drop(locked);
        assert_eq!(objects.lock(handle).unwrap().end(Ended::Aborted), "ab");
        let stale = |ended| Some(HandleError::Stale(Kind::Transaction, ended));
        assert_eq!(refused(&objects, handle), stale(Some(Ended::Aborted)));
        // The slot is reused; the old handle does not reach the new object.
        let next = objects.insert("c".into(), 1).unwrap();
        assert_eq!(refused(&objects, handle), stale(Some(Ended::Aborted)));
        objects.lock(next).unwrap().end(Ended::Committed);
        assert_eq!(refused(&objects, handle), stale(None));
    }

    #[test]
    fn a_database_takes_its_own_along() {
        let objects = Objects::with(FreeList::leaked());
        let [a, b, used] = [1, 2, 1].map(|owner| objects.insert(owner.to_string(), owner).unwrap());
        let in_use = objects.lock(used).unwrap();
        objects.end_all_of(1, Ended::DatabaseClosed);
        assert!(matches!(refused(&objects, a), Some(HandleError::Stale(..))));
        assert_eq!(objects.lock(b).unwrap().as_str(), "2");
        assert_eq!(in_use.as_str(), "1");
    }

    #[test]
    fn threads_that_share_a_handle_see_one_another_or_its_end() {
        let objects = Exclusive::<braid_tx, u64>::with(FreeList::leaked());
        let handle = objects.insert(0, 1).unwrap().addr();
        let counted: u64 = std::thread::scope(|scope| {
            let work = || {
                let handle = std::ptr::without_provenance_mut(handle);
                let mut counted = 0;
                for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
                    if let Ok(mut locked) = objects.lock(handle) {
                        *locked += 1;
                        counted += 1;
                    }
                }
                counted
            };
            let threads = [(); 3].map(|()| scope.spawn(work));
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        let handle = std::ptr::without_provenance_mut(handle);
        assert_eq!(objects.lock(handle).unwrap().end(Ended::Freed), counted);
    }
}
