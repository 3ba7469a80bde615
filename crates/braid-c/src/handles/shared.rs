//! Objects that many threads work with at once.
//!
//! A use is counted, in a counter of the thread's own ([`user`]), so that no call waits for another processor. An object
//! that shall end is marked; then nobody can begin to use it, and whoever sees the mark and no use drops it: the one
//! who marked it, or the last user.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam_utils::CachePadded;

use crate::boundary::{Failure, Outcome};

use super::free::FreeList;
use super::slots::{self, Slots, emptied, is_taken, taken};
use super::sync::AtomicUsize;
use super::user::{self, COUNTERS, OF_ALL};
use super::{Ended, HANDLE, HandleError, Opaque, Owner, barrier, number, recent};

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
        let marked = is_taken(state);
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
            .compare_exchange(state, emptied(state), Ordering::SeqCst, Ordering::SeqCst)
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

    pub(super) const fn with(free: &'static FreeList) -> Self {
        Self {
            slots: Slots::new(free),
            kind: PhantomData,
        }
    }

    /// Puts an object into a slot, and says by which handle it goes.
    pub(crate) fn insert(&self, value: T, owner: Owner) -> Outcome<*mut H> {
        barrier::prepare();
        self.slots.insert(value, owner)
    }

    /// Uses the object of a handle until the guard goes, as the user of this number.
    #[inline]
    pub(super) fn pin_as(
        &self,
        user: usize,
        handle: *mut H,
    ) -> Result<Pinned<'_, H, T>, HandleError> {
        let live = number(handle);
        let Some(slot) = self.slots.of(live) else {
            return Err(self.why_not(handle));
        };
        let pinned = Pinned {
            objects: self,
            slot,
            uses: &slot.beside.uses[user],
            is_recent: false,
            of_thread: PhantomData,
        };
        count(slot, pinned.uses, 1);
        // See `reap`. Acquire: pairs with the release of `publish`.
        barrier::light();
        if slot.header.state.load(Ordering::Acquire) != live {
            drop(pinned);
            return Err(self.why_not(handle));
        }
        Ok(pinned)
    }

    #[cold]
    fn why_not(&self, handle: *mut H) -> HandleError {
        match self.slots.why_not(handle) {
            // It is marked: to this handle that is the end.
            HandleError::Busy(kind) => {
                let slot = self.slots.of(number(handle));
                let ended = slot.map(|slot| slot.beside.ending.load(Ordering::Relaxed));
                HandleError::Stale(kind, ended.and_then(Ended::from_number))
            }
            error => error,
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, handle: *mut H) -> Failure {
        self.why_not(handle).into()
    }

    /// Ends the object of a handle. It goes when its last user does.
    pub(crate) fn end(&self, handle: *mut H, ended: Ended) -> Outcome<()> {
        let live = number(handle);
        match self.slots.of(live) {
            Some(slot) if self.try_end(slot, live, ended) => Ok(()),
            _ => Err(self.refuse(handle)),
        }
    }

    fn try_end(&self, slot: &Slot<T>, live: u64, ended: Ended) -> bool {
        // A reason that comes too late is a word in a message.
        slot.beside.ending.store(ended as u8, Ordering::Relaxed);
        let state = &slot.header.state;
        let marked = state
            .compare_exchange(live, taken(live), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if marked {
            self.reap(slot);
        }
        marked
    }

    #[cold]
    fn reap(&self, slot: &Slot<T>) {
        if let Some((value, ended)) = slot.reap() {
            let state = slot.header.state.load(Ordering::Relaxed);
            if slot.header.retire(ended) {
                self.slots.recycle(H::KIND, state);
            }
            drop(value);
        }
    }

    /// Ends what belongs to a database.
    pub(crate) fn end_all_of(&self, owner: Owner, ended: Ended) {
        for slot in self.slots.iter() {
            if let Some(live) = slot.header.live_of(owner) {
                self.try_end(slot, live, ended);
            }
        }
    }
}

/// Handles of which the process has one table, whose objects are of this type.
pub(crate) trait Process: Opaque {
    type Object: Send + Sync + 'static;
}

/// A use that is counted: the slot, and the counter. They are returned in registers.
type Counted<T> = (&'static Slot<T>, &'static AtomicUsize);

impl<H: Process> Shared<H, H::Object> {
    /// Uses the object of a handle until the guard goes. What the thread used before it finds by a comparison.
    #[inline(always)]
    pub(crate) fn pin(&'static self, handle: *mut H) -> Outcome<Pinned<'static, H, H::Object>> {
        match self.pin_if_there(handle) {
            Some(pinned) => Ok(pinned),
            None => Err(self.refuse(handle)),
        }
    }

    /// The same without a reason if it can't.
    #[inline(always)]
    pub(crate) fn pin_if_there(
        &'static self,
        handle: *mut H,
    ) -> Option<Pinned<'static, H, H::Object>> {
        let (counted, is_recent) = match self.pin_recent(number(handle)) {
            Some(counted) => (Some(counted), true),
            None => (self.pin_anew(handle), false),
        };
        let (slot, uses) = counted?;
        Some(Pinned {
            objects: self,
            slot,
            uses,
            is_recent,
            of_thread: PhantomData,
        })
    }

    #[inline(always)]
    fn pin_recent(&'static self, live: u64) -> Option<Counted<H::Object>> {
        let (slot, uses) = recent::find(H::KIND, live)?;
        // SAFETY: `pin_anew` noted both of this handle, and they lie in a table of the process, which goes on for ever:
        // a slot of one for these handles, since they have one type of object; and the counter is this thread's own.
        let (slot, uses) = unsafe { (slot.cast::<Slot<H::Object>>().as_ref(), uses.as_ref()) };
        count_alone(uses, 1);
        // See `reap`.
        barrier::light_if_free();
        // Acquire: pairs with the release of `publish`.
        if slot.header.state.load(Ordering::Acquire) != live {
            self.give_up(slot, uses);
            return None;
        }
        Some((slot, uses))
    }

    /// After a use of what has ended.
    #[cold]
    #[inline(never)]
    fn give_up(&'static self, slot: &'static Slot<H::Object>, uses: &'static AtomicUsize) {
        drop(Pinned {
            objects: self,
            slot,
            uses,
            is_recent: true,
            of_thread: PhantomData,
        });
    }

    #[cold]
    #[inline(never)]
    fn pin_anew(&'static self, handle: *mut H) -> Option<Counted<H::Object>> {
        let user = user::counter();
        let pinned = self.pin_as(user, handle).ok()?;
        let (slot, uses) = (pinned.slot, pinned.uses);
        if user != OF_ALL && barrier::is_free() {
            let slot = NonNull::from(slot).cast();
            recent::note(H::KIND, number(handle), slot, uses.into());
        }
        std::mem::forget(pinned);
        Some((slot, uses))
    }
}

/// An object in use by this thread, among others.
pub(crate) struct Pinned<'a, H: Opaque, T: Send + Sync> {
    objects: &'a Shared<H, T>,
    slot: &'a Slot<T>,
    /// This thread's counter.
    uses: &'a AtomicUsize,
    /// Whether that is its own, and the light side of the barrier is free.
    is_recent: bool,
    /// It stays with its thread, whose counter that is.
    of_thread: PhantomData<*const ()>,
}

