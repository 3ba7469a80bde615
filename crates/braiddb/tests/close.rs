//! After `close` has returned, the database does not access its files (I9): every remaining handle
//! fails with a typed error, whatever the operation, and another process can open the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use braid::changes::{Changes, Feed};
use braid::device::{Device, MemoryDevice};
use braid::{
    Builder, BulkLoader, Bytes, Database, Durability, Error, Protocol, Readable, Result, Snapshot,
    Table, Ticket, Transaction, TransactionOptions,
};
use braid_io::OpenMode;

/// Counts how often it was dropped.
struct Lock(Arc<AtomicU32>);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn builder() -> Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
}

/// Every file of a device and its bytes.
fn contents(device: &MemoryDevice) -> Vec<(String, Vec<u8>)> {
    let read = |entry: braid_io::Entry| {
        let mut bytes = device.allocate(entry.len as usize);
        let file = device.open(&entry.name, OpenMode::Existing).unwrap();
        file.read_at(&mut bytes[..entry.len as usize], 0).unwrap();
        (entry.name, bytes.to_vec())
    };
    device.list().unwrap().into_iter().map(read).collect()
}

/// One handle of each kind, as a program may hold them while another thread closes the database.
struct Handles {
    db: Database,
    t: Table<u64, Bytes>,
    small: Transaction,
    /// A transaction that acquires its locks at commit.
    large: Transaction,
    reader: Transaction,
    snapshot: Snapshot,
    named: Snapshot,
    loader: BulkLoader<u64, Bytes>,
    loaded: BulkLoader<u64, Bytes>,
    feed: Feed,
    changes: Changes,
    ticket: Ticket,
    lazy: Ticket,
}

const KEYS: u64 = 4_000;

impl Handles {
    fn of(db: Database) -> Self {
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        // More entries than fit into the pool.
        for from in (0..KEYS).step_by(500) {
            let write = |tx: &mut Transaction| {
                (from..from + 500).try_for_each(|key| tx.insert(&t, &key, &[1; 600]))
            };
            db.transact(write).unwrap();
        }
        let feed = db.feed("feed").unwrap();
        let insert = |tx: &mut Transaction, keys: std::ops::Range<u64>| {
            keys.into_iter()
                .for_each(|key| tx.insert(&t, &key, &b"new"[..]).unwrap());
        };
        let (mut small, mut large) = (db.begin(), db.begin());
        insert(&mut small, 0..3);
        insert(&mut large, 1_000..1_100);
        let reader = db.begin();
        reader.get(&t, &7).unwrap();
        let commit = |durability, key| {
            let mut tx = db.begin_with(TransactionOptions {
                durability,
                ..TransactionOptions::default()
            });
            tx.insert(&t, &key, &b"ticket"[..]).unwrap();
            tx.commit_async().unwrap()
        };
        let mut loader = db.bulk_load("loader").unwrap();
        let mut loaded = db.bulk_load("loaded").unwrap();
        for key in 0..2_000 {
            loader.insert(&key, &[2; 600]).unwrap();
            loaded.insert(&key, &[2; 600]).unwrap();
        }
        Self {
            small,
            large,
            reader,
            snapshot: db.snapshot(),
            named: db.create_snapshot("named").unwrap(),
            loader,
            loaded,
            changes: feed.changes().unwrap(),
            feed,
            ticket: commit(Durability::Immediate, KEYS),
            lazy: commit(Durability::None, KEYS + 1),
            t,
            db,
        }
    }

