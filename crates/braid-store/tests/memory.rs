//! Memory for each page of the data file, outside the pool. A program of its own, since it measures
//! the memory of its process.
#![cfg(all(target_os = "linux", not(miri)))]

mod sparse;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_io::{Device, File, OpenMode};
use braid_store::{Change, FORMAT, PAGE_SIZE, Store, StoreOptions};

use sparse::SparseDevice;

/// Page ids of the first chunk of a page table. Each further chunk is twice as long.
const FIRST: u64 = 1 << 10;

/// The pool of the store, which belongs to no page of the file.
const POOL_BYTES: usize = 512 << 10;

/// The most memory of a store that does not grow with the file.
const FIXED: u64 = 32 << 10;

/// Zeroed allocations from this size on get whole pages of the system.
const LARGE: usize = 64 << 10;

/// Large allocations at the same time.
const LARGE_MAX: usize = 64;

/// Counts the bytes in use, and the most that ever were. Large zeroed allocations, which page tables
/// are made of, count with the pages that the system has provided: those that were written.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
/// The address and the length of each large allocation; 0 for none.
static LARGE_ONES: [[AtomicUsize; 2]; LARGE_MAX] =
    [const { [const { AtomicUsize::new(0) }; 2] }; LARGE_MAX];

unsafe extern "C" {
    fn mmap(at: *mut u8, len: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut u8;
    fn munmap(at: *mut u8, len: usize) -> i32;
    fn madvise(at: *mut u8, len: usize, advice: i32) -> i32;
    fn mincore(at: *mut u8, len: usize, resident: *mut u8) -> i32;
}

/// A page of the system.
const SYSTEM_PAGE: usize = 4096;

fn count(bytes: usize) {
    // Relaxed: the test has one thread.
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

/// Maps zeroed memory, in small pages on every machine.
fn map_large(len: usize) -> *mut u8 {
    let free = LARGE_ONES
        .iter()
        .find(|large| large[1].load(Ordering::Relaxed) == 0);
    let Some([at, length]) = free else {
        return std::ptr::null_mut();
    };
    // Readable and writable; private and anonymous.
    // SAFETY: a new mapping, which no other memory overlaps.
    let start = unsafe { mmap(std::ptr::null_mut(), len, 3, 0x22, -1, 0) };
    if start.addr() == usize::MAX {
        return std::ptr::null_mut();
    }
    // Without huge pages, which some systems use for all mappings. An error means that there are none.
    // SAFETY: the mapping above, to which nothing refers yet.
    unsafe { madvise(start, len, 15) };
    at.store(start.addr(), Ordering::Relaxed);
    length.store(len, Ordering::Relaxed);
    start
}

/// Unmaps a large allocation; returns whether it is one.
fn unmap_large(start: *mut u8) -> bool {
    let is_this = |large: &&[AtomicUsize; 2]| {
        large[0].load(Ordering::Relaxed) == start.addr() && large[1].load(Ordering::Relaxed) > 0
    };
    let Some([_, length]) = LARGE_ONES.iter().find(is_this) else {
        return false;
    };
    let len = length.swap(0, Ordering::Relaxed);
    // SAFETY: the mapping belongs to the allocation that ends.
    unsafe { munmap(start, len) };
    true
}

/// Bytes of large allocations that the system has provided.
fn large_in_use() -> usize {
    let mut resident = vec![0; 16 << 10];
    let mut pages = 0;
    for [at, length] in &LARGE_ONES {
        let (at, len) = (at.load(Ordering::Relaxed), length.load(Ordering::Relaxed));
        for part in (0..len).step_by(resident.len() * SYSTEM_PAGE) {
            let part_len = (len - part).min(resident.len() * SYSTEM_PAGE);
            let start = std::ptr::with_exposed_provenance_mut(at + part);
            // SAFETY: the part is mapped, and the vector has a byte for each of its pages.
            let result = unsafe { mincore(start, part_len, resident.as_mut_ptr()) };
            assert_eq!(result, 0);
            let of_part = &resident[..part_len.div_ceil(SYSTEM_PAGE)];
            pages += of_part.iter().filter(|page| **page & 1 != 0).count();
        }
    }
    pages * SYSTEM_PAGE
}

// SAFETY: the system's allocator does the work, and the system's mappings do it for large ones.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE && layout.align() <= SYSTEM_PAGE {
            return map_large(layout.size());
        }
        count(layout.size());
        // SAFETY: as for this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if layout.size() >= LARGE && unmap_large(memory) {
            return;
        }
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as for this function.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The bytes in use. The next peak, without large allocations, begins with them.
fn in_use() -> usize {
    let large = large_in_use();
    let now = IN_USE.load(Ordering::Relaxed);
    MOST.store(now, Ordering::Relaxed);
    now + large
}

/// Entries of a map leaf.
const LEAF: usize = (PAGE_SIZE - 16) / 12;

const SEQUENCE: u64 = 2;

/// A block of the file, as docs/file-format.md describes it. Returns its block address.
fn write(file: &dyn File, block: u64, identity: u64, fill: impl FnOnce(&mut [u64])) -> u64 {
    let mut words = [0; PAGE_SIZE / 8];
    words[0] = SEQUENCE << 32;
    words[1] = identity;
    fill(&mut words);
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    let offset = block * PAGE_SIZE as u64;
    file.write_at(&[&bytes], offset).unwrap();
    block | u64::from(crc >> 7) << 38
}

