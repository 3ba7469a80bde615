//! Tests of writes by cache line.

use std::sync::Arc;

use braid_io::SimDevice;

use super::*;
use crate::{Change, Store, StoreOptions, StoreStats};

const KEYS: u32 = if cfg!(miri) { 100 } else { 3_000 };

const OPTIONS: StoreOptions = StoreOptions::of_pool(4 << 20);

fn pmem(seed: u64) -> SimDevice {
    let device = SimDevice::new(seed);
    device.set_block_size(LINE);
    device
}

fn put(store: &Store, keys: impl Iterator<Item = u32>, version: u64) {
    let tree = store.tree(7).unwrap();
    for key in keys {
        let value = [version as u8; 100];
        let put = Change::Put {
            version,
            value: &value,
        };
        tree.modify(&key.to_be_bytes(), |_| (put, ())).unwrap();
    }
}

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
}

/// A store with all keys in version 1, and a checkpoint.
fn filled(device: &SimDevice) -> Store {
    let store = Store::create(Arc::new(device.clone()), OPTIONS).unwrap();
    put(&store, 0..KEYS, 1);
    checkpoint(&store);
    store
}

/// The versions of all keys, and whether each value is that of its version.
fn versions(store: &Store) -> Vec<u64> {
    let tree = store.tree(7).unwrap();
    let version = |key: u32| {
        let found = tree.get(&key.to_be_bytes(), |_| true).unwrap().unwrap();
        let version = found.meta.version;
        assert_eq!(&found.value.unwrap()[..], [version as u8; 100]);
        version
    };
    (0..KEYS).map(version).collect()
}

/// Opens what the device has, which must be intact.
fn opened(device: &SimDevice) -> Store {
    let (store, _) = Store::open(Arc::new(device.clone()), OPTIONS).unwrap();
    store.verify(&mut |damage| panic!("{damage:?}")).unwrap();
    store
}

/// What was written between two statistics: blocks, blocks by line, lines, bytes.
fn written(before: &StoreStats, after: &StoreStats) -> [u64; 4] {
    [
        after.blocks_written - before.blocks_written,
        after.blocks_written_by_line - before.blocks_written_by_line,
        after.lines_written - before.lines_written,
        after.block_bytes_written - before.block_bytes_written,
    ]
}

#[test]
fn changes_are_whole_lines_up_to_a_limit() {
    let old = vec![0; PAGE_SIZE];
    let mut new = old.clone();
    assert_eq!(changes(&old, &new), Some(Vec::new()));
    for at in [0, 63, 64, 200, 8191] {
        new[at] = 1;
    }
    let parts = changes(&old, &new).unwrap();
    assert_eq!(parts, [0..128, 192..256, 8128..8192]);
    let mut copy = old.clone();
    for part in parts {
        copy[part.clone()].copy_from_slice(&new[part]);
    }
    assert!(copy == new);
    new[..LINES_MAX * LINE].fill(2);
    assert_eq!(changes(&old, &new), None);
    new[8191] = 0;
    assert_eq!(changes(&old, &new).map(|parts| parts.len()), Some(1));
}

/// The third checkpoint finds two blocks of each page, and writes what changed in two intervals.
#[test]
fn a_checkpoint_writes_the_lines_that_changed() {
    for by_line in [true, false] {
        let device = pmem(3);
        let store = filled(&device);
        store.write_lines(by_line);
        put(&store, (0..KEYS).step_by(20), 2);
        checkpoint(&store);
        let before = store.stats();
        put(&store, (0..KEYS).step_by(20), 3);
        checkpoint(&store);
        let [blocks, lines_of, lines, bytes] = written(&before, &store.stats());
        if by_line {
            assert!(
                lines_of > 0 && lines_of >= blocks - 1,
                "{lines_of} of {blocks}"
            );
            assert!(lines >= 2 * lines_of);
            assert!(bytes * 4 < blocks * PAGE_SIZE as u64, "{bytes} in {blocks}");
        } else {
            assert_eq!((lines_of, lines, bytes), (0, 0, blocks * PAGE_SIZE as u64));
        }
        let found = versions(&opened(&device));
        let right = |(key, version): (usize, &u64)| *version == if key % 20 == 0 { 3 } else { 1 };
        assert!(found.iter().enumerate().all(right));
        store.verify(&mut |damage| panic!("{damage:?}")).unwrap();
    }
}

#[test]
fn other_devices_are_written_whole() {
    let device = SimDevice::new(3);
    device.set_block_size(512);
    let store = filled(&device);
    for version in 2..5 {
        put(&store, (0..KEYS).step_by(20), version);
        checkpoint(&store);
    }
    let stats = store.stats();
    assert_eq!(stats.blocks_written_by_line, 0);
    let whole = stats.blocks_written * PAGE_SIZE as u64;
    assert_eq!(stats.block_bytes_written, whole);
}

/// A crash at each step of a checkpoint leaves the state of the previous one, or the new one.
#[test]
fn a_crash_leaves_one_of_two_checkpoints() {
    let (mut old, mut new) = (0, 0);
    for step in (1..if cfg!(miri) { 9 } else { 1_000 }).step_by(11) {
        let device = pmem(step);
        let store = filled(&device);
        for version in 2..4 {
            put(&store, (0..KEYS).step_by(20), version);
            checkpoint(&store);
        }
        put(&store, (7..KEYS).step_by(20), 4);
        device.crash_after(step);
        let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
        let published = checkpoint.write(&|_| {}).is_ok() && checkpoint.publish().is_ok();
        device.power_off();
        let found = versions(&opened(&device.after_crash()));
        let is_new = found[7] == 4;
        assert!(is_new || !published, "step {step}");
        (old, new) = (old + u32::from(!is_new), new + u32::from(is_new));
        for (key, version) in found.iter().enumerate() {
            let right = match key % 20 {
                0 => 3,
                7 if is_new => 4,
                _ => 1,
            };
            assert_eq!(*version, right, "key {key}, step {step}");
        }
    }
    assert!(cfg!(miri) || (old > 20 && new > 3), "{old} and {new}");
}

