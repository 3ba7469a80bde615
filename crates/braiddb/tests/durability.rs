//! What each durability level keeps after a power loss, and after a power loss of a device that
//! lies. (`crash.rs`, `protocols.rs` and `processes` test the strongest level.)

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use braid::{Builder, Bytes, Database, Durability, Error, LockRelease, Protocol, Readable, Table};
use braid_io::{
    AlignedBuf, Device, DeviceKind, Entry, File, Layer, LayeredDevice, OpenMode, ReaderTable,
    SimDevice,
};

fn builder(protocol: Protocol) -> Builder {
    let strands = protocol.forced_strands().unwrap_or(2);
    Database::builder()
        .background_threads(false)
        .protocol(protocol)
        .strands(strands)
        .pool_bytes(1 << 20)
        .segment_bytes(128 << 10)
}

fn open(protocol: Protocol, device: Arc<dyn Device>) -> Result<Database, Error> {
    builder(protocol).open_on(device)
}

/// Two records of one transaction.
fn keys(n: u64) -> [u64; 2] {
    [2 * n, 2 * n + 1]
}

fn write(
    db: &Database,
    t: &Table<u64, Bytes>,
    n: u64,
    durability: Durability,
) -> Result<(), Error> {
    let mut tx = db.begin();
    tx.set_durability(durability);
    for key in keys(n) {
        tx.insert(t, &key, &vec![n as u8; 100])?;
    }
    tx.commit().map(drop)
}

/// Returns the number of transactions: complete ones, from the first on, without a gap.
fn count(db: &Database, what: &str) -> u64 {
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    let snapshot = db.snapshot();
    let all: Vec<_> = snapshot.iter(&t).unwrap().map(Result::unwrap).collect();
    for (place, (key, value)) in all.iter().enumerate() {
        assert_eq!(*key, place as u64, "{what}: a gap");
        assert_eq!(value, &vec![(key / 2) as u8; 100], "{what}");
    }
    assert!(all.len().is_multiple_of(2), "{what}: half a transaction");
    all.len() as u64 / 2
}

