//! Memory for each page of the data file, outside the pool. A program of its own, since it measures
//! the memory of its process: both what it allocates and what the system provides.
#![cfg(all(target_os = "linux", not(miri)))]

mod sparse;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_io::{Device, File, OpenMode};
use braid_store::{Change, FORMAT, PAGE_SIZE, Store, StoreOptions};

use sparse::SparseDevice;

/// Page ids of the first chunk of a page table. Each further chunk is twice as long.
const FIRST: u64 = 1 << 10;

/// Chunks of the page tables.
const CHUNKS: u32 = 10;

/// Pages of the data file, which is 11 GiB long. They fill all chunks, with a few that are added.
const PAGES: u64 = FIRST * ((1 << CHUNKS) - 1) - 10;

/// The pool of the store, which belongs to no page of the file.
const POOL_BYTES: usize = 512 << 10;

/// Counts the bytes in use, and the most that ever were.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    // Relaxed: the test has one thread.
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as for this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as for this function.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The bytes in use. The next peak begins with them.
fn in_use() -> usize {
    let now = IN_USE.load(Ordering::Relaxed);
    MOST.store(now, Ordering::Relaxed);
    now
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

/// A data file with many pages, none of which can be read. Of so many blocks, one is free, so that no
/// part of the free space is a run. Also returns the length of the file in pages, up to the last one
/// in use.
fn file_with_many_pages(one_free_of: u64) -> (Arc<dyn Device>, u64) {
    let device = SparseDevice::default();
    let file = device.open("data.braid", OpenMode::CreateNew).unwrap();
    let block_of = |page: u64| 100 + page + page / (one_free_of - 1);
    let first = block_of(PAGES);
    file.set_len((first + PAGES) * PAGE_SIZE as u64).unwrap();
    let mut root = vec![PAGES | FORMAT << 56, 0];
    for (leaf, pages) in (1 << 62..).zip((0..PAGES).step_by(LEAF)) {
        let address = write(&*file, first + root.len() as u64, leaf, |words| {
            for page in (pages.max(1)..PAGES).take_while(|page| *page < pages + LEAF as u64) {
                words[2 + (page - pages) as usize] = block_of(page);
            }
            // The births: each word has two.
            words[2 + LEAF..2 + LEAF + LEAF / 2].fill(1 << 32 | 1);
        });
        root.push(address);
    }
    root[1] = root.len() as u64 - 2;
    // A tree for each chunk of the page tables, with a root in it, and no bytes of the database.
    root.push(u64::from(CHUNKS));
    (0..CHUNKS).for_each(|tree| root.extend([u64::from(tree) + 1, FIRST << tree]));
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
    (Arc::new(device), first + PAGES.div_ceil(LEAF as u64))
}

/// A value of the process's status, in bytes: memory that it uses, or the most that it used.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

/// A page outside the pool has two words: its block address, and, once it was used, its state. The
/// free space takes a bit for each block, or two bytes for each free block where these are few. There
/// is nothing else at rest, and a checkpoint takes memory for the pages that it writes.
#[test]
fn a_page_takes_few_bytes_of_memory() {
    for one_free_of in [4, 20, 100, 5_000, u64::MAX] {
        check_memory(one_free_of);
    }
}

fn check_memory(one_free_of: u64) {
    let (device, pages) = file_with_many_pages(one_free_of);
    let options = StoreOptions::of_pool(POOL_BYTES);
    let (before, resident_before) = (in_use(), status("VmRSS:"));
    let (store, _) = Store::open(device.clone(), options.clone()).unwrap();
    assert_eq!(store.stats().pages, PAGES - 1);
    let per_page = |bytes: u64| bytes as f64 / pages as f64;
    let for_pages = |now: usize| per_page((now - before - POOL_BYTES) as u64);
    let open = in_use();
    let resident = per_page(status("VmRSS:") - resident_before);
    // The device's memory for blocks that are written counts, too.
    let tree = store.tree(20).unwrap();
    let put = Change::Put {
        version: 1,
        value: b"value",
    };
    tree.modify(b"key", |_| (put, ())).unwrap();
    // No page of the file can be read, but each first use of a page needs its state.
    for chunk in 1..=CHUNKS {
        let tree = store.tree(chunk).unwrap();
        assert!(tree.get(b"key", |_| true).is_err());
    }
    let used = in_use();
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
    let most = MOST.load(Ordering::Relaxed);
    let checkpoint = per_page((most - used) as u64);
    let (open, used, after) = (for_pages(open), for_pages(used), for_pages(in_use()));
    println!("bytes for each page of a file of which one in {one_free_of} is free:");
    println!("{open:.2} after opening ({resident:.2} from the system),");
    println!(
        "{used:.2} once all were used, {after:.2} after a checkpoint, which took {checkpoint:.2}"
    );
    // 0.06 bytes, 64 KiB, are the sets of free blocks and ids, the addresses of the map's leaves, and
    // what does not grow with the file.
    assert!((6.0..8.06).contains(&open), "{open}");
    // The first of these files also takes the memory that the process keeps for the next ones.
    assert!((0.0..9.0).contains(&resident), "{resident}");
    assert!((12.0..16.06).contains(&used), "{used}");
    assert!((12.0..16.06).contains(&after), "{after}");
    assert!(checkpoint < 0.2, "{checkpoint}");
}
