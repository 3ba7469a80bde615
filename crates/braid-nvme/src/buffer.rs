//! Memory that a drive can access.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that [`DmaBuffer`]s are parts of, such as the arena of a driver.
pub trait DmaMemory: Send + Sync {
    /// Frees a part, which no command uses any more.
    fn free(&self, address: NonNull<u8>, len: usize);
}

enum Owner {
    Heap(Layout),
    Memory(Arc<dyn DmaMemory>),
}

/// A byte buffer at an address that the drive accepts ([`Drive::allocate`](crate::Drive::allocate)).
///
/// Dereferences to its bytes, which are initially zero.
pub struct DmaBuffer {
    address: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the buffer owns its bytes exclusively, and `DmaMemory` may be used from any thread.
unsafe impl Send for DmaBuffer {}
// SAFETY: a shared reference to the buffer allows only reads of its bytes.
unsafe impl Sync for DmaBuffer {}

impl DmaBuffer {
    /// Allocates a zeroed buffer of `len` bytes on the heap, aligned to `align`.
    ///
    /// # Panics
    ///
    /// If `len` is zero or exceeds the address space, or if `align` is not a power of two.
    pub fn on_heap(len: usize, align: usize) -> Self {
        assert!(len > 0, "a buffer holds at least one byte");
        let layout = Layout::from_size_align(len, align).expect("a valid size and alignment");
        // SAFETY: the layout's size is not zero, asserted above.
        let Some(address) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        Self {
            address,
            len,
            owner: Owner::Heap(layout),
        }
    }

    /// Wraps a part of `memory`, which gets it back when the buffer is dropped.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `address` must be zeroed and valid until they are freed, and nothing
    /// else may access them until then.
    pub unsafe fn of_memory(address: NonNull<u8>, len: usize, memory: Arc<dyn DmaMemory>) -> Self {
        Self {
            address,
            len,
            owner: Owner::Memory(memory),
        }
    }

    /// Returns the address of the first byte.
    pub fn as_non_null(&self) -> NonNull<u8> {
        self.address
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: `on_heap` allocated the address with this layout.
            Owner::Heap(layout) => unsafe { dealloc(self.address.as_ptr(), *layout) },
            Owner::Memory(memory) => memory.free(self.address, self.len),
        }
    }
}

impl Deref for DmaBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` initialised bytes, and the shared borrow excludes writers.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl DerefMut for DmaBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuffer({} bytes at {:p})", self.len, self.address)
    }
}
