//! Readers alongside a writer: what they show and pin, and how they refresh.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid::{
    Bytes, Compression, Database, Durability, Error, Protocol, Readable, Table, TableOptions,
};
use braid_io::{
    Announcement, Device, MemoryDevice, ReaderGuard, ReaderNeeds, ReaderTable, SimDevice,
};
use braid_store::Store;

fn builder() -> braid::Builder {
    Database::builder()
        .pool_bytes(1 << 20)
        .segment_bytes(128 << 10)
        .background_threads(false)
}

type Contents = BTreeMap<u32, Vec<u8>>;

fn contents(db: &Database) -> Contents {
    let Some(table) = db.existing_table::<u32, Bytes>("t").unwrap() else {
        return BTreeMap::new();
    };
    let snapshot = db.snapshot();
    let all = snapshot.iter(&table).unwrap();
    all.map(|entry| entry.map(|(key, value)| (key, value.to_vec())).unwrap())
        .collect()
}

fn put(db: &Database, key: u32, len: usize) {
    let table: Table<u32, Bytes> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&table, &key, &vec![key as u8; len]))
        .unwrap();
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// `gsn` acknowledges a transaction by its lane, while those of other lanes lie in buffers.
#[test]
fn a_reader_shows_what_a_lane_has_acknowledged() {
    for background in [true, false] {
        let device = Arc::new(MemoryDevice::new());
        let writer = builder()
            .protocol(Protocol::Gsn)
            .strands(8)
            .lanes(4)
            .background_threads(background)
            .open_on(device.clone())
            .unwrap();
        let table: Table<u32, u32> = writer.open_table("t").unwrap();
        let mut reader = builder().open_read_only_on(device).unwrap();
        let elsewhere: Table<u32, u32> = reader.open_table("t").unwrap();
        let mut shown = Vec::new();
        // While all of these threads exist, they have different numbers, and so do many strands.
        let threads = 8;
        let turn = std::sync::Barrier::new(threads as usize + 1);
        std::thread::scope(|scope| {
            for key in 0..threads {
                let (writer, table, turn) = (&writer, &table, &turn);
                scope.spawn(move || {
                    for of in 0..threads {
                        turn.wait();
                        let mut tx = writer.begin();
                        tx.set_durability(Durability::None);
                        tx.insert(table, &key, &of).unwrap();
                        tx.commit().unwrap();
                        turn.wait();
                        if of == key {
                            let waited = writer.transact(|tx| tx.insert(table, &(100 + key), &0));
                            waited.unwrap();
                        }
                        turn.wait();
                    }
                });
            }
            for key in 0..threads {
                for _ in 0..3 {
                    turn.wait();
                }
                // No panic here, while the threads wait for each other.
                let refreshed = reader.refresh();
                let found = reader.snapshot().get(&elsewhere, &(100 + key));
                shown.push(refreshed.and(found));
            }
        });
        let is_shown = |found: &braid::Result<_>| matches!(found, Ok(Some(0)));
        assert!(
            shown.iter().all(is_shown),
            "background threads: {background}: {shown:?}"
        );
    }
}

#[test]
fn a_reader_moves_to_the_acknowledged_state_and_its_snapshots_stay() {
    for protocol in Protocol::ALL {
        let device = Arc::new(MemoryDevice::new());
        let writer = builder()
            .protocol(*protocol)
            .open_on(device.clone())
            .unwrap();
        put(&writer, 1, 100);
        let mut reader = builder().open_read_only_on(device.clone()).unwrap();
        assert_eq!(contents(&reader).len(), 1, "{protocol}");
        assert!(!reader.refresh().unwrap(), "{protocol}: nothing happened");
        let before = reader.snapshot();
        let table: Table<u32, Bytes> = reader.open_table("t").unwrap();
        for round in 0..6 {
            for key in 0..20 {
                put(&writer, 100 * round + key, 3_000);
            }
            if round % 2 == 1 {
                writer.checkpoint().unwrap();
            }
            let clone = reader.clone();
            let old = contents(&clone);
            assert!(reader.refresh().unwrap(), "{protocol}");
            writer.sync().unwrap();
            assert_eq!(contents(&reader), contents(&writer), "{protocol}");
            assert_eq!(contents(&clone), old, "{protocol}: a clone moves by itself");
        }
        assert_eq!(before.iter(&table).unwrap().count(), 1, "{protocol}");
        // A transaction without writes makes no newer state.
        writer.checkpoint().unwrap();
        assert!(!reader.refresh().unwrap(), "{protocol}");
        drop(writer);
        assert!(!reader.refresh().unwrap(), "{protocol}: it only closed");
        let writer = builder().open_on(device).unwrap();
        put(&writer, 7_000, 10);
        assert!(reader.refresh().unwrap());
        assert_eq!(contents(&reader), contents(&writer), "{protocol}");
        assert_eq!(before.iter(&table).unwrap().count(), 1, "{protocol}");
        reader.close().unwrap();
    }
}

