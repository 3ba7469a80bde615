//! A wall clock that jumps. Setting the clock must affect only the times that depend on it: when
//! entries expire, and to which point a time restores.
//!
//! [`set`] sets the time of day of this process, which has its own `clock_gettime`: the engine runs
//! on the system's clock, not on one from [`braid::Builder::clock`]. Time-outs by a wall clock
//! inside the kernel would not notice; the engine has none.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid::backup::{BackupError, Restore, Until};
use braid::device::{Device, MemoryDevice};
use braid::{Builder, Database, Durability, Error, Protocol, Readable, Table, TableOptions};

/// The time of day, in seconds since 1970.
static SECONDS: AtomicI64 = AtomicI64::new(DAY);

/// An arbitrary day.
const DAY: i64 = 1 << 30;
const YEAR: i64 = 31_536_000;

/// Longest wait of a test for any event.
const PATIENCE: Duration = Duration::from_secs(120);

/// Replaces the C library's function, and differs from it only in the time of day.
///
/// # Safety
/// `time` must be valid for writes.
// SAFETY: the function has the contract of the C function with this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> i32 {
    if clock == libc::CLOCK_REALTIME {
        let seconds = SECONDS.load(Ordering::Relaxed);
        // SAFETY: the caller guarantees it.
        unsafe {
            (*time).tv_sec = seconds;
            (*time).tv_nsec = 0;
        }
        return 0;
    }
    // SAFETY: the caller guarantees it.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as i32 }
}

fn set(seconds: i64) {
    SECONDS.store(seconds, Ordering::Relaxed);
}

/// Serializes the tests: each sets the clock of the process.
fn clock() -> MutexGuard<'static, ()> {
    static CLOCK: Mutex<()> = Mutex::new(());
    let clock = CLOCK
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    set(DAY);
    clock
}

/// Waits for an event that needs nothing but time.
#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} does not come");
        std::thread::yield_now();
    }
}

fn small() -> Builder {
    Database::builder()
        .pool_bytes(1 << 20)
        .segment_bytes(256 << 10)
}

fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds as u64)
}

#[test]
fn it_is_the_clock() {
    let _clock = clock();
    assert_eq!(SystemTime::now(), at(DAY));
    set(1);
    assert_eq!(SystemTime::now(), at(1));
    let began = Instant::now();
    wait_until("time", || began.elapsed() > Duration::ZERO);
}

/// Commits, flushes in the background, checkpoints, the archive and recovery, under every protocol.
#[test]
fn nothing_depends_on_its_order() {
    let _clock = clock();
    for &protocol in Protocol::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let builder = small()
            .protocol(protocol)
            .strands(2)
            .archive(path("archive"))
            .archive_interval(Duration::from_millis(1));
        let db = builder.clone().open(path("db")).unwrap();
        let table: Table<u64, u64> = db.open_table("t").unwrap();
        let number = db.backup(path("backup")).unwrap().seqno;
        // Each of these waits for a background thread, at a time that the clock never showed
        // before.
        for (key, jump) in [0, YEAR, -10 * YEAR, 20 * YEAR, 0].into_iter().enumerate() {
            set(DAY + jump);
            let mut tx = db.begin();
            tx.set_durability(Durability::Buffered(Duration::from_millis(5)));
            tx.insert(&table, &(key as u64), &0).unwrap();
            let committed = tx.commit().unwrap().seqno();
            wait_until("a flush", || db.durable_seqno() >= committed);
            wait_until("the archive", || {
                db.stats().archived.is_some_and(|n| n >= committed)
            });
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(protocol as u64);
                while !done.load(Ordering::Relaxed) {
                    set(rng.i64(0..2 * DAY));
                    std::thread::yield_now();
                }
            });
            let writers = [1, 2].map(|writer| {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    for i in 0..100 {
                        db.transact(|tx| tx.insert(table, &(writer << 32 | i), &i))
                            .unwrap();
                    }
                })
            });
            for _ in 0..3 {
                db.checkpoint().unwrap();
            }
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        let contents = |db: &Database| -> BTreeMap<u64, u64> {
            let table: Table<u64, u64> = db.open_table("t").unwrap();
            let snapshot = db.snapshot();
            snapshot.iter(&table).unwrap().map(Result::unwrap).collect()
        };
        let expected = contents(&db);
        assert_eq!(expected.len(), 205);
        db.archive_now().unwrap();
        drop((table, db));
        set(0);
        let db = builder.open(path("db")).unwrap();
        assert_eq!(contents(&db), expected, "{protocol}");
        let restore = Restore::new()
            .pool_bytes(1 << 20)
            .backup(path("backup"))
            .archive(path("archive"));
        let report = restore.run(path("restored")).unwrap();
        assert!(report.backup_seqno == number && report.transactions >= 205);
        let db = small().open(path("restored")).unwrap();
        assert_eq!(contents(&db), expected, "{protocol}, restored");
    }
}

/// Databases that are created at the same time have different identities.
#[test]
fn a_stopped_clock_makes_no_twins() {
    let _clock = clock();
    let open = || small().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let (one, other) = (open(), open());
    let dir = tempfile::tempdir().unwrap();
    let identity = |db: &Database, name: &str| {
        db.backup(dir.path().join(name)).unwrap();
        braid::backup::info(dir.path().join(name)).unwrap().identity
    };
    assert_ne!(identity(&one, "one"), identity(&other, "other"));
}

