//! A thread's recently used shared objects, so that finding one again takes a comparison.

use std::cell::Cell;
use std::ptr::NonNull;

use super::sync::AtomicUsize;
use super::{Kind, index_of};

/// Number of entries for each kind, indexed by the lowest bits of the slot's number.
const PLACES: usize = 8;

/// An object's slot, and this thread's counter in it.
type Found = (NonNull<()>, NonNull<AtomicUsize>);

#[repr(align(32))]
struct Place {
    handle: Cell<u64>,
    /// `None` while the entry is unused; then the handle has no meaning.
    found: Cell<Option<Found>>,
}

impl Place {
    const fn new() -> Self {
        Self {
            handle: Cell::new(0),
            found: Cell::new(None),
        }
    }
}

const KINDS: usize = Kind::ALL.len() + 1;

thread_local! {
    static RECENT: [[Place; PLACES]; KINDS] =
        const { [const { [const { Place::new() }; PLACES] }; KINDS] };
}

#[inline(always)]
const fn place_of(handle: u64) -> usize {
    index_of(handle) as usize % PLACES
}

/// Returns the entry for a handle of this kind, if the thread used it last.
#[inline(always)]
pub(super) fn find(kind: Kind, handle: u64) -> Option<Found> {
    RECENT.with(|recent| {
        let place = &recent[kind as usize][place_of(handle)];
        if place.handle.get() == handle {
            place.found.get()
        } else {
            None
        }
    })
}

pub(super) fn note(kind: Kind, handle: u64, slot: NonNull<()>, uses: NonNull<AtomicUsize>) {
    RECENT.with(|recent| {
        let place = &recent[kind as usize][place_of(handle)];
        place.handle.set(handle);
        place.found.set(Some((slot, uses)));
    });
}

/// Forgets all entries.
pub(super) fn forget() {
    RECENT.with(|recent| {
        for place in recent.iter().flatten() {
            place.found.set(None);
        }
    });
}