    /// Uses every handle after the database was closed.
    fn use_them(self) {
        fn closed<T>(what: &str, outcome: Result<T>) {
            let error = outcome.err().unwrap_or_else(|| panic!("{what} succeeds"));
            assert!(matches!(error, Error::Closed), "{what}: {error:?}");
        }
        let (db, t) = (&self.db.clone(), &self.t);
        closed("a read", db.get(t, &1));
        closed("a read in place", db.get_with(t, &1, |_| ()));
        closed("a table", db.open_table::<u64, Bytes>("t"));
        closed("a new table", db.open_table::<u64, Bytes>("new"));
        closed("the names", db.table_names());
        closed("a drop", db.drop_table("t"));
        closed("a name", db.rename_table("t", "u"));
        closed("a sync", db.sync());
        closed("a checkpoint", db.checkpoint());
        closed("compacting", db.compact());
        closed("removing", db.remove_expired());
        closed("a load", db.bulk_load::<u64, Bytes>("another"));
        closed("a feed", db.feed("another"));
        closed("a feed again", db.feed("feed"));
        closed("a feed's end", db.drop_feed("feed"));
        closed("changes", db.changes(db.oldest_position()));
        closed("a snapshot's name", db.create_snapshot("another"));
        closed("a named snapshot", db.open_snapshot("named"));
        closed("a backup", db.backup_to(&mut Vec::new()));
        closed(
            "a transaction",
            db.transact(|tx| tx.insert(t, &1, &b"x"[..])),
        );
        closed("an archive", db.archive_now());
        let late = db.snapshot();
        closed("a late snapshot", late.get(t, &1));
        closed("a snapshot", self.snapshot.get(t, &1));
        closed("a scan", self.snapshot.iter(t));
        closed("a range", self.named.range(t, 5..10));
        closed("keys at once", self.named.get_many(t, &[1, 2, 3]));
        let mut small = self.small;
        closed("a write", small.insert(t, &1, &b"late"[..]));
        closed("a transaction's read", small.get(t, &1));
        closed("a commit", small.commit());
        closed("a large commit", self.large.commit_async());
        closed("a reader's commit", self.reader.commit());
        let (mut loader, loaded) = (self.loader, self.loaded);
        closed("an entry", loader.insert(&u64::MAX, &b"late"[..]));
        drop(loader);
        closed("a load's end", loaded.finish());
        let (mut changes, position) = (self.changes, db.position());
        closed("a change", changes.next().unwrap());
        closed(
            "a wait for a change",
            changes.next_within(Duration::from_millis(1)),
        );
        closed("an acknowledgement", self.feed.acknowledge(position));
        closed("a feed's changes", self.feed.changes());
        // Everything that `close` waited for is durable.
        self.ticket.wait().unwrap();
        assert!(matches!(self.lazy.try_wait(), Some(Ok(_))));
        db.wait_durable(self.ticket.seqno()).unwrap();
        db.clone().close().unwrap();
        drop(self.db);
    }
}

/// Databases are opened on the same files one after the other, and each keeps its handles after
/// closing.
#[test]
fn no_handle_touches_the_files_after_close() {
    for background in [false, true] {
        let device = Arc::new(MemoryDevice::new());
        let open = || {
            let released = Arc::new(AtomicU32::new(0));
            let lock = Lock(released.clone());
            let builder = builder().background_threads(background);
            (
                builder.open_on_locked(device.clone(), lock).unwrap(),
                released,
            )
        };
        for round in 0..3 {
            let (db, released) = open();
            if round > 0 {
                let t: Table<u64, Bytes> = db.open_table("t").unwrap();
                assert_eq!(&db.get(&t, &KEYS).unwrap().unwrap()[..], b"ticket");
                assert_eq!(
                    db.get(&t, &1).unwrap().unwrap()[..],
                    [1; 600],
                    "round {round}"
                );
                assert_eq!(db.table_names().unwrap(), ["t"]);
            }
            let handles = Handles::of(db.clone());
            db.close().unwrap();
            assert_eq!(released.load(Ordering::SeqCst), 1);
            let before = contents(&device);
            // The next database works meanwhile, and is closed by its drop.
            let (next, its_lock) = open();
            handles.use_them();
            let t: Table<u64, Bytes> = next.open_table("t").unwrap();
            assert_eq!(next.snapshot().len(&t).unwrap(), KEYS + 2);
            drop((t, next));
            assert_eq!(its_lock.load(Ordering::SeqCst), 1);
            // With no database open, not a byte changes.
            let (db, _) = open();
            let handles = Handles::of(db.clone());
            db.close().unwrap();
            let closed = contents(&device);
            assert!(closed != before);
            handles.use_them();
            assert!(contents(&device) == closed, "a closed database has written");
        }
    }
}

