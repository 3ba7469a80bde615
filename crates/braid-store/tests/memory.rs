//! Memory for each page of the data file, outside the pool. A program of its own, since it measures
//! the memory of its process.
#![cfg(all(target_os = "linux", not(miri)))]

mod sparse;

use std::fs;
use std::sync::Arc;

use braid_io::{Device, File, OpenMode};
use braid_store::{Change, FORMAT, PAGE_SIZE, Store, StoreOptions};

use sparse::SparseDevice;

/// Pages of the data file, which is 11 GiB long.
const PAGES: u64 = 1 << 20;

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

/// A data file with many pages, none of which can be read.
fn file_with_many_pages() -> Arc<dyn Device> {
    let device = SparseDevice::default();
    let file = device.open("data.braid", OpenMode::CreateNew).unwrap();
    // Every fourth block is free, so that no part of the free space is a run.
    let block_of = |page: u64| 100 + page / 3 * 4 + page % 3;
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
    // No tree and no bytes of the database.
    root.extend([0, 0]);
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
    Arc::new(device)
}

/// A value of the process's status, in bytes: memory that it uses, or the most that it used.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn a_page_takes_few_bytes_of_memory() {
    let device = file_with_many_pages();
    let before = status("VmRSS:");
    let options = StoreOptions {
        pool_bytes: 512 << 10,
    };
    let (store, _) = Store::open(device.clone(), options.clone()).unwrap();
    assert_eq!(store.stats().pages, PAGES - 1);
    let open = status("VmRSS:");
    let tree = store.tree(1).unwrap();
    let put = Change::Put {
        version: 1,
        value: b"value",
    };
    tree.modify(b"key", |_| (put, ())).unwrap();
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
    let most = status("VmHWM:");
    let per_page = |bytes: u64| bytes as f64 / PAGES as f64;
    let (in_use, checkpoint) = (per_page(open - before), per_page(most - open));
    println!("bytes for each page: {in_use:.1}, and {checkpoint:.1} during a checkpoint");
    assert!((15.0..21.5).contains(&in_use), "{in_use}");
    assert!(checkpoint < 1.0, "{checkpoint}");
}
