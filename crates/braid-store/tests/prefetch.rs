//! Prefetching several keys together: it loads their newest state into memory, and has no other
//! effect.

use braid_io::{Device, OpenMode};
use braid_store::{Change, PAGE_SIZE, Store, StoreOptions, Tree};

use crate::filled::{KEYS, LARGE_POOL, TREE, check, filled, no_key_goes_back, open};

fn prefetch(tree: &Tree, keys: &[u32]) {
    let keys: Vec<[u8; 4]> = keys.iter().map(|key| key.to_be_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    tree.prefetch(&keys, |_, _| ()).unwrap();
}

#[test]
fn keys_come_into_memory_together() {
    let device = filled();
    let (store, tree) = open(&device, LARGE_POOL);
    // Also a missing key, and a key twice.
    let keys: Vec<u32> = (0..KEYS).step_by(7).chain([KEYS + 1, 7, 7]).collect();
    prefetch(&tree, &keys);
    let loaded = store.stats().page_loads;
    assert!(loaded > u64::from(KEYS) / 60, "{loaded}");
    for &key in keys.iter().filter(|&&key| key < KEYS) {
        assert_eq!(check(&tree, key), 1);
    }
    assert_eq!(store.stats().page_loads, loaded, "nothing was left to read");
    prefetch(&tree, &keys);
    assert_eq!(store.stats().page_loads, loaded, "all of it is there");
}

#[test]
fn a_small_pool_is_not_overrun() {
    let device = filled();
    let (store, tree) = open(&device, 512 << 10);
    let keys: Vec<u32> = (0..KEYS).collect();
    prefetch(&tree, &keys);
    let stats = store.stats();
    assert!(stats.resident_pages <= stats.pool_pages, "{stats:?}");
    keys.iter()
        .for_each(|&key| assert_eq!(check(&tree, key), 1));
}

#[test]
fn a_failed_prefetch_is_reported_by_the_read() {
    let device = filled();
    let blocks = {
        let file = device.open("data.braid", OpenMode::Existing).unwrap();
        file.len().unwrap() / PAGE_SIZE as u64
    };
    let (mut damaged, mut whole) = (0, 0);
    for block in (2..blocks).step_by(if cfg!(miri) { 3 } else { 40 }) {
        let file = device.open("data.braid", OpenMode::Existing).unwrap();
        let offset = block * PAGE_SIZE as u64;
        let mut bytes = vec![0; PAGE_SIZE];
        file.read_at(&mut bytes, offset).unwrap();
        let intact = bytes.clone();
        bytes[5_000] ^= 1;
        file.write_at(&[&bytes], offset).unwrap();
        // The opening reports a damaged map.
        if let Ok((store, _)) = Store::open(device.clone(), StoreOptions::of_pool(LARGE_POOL)) {
            let tree = store.tree(TREE).unwrap();
            prefetch(&tree, &(0..KEYS).collect::<Vec<_>>());
            for key in 0..KEYS {
                match tree.get(&key.to_be_bytes(), |_| true) {
                    Ok(found) => {
                        assert_eq!(found.unwrap().meta.version, 1);
                        whole += 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("corrupted"), "{error}");
                        damaged += 1;
                    }
                }
            }
        }
        file.write_at(&[&intact], offset).unwrap();
    }
    assert!(damaged > 0 && whole > damaged, "{damaged} of {whole}");
}

/// A leaf that becomes small is merged with its neighbours, which may not be in memory.
#[test]
#[cfg_attr(miri, ignore = "takes long")]
fn a_removal_that_needs_no_load_is_known() {
    let device = filled();
    let (store, tree) = open(&device, 1 << 20);
    let loads = || store.stats().page_loads;
    let (mut ready, mut not_ready) = ((0, 0), (0, 0));
    for i in 0..KEYS {
        let key = (i * 1_009 % KEYS).to_be_bytes();
        tree.get(&key, |_| true).unwrap();
        let (is_ready, before) = (tree.is_in_memory_to_remove(&key), loads());
        tree.modify(&key, |_| (Change::Remove, ())).unwrap();
        let count = if is_ready { &mut ready } else { &mut not_ready };
        *count = (count.0 + 1, count.1 + loads() - before);
    }
    assert!(tree.is_empty().unwrap());
    // A leaf that is small after a merge may be merged again.
    assert!(ready.0 > KEYS / 2 && ready.1 < 50, "{ready:?}");
    assert!(not_ready.0 > 50 && not_ready.1 > 50, "{not_ready:?}");
}

/// In a pool so small that pages are loaded and evicted.
#[test]
fn prefetched_pages_are_the_newest_state() {
    no_key_goes_back::<10>(1 << 20, |tree, keys| prefetch(tree, keys));
}
