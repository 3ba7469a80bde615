//! Where the objects are: slots that never move and are never given back to the system.

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::free::FreeList;
use super::{Ended, GENERATION_MAX, HandleError, INDEX_BITS, Kind, Opaque, Owner, Parts};

/// Slots of the first chunk; each further one has as many as all before it and that.
const FIRST: u32 = 8;
const CHUNKS: usize = (INDEX_BITS - FIRST.trailing_zeros()) as usize;
const SLOTS_MAX: u32 = (FIRST << CHUNKS) - FIRST;
const _: () = assert!(SLOTS_MAX <= 1 << INDEX_BITS);

/// The slot has an object.
pub(super) const LIVE: u64 = 1;
/// A thread works with the object alone ([`super::exclusive`]), or it shall end ([`super::shared`]).
pub(super) const TAKEN: u64 = 2;
const FLAGS: u32 = 2;

/// What every slot has, whatever else it holds.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// The generation of the present object, or of the next, above the flags.
    pub(super) state: AtomicU64,
    owner: AtomicU64,
    /// How the generation before ended.
    ended: AtomicU8,
}

impl Header {
    /// The state of a slot whose object is there and not taken.
    #[inline]
    pub(super) fn live(generation: u64) -> u64 {
        generation << FLAGS | LIVE
    }

    /// Makes a new object known, which the caller has put into the slot that is its own.
    #[inline]
    pub(super) fn publish(&self, owner: Owner) -> u64 {
        // Relaxed: the slot is this thread's until the store below; who had it before gave it back under the
        // free list's lock.
        self.owner.store(owner, Ordering::Relaxed);
        let generation = self.state.load(Ordering::Relaxed) >> FLAGS;
        // Release: pairs with the acquiring loads of the state in `lock` and `pin`.
        self.state.store(Self::live(generation), Ordering::Release);
        generation
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner.load(Ordering::Relaxed)
    }

    /// Ends the generation of an object that the caller has taken out. Says whether the slot can be used
    /// again.
    #[inline]
    pub(super) fn retire(&self, ended: Ended) -> bool {
        let generation = self.state.load(Ordering::Relaxed) >> FLAGS;
        self.ended.store(ended as u8, Ordering::Relaxed);
        // Release: who sees the new generation sees how the old one ended.
        self.state
            .store((generation + 1) << FLAGS, Ordering::Release);
        generation < GENERATION_MAX
    }

    /// Ends the generation of an object that nobody has taken, whose state is `live`; says whether it did. The object
    /// is the caller's then.
    #[inline]
    pub(super) fn try_retire(&self, live: u64, ended: Ended) -> bool {
        let next = ((live >> FLAGS) + 1) << FLAGS;
        // Acquire: pairs with the release of whoever published or left it. Release: as in `retire`.
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let retired = self.state.compare_exchange(live, next, order.0, order.1);
        if retired.is_ok() {
            // Who looks before this is told how the generation before ended: a word in a message.
            self.ended.store(ended as u8, Ordering::Relaxed);
        }
        retired.is_ok()
    }

    /// Whether the slot can be used again.
    #[inline]
    pub(super) fn is_usable(&self) -> bool {
        self.state.load(Ordering::Relaxed) >> FLAGS <= GENERATION_MAX
    }

    /// The state, if the slot has an object of this owner that is not taken.
    pub(super) fn live_of(&self, owner: Owner) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        let of_owner = self.owner() == owner;
        (state & (LIVE | TAKEN) == LIVE && of_owner).then_some(state)
    }

    /// Why there is no untaken object of this generation.
    #[cold]
    pub(super) fn misfit(&self, kind: Kind, generation: u64) -> HandleError {
        let state = self.state.load(Ordering::Acquire);
        let present = state >> FLAGS;
        if present == generation && state & LIVE != 0 {
            return HandleError::Busy(kind);
        }
        // It is there for one generation only.
        let ended = Ended::from_number(self.ended.load(Ordering::Relaxed));
        HandleError::Stale(kind, ended.filter(|_| present == generation + 1))
    }
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
    /// Slots that were ever used.
    used: AtomicU32,
    free: &'static FreeList,
}

