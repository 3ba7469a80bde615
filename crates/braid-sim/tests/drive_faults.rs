//! Faults of a drive under a database: every error has a type, nothing is acknowledged after a failed
//! flush or by a database that has stopped (I8), and nothing acknowledged is lost.
//!
//! The drive is one in memory, or the driver of `braid-nvme` over the model of a controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use braid::{Database, Error, Table};
use braid_io::{VolumeFault, volume_fault};
use braid_nvme::crash::{ObservedDrive, Observer};
use braid_nvme::model::{ModelFaults, ModelHost, ModelOptions};
use braid_nvme::{
    CommandKind, ControllerOptions, Drive, DriveError, MemoryDrive, MemoryFaults, MemoryOptions,
    NvmeDrive, Target, VolumeError,
};
use braid_sim::images::{Counts, THREADS, Tables, Work};
use fastrand::Rng;

const BLOCKS: u64 = (64 << 20) / 512;

/// A drive, or what stands in for one, across power failures.
enum Medium {
    Memory(MemoryDrive),
    Model(ModelHost),
}

impl Medium {
    fn memory(seed: u64) -> Self {
        Self::Memory(MemoryDrive::with_options(MemoryOptions {
            blocks: BLOCKS,
            seed,
            volatile_cache: seed % 4 != 3,
            ..MemoryOptions::default()
        }))
    }

    fn model(seed: u64) -> Self {
        Self::Model(ModelHost::new(ModelOptions {
            blocks: BLOCKS,
            seed,
            volatile_cache: seed % 4 != 3,
            ..ModelOptions::default()
        }))
    }

    fn drive(&self) -> Arc<dyn Drive> {
        match self {
            Self::Memory(drive) => Arc::new(drive.clone()),
            Self::Model(host) => {
                let options = ControllerOptions {
                    timeout: Duration::from_millis(50),
                    ..ControllerOptions::default()
                };
                Arc::new(NvmeDrive::open(host.clone(), options).expect("a sound controller"))
            }
        }
    }

    fn memory_drive(&self) -> &MemoryDrive {
        match self {
            Self::Memory(drive) => drive,
            Self::Model(_) => unreachable!("it is a drive in memory"),
        }
    }

    /// Returns the medium after a power failure, without faults. A model is opened once.
    fn after_failure(&self, seed: u64) -> Self {
        match self {
            Self::Memory(drive) => Self::Memory(drive.crash(seed)),
            Self::Model(host) => Self::Model(host.after_restart(seed)),
        }
    }
}

/// Notices failed writes and flushes.
#[derive(Debug, Default)]
struct Watch {
    /// Whether a flush has failed: nothing is acknowledged from then on (V8).
    has_stopped: AtomicBool,
    has_failed: AtomicBool,
}

impl Observer for Watch {
    fn completed(&self, target: Target, result: &Result<(), DriveError>) {
        if result.is_ok() {
            return;
        }
        self.has_failed.store(true, Ordering::SeqCst);
        if target.kind == CommandKind::Flush {
            self.has_stopped.store(true, Ordering::SeqCst);
        }
    }
}

/// Outcomes of transactions and openings, by the type of the error.
type Outcomes = BTreeMap<&'static str, u64>;

/// Returns the drive's error within one of a file.
fn cause(error: &std::io::Error) -> Option<&DriveError> {
    let inner = error.get_ref()?;
    if let Some(VolumeError::Stopped(error)) = inner.downcast_ref() {
        return Some(error);
    }
    let found = inner.downcast_ref::<DriveError>();
    found.or_else(|| cause(inner.source()?.downcast_ref()?))
}

/// Returns the name of an error that a fault of the drive may cause.
fn name(error: &Error) -> &'static str {
    match error {
        Error::Poisoned { .. } => "poisoned",
        Error::OutOfSpace { .. } => "out of space",
        Error::Corrupted { .. } => "corrupted",
        Error::Io { source, .. } => match cause(source) {
            Some(DriveError::TimedOut { .. }) => "timed out",
            Some(DriveError::Media { .. }) => "media error",
            Some(DriveError::Aborted { .. }) => "aborted",
            Some(DriveError::Removed { .. }) => "removed",
            Some(DriveError::Controller { .. }) => "controller",
            Some(DriveError::Rejected { .. }) => "rejected",
            _ => panic!("an error without the drive's reason: {error:?}"),
        },
        other => panic!("unexpected: {other:?}"),
    }
}

