//! Media that fail in unusual ways: writes that arrive although they failed, a sync without space.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Bound, Range};
use std::sync::Arc;

use braid_io::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, SimDevice, WriteOp};
use braid_rt::Mutex;
use braid_store::{Change, Direction, PAGE_SIZE, Store, StoreError, StoreOptions, Tree};
use bytes::Bytes;

/// The smallest allowed pool.
const SMALL_POOL: StoreOptions = StoreOptions::of_pool(512 << 10);

/// The faults that [`FaultyDevice`] injects.
#[derive(Default)]
struct Plan {
    /// The next durable write arrives in the volatile cache and then fails.
    fail_durable_write: bool,
    /// The error of the next sync.
    fail_sync: Option<io::ErrorKind>,
    /// The device has no room beyond the written data.
    refuse_room: bool,
    /// Called before every write of several pages.
    before_batch: Option<Box<dyn FnMut() + Send>>,
}

/// A device in front of another, with faults.
#[derive(Clone)]
struct FaultyDevice {
    inner: SimDevice,
    plan: Arc<Mutex<Plan>>,
}

impl std::fmt::Debug for FaultyDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyDevice")
    }
}

impl FaultyDevice {
    fn new(seed: u64) -> Self {
        Self::over(SimDevice::new(seed))
    }

    fn over(inner: SimDevice) -> Self {
        Self {
            inner,
            plan: Arc::default(),
        }
    }

    fn call_hook(&self) {
        let hook = self.plan.lock().before_batch.take();
        if let Some(mut hook) = hook {
            hook();
            self.plan.lock().before_batch = Some(hook);
        }
    }
}

impl Device for FaultyDevice {
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn block_size(&self) -> usize {
        self.inner.block_size()
    }
    fn allocate(&self, len: usize) -> AlignedBuf {
        self.inner.allocate(len)
    }
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(FaultyFile {
            inner: self.inner.open(name, mode)?,
            device: self.clone(),
        }))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.inner.list()
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.inner.sync_directory()
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn File>,
    device: FaultyDevice,
}

impl File for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn reserve(&self, len: u64) -> io::Result<()> {
        if self.device.plan.lock().refuse_room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.reserve(len)
    }
    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.fill_zero(range)
    }
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.punch_hole(range)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        if bufs.iter().map(|buf| buf.len()).sum::<usize>() > PAGE_SIZE {
            self.device.call_hook();
        }
        self.inner.write_at(bufs, offset)
    }
    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        if std::mem::take(&mut self.device.plan.lock().fail_durable_write) {
            self.inner.write_at(bufs, offset)?;
            return Err(io::Error::other("the flush failed"));
        }
        self.inner.write_durable_at(bufs, offset)
    }
    fn sync(&self) -> io::Result<()> {
        match self.device.plan.lock().fail_sync.take() {
            Some(kind) => Err(kind.into()),
            None => self.inner.sync(),
        }
    }
    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        self.device.call_hook();
        self.inner.write_batch(ops)
    }
}

fn fill(tree: &Tree, keys: Range<u32>, version: u64) {
    for key in keys {
        let value = vec![version as u8; 900];
        tree.modify(&key.to_be_bytes(), |_| {
            (
                Change::Put {
                    version,
                    value: &value,
                },
                (),
            )
        })
        .unwrap();
    }
}

fn checkpoint(store: &Store, meta: &str) -> Result<(), StoreError> {
    let mut checkpoint = store.begin_checkpoint(meta.into())?;
    checkpoint.write(&|_| {})?;
    checkpoint.publish().map(drop)
}

/// Opens the store and checks everything. Returns the checkpoint's name.
fn opened(device: &FaultyDevice) -> (Store, String) {
    let (store, meta) = Store::open(Arc::new(device.clone()), SMALL_POOL).unwrap();
    let mut found = Vec::new();
    store.verify(&mut |damage| found.push(damage.what)).unwrap();
    assert_eq!(found, [""; 0]);
    (store, String::from_utf8(meta).unwrap())
}

/// The versions of all records.
fn versions(tree: &Tree) -> Vec<u64> {
    let mut versions = Vec::new();
    let (mut from, mut position) = (Bound::Unbounded, None);
    loop {
        let lower = from.as_ref().map(|key: &Bytes| &key[..]);
        let leaf = tree
            .scan_leaf(
                position,
                lower,
                Bound::Unbounded,
                Direction::Forward,
                usize::MAX,
            )
            .unwrap();
        versions.extend(leaf.records().map(|record| record.meta.version));
        match leaf.next {
            Some(next) => (from, position) = (next, leaf.position),
            None => return versions,
        }
    }
}