/// A killed process leaves bytes that a loss of power takes: a later process writes them again.
#[test]
fn bytes_of_a_killed_process_are_not_relied_on() {
    for seed in 0..if cfg!(miri) { 2 } else { 20 } {
        let device = pmem(seed);
        filled(&device);
        // Both processes write the same images to the same blocks.
        let change = |device: &SimDevice| {
            let (store, _) = Store::open(Arc::new(device.clone()), OPTIONS).unwrap();
            put(&store, (0..KEYS).step_by(20), 2);
            let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
            checkpoint.write(&|_| {}).unwrap();
            (store, checkpoint)
        };
        let unpublished = change(&device);
        device.kill();
        drop(unpublished);
        let device = device.after_kill();
        device.set_block_size(LINE);
        let (store, checkpoint) = change(&device);
        checkpoint.publish().unwrap();
        let stats = store.stats();
        assert!(stats.blocks_written > 10 && stats.blocks_written_by_line == 0);
        device.power_off();
        let found = versions(&opened(&device.after_crash()));
        assert_eq!((found[0], found[1], found[20]), (2, 1, 2), "seed {seed}");
    }
}

/// On a full medium, pages take the spares of other pages.
#[test]
fn spares_are_free_blocks() {
    let device = pmem(5);
    let store = filled(&device);
    put(&store, (0..KEYS / 2).step_by(20), 2);
    checkpoint(&store);
    let spares = store.inner.pool.file.space.lock().spare_blocks();
    assert!(spares > 0);
    device.set_capacity(Some(device.used()));
    put(&store, (KEYS / 2..KEYS).step_by(160), 3);
    checkpoint(&store);
    let found = versions(&opened(&device));
    assert_eq!((found[0], found[KEYS as usize / 2]), (2, 3));
}

#[test]
fn removed_pages_leave_no_spares() {
    let device = pmem(6);
    let store = filled(&device);
    for version in 2..4 {
        put(&store, (0..KEYS).step_by(20), version);
        checkpoint(&store);
    }
    let spares = || store.inner.pool.file.space.lock().spare_blocks();
    let before = spares();
    store.drop_tree(7).unwrap();
    checkpoint(&store);
    checkpoint(&store);
    // The map and the root.
    assert!(before > 4 && spares() <= 2, "{} of {before}", spares());
    store.verify(&mut |damage| panic!("{damage:?}")).unwrap();
}

/// A pinned checkpoint keeps its blocks, whatever they contained for the page before.
#[test]
fn a_pinned_checkpoint_stays_as_it_is() {
    let device = pmem(7);
    let store = filled(&device);
    put(&store, (0..KEYS).step_by(20), 2);
    checkpoint(&store);
    let pinned = store.pin_checkpoint();
    let existing = pinned.entries().iter().enumerate();
    let ids: Vec<u64> = existing
        .filter_map(|(id, entry)| (*entry != 0).then_some(id as u64))
        .collect();
    let read = || {
        let mut pages: Vec<_> = ids.iter().map(|&id| (id, pinned.buffer())).collect();
        pinned.read(&mut pages).unwrap();
        let bytes = pages.iter().map(|(_, page)| page.to_vec());
        bytes.collect::<Vec<_>>()
    };
    let before = read();
    for version in 3..7 {
        put(&store, (0..KEYS).step_by(20), version);
        checkpoint(&store);
    }
    assert!(read() == before);
    drop(pinned);
    put(&store, (0..KEYS).step_by(20), 7);
    checkpoint(&store);
    store.verify(&mut |damage| panic!("{damage:?}")).unwrap();
}

/// A spare that cannot be read is written whole.
#[test]
fn a_write_needs_no_read() {
    let device = pmem(8);
    let store = filled(&device);
    for version in 2..4 {
        put(&store, (0..KEYS).step_by(20), version);
        checkpoint(&store);
    }
    put(&store, (0..KEYS).step_by(20), 4);
    device.fail_reads_at_random(2);
    let before = store.stats();
    checkpoint(&store);
    device.repair();
    let [blocks, by_line, ..] = written(&before, &store.stats());
    assert!(0 < by_line && by_line < blocks);
    assert_eq!(versions(&opened(&device))[0], 4);
}

/// A file that shrinks keeps no spares.
#[test]
fn a_checkpoint_that_shrinks_the_file_releases_spares() {
    let device = pmem(9);
    let store = filled(&device);
    for version in 2..4 {
        put(&store, (0..KEYS).step_by(20), version);
        checkpoint(&store);
    }
    let before = store.stats();
    for _ in 0..3 {
        let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
        checkpoint.shrink();
        checkpoint.write(&|_| {}).unwrap();
        checkpoint.publish().unwrap();
    }
    let after = store.stats();
    let used = before.file_bytes - before.file_free_bytes;
    assert!(before.file_free_bytes > used / 2);
    assert!(after.file_free_bytes < used / 4);
    let file = &store.inner.pool.file;
    assert_eq!(file.space.lock().spare_blocks(), 0);
}