struct History {
    work: Work,
    random: Rng,
    /// Transactions of each thread that were acknowledged.
    counts: Counts,
    outcomes: Outcomes,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            work: Work::new(seed),
            random: Rng::with_seed(seed),
            counts: [0; THREADS],
            outcomes: Outcomes::new(),
        }
    }

    fn count(&mut self, name: &'static str) {
        *self.outcomes.entry(name).or_default() += 1;
    }

    fn open(&self, drive: Arc<dyn Drive>) -> Result<Database, Error> {
        self.work.open(drive)
    }

    /// Performs a transaction.
    fn step(&mut self, db: &Database, tables: &Tables) -> Result<(), Error> {
        let thread = self.random.usize(..THREADS);
        let number = self.counts[thread] + 1;
        db.transact(|tx| self.work.perform(tx, tables, thread, number))?;
        self.counts[thread] = number;
        Ok(())
    }

    /// Works until the database stops, or for some time, while `inject` lets the drive fail. Then the
    /// power fails, and everything acknowledged is there.
    fn run(&mut self, medium: &Medium, inject: impl FnOnce(&Medium, &mut Rng)) {
        self.work.format(medium.drive()).unwrap();
        let medium = medium.after_failure(self.random.u64(..));
        let watched = ObservedDrive::new(medium.drive(), Watch::default());
        let db = self.open(Arc::new(watched.clone())).unwrap();
        let tables = self.work.prepare(&db).unwrap();
        for _ in 0..self.random.u32(..30) {
            self.step(&db, &tables).unwrap();
        }
        inject(&medium, &mut self.random);
        let mut refused = 0;
        for _ in 0..150 {
            if self.random.u32(..12) == 0 {
                // A failed checkpoint does not stop the log, and nobody tries it again.
                if let Err(error) = db.checkpoint() {
                    self.count(name(&error));
                }
                continue;
            }
            let had_stopped = watched.observer().has_stopped.load(Ordering::SeqCst);
            match self.step(&db, &tables) {
                Ok(()) => assert!(
                    !had_stopped && refused == 0,
                    "I8: acknowledged after a failure"
                ),
                Err(error) => {
                    let name = name(&error);
                    self.count(name);
                    // Other errors are those of reads, and end only the transaction.
                    refused += u32::from(name == "poisoned");
                }
            }
            if refused > 5 {
                break;
            }
        }
        if watched.observer().has_failed.load(Ordering::SeqCst) {
            self.count("failed commands");
        }
        if let Err(error) = db.close() {
            self.count(name(&error));
        }
        if let Medium::Model(host) = &medium {
            assert_eq!(host.violations(), Vec::<String>::new());
        }
        let after = medium.after_failure(self.random.u64(..));
        self.recover(&after);
    }

    /// Opens the database on a medium without faults, and checks it. The transaction that failed may be
    /// there.
    fn recover(&self, medium: &Medium) {
        let db = self.open(medium.drive()).unwrap();
        let counts = self.work.check(&db, &self.counts, 1).unwrap();
        let tables = Tables::open(&db).unwrap();
        db.transact(|tx| self.work.perform(tx, &tables, 0, counts[0] + 1))
            .unwrap();
        db.close().unwrap();
    }
}

/// Seeds of one of several kinds of faults, which differ, so that the kinds cover all protocols.
/// `BRAID_HISTORIES` changes their number.
fn seeds(kind: u64) -> std::ops::Range<u64> {
    let count = std::env::var("BRAID_HISTORIES").map_or(4, |count| count.parse().unwrap());
    let count = u64::clamp(count, 4, 28);
    kind * count..(kind + 1) * count
}

#[track_caller]
fn expect(outcomes: &Outcomes, names: &[&str]) {
    println!("{outcomes:?}");
    for name in names {
        assert!(outcomes.contains_key(name), "{name}: {outcomes:?}");
    }
}

fn add(sum: &mut Outcomes, outcomes: Outcomes) {
    for (name, count) in outcomes {
        *sum.entry(name).or_default() += count;
    }
}

