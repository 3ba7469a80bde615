//! Which slots of a table are free.
//!
//! Each thread keeps a few that it freed itself, so that to end an object and to make the next one takes no lock.

use std::cell::RefCell;

use braid_rt::Mutex;

use super::Kind;

/// As many slots go to a thread, or come from it, at once.
const LOT: usize = 32;
/// So many a thread keeps.
const KEPT_MAX: usize = 2 * LOT;

/// The free slots of a table, but for those that threads keep.
#[derive(Debug)]
pub(super) struct FreeList(Mutex<Vec<u32>>);

/// What a thread keeps of one list.
struct Kept {
    of: Option<&'static FreeList>,
    slots: Vec<u32>,
}

/// By kind of object: a process has one table of each.
struct AllKept([Kept; Kind::ALL.len()]);

thread_local! {
    static KEPT: RefCell<AllKept> = const {
        RefCell::new(AllKept([const { Kept { of: None, slots: Vec::new() } }; Kind::ALL.len()]))
    };
}

impl AllKept {
    /// Those of a list.
    #[inline]
    fn of(&mut self, kind: Kind, list: &'static FreeList) -> &mut Vec<u32> {
        let kept = &mut self.0[kind as usize - 1];
        if !kept.of.is_some_and(|of| std::ptr::eq(of, list)) {
            kept.turn_to(list);
        }
        &mut kept.slots
    }
}

impl Kept {
    /// Gives back what it has of another list.
    #[cold]
    fn turn_to(&mut self, list: &'static FreeList) {
        if let Some(other) = self.of.replace(list) {
            other.0.lock().append(&mut self.slots);
        }
    }
}

impl Drop for AllKept {
    fn drop(&mut self) {
        for kept in &mut self.0 {
            if let Some(list) = kept.of {
                list.0.lock().append(&mut kept.slots);
            }
        }
    }
}

impl FreeList {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// That of the process's table of a kind.
    pub(super) const fn of(kind: Kind) -> &'static Self {
        static OF: [FreeList; Kind::ALL.len()] = [const { FreeList::new() }; Kind::ALL.len()];
        &OF[kind as usize - 1]
    }

    /// That of a table of its own.
    #[cfg(test)]
    pub(super) fn leaked() -> &'static Self {
        Box::leak(Box::new(Self::new()))
    }

    /// A free slot, if there is one.
    #[inline]
    pub(super) fn take(&'static self, kind: Kind) -> Option<u32> {
        // A thread that is about to end keeps none.
        let kept = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let slots = kept.of(kind, self);
            slots.pop().or_else(|| self.refill(slots))
        });
        kept.unwrap_or_else(|_| self.0.lock().pop())
    }

    #[cold]
    fn refill(&self, slots: &mut Vec<u32>) -> Option<u32> {
        let mut free = self.0.lock();
        let lot = free.len().saturating_sub(LOT);
        slots.extend(free.drain(lot..));
        slots.pop()
    }

    /// Takes a slot back.
    #[inline]
    pub(super) fn give(&'static self, kind: Kind, slot: u32) {
        let kept = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let slots = kept.of(kind, self);
            if slots.len() == KEPT_MAX {
                self.spill(slots);
            }
            slots.push(slot);
        });
        if kept.is_err() {
            self.0.lock().push(slot);
        }
    }

    #[cold]
    fn spill(&self, slots: &mut Vec<u32>) {
        self.0.lock().extend(slots.drain(..LOT));
    }
}

#[cfg(test)]
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
    }

    #[test]
    fn what_a_thread_keeps_is_free_when_it_ends() {
        let (kind, list) = (Kind::Loader, FreeList::leaked());
        let give = move || (0..10).for_each(|slot| list.give(kind, slot));
        std::thread::spawn(give).join().unwrap();
        assert_eq!(std::iter::from_fn(|| list.take(kind)).count(), 10);
    }
}