impl<T, U: Default> Slots<T, U> {
    pub(super) const fn new(free: &'static FreeList) -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            used: AtomicU32::new(0),
            free,
        }
    }

    #[inline(always)]
    fn place(index: u32) -> (usize, usize) {
        let chunk = (index + FIRST).ilog2() - FIRST.ilog2();
        (chunk as usize, (index + FIRST - (FIRST << chunk)) as usize)
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<&Slot<T, U>> {
        let (chunk, offset) = Self::place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// The slot that a handle names, whatever is in it now.
    #[inline(always)]
    pub(super) fn of(&self, parts: Parts, kind: Kind) -> Result<&Slot<T, U>, HandleError> {
        self.get(parts.index).ok_or(HandleError::NoHandle(kind))
    }

    /// Puts an object into a slot, and says by which handle it goes.
    #[inline]
    pub(super) fn insert<H: Opaque>(&self, value: T, owner: Owner) -> Result<*mut H, HandleError> {
        let (index, slot) = self.take(H::KIND)?;
        // SAFETY: a slot from `take` is this thread's alone until `publish`, and has no object that would be overwritten:
        // whoever ended the one before took it out.
        unsafe { slot.value.get().write(Some(value)) };
        let generation = slot.header.publish(owner);
        Ok(Parts { index, generation }.handle())
    }

    /// A free slot, which is the caller's alone.
    #[inline]
    fn take(&self, kind: Kind) -> Result<(u32, &Slot<T, U>), HandleError> {
        let freed = self.free.take(kind);
        if let Some(index) = freed
            && let Some(slot) = self.get(index)
        {
            return Ok((index, slot));
        }
        self.fresh(kind)
    }

    /// A slot that was never used.
    #[cold]
    fn fresh(&self, kind: Kind) -> Result<(u32, &Slot<T, U>), HandleError> {
        let next = |used| (used < SLOTS_MAX).then_some(used + 1);
        // Relaxed: only uniqueness matters; the chunk is made by whoever comes first.
        let index = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map_err(|_| HandleError::Full(kind))?;
        let (chunk, offset) = Self::place(index);
        let slots = self.chunks[chunk]
            .get_or_init(|| (0..FIRST << chunk).map(|_| Slot::default()).collect());
        Ok((index, &slots[offset]))
    }

    /// Takes a slot back whose object ended.
    #[inline]
    pub(super) fn give_back(&self, kind: Kind, index: u32) {
        self.free.give(kind, index);
    }

    /// All slots that were ever used.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<T, U>)> {
        let used = self.used.load(Ordering::Acquire);
        (0..used).filter_map(|index| Some((index, self.get(index)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_place_of_its_own() {
        let place = Slots::<u8, ()>::place;
        let mut expected = (0, 0);
        for index in 0..if cfg!(miri) { 100 } else { 10_000 } {
            assert_eq!(place(index), expected, "slot {index}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let last = (CHUNKS - 1, (FIRST as usize) << (CHUNKS - 1));
        assert_eq!(place(SLOTS_MAX - 1), (last.0, last.1 - 1));
    }

    #[test]
    fn what_one_thread_frees_another_uses() {
        static SLOTS: Slots<u8, ()> = Slots::new(FreeList::of(Kind::Loader));
        let kind = Kind::Loader;
        for _ in 0..if cfg!(miri) { 5 } else { 100 } {
            let taken: Vec<u32> = (0..50).map(|_| SLOTS.take(kind).unwrap().0).collect();
            let free = move || {
                taken
                    .into_iter()
                    .for_each(|index| SLOTS.give_back(kind, index))
            };
            std::thread::spawn(free).join().unwrap();
        }
        assert!(SLOTS.used.load(Ordering::Relaxed) <= 100);
    }
}