/// A power loss may lose buffered transactions, but only the newest ones, as a whole, and none on
/// which a transaction acknowledged as durable depends.
#[test]
fn weaker_levels_lose_a_suffix_and_never_a_part() {
    let weak = [
        Durability::Buffered(Duration::from_secs(3600)),
        Durability::None,
    ];
    let (mut lost, mut kept) = (0, 0);
    for &protocol in Protocol::ALL {
        for seed in 0..12 {
            let what = format!("{protocol}, seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let device = SimDevice::new(seed);
            let db = open(protocol, Arc::new(device.clone())).unwrap();
            let t: Table<u64, Bytes> = db.open_table("t").unwrap();
            // Either the power fails, or only the process ends.
            let power = seed.is_multiple_of(2);
            if power {
                device.crash_after(rng.u64(1..30));
            }
            let (mut committed, mut durable) = (0, 0);
            while committed < 100 {
                let is_durable = rng.u32(..10) == 0;
                let level = if is_durable {
                    Durability::Immediate
                } else {
                    *rng.choice(&weak).unwrap()
                };
                if write(&db, &t, committed, level).is_err() {
                    break;
                }
                committed += 1;
                if is_durable {
                    durable = committed;
                }
                if rng.u32(..50) == 0 && db.sync().is_ok() {
                    durable = committed;
                }
            }
            let left = if power {
                device.after_crash()
            } else {
                device.after_kill()
            };
            drop(db);
            let db = open(protocol, Arc::new(left)).unwrap();
            let found = count(&db, &what);
            assert!(found >= durable, "{what}: {found}, {durable} were durable");
            // One more than was committed, if the last commit did not return.
            assert!(found <= committed + 1, "{what}");
            lost += committed.saturating_sub(found);
            kept += durable;
        }
    }
    assert!(lost > 50 && kept > 100, "{lost} lost, {kept} kept");
}

/// Snapshots and single reads show only durable transactions. A transaction sees the newest ones;
/// once it has committed, even without writes, everything that it read is durable.
#[test]
fn values_that_were_read_last() {
    for &protocol in Protocol::ALL {
        for seed in 0..4 {
            let device = SimDevice::new(seed);
            let db = open(protocol, Arc::new(device.clone())).unwrap();
            let t: Table<u64, Bytes> = db.open_table("t").unwrap();
            db.sync().unwrap();
            write(&db, &t, 0, Durability::None).unwrap();
            // If locks are held until the flush, the commit waits for it in any case.
            if protocol.lock_release() == LockRelease::Precommit {
                assert!(db.snapshot().get(&t, &0).unwrap().is_none(), "{protocol}");
                assert!(db.get(&t, &0).unwrap().is_none(), "{protocol}");
            }
            let tx = db.begin();
            assert!(tx.get(&t, &0).unwrap().is_some(), "{protocol}");
            if seed.is_multiple_of(2) {
                tx.commit().unwrap();
            } else {
                tx.commit_async().unwrap().wait().unwrap();
            }
            assert!(db.get(&t, &0).unwrap().is_some(), "{protocol}");
            let left = device.after_crash();
            drop(db);
            let db = open(protocol, Arc::new(left)).unwrap();
            assert_eq!(count(&db, "read"), 1, "{protocol}, seed {seed}");
        }
    }
}

/// How a transaction depends on another one, through record 1.
#[derive(Clone, Copy, Debug)]
enum Dependence {
    Reads,
    /// The other transaction removed the record.
    MissesIt,
    Locks,
    LocksNothing,
    Scans,
    Overwrites,
    InsertsAgain,
}

/// I3: an acknowledged transaction survives with those that it read from or overwrote, even if they
/// did not wait and are in another lane of the log.
#[test]
fn a_commit_lasts_with_all_that_it_depends_on() {
    use Dependence::*;
    let dependences = [
        Reads,
        MissesIt,
        Locks,
        LocksNothing,
        Scans,
        Overwrites,
        InsertsAgain,
    ];
    for &protocol in Protocol::ALL {
        for dependence in dependences {
            let what = format!("{protocol}, {dependence:?}");
            let device = SimDevice::new(0);
            let open = |device| {
                let lanes = protocol.forced_strands().unwrap_or(2);
                let builder = builder(protocol).lanes(lanes);
                let device = LayeredDevice::over(Arc::new(device), NoReaders);
                builder.open_on(Arc::new(device)).unwrap()
            };
            let db = open(device.clone());
            let t: Table<u64, u64> = db.open_table("t").unwrap();
            let removed = matches!(dependence, MissesIt | LocksNothing | InsertsAgain);
            if removed {
                db.transact(|tx| tx.insert(&t, &1, &0)).unwrap();
            }
            let mut first = db.begin();
            if removed {
                assert!(first.remove(&t, &1).unwrap(), "{what}");
            } else {
                first.insert(&t, &1, &1).unwrap();
            }
            first.insert(&t, &10, &10).unwrap();
            drop(first.commit_async().unwrap());
            on_another_strand(|| {
                let mut second = db.begin();
                let there = (!removed).then_some(1);
                match dependence {
                    Reads | MissesIt => {
                        assert_eq!(second.get(&t, &1).unwrap(), there, "{what}");
                    }
                    Locks | LocksNothing => {
                        assert_eq!(second.get_for_update(&t, &1).unwrap(), there, "{what}");
                    }
                    Scans => assert_eq!(second.range(&t, 0..5).unwrap().count(), 1, "{what}"),
                    Overwrites | InsertsAgain => second.insert(&t, &1, &2).unwrap(),
                }
                second.insert(&t, &20, &20).unwrap();
                second.commit().unwrap();
            });
            let left = device.after_crash();
            drop(db);
            let db = open(left);
            let t: Table<u64, u64> = db.open_table("t").unwrap();
            assert!(db.get(&t, &20).unwrap().is_some(), "{what}: acknowledged");
            assert!(db.get(&t, &10).unwrap().is_some(), "{what}: depended on");
        }
    }
}

/// A device that other processes cannot read. For readers, a database without background threads
/// acknowledges nothing above the durable sequence number, whatever depends on what.
#[derive(Clone, Debug)]
struct NoReaders;

impl Layer for NoReaders {
    fn reader_table(&self, _: &dyn Device, _: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        Ok(None)
    }
}

/// With `gsn`, a commit does not wait for the lane of another one on which it does not depend, and
/// recovery does not need the other one.
#[test]
fn a_commit_does_not_wait_for_what_it_does_not_depend_on() {
    let device = SimDevice::new(0);
    let open = |device| {
        let device = LayeredDevice::over(Arc::new(device), NoReaders);
        let builder = builder(Protocol::Gsn).lanes(2);
        builder.open_on(Arc::new(device)).unwrap()
    };
    let db = open(device.clone());
    let t: Table<u64, u64> = db.open_table("t").unwrap();
    let mut first = db.begin();
    first.insert(&t, &10, &10).unwrap();
    let ticket = first.commit_async().unwrap();
    on_another_strand(|| db.transact(|tx| tx.insert(&t, &20, &20)).unwrap());
    assert!(!ticket.is_durable());
    let left = device.after_crash();
    drop(db);
    let db = open(left);
    let t: Table<u64, u64> = db.open_table("t").unwrap();
    assert_eq!(db.get(&t, &20).unwrap(), Some(20));
    assert_eq!(db.get(&t, &10).unwrap(), None);
}

/// Runs `work` on a thread that uses the other one of two strands.
fn on_another_strand(work: impl Fn() + Sync) {
    let own = braid_rt::thread::committer();
    let run = || {
        let other = braid_rt::thread::committer() % 2 != own % 2;
        if other {
            work();
        }
        other
    };
    while !std::thread::scope(|scope| scope.spawn(run).join().unwrap()) {}
}

/// A device whose volatile cache ignores flushes and forced writes. Names belong to the file
/// system, which is assumed to be more careful.
#[derive(Debug)]
struct Liar(SimDevice);

#[derive(Debug)]
struct LiarFile(Arc<dyn File>);

impl Device for Liar {
    fn kind(&self) -> DeviceKind {
        self.0.kind()
    }
    fn block_size(&self) -> usize {
        self.0.block_size()
    }
    fn allocate(&self, len: usize) -> AlignedBuf {
        self.0.allocate(len)
    }
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(LiarFile(self.0.open(name, mode)?)))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.0.list()
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }
}