#[test]
fn failed_commands_of_a_drive_in_memory() {
    type Rates = fn(u16) -> MemoryFaults;
    let kinds: [(Rates, &[&str]); 5] = [
        (
            |write| MemoryFaults {
                write,
                ..MemoryFaults::default()
            },
            &["poisoned"],
        ),
        (
            |flush| MemoryFaults {
                flush: flush.saturating_mul(8),
                ..MemoryFaults::default()
            },
            &["failed commands"],
        ),
        (
            |read| MemoryFaults {
                read: read.saturating_mul(8),
                ..MemoryFaults::default()
            },
            &["failed commands"],
        ),
        (
            |time_out| MemoryFaults {
                time_out,
                ..MemoryFaults::default()
            },
            &["poisoned"],
        ),
        (
            |abort| MemoryFaults {
                abort,
                ..MemoryFaults::default()
            },
            &["poisoned"],
        ),
    ];
    for (kind, (rates, names)) in (0..).zip(kinds) {
        let mut sum = Outcomes::new();
        for seed in seeds(kind) {
            let mut history = History::new(seed);
            history.run(&Medium::memory(seed), |medium, random| {
                medium
                    .memory_drive()
                    .set_faults(rates(random.u16(100..8000)));
            });
            add(&mut sum, history.outcomes);
        }
        expect(&sum, names);
    }
}

/// A single command fails.
#[test]
fn one_failed_command() {
    let mut sum = Outcomes::new();
    for seed in seeds(0).chain(seeds(1)) {
        let mut history = History::new(seed);
        history.run(&Medium::memory(seed), |medium, random| {
            medium.memory_drive().fail_after(random.u64(..100));
        });
        add(&mut sum, history.outcomes);
    }
    expect(&sum, &["poisoned", "failed commands"]);
}

#[test]
fn a_drive_that_disappears() {
    let mut sum = Outcomes::new();
    for seed in seeds(0).chain(seeds(1)) {
        let (memory, model) = (Medium::memory(seed), Medium::model(seed));
        for medium in [&memory, &model] {
            let mut history = History::new(seed);
            history.run(medium, |medium, _| match medium {
                Medium::Memory(drive) => drive.remove(),
                Medium::Model(host) => host.remove(),
            });
            assert!(history.outcomes["poisoned"] > 5, "{:?}", history.outcomes);
            add(&mut sum, history.outcomes);
        }
    }
    expect(&sum, &["poisoned"]);
}

/// Time-outs, aborts that have no effect, resets that lose the cache or do not end, media errors, fatal
/// states, and late, repeated and foreign completions.
#[test]
fn a_controller_that_fails() {
    type Faults = fn(u8) -> ModelFaults;
    let kinds: [(Faults, &[&str]); 5] = [
        (
            |lost| ModelFaults {
                lost,
                ..ModelFaults::default()
            },
            &["poisoned"],
        ),
        (
            |lost| ModelFaults {
                lost,
                deaf: 255,
                forgetful: 255,
                ..ModelFaults::default()
            },
            &["poisoned"],
        ),
        (
            |error| ModelFaults {
                error,
                duplicate: 20,
                foreign: 20,
                ..ModelFaults::default()
            },
            &["poisoned"],
        ),
        (
            |fatal| ModelFaults {
                fatal,
                forgetful: 128,
                stuck: 128,
                ..ModelFaults::default()
            },
            &["poisoned"],
        ),
        (
            |slow| ModelFaults {
                slow,
                deaf: 64,
                forgetful: 128,
                ..ModelFaults::default()
            },
            &["failed commands"],
        ),
    ];
    for (kind, (faults, names)) in (0..).zip(kinds) {
        let mut sum = Outcomes::new();
        for seed in seeds(kind) {
            let mut history = History::new(seed);
            history.run(&Medium::model(seed), |medium, random| match medium {
                Medium::Model(host) => host.set_faults(faults(random.u8(1..12))),
                Medium::Memory(_) => unreachable!("it is a model"),
            });
            add(&mut sum, history.outcomes);
        }
        expect(&sum, names);
    }
}

