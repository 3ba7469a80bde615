//! Where the objects are: slots that never move and are never given back to the system.

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::boundary::{Failure, Outcome};

use super::free::FreeList;
use super::sync::AtomicU64;
use super::{
    Ended, GENERATION_MAX, GENERATION_SHIFT, HANDLE, HandleError, INDEX_BITS, INDEX_SHIFT,
    KIND_AND_HANDLE, Kind, Opaque, Owner, bits_of, handle_of, index_of, misfit,
};

/// Slots of the first chunk, and the number of its first slot; each further chunk has as many as all before it
/// and that. So the highest bit of a slot's number says which chunk it is in.
const FIRST: u32 = if cfg!(all(test, loom)) { 1 } else { 8 };
const CHUNKS: usize = (INDEX_BITS - FIRST.trailing_zeros()) as usize;
const INDEX_END: u32 = 1 << INDEX_BITS;

/// What every slot has, whatever else it holds.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// While the object is there, its handle. So, too, while it is taken: a thread works with it alone
    /// ([`super::exclusive`]), or it shall end ([`super::shared`]); but then the bit of every handle is missing. While
    /// there is none, the next one's handle without its kind: no handle is like that, either.
    pub(super) state: AtomicU64,
    owner: AtomicU64,
    /// How the generation before ended.
    ended: AtomicU8,
}

/// The state of a slot whose object goes by a handle and is taken.
#[inline(always)]
pub(super) const fn taken(handle: u64) -> u64 {
    handle & !HANDLE
}

/// Whether this is the state of a slot whose object is taken.
pub(super) const fn is_taken(state: u64) -> bool {
    state & HANDLE == 0 && state & KIND_AND_HANDLE != 0
}

/// The state of a slot without an object, of the same generation.
pub(super) const fn emptied(state: u64) -> u64 {
    state & !KIND_AND_HANDLE
}

/// The state of a slot whose object of this generation ended.
#[inline(always)]
const fn next(state: u64) -> u64 {
    emptied(state).wrapping_add(1 << GENERATION_SHIFT)
}

/// Whether there is another generation after that of a state.
#[inline(always)]
const fn has_next(state: u64) -> bool {
    state < GENERATION_MAX << GENERATION_SHIFT
}

impl Header {
    /// Makes a new object known, which the caller has put into the slot that is its own; returns its handle.
    #[inline]
    pub(super) fn publish(&self, kind: Kind, owner: Owner) -> u64 {
        // Relaxed: the slot is this thread's until the store below; who had it before gave it back under the
        // free list's lock.
        self.owner.store(owner, Ordering::Relaxed);
        let handle = self.state.load(Ordering::Relaxed) | bits_of(kind);
        // Release: pairs with the acquiring loads of the state in `lock` and `pin`.
        self.state.store(handle, Ordering::Release);
        handle
    }

    #[inline]
    pub(super) fn owner(&self) -> Owner {
        self.owner.load(Ordering::Relaxed)
    }

    /// Ends the generation of an object that the caller has taken out. Says whether the slot can be used
    /// again.
    #[inline]
    pub(super) fn retire(&self, ended: Ended) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        self.ended.store(ended as u8, Ordering::Relaxed);
        // Release: who sees the new generation sees how the old one ended.
        self.state.store(next(state), Ordering::Release);
        has_next(state)
    }

    /// Ends the generation of an object that nobody has taken; says whether it did. The object is the caller's then.
    #[inline]
    pub(super) fn try_retire(&self, handle: u64, ended: Ended) -> bool {
        // Acquire: pairs with the release of whoever published or left it. Release: as in `retire`.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let retired = self
            .state
            .compare_exchange(handle, next(handle), success, failure);
        if retired.is_ok() {
            // Who looks before this is told how the generation before ended: a word in a message.
            self.ended.store(ended as u8, Ordering::Relaxed);
        }
        retired.is_ok()
    }

    /// The handle, if the slot has an object of this owner that is not taken.
    pub(super) fn live_of(&self, owner: Owner) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        let of_owner = self.owner() == owner;
        (state & HANDLE != 0 && of_owner).then_some(state)
    }

    /// Why there is no untaken object of this handle.
    #[cold]
    fn misfit(&self, kind: Kind, handle: u64) -> HandleError {
        let state = self.state.load(Ordering::Acquire);
        // Its state may have changed since.
        if taken(state) == taken(handle) {
            return HandleError::Busy(kind);
        }
        // It is there for one generation only.
        let ended = Ended::from_number(self.ended.load(Ordering::Relaxed));
        let is_next = emptied(state) == next(handle);
        HandleError::Stale(kind, ended.filter(|_| is_next))
    }
}

