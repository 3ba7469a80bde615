//! Workloads for every commit protocol: idle and uneven strands, one strand, more threads than
//! strands, read-only transactions, transactions larger than a buffer, checkpoints under load,
//! another number of strands, another protocol. In each test the power fails while threads commit,
//! and the recovered database is compared with their acknowledgements. (Histories on one thread,
//! with all faults: `crash.rs`.)

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use braid::{Builder, Database, Error, Protocol, Readable, Table, Ticket};
use braid_io::SimDevice;

/// Maximum number of device steps until power fails.
const STEPS: u64 = 250;

fn each(test: impl Fn(Protocol, u64)) {
    for &protocol in Protocol::ALL {
        for seed in 0..4 {
            println!("{protocol}, seed {seed}");
            test(protocol, seed);
        }
    }
}

fn builder(protocol: Protocol, strands: usize) -> Builder {
    let strands = protocol.forced_strands().unwrap_or(strands);
    Database::builder()
        .protocol(protocol)
        .strands(strands)
        .epoch(Duration::from_millis(1))
        .segment_bytes(512 << 10)
        .pool_bytes(1 << 20)
}

fn open(builder: Builder, device: &SimDevice) -> Database {
    builder.open_on(Arc::new(device.clone())).unwrap()
}

/// Makes the power fail at a random later step.
fn cut_power(device: &SimDevice, seed: u64) {
    device.crash_after(fastrand::Rng::with_seed(seed).u64(20..STEPS));
}

/// Two keys of a thread, always written together, with the next higher number.
struct Counter {
    keys: [u64; 2],
    table: Table<u64, u64>,
    written: u64,
    acknowledged: u64,
}

impl Counter {
    /// Continues from the stored number.
    fn new(db: &Database, name: u64) -> Result<Self, Error> {
        let table = db.open_table("counters")?;
        let keys = [2 * name, 2 * name + 1];
        let written = db.get(&table, &keys[0])?.unwrap_or(0);
        Ok(Self {
            keys,
            table,
            written,
            acknowledged: written,
        })
    }

    fn commit(&mut self, db: &Database) -> Result<Ticket, Error> {
        self.written += 1;
        let mut tx = db.begin();
        for key in &self.keys {
            tx.insert(&self.table, key, &self.written)?;
        }
        tx.commit_async()
    }

    fn commit_and_wait(&mut self, db: &Database) -> Result<(), Error> {
        self.commit(db)?.wait()?;
        self.acknowledged = self.written;
        Ok(())
    }

    /// Commits until the power fails; every other thread keeps commits in flight.
    fn run(&mut self, db: &Database) -> Result<(), Error> {
        let most = if self.keys[0].is_multiple_of(4) { 0 } else { 8 };
        let mut in_flight = VecDeque::new();
        loop {
            let ticket = self.commit(db)?;
            in_flight.push_back((self.written, ticket));
            if in_flight.len() > most
                && let Some((number, ticket)) = in_flight.pop_front()
            {
                ticket.wait()?;
                self.acknowledged = number;
            }
        }
    }

    /// Checks that both keys have the same number, between the acknowledged and the written one.
    fn check(&self, db: &Database) {
        let values = self
            .keys
            .map(|key| db.get(&self.table_of(db), &key).unwrap());
        let [first, second] = values.map(|value| value.unwrap_or(0));
        assert_eq!(first, second, "I2: a transaction is there by half");
        assert!(
            (self.acknowledged..=self.written).contains(&first),
            "I1: {first} is not in {}..={}",
            self.acknowledged,
            self.written
        );
    }

    fn table_of(&self, db: &Database) -> Table<u64, u64> {
        db.open_table("counters").unwrap()
    }
}

/// Runs counters on as many threads until the power fails. Returns none if the database was not
/// created before.
fn run_counters(db: &Database, threads: u64) -> Vec<Counter> {
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|name| {
                scope.spawn(move || {
                    let mut counter = Counter::new(db, name).ok()?;
                    counter.run(db).unwrap_err();
                    Some(counter)
                })
            })
            .collect();
        let counters = running.into_iter().map(|thread| thread.join().unwrap());
        counters.flatten().collect()
    })
}

