//! Data files that end beyond a petabyte: pages are allocated there, checkpointed, read again and
//! moved back to the beginning.

use std::ops::Range;
use std::sync::Arc;

use braid_io::{Device, FileDevice, OpenMode};
use braid_store::{
    Change, DATA_FILE_BYTES_MAX, PAGE_SIZE, Store, StoreError, StoreOptions, WriterRoom,
};

use crate::sparse::SparseDevice;

const OPTIONS: StoreOptions = StoreOptions::of_pool(1 << 20);

/// The numbers of a file's blocks at which a narrower type, or a field of an older format, would
/// end.
const EDGES: [u64; 6] = [
    // 2^31 bytes, 2^31 sectors of 512 bytes.
    1 << 18,
    1 << 27,
    // 2^32 blocks, one of the older formats' bits, and a petabyte.
    1 << 32,
    1 << 36,
    1 << 37,
    // The end: 2 PiB.
    DATA_FILE_BYTES_MAX / PAGE_SIZE as u64,
];

fn put(store: &Store, keys: Range<u32>, version: u64) -> Result<(), StoreError> {
    let tree = store.tree(1)?;
    for key in keys {
        let value = [version as u8; 500];
        let put = Change::Put {
            version,
            value: &value,
        };
        tree.modify(&key.to_be_bytes(), |_| (put, ()))?;
    }
    Ok(())
}

fn checkpoint(store: &Store) -> Result<(), StoreError> {
    let mut checkpoint = store.begin_checkpoint(b"meta".to_vec())?;
    checkpoint.write(&|_| {})?;
    checkpoint.publish().map(drop)
}

/// Reads everything; all keys must have a version.
#[track_caller]
fn check(store: &Store, keys: Range<u32>, version: u64) {
    let tree = store.tree(1).unwrap();
    for key in keys {
        let found = tree.get(&key.to_be_bytes(), |_| true).unwrap().unwrap();
        assert_eq!(found.meta.version, version, "{key}");
        assert_eq!(found.value.unwrap()[..], [version as u8; 500]);
    }
    let report = store.verify(&mut |damage| panic!("{damage:?}")).unwrap();
    assert!(report.pages > 100, "{report:?}");
}

/// Makes the data file so long that it ends a few blocks before an edge, writes pages beyond its
/// end, and reads them after reopening.
fn cross(device: &Arc<dyn Device>, edge: u64) {
    // More pages than the pool has frames, so that pages are evicted, too.
    let keys = 0..3_000;
    let store = Store::create(device.clone(), OPTIONS).unwrap();
    put(&store, keys.clone(), 1).unwrap();
    checkpoint(&store).unwrap();
    drop(store);
    let file = device.open("data.braid", OpenMode::Existing).unwrap();
    let start = (edge - 100) * PAGE_SIZE as u64;
    file.set_len(start).unwrap();
    let (store, _) = Store::open(device.clone(), OPTIONS).unwrap();
    // As readers in other processes do, this keeps all blocks of the file from being used.
    let pin = store.pin_file().unwrap();
    put(&store, keys.clone(), 2).unwrap();
    checkpoint(&store).unwrap();
    put(&store, 0..300, 3).unwrap();
    checkpoint(&store).unwrap();
    assert!(store.stats().file_bytes > edge * PAGE_SIZE as u64);
    assert!(store.stats().evictions > 0);
    drop((pin, store));
    assert!(file.len().unwrap() > edge * PAGE_SIZE as u64);
    let (store, meta) = Store::open(device.clone(), OPTIONS).unwrap();
    assert_eq!(meta, b"meta");
    check(&store, 0..300, 3);
    check(&store, 300..3_000, 2);
    assert!(store.stats().file_free_bytes > start / 2);
}

#[test]
fn pages_lie_beyond_every_edge() {
    for edge in &EDGES[..5] {
        let device: Arc<dyn Device> = Arc::new(SparseDevice::default());
        cross(&device, *edge);
        let (store, _) = Store::open(device.clone(), OPTIONS).unwrap();
        let mut writer = WriterRoom::default();
        store.admit(&mut writer, (10, 1_000), || false).unwrap();
        store.release_room(&mut writer);
        // Checkpoints move the pages to the beginning, and cut the file off.
        for _ in 0..4 {
            checkpoint(&store).unwrap();
        }
        store.give_room_back();
        let len = store.stats().file_bytes;
        assert!(len < 40 << 20, "{len} bytes");
        check(&store, 300..3_000, 2);
        drop(store);
        let (store, _) = Store::open(device, OPTIONS).unwrap();
        check(&store, 0..300, 3);
    }
}

/// The file has no block beyond its greatest length: changes are refused before, and reads and
/// later checkpoints work.
#[test]
fn a_file_of_the_greatest_length_refuses_changes() {
    let device: Arc<dyn Device> = Arc::new(SparseDevice::default());
    let store = Store::create(device.clone(), OPTIONS).unwrap();
    put(&store, 0..3_000, 1).unwrap();
    checkpoint(&store).unwrap();
    drop(store);
    let file = device.open("data.braid", OpenMode::Existing).unwrap();
    file.set_len((EDGES[5] - 20) * PAGE_SIZE as u64).unwrap();
    let (store, _) = Store::open(device.clone(), OPTIONS).unwrap();
    let pin = store.pin_file().unwrap();
    let mut writer = WriterRoom::default();
    let refused = store.admit(&mut writer, (10, 1_000), || false);
    let expect = |error: StoreError| {
        assert!(matches!(error, StoreError::OutOfSpace { .. }), "{error}");
        assert!(error.to_string().contains("2 PiB"), "{error}");
    };
    expect(refused.unwrap_err());
    // A checkpoint of changes that were not admitted fails at the end, too.
    put(&store, 0..600, 2).unwrap();
    expect(checkpoint(&store).unwrap_err());
    assert!(store.stats().file_bytes <= DATA_FILE_BYTES_MAX);
    drop(pin);
    store.admit(&mut writer, (10, 1_000), || false).unwrap();
    checkpoint(&store).unwrap();
    put(&store, 0..3_000, 3).unwrap();
    checkpoint(&store).unwrap();
    drop(store);
    check(&Store::open(device, OPTIONS).unwrap().0, 0..3_000, 3);
}

/// A real file of a petabyte, on the first of some directories whose file system has files as long
/// as that (ext4 has not, XFS, ZFS and tmpfs have).
#[test]
#[cfg_attr(miri, ignore = "uses files")]
fn a_sparse_file_ends_beyond_a_petabyte() {
    let temporary = tempfile::tempdir().unwrap();
    let shared = tempfile::tempdir_in("/dev/shm").ok();
    for dir in [Some(&temporary), shared.as_ref()].into_iter().flatten() {
        let device: Arc<dyn Device> = Arc::new(FileDevice::new(dir.path()).unwrap());
        let probe = device.open("probe", OpenMode::CreateNew).unwrap();
        if probe.set_len(2 << 50).is_ok() {
            return cross(&device, 1 << 37);
        }
    }
    println!("no file system here has files of a petabyte");
}
