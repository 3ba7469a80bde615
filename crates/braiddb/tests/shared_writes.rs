//! Counts the cache lines that transactions of different threads exchange; see
//! docs/scalability.md, whose table this test keeps true.
#![cfg(braid_counts)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use braid::device::{DeviceChoice, MemoryDevice};
use braid::{Bytes, Database, Readable, Table, Ticket};
use braid_rt::atomic::record;

const THREADS: usize = 8;
const RECORDS: u64 = 65_536;
/// Transactions of each thread, before and while accesses are counted.
const WARM: usize = 1_500;
const COUNTED: usize = 500;

/// Transactions take turns, one of each thread: as if all cores were equally fast. Real threads
/// on few cores run thousands of transactions before another thread's turn comes.
#[derive(Default)]
struct Turns {
    next: Mutex<usize>,
    changed: Condvar,
}

impl Turns {
    fn take(&self, thread: usize, round: usize, turn: impl FnOnce()) {
        let mine = round * THREADS + thread;
        let next = self.next.lock().unwrap();
        let mut next = self.changed.wait_while(next, |next| *next != mine).unwrap();
        turn();
        *next += 1;
        self.changed.notify_all();
    }
}

/// Lines per transaction.
#[derive(Default)]
struct Counts {
    taken: f64,
    fetched: f64,
    /// The same by file and line.
    places: BTreeMap<String, (f64, f64)>,
}

struct Client<'a> {
    db: &'a Database,
    table: &'a Table<u64, Bytes>,
    thread: u64,
    rng: fastrand::Rng,
}

impl Client<'_> {
    /// A key that only this thread uses, as are its neighbours.
    fn own_key(&mut self) -> u64 {
        let share = RECORDS / THREADS as u64;
        share * self.thread + self.rng.u64(..share)
    }

    fn any_key(&mut self) -> u64 {
        self.rng.u64(..RECORDS)
    }

    fn update(&self, keys: &[u64]) -> Ticket {
        let mut tx = self.db.begin();
        for key in keys {
            tx.insert(self.table, key, &[8; 100]).unwrap();
        }
        tx.commit_async().unwrap()
    }
}

type Operation = fn(&mut Client<'_>);

/// The rows of the table in the book.
const KINDS: [(&str, Operation); 9] = [
    ("`get`, own keys", |client| {
        let key = client.own_key();
        client.db.get(client.table, &key).unwrap();
    }),
    ("10 reads in a snapshot, own keys", |client| {
        let snapshot = client.db.snapshot();
        for _ in 0..10 {
            let key = client.own_key();
            snapshot.get(client.table, &key).unwrap();
        }
    }),
    ("scan of 100 entries, own keys", |client| {
        let from = client.own_key();
        let snapshot = client.db.snapshot();
        let scan = snapshot.range(client.table, from..).unwrap();
        assert!(scan.take(100).all(|entry| entry.is_ok()));
    }),
    ("U-1, own keys", |client| {
        let key = client.own_key();
        drop(client.update(&[key]));
    }),
    ("U-1, any keys", |client| {
        let key = client.any_key();
        drop(client.update(&[key]));
    }),
    ("U-10, own keys", |client| {
        let keys: Vec<_> = (0..10).map(|_| client.own_key()).collect();
        drop(client.update(&keys));
    }),
    ("read and write one record, own keys", |client| {
        let key = client.own_key();
        let mut tx = client.db.begin();
        tx.get(client.table, &key).unwrap();
        tx.insert(client.table, &key, &[9; 100]).unwrap();
        drop(tx.commit_async().unwrap());
    }),
    ("U-1, own keys, each flushed alone", flush_alone),
    (IN_PERSISTENT_MEMORY, flush_alone),
];

const IN_PERSISTENT_MEMORY: &str = "U-1, own keys, each flushed alone in persistent memory";

fn flush_alone(client: &mut Client<'_>) {
    let key = client.own_key();
    client.update(&[key]).wait().unwrap();
}

fn measure(kind: &str, operation: Operation) -> Counts {
    let directory = tempfile::tempdir().unwrap();
    let builder = Database::builder()
        .strands(THREADS)
        .background_threads(false);
    let db = if kind == IN_PERSISTENT_MEMORY {
        let device = DeviceChoice::PmemEmulated { line_latency: 0 };
        // As on a machine with many processors, where each thread has a lane.
        let builder = builder.device(device).lanes(THREADS);
        builder.open(directory.path())
    } else {
        builder.open_on(Arc::new(MemoryDevice::new()))
    };
    let db = db.unwrap();
    let table = db.open_table::<u64, Bytes>("records").unwrap();
    let mut tx = db.begin();
    for key in 0..RECORDS {
        tx.insert(&table, &key, &[7; 100]).unwrap();
    }
    tx.commit().unwrap();
    let turns = Turns::default();
    record::begin();
    let workers: BTreeSet<usize> = thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, table, turns) = (&db, &table, &turns);
                scope.spawn(move || {
                    let mut client = Client {
                        db,
                        table,
                        thread: thread as u64,
                        rng: fastrand::Rng::with_seed(thread as u64),
                    };
                    for round in 0..WARM + COUNTED {
                        turns.take(thread, round, || {
                            if (thread, round) == (0, WARM) {
                                drop(record::take());
                            }
                            operation(&mut client);
                        });
                    }
                    record::thread()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });
    let accesses = record::take();
    record::end();
    let mut sum = Counts::default();
    let each = 1.0 / (THREADS * COUNTED) as f64;
    for ((thread, place), counts) in accesses {
        if workers.contains(&thread) {
            let (taken, fetched) = (counts.taken as f64 * each, counts.fetched as f64 * each);
            sum.taken += taken;
            sum.fetched += fetched;
            let place = format!("{}:{}", place.file(), place.line());
            let entry = sum.places.entry(place).or_default();
            entry.0 += taken;
            entry.1 += fetched;
        }
    }
    sum
}

/// Lines taken and fetched, by kind, as the book says.
fn documented() -> BTreeMap<String, (f64, f64)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scalability.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, kind, taken, fetched, ..] = cells[..] else {
            return None;
        };
        Some((
            kind.to_owned(),
            (taken.parse().ok()?, fetched.parse().ok()?),
        ))
    });
    rows.collect()
}

#[test]
fn the_book_has_the_lines_that_transactions_exchange() {
    let documented = documented();
    let mut wrong = Vec::new();
    for (kind, operation) in KINDS {
        let counts = measure(kind, operation);
        println!(
            "{kind}: {:.2} taken, {:.2} fetched",
            counts.taken, counts.fetched
        );
        let is_small = matches!(kind, "U-1, own keys" | "U-1, any keys");
        for (place, (taken, fetched)) in &counts.places {
            if taken + fetched > 0.01 {
                println!("{taken:8.2} {fetched:8.2} {place}");
            }
            // No loop over the slots of all threads.
            assert!(*taken < 1.1 || !is_small, "{kind}: {place}");
        }
        // Which records, buckets and state words share a line depends on addresses.
        let is_close = |a: f64, b: f64| (a - b).abs() <= 0.2 + b / 10.0;
        match documented.get(kind) {
            Some(&(taken, fetched))
                if is_close(counts.taken, taken) && is_close(counts.fetched, fetched) => {}
            other => wrong.push((kind, other.copied())),
        }
        if kind == "U-1, own keys" {
            assert!(counts.taken <= 3.0, "{:.2}", counts.taken);
        }
    }
    assert!(wrong.is_empty(), "not as in docs/scalability.md: {wrong:?}");
}