/// Whether the slot of an object that ended can be used again.
#[inline(always)]
pub(super) const fn is_usable_after(handle: u64) -> bool {
    has_next(handle)
}

/// A place for an object, and what its kind of table keeps beside it.
pub(super) struct Slot<T, U> {
    pub(super) header: Header,
    pub(super) beside: U,
    /// There while the header says so.
    pub(super) value: UnsafeCell<Option<T>>,
}

impl<T, U: Default> Default for Slot<T, U> {
    fn default() -> Self {
        Self {
            header: Header::default(),
            beside: U::default(),
            value: UnsafeCell::new(None),
        }
    }
}

// SAFETY: a thread gets at the value alone from `Slots::take` to `publish`, and after that by the rules of
// [`super::exclusive`], where one at a time has it, or of [`super::shared`], whose objects are `Sync`.
unsafe impl<T: Send, U: Sync> Sync for Slot<T, U> {}

type Chunk<T, U> = OnceLock<Box<[Slot<T, U>]>>;

/// Slots by number, and which of them are free.
pub(super) struct Slots<T, U> {
    /// Made when first needed, and there for ever: a slot's address outlives every use of it.
    chunks: [Chunk<T, U>; CHUNKS],
    /// By the highest bit of a slot's number, where the slot of number 0 would be if its chunk began there; NULL if
    /// the chunk is not made.
    origins: [AtomicPtr<Slot<T, U>>; INDEX_BITS as usize],
    /// The number of the first slot that was never used.
    unused: AtomicU32,
    free: &'static FreeList,
}

impl<T, U: Default> Slots<T, U> {
    pub(super) const fn new(free: &'static FreeList) -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            origins: [const { AtomicPtr::new(std::ptr::null_mut()) }; INDEX_BITS as usize],
            unused: AtomicU32::new(FIRST),
            free,
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<&Slot<T, U>> {
        let highest = (index | 1).ilog2() as usize;
        // Acquire: pairs with the release of `make`.
        let origin = self.origins.get(highest)?.load(Ordering::Acquire);
        if origin.is_null() {
            return None;
        }
        // SAFETY: the chunk is made, and has the slots of all numbers with this highest bit, at their distances from
        // the origin; it is there as long as `self`.
        Some(unsafe { &*origin.wrapping_add(index as usize) })
    }

    /// The slot that a handle names, whatever is in it now, if it can be a handle at all.
    #[inline(always)]
    pub(super) fn of(&self, number: u64) -> Option<&Slot<T, U>> {
        // Without this bit it may be what the state of a slot is that has no untaken object.
        match number & HANDLE != 0 {
            true => self.get(index_of(number)),
            false => None,
        }
    }

    /// Why a handle can't be used.
    #[cold]
    #[inline(never)]
    pub(super) fn why_not<H: Opaque>(&self, handle: *mut H) -> HandleError {
        let number = super::number(handle);
        match (misfit(number, H::KIND), self.of(number)) {
            (Some(error), _) => error,
            (None, Some(slot)) => slot.header.misfit(H::KIND, number),
            (None, None) => HandleError::NoHandle(H::KIND),
        }
    }

    /// The same as a failure.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse<H: Opaque>(&self, handle: *mut H) -> Failure {
        self.why_not(handle).into()
    }

    /// Puts an object into a slot, and says by which handle it goes.
    #[inline(always)]
    pub(super) fn insert<H: Opaque>(&self, value: T, owner: Owner) -> Outcome<*mut H> {
        let Some(slot) = self.take(H::KIND) else {
            return Err(HandleError::Full(H::KIND).into());
        };
        // SAFETY: a slot from `take` is this thread's alone until `publish`, and has no object that would be overwritten:
        // whoever ended the one before took it out.
        unsafe { slot.value.get().write(Some(value)) };
        Ok(handle_of(slot.header.publish(H::KIND, owner)))
    }

