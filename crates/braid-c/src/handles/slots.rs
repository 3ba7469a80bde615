//! Storage of the objects: slots that never move and are never freed.

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

/// Number of slots of the first chunk, and number of its first slot. Each further chunk has as many
/// slots as all previous numbers, so the highest bit of a slot's number identifies its chunk.
const FIRST: u32 = if cfg!(all(test, loom)) { 1 } else { 8 };
const CHUNKS: usize = (INDEX_BITS - FIRST.trailing_zeros()) as usize;
const INDEX_END: u32 = 1 << INDEX_BITS;

/// Header of every slot.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// The object's handle, while the slot contains an object. While a thread has locked the object
    /// ([`super::exclusive`]), or the object is marked to end ([`super::shared`]), the bit of every
    /// handle is cleared. While the slot is empty: the next object's handle without its kind, which
    /// is not a handle.
    pub(super) state: AtomicU64,
    owner: AtomicU64,
    /// How the previous generation ended.
    ended: AtomicU8,
}

/// Returns the state of a slot whose object is locked or marked.
#[inline(always)]
pub(super) const fn taken(handle: u64) -> u64 {
    handle & !HANDLE
}

/// Returns whether a slot with this state has a locked or marked object.
pub(super) const fn is_taken(state: u64) -> bool {
    state & HANDLE == 0 && state & KIND_AND_HANDLE != 0
}

/// Returns the state of an empty slot, in the same generation.
pub(super) const fn emptied(state: u64) -> u64 {
    state & !KIND_AND_HANDLE
}

/// Returns the state of a slot after its object of this generation has ended.
#[inline(always)]
const fn next(state: u64) -> u64 {
    emptied(state).wrapping_add(1 << GENERATION_SHIFT)
}

/// Returns whether another generation follows that of a state.
#[inline(always)]
const fn has_next(state: u64) -> bool {
    state < GENERATION_MAX << GENERATION_SHIFT
}

impl Header {
    /// Publishes a new object, which the caller has stored in a slot that it owns; returns its
    /// handle.
    #[inline]
    pub(super) fn publish(&self, kind: Kind, owner: Owner) -> u64 {
        // Relaxed: the slot belongs to this thread until the store below; its previous owner freed
        // it under the lock of the free list.
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

    /// Ends the generation of an object that the caller has taken out. Says whether the slot can be
    /// used again.
    #[inline]
    pub(super) fn retire(&self, ended: Ended) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        self.ended.store(ended as u8, Ordering::Relaxed);
        // Release: a thread that sees the new generation sees how the old one ended.
        self.state.store(next(state), Ordering::Release);
        has_next(state)
    }

    /// Ends the generation of an object that no thread has locked; returns whether it did. The
    /// object then belongs to the caller.
    #[inline]
    pub(super) fn try_retire(&self, handle: u64, ended: Ended) -> bool {
        // Acquire: pairs with the release of the thread that published or unlocked it. Release: as
        // in `retire`.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let retired = self
            .state
            .compare_exchange(handle, next(handle), success, failure);
        if retired.is_ok() {
            // A thread that reads this earlier sees how the previous generation ended, which only
            // affects a message.
            self.ended.store(ended as u8, Ordering::Relaxed);
        }
        retired.is_ok()
    }

    /// Returns the handle, if the slot contains an object of this owner that is not locked or
    /// marked.
    pub(super) fn live_of(&self, owner: Owner) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        let of_owner = self.owner() == owner;
        (state & HANDLE != 0 && of_owner).then_some(state)
    }

    /// Returns why the handle has no usable object.
    #[cold]
    fn misfit(&self, kind: Kind, handle: u64) -> HandleError {
        let state = self.state.load(Ordering::Acquire);
        // The state may have changed since.
        if taken(state) == taken(handle) {
            return HandleError::Busy(kind);
        }
        // The value is valid for one generation.
        let ended = Ended::from_number(self.ended.load(Ordering::Relaxed));
        let is_next = emptied(state) == next(handle);
        HandleError::Stale(kind, ended.filter(|_| is_next))
    }
}

/// Returns whether the slot can be reused after the object of this handle ended.
#[inline(always)]
pub(super) const fn is_usable_after(handle: u64) -> bool {
    has_next(handle)
}

/// A slot for an object, with the data that its kind of table adds.
pub(super) struct Slot<T, U> {
    pub(super) header: Header,
    pub(super) extra: U,
    /// Valid while the header says so.
    pub(super) value: UnsafeCell<Option<T>>,
}

