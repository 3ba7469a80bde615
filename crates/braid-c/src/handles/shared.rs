//! Objects that many threads use at once.
//!
//! A use is counted in a counter of the thread ([`user`]), so that no call waits for another
//! processor. An object that is to end is marked. From then on, no thread can begin to use it. The
//! thread that sees the mark and no use drops the object: the thread that marked it, or the last
//! user.

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

/// Data of a slot, next to the object: its users.
#[derive(Default)]
pub(super) struct Users {
    uses: [CachePadded<AtomicUsize>; COUNTERS],
    /// How the object ends, once it is marked.
    ending: AtomicU8,
}

type Slot<T> = slots::Slot<T, Users>;

impl<T> Slot<T> {
    /// Takes the object out if it is marked and no thread uses it.
    ///
    /// A user increments its counter, passes the light side of the barrier, and then reads the
    /// state; it does the same after decrementing. A thread that ends the object changes the state,
    /// passes the heavy side, and then reads the counters. So this function sees every user that
    /// found the object live, until that user has finished. A later user finds the mark and changes
    /// only the counter. If that keeps this function from seeing zero, the user calls it again
    /// after decrementing.
    #[cold]
    fn reap(&self) -> Option<(T, Ended)> {
        let state = self.header.state.load(Ordering::Acquire);
        let marked = is_taken(state);
        let used = || {
            barrier::heavy();
            self.extra
                .uses
                .iter()
                // Acquire: pairs with the release of a user that has finished.
                .any(|uses| uses.load(Ordering::Acquire) != 0)
        };
        if !marked || used() {
            return None;
        }
        let ended = Ended::from_number(self.extra.ending.load(Ordering::Relaxed));
        // The state contains the generation, so this ends exactly the generation that was checked.
        self.header
            .state
            .compare_exchange(state, emptied(state), Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        // SAFETY: the exchange succeeds once for a generation, and no user is left, as explained
        // above.
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
    pub(crate) fn insert(&self, value: T, owner: Owner) -> Outcome<*mut H> {
        barrier::prepare();
        self.slots.insert(value, owner)
    }

    /// Uses the object of a handle until the guard is dropped, as the user with this number.
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
            uses: &slot.extra.uses[user],
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
            // The object is marked: for this handle, it has ended.
            HandleError::Busy(kind) => {
                let slot = self.slots.of(number(handle));
                let ended = slot.map(|slot| slot.extra.ending.load(Ordering::Relaxed));
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

    /// Ends the object of a handle. It is dropped after its last use.
    pub(crate) fn end(&self, handle: *mut H, ended: Ended) -> Outcome<()> {
        let live = number(handle);
        match self.slots.of(live) {
            Some(slot) if self.try_end(slot, live, ended) => Ok(()),
            _ => Err(self.refuse(handle)),
        }
    }

    fn try_end(&self, slot: &Slot<T>, live: u64, ended: Ended) -> bool {
        // If another thread ends it at the same time, only the reason in a message may differ.
        slot.extra.ending.store(ended as u8, Ordering::Relaxed);
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

    /// Ends the objects of a database.
    pub(crate) fn end_all_of(&self, owner: Owner, ended: Ended) {
        for slot in self.slots.iter() {
            if let Some(live) = slot.header.live_of(owner) {
                self.try_end(slot, live, ended);
            }
        }
    }
}

/// Handles whose objects are in one table of the process.
pub(crate) trait Process: Opaque {
    type Object: Send + Sync + 'static;
}

/// A counted use: the slot and the counter. They are returned in registers.
type Counted<T> = (&'static Slot<T>, &'static AtomicUsize);

impl<H: Process> Shared<H, H::Object> {
    /// Uses the object of a handle until the guard is dropped. A comparison finds objects that the
    /// thread used recently.
    #[inline(always)]
    pub(crate) fn pin(&'static self, handle: *mut H) -> Outcome<Pinned<'static, H, H::Object>> {
        match self.pin_if_there(handle) {
            Some(pinned) => Ok(pinned),
            None => Err(self.refuse(handle)),
        }
    }

    /// As [`Self::pin`], without a reason for a failure.
    #[inline(always)]
    pub(crate) fn pin_if_there(
        &'static self,
        handle: *mut H,
    ) -> Option<Pinned<'static, H, H::Object>> {
        let (counted, is_recent) = match self.pin_recent(number(handle)) {
            Some(counted) => (Some(counted), true),
            None => (self.pin_counted(handle), false),
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
        // SAFETY: `pin_counted` recorded both for this handle. They are in a table of the process,
        // which lives forever, and in a slot for these handles, which have one type of object. The
        // counter belongs to this thread.
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

    /// Ends a use of an object that has ended.
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
    fn pin_counted(&'static self, handle: *mut H) -> Option<Counted<H::Object>> {
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

/// An object that this thread uses; other threads may use it, too.
pub(crate) struct Pinned<'a, H: Opaque, T: Send + Sync> {
    objects: &'a Shared<H, T>,
    slot: &'a Slot<T>,
    /// This thread's counter.
    uses: &'a AtomicUsize,
    /// Whether the counter belongs to this thread alone, and the light side of the barrier is free.
    is_recent: bool,
    /// Keeps the guard on its thread, whose counter it uses.
    of_thread: PhantomData<*const ()>,
}

impl<H: Opaque, T: Send + Sync> Pinned<'_, H, T> {
    /// Returns the database that the object belongs to.
    pub(crate) fn owner(&self) -> Owner {
        self.slot.header.owner()
    }
}

/// Adds to the uses of an object; adding the complement of one removes a use.
fn count<T>(slot: &Slot<T>, counter: &AtomicUsize, uses: usize) {
    // Release: this thread's reads of the object come before its use is seen to have ended.
    if std::ptr::eq(counter, &*slot.extra.uses[OF_ALL]) {
        counter.fetch_add(uses, Ordering::Release);
    } else {
        count_alone(counter, uses);
    }
}

/// As [`count`], if no other thread writes to the counter.
#[inline(always)]
fn count_alone(counter: &AtomicUsize, uses: usize) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(uses);
    counter.store(sum, Ordering::Release);
}

/// Ends a use that [`recent`] did not find. Not a method of `Pinned`, which is to stay in
/// registers.
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
        // SAFETY: this guard's use is counted, and `pin` returned the guard only after it found the
        // object live. So no thread takes the object out before the guard is dropped, and until
        // then it is only read.
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

    /// A kind of which the process has no other shared table.
    impl Process for braid_loader {
        type Object = Watched;
    }

    static OBJECTS: Shared<braid_loader, Watched> = Shared::new();

    /// The object is dropped once, after its last user, however uses and ends interleave; also with
    /// recent entries.
    #[test]
    fn threads_never_see_dropped_tables() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 100 };
        const THREADS: usize = if cfg!(miri) { 3 } else { 6 };
        let drops = Arc::new(AtomicUsize::new(0));
        let current = AtomicUsize::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (current, done) = (&current, &done);
                scope.spawn(move || {
                    // Some threads come after the counters for single threads were taken.
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

    /// A thread's entry for an object does not lead to the next object in its slot.
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