/// A scan in progress ends with an error and evicts no page into the file.
#[test]
fn a_scan_that_outlives_close_fails() {
    let device = Arc::new(MemoryDevice::new());
    let db = builder().open_on(device.clone()).unwrap();
    let handles = Handles::of(db.clone());
    let (snapshot, reader) = (db.snapshot(), db.begin());
    let mut scan = snapshot.iter(&handles.t).unwrap();
    let mut back = reader.iter(&handles.t).unwrap();
    for _ in 0..100 {
        scan.next().unwrap().unwrap();
        back.next_back().unwrap().unwrap();
    }
    // Changed pages since the last checkpoint, which the pool must evict.
    db.close().unwrap();
    let closed = contents(&device);
    let ends_of = |results: &mut dyn Iterator<Item = Result<(u64, Bytes)>>| {
        let mut results = results.skip_while(|entry| entry.is_ok());
        assert!(matches!(results.next(), Some(Err(Error::Closed))));
        assert!(results.next().is_none());
    };
    ends_of(&mut scan);
    ends_of(&mut back.rev());
    assert!(contents(&device) == closed);
}

/// A poisoned database closes without a checkpoint and keeps changed pages in memory; closing
/// releases its files as well.
#[test]
fn a_failed_close_releases_the_files_for_good() {
    let device = braid_io::SimDevice::new(1);
    let released = Arc::new(AtomicU32::new(0));
    let lock = Lock(released.clone());
    let db = builder()
        .open_on_locked(Arc::new(device.clone()), lock)
        .unwrap();
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&t, &1, &b"kept"[..])).unwrap();
    device.fail_write_after(1);
    let failed = db.transact(|tx| tx.insert(&t, &2, &b"lost"[..]));
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
    let other = db.clone();
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })));
    assert_eq!(released.load(Ordering::SeqCst), 1);
    let steps = device.steps();
    assert!(
        other
            .transact(|tx| tx.insert(&t, &3, &b"late"[..]))
            .is_err()
    );
    assert!(other.checkpoint().is_err());
    drop((other, t));
    assert_eq!(device.steps(), steps);
    let db = builder().open_on(Arc::new(device)).unwrap();
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    assert_eq!(&db.get(&t, &1).unwrap().unwrap()[..], b"kept");
}

/// An open that fails at any step releases the lock before it returns.
#[test]
fn a_failed_opening_releases_the_files() {
    let device = braid_io::SimDevice::new(1);
    let open = |protocol, background| {
        let released = Arc::new(AtomicU32::new(0));
        let lock = Lock(released.clone());
        let builder = builder().protocol(protocol).background_threads(background);
        (
            builder.open_on_locked(Arc::new(device.clone()), lock),
            released,
        )
    };
    let mut failures = 0;
    for n in 1..200 {
        let background = n / 2 % 2 == 0;
        // An open rarely has more steps than this.
        let step = n / 3 % 16;
        match n % 3 {
            0 => device.fail_write_after(step),
            1 => device.fail_sync_after(step),
            _ => device.fail_read_after(step),
        }
        // An open with another protocol begins a log and writes a checkpoint.
        let protocol = [Protocol::Glsn, Protocol::Epoch][n as usize % 2];
        let (opened, released) = open(protocol, background);
        if opened.is_err() {
            failures += 1;
            assert_eq!(released.load(Ordering::SeqCst), 1, "attempt {n}");
            let steps = device.steps();
            device.repair();
            assert_eq!(device.steps(), steps);
        }
        drop(opened);
        device.repair();
        assert_eq!(released.load(Ordering::SeqCst), 1, "attempt {n}");
    }
    assert!(failures > 20, "{failures}");
    open(Protocol::Glsn, true).0.unwrap();
}

/// Closing removes the database's statistics, and its remaining handles do not change those of the
/// next one.
#[test]
fn the_statistics_file_is_the_openers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let open = || {
        Database::builder()
            .pool_bytes(1 << 20)
            .stats_file(true)
            .open(&path)
            .unwrap()
    };
    let stats = path.join("STATS");
    let old = open();
    old.open_table::<u64, Bytes>("t").unwrap();
    // A checkpoint publishes statistics.
    old.checkpoint().unwrap();
    assert!(stats.exists());
    let left = old.clone();
    old.close().unwrap();
    assert!(!stats.exists());
    let new = open();
    new.open_table::<u64, Bytes>("u").unwrap();
    new.checkpoint().unwrap();
    assert!(stats.exists());
    assert!(left.checkpoint().is_err());
    drop(left);
    assert!(stats.exists());
    assert!(matches!(Database::open(&path), Err(Error::Locked { .. })));
    drop(new);
    assert!(!stats.exists());
}
