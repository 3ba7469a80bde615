//! Memory for pages: the buffer pool's memory, and buffers of pages that are being written.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

use braid_rt::numa::{self, Place};
use braid_rt::{HUGE_PAGE, advise_huge_pages};

use crate::page::{PAGE_SIZE, Page, WORDS};
use crate::sync::AtomicU64;

/// Page frames in one allocation that stays for the pool's life, so that a reader's stale reference
/// to a frame is harmless.
pub(crate) struct Frames {
    start: NonNull<[AtomicU64; WORDS]>,
    count: usize,
    /// The allocation that contains the frames.
    memory: NonNull<u8>,
    layout: Layout,
    /// Whether the system was told where the frames are to lie.
    is_placed: bool,
    /// The blocks of a data file in memory, which are read in place.
    blocks: NonNull<[AtomicU64; WORDS]>,
    blocks_count: usize,
}

impl Frames {
    /// Allocates `count` frames. Returns `None` if the system does not provide that much memory.
    pub(crate) fn new(count: usize) -> Option<Self> {
        assert!(count > 0, "there are frames");
        // For an aligned request, the allocator would write all the zeroes itself, and every
        // opening would use the whole pool's memory at once. So the alignment is computed here.
        let size = count.checked_mul(PAGE_SIZE)?;
        // Less than a huge page gains nothing from its alignment.
        let align = if size < HUGE_PAGE {
            PAGE_SIZE
        } else {
            HUGE_PAGE
        };
        let layout = size
            .checked_add(align)
            .and_then(|size| Layout::array::<u64>(size / 8).ok())?;
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let before = memory.as_ptr().align_offset(align);
        assert!(before <= align, "there is a boundary in the first part");
        // SAFETY: the allocation is `align` longer than the frames, and `before` is no more.
        let start = unsafe { memory.add(before) };
        // Random access to a large pool is bound by address translation.
        advise_huge_pages(start.as_ptr(), size);
        Some(Self {
            start: start.cast(),
            count,
            memory,
            layout,
            is_placed: false,
            blocks: NonNull::dangling(),
            blocks_count: 0,
        })
    }

    /// Says where the frames are to lie, none of which is in use yet.
    pub(crate) fn place(&mut self, place: Place) {
        self.is_placed = place.keep(self.memory.as_ptr(), self.layout.size());
    }

    /// Adds the bytes of the frames on each memory node. Returns whether the system told it.
    pub(crate) fn count_bytes(&self, bytes: &mut [u64]) -> bool {
        numa::count(self.start.as_ptr().cast(), self.count * PAGE_SIZE, bytes)
    }

    /// Adds the words of a data file, whose blocks are then read in place.
    ///
    /// # Safety
    /// The words can be loaded for as long as the frames are used, and no reference to them exists
    /// that allows a change except by atomic stores.
    pub(crate) unsafe fn add_blocks(&mut self, words: &[std::sync::atomic::AtomicU64]) {
        self.blocks = NonNull::from(words).cast();
        self.blocks_count = words.len() / WORDS;
    }

    /// The number of blocks that can be read in place.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks_count
    }

    /// The page in a block that is read in place.
    #[inline]
    pub(crate) fn block(&self, block: usize) -> Page<'_> {
        assert!(
            block < self.blocks_count,
            "frame numbers come from the page table"
        );
        // SAFETY: so many blocks can be loaded, as the caller of `add_blocks` guarantees. An atomic
        // word has the size and the alignment of a plain one, and blocks begin at pages.
        Page(unsafe { self.blocks.add(block).as_ref() })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The page in a frame.
    #[inline]
    pub(crate) fn page(&self, frame: usize) -> Page<'_> {
        self.get(frame)
            .expect("frame numbers come from the page table")
    }

    /// The page in a frame, if there is such a frame.
    #[inline]
    pub(crate) fn get(&self, frame: usize) -> Option<Page<'_>> {
        // SAFETY: the allocation holds `count` zero-initialised frames and lives as long as `self`;
        // all access to them is atomic.
        (frame < self.count).then(|| Page(unsafe { self.start.add(frame).as_ref() }))
    }

    /// The bytes of some pages, in the form of the medium.
    pub(crate) fn bytes_mut(&mut self, frames: Range<usize>) -> &mut [u8] {
        assert!(frames.start <= frames.end && frames.end <= self.count);
        // SAFETY: the range lies in the allocation, all of which is initialised, and a page's
        // atomic words are plain memory to their exclusive owner, which `&mut self` guarantees.
        unsafe {
            let first = self.start.add(frames.start).cast::<u8>();
            std::slice::from_raw_parts_mut(first.as_ptr(), frames.len() * PAGE_SIZE)
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if self.is_placed {
            numa::forget(self.memory.as_ptr(), self.layout.size());
        }
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

// SAFETY: the frames are atomics, owned like a `Box<[AtomicU64]>`.
unsafe impl Send for Frames {}
// SAFETY: as above; shared access is atomic.
unsafe impl Sync for Frames {}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