/// Runs counters on a database until power fails, and checks the recovered database with `after`.
fn storm(before: Builder, after: Builder, threads: u64, seed: u64) {
    let device = SimDevice::new(seed);
    let db = open(before, &device);
    cut_power(&device, seed);
    let counters = run_counters(&db, threads);
    drop(db);
    let db = open(after, &device.after_crash());
    counters.iter().for_each(|counter| counter.check(&db));
}

#[test]
fn idle_strands() {
    each(|protocol, seed| storm(builder(protocol, 8), builder(protocol, 8), 1, seed));
}

#[test]
fn one_strand() {
    each(|protocol, seed| storm(builder(protocol, 1), builder(protocol, 1), 3, seed));
}

#[test]
fn more_threads_than_strands() {
    each(|protocol, seed| storm(builder(protocol, 2), builder(protocol, 2), 8, seed));
}

#[test]
fn lanes_of_their_own() {
    each(|protocol, seed| {
        let lanes = protocol.forced_strands().unwrap_or(3);
        let builder = || builder(protocol, 3).lanes(lanes);
        storm(builder(), builder(), 4, seed);
    });
}

/// One thread commits a hundred times as often as the other.
#[test]
fn uneven_strands() {
    let (busy_sum, idle_sum) = (AtomicU64::new(0), AtomicU64::new(0));
    each(|protocol, seed| {
        let device = SimDevice::new(seed);
        let db = open(builder(protocol, 2), &device);
        let mut busy = Counter::new(&db, 0).unwrap();
        let mut idle = Counter::new(&db, 1).unwrap();
        device.crash_after(STEPS + fastrand::Rng::with_seed(seed).u64(0..STEPS));
        let (turn, turns) = mpsc::channel();
        thread::scope(|scope| {
            let (db, busy, idle) = (&db, &mut busy, &mut idle);
            scope.spawn(
                move || {
                    while turns.recv().is_ok() && idle.commit_and_wait(db).is_ok() {}
                },
            );
            scope.spawn(move || {
                for round in 0.. {
                    if round % 100 == 0 && turn.send(()).is_err() {
                        return;
                    }
                    // Some commits wait, so that there are flushes; most do not.
                    let committed = if round % 10 == 0 {
                        busy.commit_and_wait(db)
                    } else {
                        busy.commit(db).map(drop)
                    };
                    if committed.is_err() {
                        return;
                    }
                }
            });
        });
        for (sum, counter) in [(&busy_sum, &busy), (&idle_sum, &idle)] {
            sum.fetch_add(counter.written, Ordering::Relaxed);
        }
        drop(db);
        let db = open(builder(protocol, 2), &device.after_crash());
        busy.check(&db);
        idle.check(&db);
    });
    let (busy, idle) = (busy_sum.into_inner(), idle_sum.into_inner());
    assert!(idle > 30 && busy > 20 * idle, "{busy} and {idle}");
}

/// I4: the values that a read-only transaction returned exist after the crash, though their writer
/// did not wait.
#[test]
fn read_only_transactions() {
    each(|protocol, seed| {
        let device = SimDevice::new(seed);
        let db = open(builder(protocol, 2), &device);
        let mut writer = Counter::new(&db, 0).unwrap();
        let table = writer.table.clone();
        cut_power(&device, seed);
        let over = std::sync::atomic::AtomicBool::new(false);
        let seen = thread::scope(|scope| {
            let (db, table, writer) = (&db, &table, &mut writer);
            let over = &over;
            scope.spawn(move || {
                while writer.commit(db).is_ok() {}
                over.store(true, std::sync::atomic::Ordering::Release);
            });
            let reader = scope.spawn(move || {
                let mut seen = 0;
                loop {
                    // Durable data can be read even after the failure, so the reader ends with the
                    // writer.
                    if over.load(std::sync::atomic::Ordering::Acquire) {
                        return seen;
                    }
                    let tx = db.begin();
                    let (Ok(first), Ok(second)) = (tx.get(table, &0), tx.get(table, &1)) else {
                        return seen;
                    };
                    match tx.commit() {
                        // Serializable: both values are of the same transaction.
                        Ok(_) => {
                            assert_eq!(first, second);
                            seen = first.unwrap_or(0);
                        }
                        Err(error) if error.is_retryable() => {}
                        Err(_) => return seen,
                    }
                }
            });
            reader.join().unwrap()
        });
        writer.acknowledged = seen;
        drop(db);
        writer.check(&open(builder(protocol, 2), &device.after_crash()));
    });
}