impl<T, U: Default> Default for Slot<T, U> {
    fn default() -> Self {
        Self {
            header: Header::default(),
            extra: U::default(),
            value: UnsafeCell::new(None),
        }
    }
}

// SAFETY: from `Slots::take` to `publish`, one thread accesses the value. After that, the rules of
// [`super::exclusive`] apply, where one thread at a time has it, or those of [`super::shared`],
// whose objects are `Sync`.
unsafe impl<T: Send, U: Sync> Sync for Slot<T, U> {}

type Chunk<T, U> = OnceLock<Box<[Slot<T, U>]>>;

/// Slots by number, and the free ones.
pub(super) struct Slots<T, U> {
    /// Allocated when first needed, and never freed: the address of a slot outlives every use of
    /// it.
    chunks: [Chunk<T, U>; CHUNKS],
    /// By the highest bit of a slot's number: the address at which the slot with number 0 would be
    /// if its chunk began there; NULL until the chunk is allocated.
    origins: [AtomicPtr<Slot<T, U>>; INDEX_BITS as usize],
    /// Number of the first slot that was never used.
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
        // SAFETY: the chunk is allocated, contains the slots of all numbers with this highest bit
        // at their distances from the origin, and lives as long as `self`.
        Some(unsafe { &*origin.wrapping_add(index as usize) })
    }

    /// Returns the slot that a handle names, whatever it contains, if the number can be a handle.
    #[inline(always)]
    pub(super) fn of(&self, number: u64) -> Option<&Slot<T, U>> {
        // Without this bit, the number may equal the state of a slot without a usable object.
        if number & HANDLE != 0 {
            self.get(index_of(number))
        } else {
            None
        }
    }

    /// Returns why a handle cannot be used.
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

    /// As [`Self::why_not`], as a failure.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse<H: Opaque>(&self, handle: *mut H) -> Failure {
        self.why_not(handle).into()
    }

    /// Stores an object in a slot; returns its handle.
    #[inline(always)]
    pub(super) fn insert<H: Opaque>(&self, value: T, owner: Owner) -> Outcome<*mut H> {
        let Some(slot) = self.take(H::KIND) else {
            return Err(HandleError::Full(H::KIND).into());
        };
        // SAFETY: a slot from `take` belongs to this thread until `publish`. Its previous object
        // was taken out when it ended, so nothing is overwritten.
        unsafe { slot.value.get().write(Some(value)) };
        Ok(handle_of(slot.header.publish(H::KIND, owner)))
    }

    /// Returns a free slot, which belongs to the caller.
    #[inline(always)]
    fn take(&self, kind: Kind) -> Option<&Slot<T, U>> {
        let freed = self.free.take(kind);
        freed
            .and_then(|index| self.get(index))
            .or_else(|| self.fresh())
    }

    /// Returns a slot that was never used, if there is one.
    #[cold]
    fn fresh(&self) -> Option<&Slot<T, U>> {
        let next = |unused| (unused < INDEX_END).then_some(unused + 1);
        // Relaxed: only uniqueness matters; the first thread that needs the chunk allocates it.
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

    /// Allocates the chunk of a slot, unless another thread does.
    fn make(&self, index: u32) -> &Slot<T, U> {
        let highest = index.ilog2();
        let chunk = &self.chunks[(highest - FIRST.ilog2()) as usize];
        let (first, len) = (1usize << highest, 1 << highest);
        let slots = chunk.get_or_init(|| (0..len).map(|_| Slot::default()).collect());
        let origin = slots.as_ptr().wrapping_sub(first).cast_mut();
        // Release: a thread that sees the origin sees the slots.
        self.origins[highest as usize].store(origin, Ordering::Release);
        &slots[index as usize - first]
    }

    /// Frees the slot of a handle whose object ended.
    #[inline]
    pub(super) fn recycle(&self, kind: Kind, handle: u64) {
        self.free.give(kind, index_of(handle));
    }

    /// Iterates over all slots that were ever used.
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
        // No slot exists before the first, after the last, or in a chunk that is not allocated.
        assert!((0..FIRST).all(|index| slots.get(index).is_none()));
        assert!(slots.get(INDEX_END - 1).is_none() && slots.get(INDEX_END).is_none());
        assert_eq!(slots.iter().count(), places.len());
    }

    /// A number that equals the state of a slot is not a handle.
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
    fn a_thread_reuses_slots_freed_by_another() {
        static SLOTS: Slots<u8, ()> = Slots::new(FreeList::of(Kind::Changes));
        // A kind of which other tests have no slots.
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
