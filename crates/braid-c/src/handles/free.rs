//! Free slots of a table.
//!
//! Each thread caches a few slots that it freed, so that ending an object and creating the next one
//! takes no lock.

use std::cell::Cell;

use braid_rt::Mutex;

use super::Kind;

/// Number of slots that move between a thread and the list at once.
const LOT: usize = 32;
/// Maximum number of slots that a thread caches.
const KEPT_MAX: usize = 2 * LOT;

/// The free slots of a table, except those that threads cache.
#[derive(Debug)]
pub(super) struct FreeList(Mutex<Vec<u32>>);

/// A thread's cached slots of one list.
struct Kept {
    of: Cell<Option<&'static FreeList>>,
    len: Cell<usize>,
    slots: [Cell<u32>; KEPT_MAX],
}

impl Kept {
    const fn new() -> Self {
        Self {
            of: Cell::new(None),
            len: Cell::new(0),
            slots: [const { Cell::new(0) }; KEPT_MAX],
        }
    }

    #[inline]
    fn is_of(&self, list: &'static FreeList) -> bool {
        self.of.get().is_some_and(|of| std::ptr::eq(of, list))
    }

    /// Returns the last slots to the list, and keeps `len` of them.
    fn recycle(&self, len: usize) {
        if let Some(list) = self.of.get() {
            let kept = &self.slots[len..self.len.replace(len)];
            list.0.lock().extend(kept.iter().map(Cell::get));
        }
    }
}

thread_local! {
    /// By kind of object: a process has one table of each.
    static KEPT: [Kept; Kind::ALL.len()] = const { [const { Kept::new() }; Kind::ALL.len()] };
    /// Returns the thread's cached slots when it exits. Separate, because each access to a
    /// thread-local with a destructor costs a check.
    static AT_END: AtEnd = const { AtEnd };
}

struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        KEPT.with(|kept| {
            for kept in kept {
                kept.recycle(0);
                kept.of.set(None);
            }
        });
    }
}

impl FreeList {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns the list of the process's table of a kind.
    pub(super) const fn of(kind: Kind) -> &'static Self {
        static OF: [FreeList; Kind::ALL.len()] = [const { FreeList::new() }; Kind::ALL.len()];
        &OF[kind as usize - 1]
    }

    /// Creates a list for a table of a test.
    #[cfg(test)]
    pub(super) fn leaked() -> &'static Self {
        // Keeps the list reachable, so that leak checkers do not report it.
        static ALL: Mutex<Vec<&FreeList>> = Mutex::new(Vec::new());
        let list = Box::leak(Box::new(Self::new()));
        ALL.lock().push(list);
        list
    }

    /// Returns a free slot, if there is one.
    #[inline(always)]
    pub(super) fn take(&'static self, kind: Kind) -> Option<u32> {
        KEPT.with(|kept| {
            let kept = &kept[kind as usize - 1];
            match kept.len.get().checked_sub(1) {
                Some(last) if kept.is_of(self) => {
                    kept.len.set(last);
                    Some(kept.slots[last % KEPT_MAX].get())
                }
                _ => self.refill(kept),
            }
        })
    }

    #[cold]
    fn refill(&'static self, kept: &Kept) -> Option<u32> {
        if !self.turn(kept) {
            return self.0.lock().pop();
        }
        let mut free = self.0.lock();
        let last = free.pop()?;
        let lot = free.len().saturating_sub(LOT);
        for (place, slot) in kept.slots.iter().zip(free.drain(lot..)) {
            place.set(slot);
            kept.len.set(kept.len.get() + 1);
        }
        Some(last)
    }

    /// Frees a slot.
    #[inline(always)]
    pub(super) fn give(&'static self, kind: Kind, slot: u32) {
        KEPT.with(|kept| {
            let kept = &kept[kind as usize - 1];
            let len = kept.len.get();
            if len < KEPT_MAX && kept.is_of(self) {
                kept.slots[len].set(slot);
                kept.len.set(len + 1);
            } else {
                self.spill(kept, slot);
            }
        });
    }

    #[cold]
    fn spill(&'static self, kept: &Kept, slot: u32) {
        if !self.turn(kept) {
            return self.0.lock().push(slot);
        }
        if kept.len.get() == KEPT_MAX {
            kept.recycle(LOT);
        }
        let len = kept.len.get();
        kept.slots[len].set(slot);
        kept.len.set(len + 1);
    }

    /// Assigns the thread's cache of a kind to this list. Returns false if the thread is about to
    /// exit, because it then keeps no slots.
    fn turn(&'static self, kept: &Kept) -> bool {
        if !kept.is_of(self) {
            kept.recycle(0);
            let lives_on = AT_END.try_with(|_| ()).is_ok();
            kept.of.set(lives_on.then_some(self));
        }
        kept.is_of(self)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_given_out_once() {
        let kind = Kind::Loader;
        let (one, other) = (FreeList::leaked(), FreeList::leaked());
        for slot in 0..200 {
            one.give(kind, slot);
        }
        // Lists of one kind do not mix.
        assert_eq!(other.take(kind), None);
        other.give(kind, 1000);
        let mut taken: Vec<u32> = std::iter::from_fn(|| one.take(kind)).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..200).collect::<Vec<_>>());
        assert_eq!(other.take(kind), Some(1000));
        assert_eq!(other.take(kind), None);
    }

    #[test]
    fn slots_of_a_thread_are_free_when_it_ends() {
        let (kind, list) = (Kind::Loader, FreeList::leaked());
        let give = move || (0..100).for_each(|slot| list.give(kind, slot));
        std::thread::spawn(give).join().unwrap();
        assert_eq!(std::iter::from_fn(|| list.take(kind)).count(), 100);
    }
}