/// A data file with `all` pages, none of which can be read. Of so many blocks, one is free, so that no
/// part of the free space is a run. Also returns the length of the file in pages, up to the last one
/// in use.
fn file_with_pages(all: u64, one_free_of: u64) -> (Arc<dyn Device>, u64) {
    let device = SparseDevice::default();
    let file = device.open("data.braid", OpenMode::CreateNew).unwrap();
    let block_of = |page: u64| 100 + page + page / (one_free_of - 1);
    let first = block_of(all);
    file.set_len((first + all) * PAGE_SIZE as u64).unwrap();
    let mut root = vec![all | FORMAT << 56, 0];
    for (leaf, pages) in (1 << 62..).zip((0..all).step_by(LEAF)) {
        let address = write(&*file, first + root.len() as u64, leaf, |words| {
            for page in (pages.max(1)..all).take_while(|page| *page < pages + LEAF as u64) {
                words[2 + (page - pages) as usize] = block_of(page);
            }
            // The births: each word has two.
            words[2 + LEAF..2 + LEAF + LEAF / 2].fill(1 << 32 | 1);
        });
        root.push(address);
    }
    root[1] = root.len() as u64 - 2;
    // A tree for each chunk of the page tables, with a root in it, and no bytes of the database.
    let roots = roots(all);
    root.push(roots.len() as u64);
    roots
        .iter()
        .zip(1..)
        .for_each(|(&page, tree)| root.extend([tree, page]));
    root.push(0);
    let mut next = 0;
    for (part, words) in root.chunks(PAGE_SIZE / 8 - 3).enumerate().rev() {
        next = write(&*file, 2 + part as u64, 1 << 63 | part as u64, |block| {
            block[2] = next;
            block[3..][..words.len()].copy_from_slice(words);
        });
    }
    let magic = u64::from_le_bytes(*b"BRAIDDB\x01");
    write(&*file, 0, magic, |words| {
        words[2..6].copy_from_slice(&[FORMAT, SEQUENCE, next, 8 * root.len() as u64]);
    });
    (Arc::new(device), first + all.div_ceil(LEAF as u64))
}

/// A page in each chunk of the page tables of a file with `all` pages.
fn roots(all: u64) -> Vec<u64> {
    let first = (0..).map(|chunk| FIRST * ((1 << chunk) - 1));
    first
        .map(|page| page.max(1))
        .take_while(|page| *page < all)
        .collect()
}

/// The bytes of the system's pages that a page table with all words in use has in large chunks.
fn large_chunks(all: u64) -> u64 {
    let small = FIRST * (LARGE as u64 / 8 / FIRST - 1);
    8 * all
        .saturating_sub(small)
        .next_multiple_of(SYSTEM_PAGE as u64 / 8)
}

/// A page outside the pool has two words: its block address, and, once it was used, its state. The
/// free space takes at most a bit for each block, or two bytes for each free block where these are
/// few. A checkpoint takes memory for the pages that it writes.
///
/// All that is at most 16 bytes for each page of the file, of any size and with any part of it free,
/// and a fixed amount: at the last page of a chunk of the page tables, and at the first one, too.
#[test]
fn a_page_takes_at_most_16_bytes_of_memory() {
    // The chunks of a table have these many pages together.
    let full = |chunks: u32| FIRST * ((1 << chunks) - 1);
    for one_free_of in [4, 20, 100, 5_000, u64::MAX] {
        check_memory(full(4), one_free_of);
    }
    // Where few blocks are free, their set takes the most memory for each of them.
    check_memory(full(10), 5_000);
    check_memory(full(10) + 1, 5_000);
}

fn check_memory(all: u64, one_free_of: u64) {
    let (device, pages) = file_with_pages(all, one_free_of);
    let options = StoreOptions::of_pool(POOL_BYTES);
    let before = in_use();
    let (store, _) = Store::open(device.clone(), options.clone()).unwrap();
    assert_eq!(store.stats().pages, all - 1);
    // Frames without contents take no memory.
    let for_file = |now: usize| (now - before) as u64;
    let open = for_file(in_use());
    // No page of the file can be read, but each first use of a page needs its state. The test uses a
    // page in each chunk, and computes what all others take.
    let before_use = large_in_use();
    for tree in (1..).zip(roots(all)).map(|(tree, _)| tree) {
        let tree = store.tree(tree).unwrap();
        assert!(tree.get(b"key", |_| true).is_err());
    }
    let of_others = large_chunks(all) - (large_in_use() - before_use) as u64;
    let used = for_file(in_use()) + of_others;
    // A new page, so that there is something to write.
    let tree = store.tree(1 << 20).unwrap();
    let put = Change::Put {
        version: 1,
        value: b"value",
    };
    tree.modify(b"key", |_| (put, ())).unwrap();
    let changed = in_use();
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
    let most = MOST.load(Ordering::Relaxed) + large_in_use();
    let checkpoint = (most - changed) as u64;
    let after = for_file(in_use()) + of_others;
    println!(
        "{pages} pages, one free in {one_free_of}: {open} bytes after opening, {used} used, {after} after a checkpoint"
    );
    println!("a checkpoint: {checkpoint}");
    assert!(open <= 8 * pages + FIXED, "{open}");
    assert!(used <= 16 * pages + FIXED, "{used}");
    // The device's memory for the blocks that the checkpoint wrote counts, too.
    assert!(after <= 16 * pages + FIXED + (128 << 10), "{after}");
    assert!(checkpoint < pages / 5 + (256 << 10), "{checkpoint}");
}