/// Both combinations: an older handle with a newer state, and a newer handle with an older one.
#[test]
fn handles_of_tables_work_in_every_state_of_their_database() {
    let device = Arc::new(MemoryDevice::new());
    let writer = builder().open_on(device.clone()).unwrap();
    let options = TableOptions {
        compression: Compression::Lz4,
        ..TableOptions::default()
    };
    let written: Table<u32, String> = writer.open_table_with("t", options).unwrap();
    let put = |key: u32| {
        writer
            .transact(|tx| tx.insert(&written, &key, &key.to_string().repeat(100)))
            .unwrap();
    };
    put(1);
    let mut reader = builder().open_read_only_on(device.clone()).unwrap();
    let old: Table<u32, String> = reader.existing_table("t").unwrap().unwrap();
    let (state, before, open) = (reader.clone(), reader.snapshot(), reader.begin());
    put(2);
    assert!(reader.refresh().unwrap());
    let new: Table<u32, String> = reader.existing_table("t").unwrap().unwrap();
    let (tx, snapshot) = (reader.begin(), reader.snapshot());
    for table in [&old, &new] {
        let two = Some("2".repeat(100));
        assert_eq!(reader.get(table, &2).unwrap(), two);
        assert_eq!(snapshot.get(table, &2).unwrap(), two);
        assert_eq!(tx.get(table, &2).unwrap(), two);
        assert_eq!(tx.range(table, ..).unwrap().count(), 2);
        let len = |bytes: Option<&[u8]>| bytes.map(<[u8]>::len);
        assert_eq!(reader.get_with(table, &2, len).unwrap(), Some(100));
        assert_eq!(snapshot.get_with(table, &2, len).unwrap(), Some(100));
        assert_eq!(snapshot.get_many(table, &[2, 3]).unwrap(), [two, None]);
        assert_eq!(reader.estimate(table, ..).unwrap().entries, 2);

        assert_eq!(state.get(table, &2).unwrap(), None);
        assert_eq!(before.iter(table).unwrap().count(), 1);
        assert_eq!(before.get(table, &2).unwrap(), None);
        assert_eq!(open.get(table, &2).unwrap(), None);
        assert_eq!(open.prefix(table, &2).unwrap().count(), 0);
    }
    tx.commit().unwrap();

    // The table's number identifies it, not its name.
    writer.rename_table("t", "other").unwrap();
    let namesake: Table<u32, String> = writer.open_table("t").unwrap();
    writer
        .transact(|tx| tx.insert(&namesake, &9, &"9".to_owned()))
        .unwrap();
    assert!(reader.refresh().unwrap());
    assert_eq!(reader.get(&old, &9).unwrap(), None);
    assert!(reader.get(&old, &1).unwrap().is_some());
    let namesake: Table<u32, String> = reader.existing_table("t").unwrap().unwrap();
    assert_eq!(reader.get(&namesake, &9).unwrap(), Some("9".to_owned()));

    // A table that does not exist yet, or no longer, is not found.
    let missing = |error: Error| matches!(error, Error::TableDropped { name } if name == "t");
    assert!(before.get(&namesake, &9).is_err_and(missing));
    assert!(before.iter(&namesake).is_err_and(missing));
    writer.drop_table("other").unwrap();
    assert!(reader.refresh().unwrap());
    assert!(reader.get(&old, &1).is_err_and(missing));
    assert!(before.get(&old, &1).unwrap().is_some());

    // Handles of other databases are refused, even if opened from the same files.
    let foreign = |error: Error| matches!(error, Error::ForeignTable { name } if name == "t");
    let other = builder().open_read_only_on(device.clone()).unwrap();
    assert!(other.get(&namesake, &9).is_err_and(foreign));
    assert!(writer.get(&namesake, &9).is_err_and(foreign));
    reader.clone().close().unwrap();
    for table in [&old, &namesake] {
        let closed = reader.get(table, &1);
        assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    }
}