/// A clock that is wrong for a while ends entries early or late, but does not stop the sweep.
#[test]
fn entries_still_expire_after_the_clock_was_wrong() {
    let _clock = clock();
    let db = small().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let options = TableOptions {
        time_to_live: Some(Duration::from_secs(60)),
        ..TableOptions::default()
    };
    let table: Table<u8, u8> = db.open_table_with("t", options).unwrap();
    let put = |key| db.transact(|tx| tx.insert(&table, &key, &0)).unwrap();
    let get = |key| db.get(&table, &key).unwrap();
    put(1);
    set(DAY + 59);
    assert_eq!(get(1), Some(0));
    // The clock was set back: the entry lives longer.
    set(DAY - YEAR);
    assert_eq!(get(1), Some(0));
    // Far in the future, the entry has expired and is removed.
    set(DAY + 50 * YEAR);
    assert_eq!(get(1), None);
    wait_until("the sweep", || db.stats().expired == 1);
    put(2);
    // The clock is right again.
    set(DAY + 60);
    assert_eq!((get(1), get(2)), (None, Some(0)));
    put(3);
    set(DAY + 120);
    assert_eq!((get(2), get(3)), (Some(0), None));
    wait_until("the sweep after the clock was set back", || {
        db.stats().expired == 2
    });
    // An entry written with a future time ends at that time, or when it is overwritten.
    put(2);
    set(DAY + 180);
    assert_eq!(get(2), None);
}

/// Writes keys one after the other, archives each at its own time, and restores to times.
struct Archived {
    db: Database,
    archive: Arc<dyn Device>,
    backup: Vec<u8>,
    numbers: Vec<u64>,
}

impl Archived {
    fn new() -> Self {
        let archive: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let db = small()
            .background_threads(false)
            .archive_on(archive.clone())
            .open_on(Arc::new(MemoryDevice::new()))
            .unwrap();
        Self {
            db,
            archive,
            backup: Vec::new(),
            numbers: Vec::new(),
        }
    }

    fn put_at(&mut self, seconds: i64) {
        set(seconds);
        let table: Table<u64, u64> = self.db.open_table("t").unwrap();
        let mut tx = self.db.begin();
        tx.insert(&table, &(self.numbers.len() as u64), &0).unwrap();
        self.numbers.push(tx.commit().unwrap().seqno());
        self.db.archive_now().unwrap();
    }

    fn backup_at(&mut self, seconds: i64) {
        set(seconds);
        self.db.backup_to(&mut self.backup).unwrap();
    }

    /// Restores the database and returns the number of its keys.
    fn restore(&self, until: Until) -> Result<usize, Error> {
        let target = Arc::new(MemoryDevice::new());
        let restore = Restore::new()
            .pool_bytes(1 << 20)
            .stream(&self.backup[..])
            .archive_on(self.archive.clone());
        restore.until(until).run_on(target.clone())?;
        let db = small().open_on(target)?;
        let table: Table<u64, u64> = db.open_table("t")?;
        let snapshot = db.snapshot();
        let rows: Vec<(u64, u64)> = snapshot.iter(&table)?.collect::<Result<_, _>>()?;
        let keys = rows.iter().map(|(key, _)| *key);
        assert!(keys.eq(0..rows.len() as u64), "{rows:?}");
        Ok(rows.len())
    }

    fn restore_at(&self, seconds: i64) -> usize {
        self.restore(Until::Time(at(seconds))).unwrap()
    }

    /// Checks that a restore to an ambiguous time fails, and that both sequence numbers in the
    /// error work.
    #[track_caller]
    fn expect_twice(&self, seconds: i64, keys: (usize, usize)) {
        match self.restore(Until::Time(at(seconds))) {
            Err(Error::Backup(BackupError::ClockSetBack { earliest, latest })) => {
                assert_eq!(self.restore(Until::Seqno(earliest)).unwrap(), keys.0);
                assert_eq!(self.restore(Until::Seqno(latest)).unwrap(), keys.1);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A restore to such a time yields the state at that time or, if the clock passed the time more
/// than once, an error that says so.
#[test]
fn a_time_that_came_twice_is_not_guessed() {
    let _clock = clock();
    // The clock is far ahead for a while.
    let mut ahead = Archived::new();
    ahead.put_at(DAY);
    ahead.backup_at(DAY);
    for seconds in [10, 9 * YEAR, 20, 30] {
        ahead.put_at(DAY + seconds);
    }
    assert_eq!(ahead.restore_at(DAY + 5), 1);
    assert_eq!(ahead.restore_at(DAY + 15), 2);
    ahead.expect_twice(DAY + 25, (2, 4));
    ahead.expect_twice(DAY + YEAR, (2, 5));
    assert_eq!(ahead.restore_at(DAY + 10 * YEAR), 5);

    // The clock is far back for a while.
    let mut back = Archived::new();
    back.put_at(DAY);
    back.backup_at(DAY);
    for seconds in [10, -YEAR, 20, 30] {
        back.put_at(DAY + seconds);
    }
    let error = back.restore(Until::Time(at(DAY - 2 * YEAR))).unwrap_err();
    let is_reported = matches!(&error, Error::Backup(BackupError::OutOfReach { .. }));
    assert!(is_reported, "{error}");
    back.expect_twice(DAY + 5, (1, 3));
    assert_eq!(back.restore_at(DAY + 15), 3);
    assert_eq!(back.restore_at(DAY + 25), 4);
    assert_eq!(back.restore_at(DAY + 35), 5);
}

/// The clock's jumps before the backup do not matter.
#[test]
fn jumps_before_the_backup_are_forgotten() {
    let _clock = clock();
    let mut archived = Archived::new();
    archived.put_at(DAY + 9 * YEAR);
    archived.put_at(DAY - YEAR);
    archived.backup_at(DAY);
    archived.put_at(DAY + 10);
    archived.put_at(DAY + 20);
    assert_eq!(archived.restore_at(DAY + 5), 2);
    assert_eq!(archived.restore_at(DAY + 15), 3);
    assert_eq!(archived.restore_at(DAY + 25), 4);
}
