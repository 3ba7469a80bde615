//! Backpressure: a commit that finds the log full waits for the checkpoint that frees it, and is
//! refused only if no checkpoint can.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use braid::device::{Device, MemoryDevice};
use braid::{
    Builder, Bytes, Database, Durability, Error, Readable, Result, Stats, Table, TransactionOptions,
};
use braid_io::{File, Layer, LayeredDevice, SimDevice};

const LIMIT: u64 = 8 << 20;

/// How the device treats a sync of the checkpoint thread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sync {
    Passes,
    Waits,
    Fails,
}

/// A device on which the checkpoint thread can be held, so that no checkpoint ends.
#[derive(Clone, Debug)]
struct Hold(Arc<(Mutex<Held>, Condvar)>);

#[derive(Debug)]
struct Held {
    sync: Sync,
    /// Whether the checkpoint thread waits.
    is_held: bool,
}

impl Hold {
    fn new() -> Self {
        let held = Held {
            sync: Sync::Passes,
            is_held: false,
        };
        Self(Arc::new((Mutex::new(held), Condvar::new())))
    }

    fn set(&self, sync: Sync) {
        self.0.0.lock().unwrap().sync = sync;
        self.0.1.notify_all();
    }

    /// Waits until the checkpoint thread waits.
    fn until_held(&self) {
        let state = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(state, |held| !held.is_held).unwrap());
    }
}

impl Layer for Hold {
    fn sync(&self, file: &dyn File) -> io::Result<()> {
        if thread::current().name() == Some("braid-checkpoint") {
            let mut held = self.0.0.lock().unwrap();
            held.is_held = held.sync == Sync::Waits;
            self.0.1.notify_all();
            held = self
                .0
                .1
                .wait_while(held, |held| held.sync == Sync::Waits)
                .unwrap();
            if held.sync == Sync::Fails {
                return Err(io::Error::other("the medium is broken"));
            }
        }
        file.sync()
    }
}

fn builder() -> Builder {
    Database::builder()
        .pool_bytes(16 << 20)
        .strands(1)
        .segment_bytes(1 << 20)
        .checkpoint_log_bytes(1 << 20)
        .max_log_bytes(LIMIT)
}

fn open(device: Arc<dyn Device>) -> (Database, Table<u64, Bytes>, Hold) {
    let hold = Hold::new();
    let device = LayeredDevice::over(device, hold.clone());
    let db = builder().open_on(Arc::new(device)).unwrap();
    let table = db.open_table("t").unwrap();
    (db, table, hold)
}

/// Waits until a commit waits for a checkpoint.
fn until_one_waits(db: &Database) {
    while db.stats().log.space_waits == 0 {
        thread::yield_now();
    }
}

/// Inserts rows until a commit fails.
fn fill(db: &Database, table: &Table<u64, Bytes>) -> Error {
    let insert = |key| db.transact(|tx| tx.insert(table, &key, &[1; 20_000]));
    (0..).find_map(|key| insert(key).err()).unwrap()
}

#[test]
fn commits_wait_for_the_checkpoint_that_frees_the_log() {
    const ROWS: u64 = 300;
    let medium = SimDevice::new(1);
    let (db, table, hold) = open(Arc::new(medium.clone()));
    hold.set(Sync::Waits);
    let write = |from: u64| -> Result<()> {
        for row in 0..ROWS {
            let mut tx = db.begin_with(TransactionOptions {
                durability: [Durability::Immediate, Durability::None][(row % 2) as usize],
                ..Default::default()
            });
            tx.insert(&table, &(from + row), &[1; 20_000])?;
            if row % 3 == 0 {
                tx.commit_async()?.wait()?;
            } else {
                tx.commit()?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| scope.spawn(move || write(writer * ROWS)))
            .collect();
        until_one_waits(&db);
        hold.set(Sync::Passes);
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
    });
    db.sync().unwrap();
    let log = db.stats().log;
    assert!(log.space_waits > 0 && log.delayed_commits >= log.space_waits);
    assert!(!log.delay_time.is_zero());
    assert!(log.used_bytes <= LIMIT && log.limit_bytes == LIMIT);
    let crashed = medium.after_crash();
    drop(db);
    let db = builder().open_on(Arc::new(crashed)).unwrap();
    let table: Table<u64, Bytes> = db.open_table("t").unwrap();
    let rows = db.snapshot().range(&table, ..).unwrap().count();
    assert_eq!(rows as u64, 4 * ROWS);
}