/// Each reader reads pages that were replaced several times since.
#[test]
fn a_readers_pins_outlive_checkpoints_and_writers() {
    let device = Arc::new(MemoryDevice::new());
    let open = || builder().open_on(device.clone()).unwrap();
    let mut writer = open();
    let table: Table<u32, Bytes> = writer.open_table("t").unwrap();
    let fill = |writer: &Database, table: &Table<u32, Bytes>, len: usize| {
        writer
            .transact(|tx| (0..300).try_for_each(|i| tx.insert(table, &i, &vec![len as u8; len])))
            .unwrap();
        writer.checkpoint().unwrap();
    };
    fill(&writer, &table, 1_000);
    let state = contents(&writer);
    let mut readers: Vec<Database> = (0..9)
        .map(|_| builder().open_read_only_on(device.clone()).unwrap())
        .collect();
    drop(table);
    for round in 0..9 {
        if round % 4 == 3 {
            drop(writer);
            writer = open();
        }
        let table = writer.open_table("t").unwrap();
        fill(&writer, &table, 900 + round);
        fill(&writer, &table, 901 + round);
        let reader = readers.pop().unwrap();
        assert!(contents(&reader) == state, "round {round}");
        reader.close().unwrap();
    }
    let used = |writer: &Database| {
        let stats = writer.stats().store;
        stats.file_bytes - stats.file_free_bytes
    };
    let long = used(&writer);
    for _ in 0..3 {
        put(&writer, 0, 10);
        writer.checkpoint().unwrap();
    }
    let short = used(&writer);
    assert!(
        short * 3 < long * 2,
        "{short} {long}: nothing is pinned any more"
    );
}

#[test]
fn undurable_transactions_are_not_shown() {
    let device = Arc::new(SimDevice::new(5));
    let writer = builder().open_on(device.clone()).unwrap();
    put(&writer, 1, 10);
    let table: Table<u32, Bytes> = writer.open_table("t").unwrap();
    let mut reader = builder().open_read_only_on(device.clone()).unwrap();
    let mut tx = writer.begin();
    tx.insert(&table, &2, &vec![2; 3_000][..]).unwrap();
    let ticket = tx.commit_async().unwrap();
    assert!(!reader.refresh().unwrap());
    assert_eq!(contents(&reader).len(), 1);
    ticket.wait().unwrap();
    assert!(reader.refresh().unwrap());
    assert_eq!(contents(&reader).len(), 2);
}

/// A backup by a reader is complete, and no incremental backup builds on it: its checkpoint numbers
/// would not show what changed.
#[test]
fn a_reader_makes_backups_next_to_the_writer() {
    let device = Arc::new(MemoryDevice::new());
    let writer = builder().open_on(device.clone()).unwrap();
    (0..50).for_each(|i| put(&writer, i, 2_000));
    let mut reader = builder().open_read_only_on(device).unwrap();
    put(&writer, 90, 20);
    let dir = tempfile::tempdir().unwrap();
    let [old, new, incremental, restored] =
        ["old", "new", "incremental", "restored"].map(|name| dir.path().join(name));
    writer.backup(&old).unwrap();
    reader.refresh().unwrap();
    reader.backup(&new).unwrap();
    braid::backup::restore(&[&new], &restored).unwrap();
    assert_eq!(
        contents(&Database::open(&restored).unwrap()),
        contents(&writer)
    );
    for (db, parent) in [(&reader, &old), (&writer, &new)] {
        let backup = db.backup_options().incremental_from(parent);
        let refused = backup.to_path(&incremental);
        let Err(Error::Backup(error)) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            matches!(error, braid::backup::BackupError::MadeByReader),
            "{error}"
        );
    }
}

#[test]
fn a_reader_and_a_writer_of_a_directory_need_not_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = Database::builder().pool_bytes(1 << 20).open(&path).unwrap();
    put(&writer, 1, 100);
    let mut reader = Database::open_read_only(&path).unwrap();
    let mut second = Database::open_read_only(&path).unwrap();
    assert_eq!(contents(&reader), contents(&writer));
    let others = |name: &String| !name.starts_with("log-");
    for key in 0..40 {
        put(&writer, key, 1_000);
        assert!(reader.refresh().unwrap());
        assert_eq!(
            contents(&reader),
            contents(&writer),
            "acknowledged, so shown"
        );
    }
    let found: Vec<String> = names(&path).into_iter().filter(others).collect();
    assert_eq!(
        found,
        ["LOCK", "READERS", "data.braid"],
        "a reader makes no file"
    );
    assert!(second.refresh().unwrap());
    assert!(matches!(Database::open(&path), Err(Error::Locked { .. })));
    drop(writer);
    // A reader does not exclude writers, either.
    let writer = Database::open(&path).unwrap();
    put(&writer, 1_000, 5);
    assert!(reader.refresh().unwrap());
    assert_eq!(contents(&reader), contents(&writer));
    let report = braid::offline::verify(&path, &mut |damage| panic!("{damage}")).unwrap();
    assert_eq!(report.damages, 0);
    drop((reader, second));
    writer.close().unwrap();
}