/// Transactions several times as large as a strand's buffer, mixed with small ones, are recovered
/// completely or not at all.
#[test]
fn transactions_larger_than_a_buffer() {
    each(|protocol, seed| {
        let device = SimDevice::new(seed);
        let builder = || builder(protocol, 2).segment_bytes(256 << 10);
        let db = open(builder(), &device);
        let large: Table<u64, Vec<u8>> = db.open_table("large").unwrap();
        let mut small = Counter::new(&db, 0).unwrap();
        device.crash_after(fastrand::Rng::with_seed(seed).u64(50..400));
        let stop = AtomicBool::new(false);
        let acknowledged = thread::scope(|scope| {
            let (db, large, small, stop) = (&db, &large, &mut small, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) && small.commit_and_wait(db).is_ok() {}
            });
            let writer = scope.spawn(move || {
                let mut acknowledged = 0;
                let written = (1..=4).try_for_each(|round: u8| {
                    let mut tx = db.begin();
                    (0..40).try_for_each(|key| tx.insert(large, &key, &vec![round; 10_000]))?;
                    tx.commit()?;
                    acknowledged = round;
                    Ok::<_, Error>(())
                });
                stop.store(true, Ordering::Relaxed);
                (acknowledged, written.is_ok())
            });
            writer.join().unwrap().0
        });
        drop(db);
        let db = open(builder(), &device.after_crash());
        small.check(&db);
        let values: Vec<Vec<u8>> = db
            .snapshot()
            .iter(&db.open_table::<u64, Vec<u8>>("large").unwrap())
            .unwrap()
            .map(|record| record.unwrap().1)
            .collect();
        let round = values.first().map_or(0, |value| value[0]);
        assert!(round >= acknowledged, "I1: {round} after {acknowledged}");
        assert!(
            values.iter().all(|value| *value == vec![round; 10_000]),
            "I2: parts of different transactions"
        );
        assert!(
            values.is_empty() || values.len() == 40,
            "I2: {}",
            values.len()
        );
    });
}

#[test]
fn checkpoints_under_load() {
    let checkpoints = AtomicU64::new(0);
    each(|protocol, seed| {
        let device = SimDevice::new(seed);
        let db = open(builder(protocol, 3), &device);
        device.crash_after(fastrand::Rng::with_seed(seed).u64(100..600));
        let counters = thread::scope(|scope| {
            let (db, checkpoints) = (&db, &checkpoints);
            scope.spawn(move || {
                while db.checkpoint().is_ok() {
                    checkpoints.fetch_add(1, Ordering::Relaxed);
                }
            });
            run_counters(db, 3)
        });
        drop(db);
        let db = open(builder(protocol, 3), &device.after_crash());
        counters.iter().for_each(|counter| counter.check(&db));
    });
    assert!(checkpoints.into_inner() > 10, "checkpoints took part");
}

/// Closed or crashed, a database opens with any number of strands and continues.
#[test]
fn another_number_of_strands() {
    each(|protocol, seed| {
        let mut device = SimDevice::new(seed);
        let mut counters: Vec<Counter> = Vec::new();
        for (round, strands) in [1, 4, 2, 8, 1].into_iter().enumerate() {
            let db = open(builder(protocol, strands), &device);
            counters.iter().for_each(|counter| counter.check(&db));
            if round % 2 == 0 {
                counters = (0..3)
                    .map(|name| Counter::new(&db, name).unwrap())
                    .collect();
                for counter in &mut counters {
                    (0..20).for_each(|_| counter.commit_and_wait(&db).unwrap());
                }
                db.close().unwrap();
            } else {
                cut_power(&device, seed);
                counters = run_counters(&db, 3);
                drop(db);
                device = device.after_crash();
            }
        }
    });
}

/// After a crash, any protocol opens the files of any other one. (After a clean close:
/// `faults/`.)
#[test]
fn another_protocol_after_a_crash() {
    for (seed, (&from, &to)) in (0..).zip(
        Protocol::ALL
            .iter()
            .flat_map(|from| Protocol::ALL.iter().map(move |to| (from, to))),
    ) {
        println!("{from} to {to}, seed {seed}");
        storm(builder(from, 3), builder(to, 2), 3, seed);
    }
}