    /// A free slot, which is the caller's alone.
    #[inline(always)]
    fn take(&self, kind: Kind) -> Option<&Slot<T, U>> {
        let freed = self.free.take(kind);
        freed
            .and_then(|index| self.get(index))
            .or_else(|| self.fresh())
    }

    /// A slot that was never used, if there is one.
    #[cold]
    fn fresh(&self) -> Option<&Slot<T, U>> {
        let next = |unused| (unused < INDEX_END).then_some(unused + 1);
        // Relaxed: only uniqueness matters; the chunk is made by whoever comes first.
        let index = self
            .unused
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()?;
        let slot = match self.get(index) {
            Some(slot) => slot,
            None => self.make(index),
        };
        // Relaxed: as in `publish`.
        let state = u64::from(index) << INDEX_SHIFT;
        slot.header.state.store(state, Ordering::Relaxed);
        Some(slot)
    }

    /// Makes the chunk of a slot, unless somebody else does.
    fn make(&self, index: u32) -> &Slot<T, U> {
        let highest = index.ilog2();
        let chunk = &self.chunks[(highest - FIRST.ilog2()) as usize];
        let (first, len) = (1usize << highest, 1 << highest);
        let slots = chunk.get_or_init(|| (0..len).map(|_| Slot::default()).collect());
        let origin = slots.as_ptr().wrapping_sub(first).cast_mut();
        // Release: who sees the origin sees the slots.
        self.origins[highest as usize].store(origin, Ordering::Release);
        &slots[index as usize - first]
    }

    /// Takes the slot of a handle back, whose object ended.
    #[inline]
    pub(super) fn recycle(&self, kind: Kind, handle: u64) {
        self.free.give(kind, index_of(handle));
    }

    /// All slots that were ever used.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<T, U>> {
        let unused = self.unused.load(Ordering::Acquire);
        (FIRST..unused).filter_map(|index| self.get(index))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_place_of_its_own() {
        let slots: Slots<u8, ()> = Slots::new(FreeList::leaked());
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..if cfg!(miri) { 100 } else { 10_000 } {
            let slot = slots.take(Kind::Loader).unwrap();
            let index = index_of(slot.header.state.load(Ordering::Relaxed));
            assert!(std::ptr::eq(slots.get(index).unwrap(), slot));
            assert!(places.insert(std::ptr::from_ref(slot)), "slot {index}");
        }
        // There is none before the first, behind the last, and none that was not made.
        assert!((0..FIRST).all(|index| slots.get(index).is_none()));
        assert!(slots.get(INDEX_END - 1).is_none() && slots.get(INDEX_END).is_none());
        assert_eq!(slots.iter().count(), places.len());
    }

    /// What looks like the state of a slot is no handle.
    #[test]
    fn a_state_without_an_object_is_no_handle() {
        let slots: Slots<u8, ()> = Slots::new(FreeList::leaked());
        let slot = slots.take(Kind::Loader).unwrap();
        let free = slot.header.state.load(Ordering::Relaxed);
        let handle = slot.header.publish(Kind::Loader, 1);
        assert!(slots.of(free).is_none() && slots.of(taken(handle)).is_none());
        assert!(slots.of(handle).is_some() && is_taken(taken(handle)) && !is_taken(handle));
        assert!(!is_taken(free) && emptied(handle) == free && next(handle) != free);
        assert!(slot.header.retire(Ended::Freed));
        let last = GENERATION_MAX << GENERATION_SHIFT | handle;
        slot.header.state.store(taken(last), Ordering::Relaxed);
        assert!(!slot.header.retire(Ended::Freed) && !is_usable_after(last));
    }

    #[test]
    fn what_one_thread_frees_another_uses() {
        static SLOTS: Slots<u8, ()> = Slots::new(FreeList::of(Kind::Changes));
        // Not one that other tests have slots of.
        let kind = Kind::Changes;
        for _ in 0..if cfg!(miri) { 5 } else { 100 } {
            let take = || SLOTS.take(kind).unwrap().header.publish(kind, 1);
            let taken: Vec<u64> = (0..50).map(|_| take()).collect();
            let free = move || {
                for handle in taken {
                    assert!(SLOTS.of(handle).unwrap().header.retire(Ended::Freed));
                    SLOTS.recycle(kind, handle);
                }
            };
            std::thread::spawn(free).join().unwrap();
        }
        assert!(SLOTS.unused.load(Ordering::Relaxed) <= FIRST + 100);
    }
}
