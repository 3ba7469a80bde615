//! Heap memory at an address that direct I/O accepts.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use braid_rt::numa;

/// A zero-initialised byte buffer whose address is aligned to a power of two.
///
/// Dereferences to its bytes.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    layout: Layout,
    /// Whether its pages are kept on a memory node.
    is_placed: bool,
}

impl AlignedBuf {
    /// The alignment used by [`AlignedBuf::new`]: enough for direct I/O on every common medium.
    pub const DEFAULT_ALIGN: usize = 4096;

    /// Allocates a zeroed buffer of `len` bytes, aligned to [`AlignedBuf::DEFAULT_ALIGN`].
    ///
    /// # Panics
    ///
    /// If `len` is zero or exceeds the address space.
    pub fn new(len: usize) -> Self {
        Self::with_align(len, Self::DEFAULT_ALIGN)
    }

    /// Allocates a zeroed buffer of `len` bytes, aligned to `align`.
    ///
    /// # Panics
    ///
    /// If `len` is zero or exceeds the address space, or if `align` is not a power of two.
    pub fn with_align(len: usize, align: usize) -> Self {
        assert!(len > 0, "an aligned buffer holds at least one byte");
        let layout = Layout::from_size_align(len, align).expect("a valid size and alignment");
        // SAFETY: the layout's size is not zero, asserted above.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else {
            handle_alloc_error(layout)
        };
        Self {
            ptr,
            layout,
            is_placed: false,
        }
    }

    /// Moves the buffer's pages to a [memory node](braid_rt::numa), on which they stay until the
    /// buffer is freed. Has no effect on a machine with one node.
    pub fn place(&mut self, node: usize) {
        self.is_placed = true;
        numa::move_to(node, self);
    }

    /// Returns the address of the first byte, for writing parts of the buffer from several threads.
    /// The caller must ensure that no other thread accesses the same bytes meanwhile.
    pub fn as_non_null(&self) -> NonNull<u8> {
        self.ptr
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` points to `layout.size()` initialised bytes that we own, and the shared
        // borrow of `self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.is_placed {
            numa::forget(self.ptr.as_ptr(), self.layout.size());
        }
        // SAFETY: allocated in `with_align` by the same allocator with the same layout.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.layout.size())
            .finish_non_exhaustive()
    }
}

// SAFETY: the buffer owns its memory like a `Box<[u8]>`; access follows the borrow rules.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` only gives access to `&[u8]` and an address.
unsafe impl Sync for AlignedBuf {}
