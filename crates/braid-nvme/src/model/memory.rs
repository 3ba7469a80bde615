//! Memory that the driver and the model of the controller share.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use braid_rt::Mutex;

use crate::{DmaBuffer, DmaMemory};

struct Part {
    address: NonNull<u8>,
    layout: Layout,
    freed: bool,
}

// SAFETY: the part is owned by the memory that has it.
unsafe impl Send for Part {}

/// Parts by address. Freed parts stay allocated until the end, so that an access to one is seen.
#[derive(Default)]
pub(super) struct Memory(Mutex<BTreeMap<usize, Part>>);

impl Memory {
    pub(super) fn allocate(self: &Arc<Self>, len: usize) -> DmaBuffer {
        let layout = Layout::from_size_align(len, 4096).expect("a valid size");
        // SAFETY: buffers have at least one byte.
        let Some(address) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        let part = Part {
            address,
            layout,
            freed: false,
        };
        self.0.lock().insert(address.as_ptr().addr(), part);
        // SAFETY: the part was just allocated, zeroed, and stays until the memory is dropped.
        unsafe { DmaBuffer::of_memory(address, len, self.clone()) }
    }

    /// Returns the pointer to bytes of a part that was not freed.
    pub(super) fn find(&self, address: usize, len: usize) -> Option<*mut u8> {
        let parts = self.0.lock();
        let (start, part) = parts.range(..=address).next_back()?;
        let inside = address - start;
        let fits = inside.checked_add(len)? <= part.layout.size();
        (fits && !part.freed).then(|| part.address.as_ptr().wrapping_add(inside))
    }

    pub(super) fn contains(&self, address: usize, len: usize) -> bool {
        self.find(address, len).is_some()
    }

    /// Copies bytes from memory, as the controller does.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.find(braid_rt::to_usize(address), bytes.len()) else {
            return false;
        };
        // SAFETY: the bytes are in a part that is allocated; the driver, in the same thread, holds
        // no reference to memory that it has given to the controller.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        true
    }

    /// Copies bytes to memory, as the controller does.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.find(braid_rt::to_usize(address), bytes.len()) else {
            return false;
        };
        // SAFETY: as in `read`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }
}

impl DmaMemory for Memory {
    fn free(&self, address: NonNull<u8>, _len: usize) {
        if let Some(part) = self.0.lock().get_mut(&address.as_ptr().addr()) {
            part.freed = true;
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for part in self.0.get_mut().values() {
            // SAFETY: the part was allocated with this layout, and no buffer refers to it: each
            // holds a reference to the memory.
            unsafe { dealloc(part.address.as_ptr(), part.layout) };
        }
    }
}