#[test]
fn a_database_that_is_opened_for_a_check_is_read_at_its_rate() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = Database::builder().pool_bytes(1 << 20).open(&path).unwrap();
    (0..64).for_each(|key| put(&writer, key, 8_000));
    writer.checkpoint().unwrap();
    let begun = std::time::Instant::now();
    let verify = braid::offline::Verify::new().max_rate(4 << 20);
    let checked = verify.open(&path).unwrap();
    assert_eq!(contents(&checked), contents(&writer));
    // Half a megabyte, of which the last piece has no pause.
    assert!(begun.elapsed() >= std::time::Duration::from_secs(1) / 16);
    assert!(matches!(
        checked.transact(|tx| tx.insert(&checked.open_table::<u32, Bytes>("t")?, &1, &[1])),
        Err(Error::OpenedReadOnly)
    ));
}

/// While commits follow each other, flushes announce nothing.
#[test]
fn a_reader_next_to_a_busy_writer_shows_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = Database::builder().pool_bytes(1 << 20).open(&path).unwrap();
    let busy: Table<u32, u64> = writer.open_table("busy").unwrap();
    put(&writer, 0, 10);
    let mut reader = Database::open_read_only(&path).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            let mut commits = 0;
            while !is_over.load(Ordering::Relaxed) {
                commits += 1;
                writer
                    .transact(|tx| tx.insert(&busy, &0, &commits))
                    .unwrap();
            }
            commits
        });
        for key in 1..20 {
            put(&writer, key, 10);
            assert!(reader.refresh().unwrap());
            assert_eq!(contents(&reader).len(), key as usize + 1);
        }
        is_over.store(true, Ordering::Relaxed);
        let commits = commits.join().unwrap();
        reader.refresh().unwrap();
        let shown = reader.get(&reader.open_table::<u32, u64>("busy").unwrap(), &0);
        assert_eq!(shown.unwrap(), Some(commits));
    });
}

#[test]
fn changes_are_followed_next_to_the_writer() {
    for protocol in Protocol::ALL {
        let device = Arc::new(MemoryDevice::new());
        let writer = builder()
            .protocol(*protocol)
            .open_on(device.clone())
            .unwrap();
        put(&writer, 0, 10);
        let mut reader = builder().open_read_only_on(device.clone()).unwrap();
        let mut position = reader.position();
        let (mut expected, mut next) = (Vec::new(), 1);
        for round in 0..30 {
            for _ in 0..round % 7 {
                put(&writer, next, 2_000);
                expected.push(next);
                next += 1;
            }
            if round % 5 == 2 {
                writer.checkpoint().unwrap();
            }
            let mut changes = reader.changes(position).unwrap();
            for set in &mut changes {
                let key = <[u8; 4]>::try_from(&set.unwrap().changes[0].key[..]).unwrap();
                assert_eq!(u32::from_be_bytes(key), expected.remove(0), "{protocol}");
            }
            position = changes.position();
            reader.refresh().unwrap();
        }
        let last = reader.changes(position).unwrap().count();
        assert_eq!(last, expected.len(), "{protocol}");
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// A device that runs a hook when a reader is about to pin the newest checkpoint, or that has no
/// reader table.
#[derive(Clone)]
struct Staged {
    device: MemoryDevice,
    has_table: bool,
    before_pin: Arc<std::sync::Mutex<Option<Hook>>>,
    /// The checkpoint whose log a reader pins once the writer asks for pins of its pages.
    late_pin: Arc<std::sync::Mutex<Option<u64>>>,
    pins: Arc<std::sync::Mutex<Vec<Box<dyn ReaderGuard>>>>,
}

impl Staged {
    /// Creates an empty device, with a table of readers or without.
    fn new(has_table: bool) -> Self {
        Self {
            device: MemoryDevice::new(),
            has_table,
            before_pin: Arc::default(),
            late_pin: Arc::default(),
            pins: Arc::default(),
        }
    }
}

impl std::fmt::Debug for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Staged")
    }
}