/// Blocks that the medium lost are errors of the reads that need them, and do not end the database.
#[test]
fn lost_blocks_are_errors_of_reads() {
    let mut failed = 0;
    for seed in seeds(0).chain(seeds(1)) {
        let drive = MemoryDrive::with_options(MemoryOptions {
            blocks: BLOCKS,
            seed,
            ..MemoryOptions::default()
        });
        let mut history = History::new(seed);
        history.work.format(Arc::new(drive.clone())).unwrap();
        let db = history.open(Arc::new(drive.clone())).unwrap();
        let tables = history.work.prepare(&db).unwrap();
        for _ in 0..60 {
            history.step(&db, &tables).unwrap();
        }
        drop(tables);
        db.close().unwrap();
        // A copy, so that the blocks can be read again.
        let damaged = drive.crash(seed);
        for _ in 0..400 {
            damaged.damage(history.random.u64(2048..BLOCKS / 16));
        }
        match history.open(Arc::new(damaged)) {
            Ok(db) => {
                let read = || -> Result<(), Error> {
                    let tables = Tables::open(&db)?;
                    let snapshot = db.snapshot();
                    tables.read_all(&snapshot)
                };
                if let Err(error) = read() {
                    failed += 1;
                    assert!(
                        ["media error", "corrupted"].contains(&name(&error)),
                        "{error:?}"
                    );
                }
            }
            Err(error) => {
                failed += 1;
                name(&error);
            }
        }
        history.recover(&Medium::Memory(drive));
    }
    assert!(failed > 0);
}

/// A full drive refuses transactions before they have a sequence number, and keeps what it has.
#[test]
fn a_full_drive() {
    for medium in [
        Medium::Memory(MemoryDrive::new((24 << 20) / 512)),
        Medium::Model(ModelHost::new(ModelOptions {
            blocks: (24 << 20) / 512,
            ..ModelOptions::default()
        })),
    ] {
        let work = Work::new(4);
        work.format(medium.drive()).unwrap();
        let medium = medium.after_failure(0);
        let db = work.open(medium.drive()).unwrap();
        let table: Table<u64, Vec<u8>> = db.open_table("large").unwrap();
        let random = &mut Rng::with_seed(1);
        let large: Vec<u8> = (0..100_000).map(|_| random.u8(..)).collect();
        let mut kept = 0;
        let error = loop {
            match db.transact(|tx| tx.insert(&table, &kept, &large)) {
                Ok(()) => kept += 1,
                Err(error) => break error,
            }
            assert!(kept < 240, "24 MiB hold no 24 MB of values, twice");
        };
        assert!(matches!(error, Error::OutOfSpace { .. }), "{error:?}");
        assert!(kept > 20, "{kept}");
        let check = |db: &Database| {
            let table: Table<u64, Vec<u8>> = db.open_table("large").unwrap();
            for key in 0..kept {
                assert!(
                    db.get(&table, &key).unwrap().as_ref() == Some(&large),
                    "{key}"
                );
            }
        };
        check(&db);
        drop((db, table));
        let db = work.open(medium.after_failure(1).drive()).unwrap();
        check(&db);
    }
}

/// A drive with fewer blocks than the volume is refused, and nothing is written.
#[test]
fn a_drive_smaller_than_before() {
    for seed in 0..4 {
        let options = MemoryOptions {
            blocks: BLOCKS,
            seed,
            ..MemoryOptions::default()
        };
        let drive = MemoryDrive::with_options(options);
        let mut history = History::new(seed);
        history.work.format(Arc::new(drive.clone())).unwrap();
        let db = history.open(Arc::new(drive.clone())).unwrap();
        let tables = history.work.prepare(&db).unwrap();
        for _ in 0..20 {
            history.step(&db, &tables).unwrap();
        }
        drop((db, tables));
        let smaller = drive.reopen(MemoryOptions {
            blocks: BLOCKS / 2,
            ..options
        });
        let refused = history.work.device(Arc::new(smaller.clone())).unwrap_err();
        assert_eq!(
            volume_fault(&refused),
            Some(VolumeFault::Damaged),
            "{refused}"
        );
        for lba in 0..BLOCKS / 2 {
            assert!(
                smaller.block(lba) == drive.block(lba),
                "block {lba} was written"
            );
        }
        history.recover(&Medium::Memory(drive));
    }
}