/// A superblock whose write failed may nevertheless be on the medium. The blocks that it refers to
/// must also be kept.
#[test]
fn a_superblock_that_arrives_although_its_write_failed_leads_to_a_whole_state() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..40 {
        let device = FaultyDevice::new(seed);
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        let tree = store.tree(1).unwrap();
        fill(&tree, 0..1_000, 1);
        checkpoint(&store, "old").unwrap();
        fill(&tree, 0..1_000, 2);
        device.plan.lock().fail_durable_write = true;
        checkpoint(&store, "new").unwrap_err();
        // Evictions continue, and must not reuse the blocks of either state.
        fill(&tree, 0..1_000, 3);
        let (store, meta) = opened(&FaultyDevice::over(device.inner.after_crash()));
        let expected = match &meta[..] {
            "old" => 1,
            "new" => 2,
            meta => panic!("{meta}"),
        };
        *if expected == 1 { &mut old } else { &mut new } += 1;
        assert_eq!(versions(&store.tree(1).unwrap()), [expected; 1_000]);
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

/// A process that ends between the superblock's write and its flush leaves it in the system's
/// cache. The next one must not reuse the other superblock's blocks before that is settled.
#[test]
fn a_superblock_that_was_never_flushed_is_made_durable_before_blocks_are_reused() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..40 {
        let device = FaultyDevice::new(seed);
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        fill(&store.tree(1).unwrap(), 0..1_000, 1);
        checkpoint(&store, "old").unwrap();
        fill(&store.tree(1).unwrap(), 0..1_000, 2);
        device.plan.lock().fail_durable_write = true;
        checkpoint(&store, "new").unwrap_err();
        drop(store);
        // The process ended here, not the power.
        let (store, meta) = opened(&device);
        assert_eq!(meta, "new");
        if seed % 2 == 0 {
            fill(&store.tree(1).unwrap(), 0..1_000, 3);
        }
        drop(store);
        let (store, meta) = opened(&FaultyDevice::over(device.inner.after_crash()));
        let expected = match &meta[..] {
            "old" => 1,
            "new" => 2,
            meta => panic!("{meta}"),
        };
        *if expected == 1 { &mut old } else { &mut new } += 1;
        assert_eq!(versions(&store.tree(1).unwrap()), [expected; 1_000]);
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

/// A file system that detects a lack of space only at the sync has dropped data, like any other
/// failed sync.
#[test]
fn a_sync_that_fails_for_space_ends_checkpoints_too() {
    for kind in [
        io::ErrorKind::StorageFull,
        io::ErrorKind::QuotaExceeded,
        io::ErrorKind::Other,
    ] {
        let device = FaultyDevice::new(1);
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        fill(&store.tree(1).unwrap(), 0..300, 1);
        checkpoint(&store, "old").unwrap();
        fill(&store.tree(1).unwrap(), 0..300, 2);
        device.plan.lock().fail_sync = Some(kind);
        checkpoint(&store, "new").unwrap_err();
        let error = checkpoint(&store, "newer").unwrap_err();
        assert!(
            matches!(error, StoreError::Poisoned { .. }),
            "{kind}: {error}"
        );
    }
}

/// A failed sync may have lost pages that were written before it and evicted since, and left older
/// versions in their blocks. No reader may accept these versions as the pages.
#[test]
fn pages_lost_by_a_failed_sync_are_not_read() {
    let (mut read, mut refused) = (0, 0);
    for seed in 0..6 {
        let device = FaultyDevice::new(seed);
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        let tree = store.tree(1).unwrap();
        for version in 1..4 {
            fill(&tree, 0..6_000, version);
            checkpoint(&store, "old").unwrap();
        }
        fill(&tree, 0..6_000, 4);
        device.inner.fail_sync_after(1);
        checkpoint(&store, "new").unwrap_err();
        let mut look = |key: u32| match tree.get(&key.to_be_bytes(), |_| false) {
            Ok(found) => {
                assert_eq!(found.map(|found| found.meta.version), Some(4));
                read += 1;
            }
            Err(StoreError::Poisoned { cause }) => {
                assert!(cause.contains("cannot sync data.braid"), "{cause}");
                refused += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        (0..6_000).for_each(&mut look);
        // Data written from here on is read back, although it is larger than the pool.
        let other = store.tree(2).unwrap();
        fill(&other, 0..6_000, 5);
        assert_eq!(versions(&other), [5; 6_000]);
        (0..6_000).rev().for_each(&mut look);
    }
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

/// The file is extended ahead of the writes; the outcome does not affect a checkpoint.
#[test]
fn room_ahead_is_given_back_and_not_needed() {
    for refuse_room in [false, true] {
        let device = FaultyDevice::new(1);
        device.plan.lock().refuse_room = refuse_room;
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        let mut lens = Vec::new();
        for version in 1..4 {
            fill(&store.tree(1).unwrap(), 0..3_000, version);
            checkpoint(&store, "done").unwrap();
            let file = device.open("data.braid", OpenMode::Existing).unwrap();
            lens.push(file.len().unwrap());
        }
        drop(store);
        let (store, meta) = opened(&device);
        assert_eq!(meta, "done");
        let tree = store.tree(1).unwrap();
        assert!(versions(&tree).iter().all(|version| *version == 3));
        // Two states at most, and no room.
        let used = store.stats().file_bytes;
        assert_eq!(lens.last(), Some(&used), "{lens:?}");
    }
}

/// Pages whose images are being written stay in memory; in a small pool, these must not be all
/// pages.
#[test]
fn pages_can_be_loaded_while_a_checkpoint_writes() {
    let device = FaultyDevice::new(1);
    let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
    let reader = store.tree(2).unwrap();
    fill(&reader, 0..2_000, 1);
    // New pages only, so that none of them is clean.
    fill(&store.tree(1).unwrap(), 0..2_000, 1);
    let found = Arc::new(Mutex::new(0));
    let count = found.clone();
    device.plan.lock().before_batch = Some(Box::new(move || {
        for key in (0..2_000u32).step_by(5) {
            reader.get(&key.to_be_bytes(), |_| true).unwrap();
            *count.lock() += 1;
        }
    }));
    checkpoint(&store, "").unwrap();
    device.plan.lock().before_batch = None;
    assert!(*found.lock() > 0);
}

/// Random changes to one tree, reads of another that evict pages, and the expected contents.
struct Churn {
    rng: fastrand::Rng,
    tree: Tree,
    other: Tree,
    /// Versions by key.
    model: BTreeMap<u32, u64>,
    version: u64,
    removals: u8,
}

impl Churn {
    fn change(&mut self) {
        self.version += 1;
        let key = self.rng.u32(..1_200);
        let len = match self.rng.u8(..) {
            0 => 9_000,
            _ => self.rng.usize(..900),
        };
        let value = vec![self.version as u8; len];
        let change = if self.rng.u8(..) < self.removals {
            self.model.remove(&key);
            Change::Remove
        } else {
            self.model.insert(key, self.version);
            Change::Put {
                version: self.version,
                value: &value,
            }
        };
        let key = key.to_be_bytes();
        self.tree.modify(&key, |_| (change, ())).unwrap();
    }

    fn evict(&mut self) {
        for _ in 0..self.rng.usize(..80) {
            let key = self.rng.u32(..400).to_be_bytes();
            self.other.get(&key, |_| false).unwrap();
        }
    }

    fn versions(&self) -> Vec<u64> {
        self.model.values().copied().collect()
    }
}

/// Changes, evictions, removals and new pages during every batch that a checkpoint writes: of
/// images, of copies, of its map. After every event while a page's image is in flight, the
/// checkpoint holds the page as of the epoch switch, the store holds its current state, and no
/// block is lost.
#[test]
fn changes_while_images_are_in_flight_stay_out_of_the_checkpoint() {
    for seed in 0..25 {
        let device = FaultyDevice::new(seed);
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        let churn = Arc::new(Mutex::new(Churn {
            rng: fastrand::Rng::with_seed(seed),
            tree: store.tree(1).unwrap(),
            other: store.tree(2).unwrap(),
            model: BTreeMap::new(),
            version: 0,
            removals: 0,
        }));
        fill(&churn.lock().other, 0..400, 1);
        for round in 0..8 {
            let at_switch = {
                let mut churn = churn.lock();
                // Occasionally most of the data is removed, so that pages move to the file's
                // beginning.
                churn.removals = if round % 4 >= 2 { 250 } else { 20 };
                (0..2_500).for_each(|_| churn.change());
                churn.versions()
            };
            let meta = format!("{seed}-{round}");
            let mut checkpoint = store.begin_checkpoint(meta.clone().into()).unwrap();
            let during = churn.clone();
            device.plan.lock().before_batch = Some(Box::new(move || {
                let mut churn = during.lock();
                let changes = churn.rng.usize(..60);
                (0..changes).for_each(|_| churn.change());
                churn.evict();
            }));
            checkpoint.write(&|_| {}).unwrap();
            checkpoint.publish().unwrap();
            device.plan.lock().before_batch = None;
            let churn = churn.lock();
            assert_eq!(
                versions(&churn.tree),
                churn.versions(),
                "seed {seed}, round {round}"
            );
            let (opened, opened_meta) = opened(&FaultyDevice::over(device.inner.after_crash()));
            assert_eq!(opened_meta, meta);
            assert_eq!(
                versions(&opened.tree(1).unwrap()),
                at_switch,
                "seed {seed}, round {round}"
            );
        }
        checkpoint(&store, "").unwrap();
        let mut found = Vec::new();
        store.verify(&mut |damage| found.push(damage.what)).unwrap();
        assert_eq!(found, [""; 0], "seed {seed}");
    }
}