/// Holds the checkpoint, fills the log until a commit waits, and closes the database. Returns the
/// statistics before, and the error of the commit.
fn close_while_one_waits() -> (Stats, Error) {
    let (db, table, hold) = open(Arc::new(MemoryDevice::new()));
    hold.set(Sync::Waits);
    // The log fills up while a checkpoint is running.
    db.transact(|tx| tx.insert(&table, &0, &vec![1; 1_200_000]))
        .unwrap();
    hold.until_held();
    thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&db, &table));
        until_one_waits(&db);
        let stats = db.stats();
        let closer = scope.spawn(|| db.clone().close());
        // The checkpoint still does not end, nor can the database be closed.
        let error = writer.join().unwrap();
        hold.set(Sync::Passes);
        closer.join().unwrap().unwrap();
        (stats, error)
    })
}

#[test]
fn commits_slow_down_before_the_log_is_full() {
    let (stats, _) = close_while_one_waits();
    let log = stats.log;
    assert!(log.delayed_commits > log.space_waits, "{log:?}");
    let most = std::time::Duration::from_millis(1_000);
    assert!(
        !log.delay_time.is_zero() && log.delay_time < most,
        "{log:?}"
    );
}

#[test]
fn closing_ends_the_wait() {
    let (_, error) = close_while_one_waits();
    assert!(matches!(error, Error::Closed), "{error}");
}

#[test]
fn a_checkpoint_that_fails_ends_the_wait() {
    let (db, table, hold) = open(Arc::new(MemoryDevice::new()));
    hold.set(Sync::Waits);
    thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&db, &table));
        until_one_waits(&db);
        hold.set(Sync::Fails);
        let error = writer.join().unwrap();
        assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
        assert!(!error.to_string().contains("kept for"), "{error}");
    });
    assert!(db.stats().checkpoint_failing);
}

#[test]
fn a_transaction_larger_than_the_log_is_refused() {
    let (db, table, _) = open(Arc::new(MemoryDevice::new()));
    let large =
        db.transact(|tx| (0..12).try_for_each(|key| tx.insert(&table, &key, &vec![1; 1_000_000])));
    let error = large.unwrap_err();
    assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
    db.transact(|tx| tx.insert(&table, &1, &[1; 20_000]))
        .unwrap();
}

/// A transaction that takes most of the log waits until the log is nearly empty, and later commits
/// do not use up the room meanwhile.
#[test]
fn a_large_transaction_gets_its_turn() {
    let (db, table, _) = open(Arc::new(MemoryDevice::new()));
    let stop = AtomicBool::new(false);
    let writer = &|from: u64| -> Result<()> {
        let mut keys = (from..from + 100).cycle();
        while !stop.load(Ordering::Relaxed) {
            let key = keys.next().unwrap();
            db.transact(|tx| tx.insert(&table, &key, &[1; 20_000]))?;
        }
        Ok(())
    };
    let large = || -> Result<()> {
        (0..5).try_for_each(|_| {
            db.transact(|tx| {
                (0..2).try_for_each(|key| tx.insert(&table, &key, &vec![1; 1_000_000]))
            })
        })
    };
    thread::scope(|scope| {
        let writers = [1_000, 2_000].map(|from| scope.spawn(move || writer(from)));
        let done = large();
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap().unwrap());
    });
}

/// The archive keeps log that it lacks: a checkpoint cannot free that, so commits are refused.
#[test]
fn a_log_kept_for_the_archive_is_a_reason() {
    let medium = SimDevice::new(1);
    let db = builder()
        .archive_on(Arc::new(medium.clone()))
        .open_on(Arc::new(MemoryDevice::new()))
        .unwrap();
    let table = db.open_table("t").unwrap();
    medium.break_after(1);
    let Error::OutOfSpace { what } = fill(&db, &table) else {
        panic!("the log is full");
    };
    assert!(
        what.contains("kept for the archive, which ends at"),
        "{what}"
    );
    medium.repair();
    db.archive_now().unwrap();
    db.transact(|tx| tx.insert(&table, &1, &[2; 20_000]))
        .unwrap();
}

/// Without a snapshot, commits collect the versions that they replace, also those of large
/// transactions and without a thread that collects.
#[test]
fn versions_do_not_pile_up() {
    const ROWS: u64 = 20_000;
    let db = Database::builder().background_threads(false);
    let db = db.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table: Table<u64, u64> = db.open_table("t").unwrap();
    let mut most = 0;
    for round in 0..10 {
        db.transact(|tx| (0..ROWS).try_for_each(|key| tx.insert(&table, &key, &round).map(drop)))
            .unwrap();
        most = most.max(db.stats().old_versions);
    }
    assert!((most as u64) < 2 * ROWS, "{most}");
}