impl<H: Opaque, T: Send + Sync> Pinned<'_, H, T> {
    /// The database that the object belongs to.
    pub(crate) fn owner(&self) -> Owner {
        self.slot.header.owner()
    }
}

/// Adds to the uses of an object; one is taken back by adding its complement.
fn count<T>(slot: &Slot<T>, counter: &AtomicUsize, uses: usize) {
    // Release: what this thread read of the object comes before it is seen to be gone.
    if std::ptr::eq(counter, &*slot.beside.uses[OF_ALL]) {
        counter.fetch_add(uses, Ordering::Release);
    } else {
        count_alone(counter, uses);
    }
}

/// The same if nobody else writes to the counter.
#[inline(always)]
fn count_alone(counter: &AtomicUsize, uses: usize) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(uses);
    counter.store(sum, Ordering::Release);
}

/// Takes a use back that was not found by [`recent`]. Not of a `Pinned`: that is to be in registers only.
#[cold]
#[inline(never)]
fn count_back<T>(slot: &Slot<T>, counter: &AtomicUsize) {
    count(slot, counter, 1usize.wrapping_neg());
    // See `Slot::reap`.
    barrier::light();
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
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_recent {
            count_alone(self.uses, 1usize.wrapping_neg());
            // See `Slot::reap`.
            barrier::light_if_free();
        } else {
            count_back(self.slot, self.uses);
        }
        if self.slot.header.state.load(Ordering::Relaxed) & HANDLE == 0 {
            self.objects.reap(self.slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::*;
    use crate::handles::{Kind, braid_loader, braid_table};

    type Objects<T> = Shared<braid_table, T>;

    #[test]
    fn an_object_ends_with_its_last_user() {
        let objects = Objects::with(FreeList::leaked());
        let object = Arc::new(());
        let handle = objects.insert(object.clone(), 1).unwrap();
        let users = [(); 2].map(|()| objects.pin_as(user::counter(), handle).unwrap());
        objects.end(handle, Ended::Freed).unwrap();
        let stale = Some(HandleError::Stale(Kind::Table, Some(Ended::Freed)));
        assert_eq!(objects.pin_as(user::counter(), handle).err(), stale);
        let ended = objects.end(handle, Ended::Freed).err();
        assert_eq!(ended.and_then(|failure| failure.handle()), stale);
        let [a, b] = users;
        drop(a);
        assert_eq!(Arc::strong_count(&object), 2);
        drop(b);
        assert_eq!(Arc::strong_count(&object), 1);
        assert_eq!(objects.pin_as(user::counter(), handle).err(), stale);
        let next = objects.insert(object.clone(), 1).unwrap();
        assert_ne!(next, handle);
        assert_eq!(objects.pin_as(user::counter(), handle).err(), stale);
        objects.end_all_of(2, Ended::DatabaseClosed);
        assert!(objects.pin_as(user::counter(), next).is_ok());
        objects.end_all_of(1, Ended::DatabaseClosed);
        let closed = HandleError::Stale(Kind::Table, Some(Ended::DatabaseClosed));
        assert_eq!(objects.pin_as(user::counter(), next).err(), Some(closed));
    }

    pub(crate) struct Watched(AtomicBool, Arc<AtomicUsize>);

    impl Drop for Watched {
        fn drop(&mut self) {
            assert!(!self.0.swap(true, Ordering::SeqCst));
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Not one that the process has a table of otherwise.
    impl Process for braid_loader {
        type Object = Watched;
    }

    static OBJECTS: Shared<braid_loader, Watched> = Shared::new();

    /// Dropped once, after its last user, however users and ends meet; also if they know the way to it.
    #[test]
    fn threads_never_see_what_was_dropped() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 100 };
        const THREADS: usize = if cfg!(miri) { 3 } else { 6 };
        let drops = Arc::new(AtomicUsize::new(0));
        let current = AtomicUsize::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (current, done) = (&current, &done);
                scope.spawn(move || {
                    // Some come after the counters of their own were taken.
                    let pin = |handle| match thread % 3 {
                        0 => OBJECTS.pin_as(OF_ALL, handle),
                        _ => OBJECTS
                            .pin(handle)
                            .map_err(|failure| failure.handle().unwrap()),
                    };
                    while !done.load(Ordering::SeqCst) {
                        let handle = current.load(Ordering::SeqCst);
                        let handle = std::ptr::without_provenance_mut(handle);
                        for _ in 0..3 {
                            if let Ok(object) = pin(handle) {
                                assert!(!object.0.load(Ordering::SeqCst));
                            }
                        }
                        std::thread::yield_now();
                    }
                });
            }
            for _ in 0..ROUNDS {
                let object = Watched(AtomicBool::new(false), drops.clone());
                let handle = OBJECTS.insert(object, 1).unwrap();
                current.store(handle.addr(), Ordering::SeqCst);
                std::thread::yield_now();
                OBJECTS.end(handle, Ended::Freed).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        assert_eq!(drops.load(Ordering::SeqCst), ROUNDS);
    }

    /// What a thread noted of an object is no way to the next one in its slot.
    #[test]
    fn a_known_way_leads_to_one_object() {
        let drops = Arc::new(AtomicUsize::new(0));
        let insert = || {
            let object = Watched(AtomicBool::new(false), drops.clone());
            OBJECTS.insert(object, 1).unwrap()
        };
        for round in 0..20 {
            let handle = insert();
            let users = [(); 3].map(|()| OBJECTS.pin(handle).unwrap());
            assert!(users.iter().skip(1).all(|user| user.is_recent));
            OBJECTS.end(handle, Ended::Freed).unwrap();
            let stale = Some(HandleError::Stale(Kind::Loader, Some(Ended::Freed)));
            let refused = || {
                OBJECTS
                    .pin(handle)
                    .err()
                    .and_then(|failure| failure.handle())
            };
            assert_eq!(refused(), stale);
            assert_eq!(drops.load(Ordering::SeqCst), round * 2);
            drop(users);
            assert_eq!(drops.load(Ordering::SeqCst), round * 2 + 1);
            let next = insert();
            assert_ne!(next, handle);
            assert!(matches!(refused(), Some(HandleError::Stale(..))));
            assert!(OBJECTS.pin(next).is_ok());
            OBJECTS.end(next, Ended::Freed).unwrap();
        }
        assert!(OBJECTS.pin(std::ptr::null_mut()).is_err());
    }
}
