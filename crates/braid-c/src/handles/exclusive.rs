//! Objects that one thread at a time works with.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use super::free::FreeList;
use super::slots::{self, Header, Slots, TAKEN};
use super::{Ended, HandleError, Opaque, Owner, Parts};

type Slot<T> = slots::Slot<T, ()>;

/// The objects of one kind.
pub(crate) struct Exclusive<H, T> {
    slots: Slots<T, ()>,
    kind: PhantomData<fn(*mut H)>,
}

impl<H: Opaque, T: Send> Exclusive<H, T> {
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
    #[inline]
    pub(crate) fn insert(&self, value: T, owner: Owner) -> Result<*mut H, HandleError> {
        self.slots.insert(value, owner)
    }

    /// Takes the object of a handle, for this thread alone, until the guard goes.
    #[inline]
    pub(crate) fn lock(&self, handle: *mut H) -> Result<Locked<'_, H, T>, HandleError> {
        let parts = Parts::of(handle)?;
        let slot = self.slots.of(parts, H::KIND)?;
        let live = Header::live(parts.generation);
        self.try_take(parts.index, slot, live)
            .ok_or_else(|| slot.header.misfit(H::KIND, parts.generation))
    }

    #[inline]
    fn try_take<'a>(
        &'a self,
        index: u32,
        slot: &'a Slot<T>,
        live: u64,
    ) -> Option<Locked<'a, H, T>> {
        // Acquire: pairs with the release of whoever published or left it.
        slot.header
            .state
            .compare_exchange(live, live | TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some(Locked {
            objects: self,
            slot,
            index,
            live,
        })
    }

    /// Ends the object of a handle that nobody works with, and takes it out. Other threads find it stale from then on,
    /// never busy because of this.
    #[inline]
    pub(crate) fn end(&self, handle: *mut H, ended: Ended) -> Result<T, HandleError> {
        let parts = Parts::of(handle)?;
        let slot = self.slots.of(parts, H::KIND)?;
        let live = Header::live(parts.generation);
        self.try_end(parts.index, slot, live, ended)
            .ok_or_else(|| slot.header.misfit(H::KIND, parts.generation))
    }

    #[inline]
    fn try_end(&self, index: u32, slot: &Slot<T>, live: u64, ended: Ended) -> Option<T> {
        if !slot.header.try_retire(live, ended) {
            return None;
        }
        // SAFETY: the exchange succeeds once for a generation, and from a state in which nobody has it; the slot is this
        // thread's alone until it is given back.
        let value = unsafe { (*slot.value.get()).take() };
        if slot.header.is_usable() {
            self.slots.give_back(H::KIND, index);
        }
        value
    }

    /// Ends what belongs to a database, but for what a thread is just working with.
    pub(crate) fn end_all_of(&self, owner: Owner, ended: Ended) {
        for (index, slot) in self.slots.iter() {
            let live = slot.header.live_of(owner);
            if let Some(live) = live {
                drop(self.try_end(index, slot, live, ended));
            }
        }
    }
}

/// An object that is this thread's alone.
pub(crate) struct Locked<'a, H: Opaque, T: Send> {
    objects: &'a Exclusive<H, T>,
    slot: &'a Slot<T>,
    index: u32,
    live: u64,
}

impl<H: Opaque, T: Send> Locked<'_, H, T> {
    /// The database that the object belongs to.
    pub(crate) fn owner(&self) -> Owner {
        self.slot.header.owner()
    }

    /// Takes the object out. Its handle is good for nothing from then on.
    #[inline]
    pub(crate) fn end(self, ended: Ended) -> T {
        // SAFETY: as in `deref_mut`.
        let value = unsafe { (*self.slot.value.get()).take() };
        if self.slot.header.retire(ended) {
            self.objects.slots.give_back(H::KIND, self.index);
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
        // SAFETY: this guard took the slot, and no other can until it is dropped or ended; the guard's own
        // borrow sees to it that there is one reference.
        let value = unsafe { &mut *self.slot.value.get() };
        value
            .as_mut()
            .expect("a slot that can be taken has an object")
    }
}

impl<H: Opaque, T: Send> Drop for Locked<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire of the next one that takes it.
        self.slot.header.state.store(self.live, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::{Kind, braid_tx};

    type Objects = Exclusive<braid_tx, String>;

    #[test]
    fn an_object_has_one_user_and_one_end() {
        let objects = Objects::with(FreeList::leaked());
        let handle = objects.insert("a".into(), 1).unwrap();
        let mut locked = objects.lock(handle).unwrap();
        locked.push('b');
        let busy = objects.lock(handle).err();
        assert_eq!(busy, Some(HandleError::Busy(Kind::Transaction)));
        drop(locked);
        assert_eq!(objects.lock(handle).unwrap().end(Ended::Aborted), "ab");
        let stale = |ended| Some(HandleError::Stale(Kind::Transaction, ended));
        assert_eq!(objects.lock(handle).err(), stale(Some(Ended::Aborted)));
        // The slot is used again; the old handle does not reach what is in it now.
        let next = objects.insert("c".into(), 1).unwrap();
        assert_eq!(objects.lock(handle).err(), stale(Some(Ended::Aborted)));
        objects.lock(next).unwrap().end(Ended::Committed);
        assert_eq!(objects.lock(handle).err(), stale(None));
    }

    #[test]
    fn a_database_takes_its_own_along() {
        let objects = Objects::with(FreeList::leaked());
        let [a, b, used] = [1, 2, 1].map(|owner| objects.insert(owner.to_string(), owner).unwrap());
        let in_use = objects.lock(used).unwrap();
        objects.end_all_of(1, Ended::DatabaseClosed);
        assert!(matches!(
            objects.lock(a).err(),
            Some(HandleError::Stale(..))
        ));
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
