//! Memory in huge pages.
//!
//! The address of each access is translated, and the processor caches few translations: two thousand
//! are common. Random access to an array of several MiB in small pages waits for translations, which
//! take long under a hypervisor, and one huge page replaces 512 small ones.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::numa;

/// The size and the boundary of huge pages on the common systems.
pub const HUGE_PAGE: usize = 2 << 20;

/// Asks the system to use huge pages for a part of the address space, which must not be in use yet.
/// A hint that changes no contents: a refusal costs only speed.
pub fn advise_huge_pages(start: *const u8, len: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // The call rounds the length up to pages of the system, which may be larger than ours: the
        // last one may also contain other memory. A part of a huge page can't become one anyway.
        let whole = len / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the advice changes no contents, whatever lies at these addresses.
        let _ = unsafe { libc::madvise(start.cast_mut().cast(), whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, len);
}

/// A slice of fixed length, in huge pages if it is at least as large as one.
pub struct HugeSlice<T> {
    start: NonNull<T>,
    len: usize,
    /// Whether its pages are spread over the memory nodes.
    is_spread: bool,
}

impl<T> HugeSlice<T> {
    /// Returns the memory of a slice of this length; `None` if it takes none.
    fn layout(len: usize) -> Option<Layout> {
        let layout = Layout::array::<T>(len).expect("the slice fits into the address space");
        let align = if layout.size() < HUGE_PAGE {
            layout.align()
        } else {
            layout.align().max(HUGE_PAGE)
        };
        let layout = layout.align_to(align).expect("a small power of two");
        (layout.size() > 0).then_some(layout)
    }

    /// Creates a slice whose elements `make` returns.
    pub fn from_fn(len: usize, make: impl FnMut(usize) -> T) -> Self {
        Self::placed(len, false, make)
    }

    /// As [`HugeSlice::from_fn`], with the pages of a large slice [spread](crate::numa::spread) over
    /// all memory nodes.
    pub fn spread(len: usize, make: impl FnMut(usize) -> T) -> Self {
        Self::placed(len, true, make)
    }

    fn placed(len: usize, is_spread: bool, mut make: impl FnMut(usize) -> T) -> Self {
        let Some(layout) = Self::layout(len) else {
            let start = NonNull::dangling();
            return Self {
                start,
                len,
                is_spread: false,
            };
        };
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(memory.cast::<T>()) else {
            handle_alloc_error(layout);
        };
        // Before the memory is used.
        advise_huge_pages(memory, layout.size());
        // A small slice lies among other objects, which a policy of the system would also move.
        let is_spread = is_spread && layout.align() >= HUGE_PAGE;
        if is_spread {
            numa::spread(memory, layout.size());
        }
        for at in 0..len {
            // SAFETY: the allocation has room for `len` elements. (If `make` panics, the memory is
            // not freed, which is safe.)
            unsafe { start.add(at).write(make(at)) };
        }
        Self {
            start,
            len,
            is_spread,
        }
    }
}

impl<T> Deref for HugeSlice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `from_fn` has written `len` elements there, or the slice takes no memory.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_ref() }
    }
}

impl<T> Drop for HugeSlice<T> {
    fn drop(&mut self) {
        let slice = NonNull::slice_from_raw_parts(self.start, self.len);
        // SAFETY: as in `deref`, and no reference to the elements is left.
        unsafe { slice.drop_in_place() };
        if let Some(layout) = Self::layout(self.len) {
            if self.is_spread {
                numa::forget(self.start.as_ptr().cast(), layout.size());
            }
            // SAFETY: allocated in `from_fn` with this layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for HugeSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: it owns its elements like a `Box<[T]>`.
unsafe impl<T: Send> Send for HugeSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for HugeSlice<T> {}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Counted<'a>(usize, &'a Cell<usize>);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.1.set(self.1.get() + 1);
        }
    }

    #[test]
    fn a_slice_owns_its_elements() {
        for len in [0, 1, 1_000] {
            let dropped = Cell::new(0);
            let slice = HugeSlice::from_fn(len, |at| Counted(at, &dropped));
            assert!(slice.iter().map(|counted| counted.0).eq(0..len));
            drop(slice);
            assert_eq!(dropped.get(), len);
        }
    }

    #[test]
    fn only_a_long_slice_begins_at_a_huge_page() {
        let long = HugeSlice::from_fn(HUGE_PAGE / 8 + 1, |at| at as u64);
        assert!(long.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        assert_eq!(long.last(), Some(&(HUGE_PAGE as u64 / 8)));
        assert_eq!(HugeSlice::<u64>::layout(8).map(|l| l.align()), Some(8));
        assert_eq!(HugeSlice::from_fn(3, |_| ()).len(), 3);
    }
}