impl Device for Staged {
    fn kind(&self) -> braid_io::DeviceKind {
        self.device.kind()
    }
    fn block_size(&self) -> usize {
        self.device.block_size()
    }
    fn allocate(&self, len: usize) -> braid_io::AlignedBuf {
        self.device.allocate(len)
    }
    fn open(
        &self,
        name: &str,
        mode: braid_io::OpenMode,
    ) -> std::io::Result<Arc<dyn braid_io::File>> {
        self.device.open(name, mode)
    }
    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.device.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.device.rename(from, to)
    }
    fn list(&self) -> std::io::Result<Vec<braid_io::Entry>> {
        self.device.list()
    }
    fn sync_directory(&self) -> std::io::Result<()> {
        self.device.sync_directory()
    }
    fn reader_table(&self, create: bool) -> std::io::Result<Option<Arc<dyn ReaderTable>>> {
        let table = self.device.reader_table(create)?.filter(|_| self.has_table);
        let staged = |table| Arc::new(StagedTable(table, self.clone())) as Arc<dyn ReaderTable>;
        Ok(table.map(staged))
    }
}

#[derive(Debug)]
struct StagedTable(Arc<dyn ReaderTable>, Staged);

impl ReaderTable for StagedTable {
    fn claim(&self) -> std::io::Result<Box<dyn ReaderGuard>> {
        self.0.claim()
    }
    fn is_claimed(&self) -> std::io::Result<bool> {
        self.0.is_claimed()
    }
    fn announce(&self, announcement: &Announcement) -> std::io::Result<()> {
        self.0.announce(announcement)
    }
    fn announcement(&self) -> std::io::Result<Option<Announcement>> {
        self.0.announcement()
    }
    fn pin(&self, checkpoint: u64, needs: ReaderNeeds) -> std::io::Result<Box<dyn ReaderGuard>> {
        let hook = self.1.before_pin.lock().unwrap().take();
        hook.into_iter().for_each(|hook| hook());
        self.0.pin(checkpoint, needs)
    }
    fn is_pinned(&self, range: std::ops::Range<u64>, needs: ReaderNeeds) -> std::io::Result<bool> {
        let mut late = self.1.late_pin.lock().unwrap();
        if needs == ReaderNeeds::Pages
            && let Some(checkpoint) = late.take_if(|late| range == (*late..*late + 1))
        {
            let pin = self.0.pin(checkpoint, ReaderNeeds::Log)?;
            self.1.pins.lock().unwrap().push(pin);
        }
        self.0.is_pinned(range, needs)
    }
}

/// The log after a checkpoint is kept for a reader that pinned it while the next one was written.
#[test]
fn log_is_kept_for_a_reader_that_comes_during_a_checkpoint() {
    let device = Staged::new(true);
    let writer = builder().open_on(Arc::new(device.clone())).unwrap();
    for pins in [true, false] {
        put(&writer, 1, 100);
        writer.checkpoint().unwrap();
        let position = writer.position();
        put(&writer, 2, 100);
        if pins {
            let newest = Store::newest_checkpoint(Arc::new(device.device.clone()));
            *device.late_pin.lock().unwrap() = Some(newest.unwrap());
        }
        writer.checkpoint().unwrap();
        put(&writer, 3, 100);
        writer.checkpoint().unwrap();
        assert_eq!(device.late_pin.lock().unwrap().take(), None);
        assert_eq!(writer.changes(position).is_ok(), pins);
        device.pins.lock().unwrap().clear();
        writer.checkpoint().unwrap();
    }
}

/// Between reading the superblock and pinning, further checkpoints free the blocks of the first
/// one.
#[test]
fn a_reader_that_pinned_too_late_looks_again() {
    let device = Staged::new(true);
    let writer = builder().open_on(Arc::new(device.clone())).unwrap();
    let fill = |writer: &Database, len: usize| {
        let table: Table<u32, Bytes> = writer.open_table("t").unwrap();
        writer
            .transact(|tx| (0..300).try_for_each(|i| tx.insert(&table, &i, &vec![len as u8; len])))
            .unwrap();
        writer.checkpoint().unwrap();
    };
    fill(&writer, 1_000);
    let late = writer.clone();
    *device.before_pin.lock().unwrap() = Some(Box::new(move || fill(&late, 1_001)));
    let reader = builder().open_read_only_on(Arc::new(device)).unwrap();
    let state = contents(&writer);
    for len in 1_002..1_006 {
        fill(&writer, len);
    }
    assert!(contents(&reader) == state);
}

#[test]
fn a_device_without_a_reader_table_has_one_opener() {
    let device = Arc::new(Staged::new(false));
    let writer = builder().open_on(device.clone()).unwrap();
    put(&writer, 1, 1);
    drop(writer);
    let mut reader = builder().open_read_only_on(device).unwrap();
    assert_eq!(contents(&reader).len(), 1);
    assert!(!reader.refresh().unwrap());
}