impl File for LiarFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.0.fill_zero(range)
    }
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.0.punch_hole(range)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.0.write_at(bufs, offset)
    }
    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.0.write_at(bufs, offset)
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// With a lying cache, the end of a process costs nothing, and a power loss may cost anything. But
/// everything that a read returns was once written, and what cannot be read is a typed error.
#[test]
fn a_cache_that_lies_costs_transactions_and_never_makes_them_up() {
    let (mut whole, mut short, mut refused) = (0, 0, 0);
    for seed in 0..60 {
        let device = SimDevice::new(seed);
        let db = open(Protocol::Glsn, Arc::new(Liar(device.clone()))).unwrap();
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        for n in 0..20 {
            write(&db, &t, n, Durability::Immediate).unwrap();
            if n == 10 && seed.is_multiple_of(2) {
                db.checkpoint().unwrap();
            }
        }
        let killed = Liar(device.after_kill());
        let crashed = device.after_crash();
        drop(db);
        if seed < 10 {
            // The process ends; the device keeps its power.
            let db = open(Protocol::Glsn, Arc::new(killed)).unwrap();
            assert_eq!(count(&db, "killed"), 20);
            continue;
        }
        let read = open(Protocol::Glsn, Arc::new(crashed)).and_then(|db| {
            let t: Table<u64, Bytes> = db.open_table("t")?;
            let mut found = 0;
            for n in 0..20 {
                for key in keys(n) {
                    if let Some(value) = db.get(&t, &key)? {
                        assert_eq!(value, vec![n as u8; 100], "seed {seed}");
                        found += 1;
                    }
                }
            }
            Ok(found)
        });
        match read {
            Ok(40) => whole += 1,
            Ok(_) => short += 1,
            Err(Error::Corrupted { .. }) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!("{whole} whole, {short} short, {refused} refused");
    assert!(short + refused > 0 && refused > 0);
}

#[test]
fn commits_that_ask_for_no_flush_make_none() {
    let db = Database::in_memory().unwrap();
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    // A thread of the log that was woken earlier may run late, and flush what it finds: each at most
    // once. Commits that asked for a flush would cause more than one every time.
    let flushes: Vec<u64> = (0..20)
        .map(|round| {
            let before = db.stats().log.flushes;
            for key in 0..50 {
                let mut tx = db.begin();
                tx.set_durability(Durability::None);
                tx.insert(&t, &(50 * round + key), b"x").unwrap();
                tx.commit().unwrap();
            }
            db.sync().unwrap();
            db.stats().log.flushes - before
        })
        .collect();
    assert!(flushes.contains(&1), "{flushes:?}");
}
