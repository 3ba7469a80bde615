//! One region of memory that the controller can access, and its free parts.

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_rt::Mutex;

use crate::{DmaBuffer, DmaMemory, DriveError};

/// Preferred address: inside the window that POWER's IOMMU begins at zero.
const PREFERRED: usize = 1 << 32;

pub(super) struct Arena {
    start: NonNull<u8>,
    len: usize,
    /// Sizes and addresses of parts are multiples of it; set once, before other threads exist.
    unit: AtomicUsize,
    /// Offsets and lengths of free parts, none of which touches another one.
    free: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: parts of the memory are given out under a lock.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `len` bytes, rounded up to 64 KiB, which is a multiple of every page size.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let len = len.max(1).next_multiple_of(64 << 10);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let preferred = std::ptr::without_provenance_mut(PREFERRED);
        // SAFETY: the kernel maps unused addresses, `preferred` being a hint.
        let start =
            unsafe { mmap_anonymous(preferred, len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            len,
            unit: AtomicUsize::new(4096),
            free: Mutex::new(BTreeMap::from([(0, len)])),
        })
    }

    pub(super) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn set_unit(&self, unit: usize) {
        self.unit.store(unit.min(64 << 10), Ordering::Relaxed);
    }

    fn rounded(&self, len: usize) -> usize {
        len.max(1)
            .next_multiple_of(self.unit.load(Ordering::Relaxed))
    }

    pub(super) fn allocate(self: &Arc<Self>, len: usize) -> Result<DmaBuffer, DriveError> {
        let rounded = self.rounded(len);
        let mut free = self.free.lock();
        let found = free.iter().find(|(_, free)| **free >= rounded);
        let Some((&offset, &available)) = found else {
            return Err(DriveError::Unsupported {
                what: format!("allocate {len} bytes for the drive"),
                reason: format!("its arena of {} bytes is used up; make it larger", self.len),
            });
        };
        free.remove(&offset);
        if available > rounded {
            free.insert(offset + rounded, available - rounded);
        }
        drop(free);
        // SAFETY: the part is inside the mapping.
        let address = unsafe { self.start.add(offset) };
        // SAFETY: the part was free, so nothing else accesses it.
        unsafe { address.write_bytes(0, rounded) };
        // SAFETY: the part stays valid until it is freed, since the buffer keeps the arena.
        Ok(unsafe { DmaBuffer::of_memory(address, len, self.clone()) })
    }
}

impl DmaMemory for Arena {
    fn free(&self, address: NonNull<u8>, len: usize) {
        let mut offset = address.as_ptr().addr() - self.address();
        let mut len = self.rounded(len);
        let mut free = self.free.lock();
        if let Some((&before, &before_len)) = free.range(..offset).next_back()
            && before + before_len == offset
        {
            free.remove(&before);
            offset = before;
            len += before_len;
        }
        if let Some(after_len) = free.remove(&(offset + len)) {
            len += after_len;
        }
        free.insert(offset, len);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was created with this length, and every buffer that refers to it
        // keeps the arena.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_merge_when_they_are_freed() {
        let arena = Arc::new(Arena::new(1 << 20).unwrap());
        let mut random = fastrand::Rng::with_seed(9);
        let mut buffers: Vec<(u8, DmaBuffer)> = Vec::new();
        for step in 0..2000u32 {
            if random.bool() {
                if let Ok(mut buffer) = arena.allocate(random.usize(1..60_000)) {
                    assert!(buffer.iter().all(|byte| *byte == 0));
                    assert!(buffer.as_ptr().addr().is_multiple_of(4096));
                    buffer.fill(step as u8);
                    buffers.push((step as u8, buffer));
                }
            } else if !buffers.is_empty() {
                let (byte, buffer) = buffers.swap_remove(random.usize(..buffers.len()));
                assert!(buffer.iter().all(|other| *other == byte));
            }
        }
        drop(buffers);
        assert_eq!(arena.allocate(1 << 20).unwrap().len(), 1 << 20);
        assert!(arena.allocate((1 << 20) + 1).is_err());
    }

    /// Parts follow the controller's page, whatever the page of the system: with pages of 64 KiB, a
    /// part for each would waste most of the memory.
    #[test]
    fn parts_are_multiples_of_the_controllers_page() {
        for unit in [4096, 16 << 10, 64 << 10] {
            let arena = Arc::new(Arena::new(256 << 10).unwrap());
            arena.set_unit(unit);
            let buffers: Vec<DmaBuffer> = (0..256 * 1024 / unit)
                .map(|_| arena.allocate(100).unwrap())
                .collect();
            assert!(arena.allocate(1).is_err());
            for buffer in &buffers {
                assert!((buffer.as_ptr().addr() - arena.address()).is_multiple_of(unit));
            }
        }
    }
}
