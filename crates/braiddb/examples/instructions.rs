//! Runs a fixed number of each operation, for counting its instructions:
//!
//! ```text
//! scripts/instructions.sh show [PROTOCOL]
//! ```
//!
//! runs it under callgrind, which counts only within [`measured`] and writes a total each time that
//! function returns. The lines printed here name the totals, in the same order. The counts repeat
//! exactly: one thread, a fixed seed, no background threads, a device in memory.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{Bytes, Database, Protocol, Readable, Table, Ticket};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const RECORDS: u64 = 65_536;
/// Number of writes of a transaction whose beginning and end are not counted.
const BATCH: u64 = 1_024;
const IN_FLIGHT: usize = 1_000;
const COMMITS: u64 = 20_000;
/// Amount of log that all operations write.
const LOG_BYTES: u64 = 192 << 20;
const VALUE: [u8; 100] = [7; 100];

fn main() -> Outcome {
    let protocol: Protocol = match std::env::args().nth(1) {
        Some(name) => name.parse()?,
        None => Protocol::default(),
    };
    // Create the log files before anything is counted.
    let (db, table) = open(&MemoryDevice::new(), protocol, LOG_BYTES)?;
    let mut rng = fastrand::Rng::with_seed(1);

    count("insert_ascending", RECORDS, || {
        in_batches(&db, |i, tx| Ok(tx.insert(&table, &i, &VALUE)?))
    })?;
    count("get", RECORDS, || {
        for _ in 0..RECORDS {
            let value = db.get(&table, &rng.u64(..RECORDS))?;
            assert!(black_box(value).is_some());
        }
        Ok(())
    })?;
    count("scan_step", RECORDS, || {
        let snapshot = db.snapshot();
        let mut steps = 0;
        for record in snapshot.range(&table, ..)? {
            black_box(record?);
            steps += 1;
        }
        assert_eq!(steps, RECORDS);
        Ok(())
    })?;
    count("scan_step_back", RECORDS, || {
        let snapshot = db.snapshot();
        let mut steps = 0;
        for record in snapshot.range(&table, ..)?.rev() {
            black_box(record?);
            steps += 1;
        }
        assert_eq!(steps, RECORDS);
        Ok(())
    })?;
    count("scan_of_one", COMMITS, || {
        let snapshot = db.snapshot();
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..COMMITS {
            let from = rng.u64(..RECORDS);
            let first = snapshot.range(&table, from..)?.next();
            assert_eq!(
                black_box(first).transpose()?.map(|(key, _)| key),
                Some(from)
            );
        }
        Ok(())
    })?;
    count("u1_in_flight", COMMITS, || {
        in_flight(&db, &table, COMMITS, &mut rng)
    })?;
    count("u1_waited", COMMITS, || {
        for _ in 0..COMMITS {
            let mut tx = db.begin();
            tx.insert(&table, &rng.u64(..RECORDS), &VALUE)?;
            tx.commit()?;
        }
        Ok(())
    })?;
    count("update", RECORDS, || {
        in_batches(&db, |_, tx| {
            Ok(tx.insert(&table, &rng.u64(..RECORDS), &VALUE)?)
        })
    })?;
    db.close()?;

    // The database of a process that was killed: it has only its log.
    let device = MemoryDevice::new();
    let (db, table) = open(&device, protocol, 0)?;
    in_flight(&db, &table, RECORDS, &mut rng)?;
    std::mem::forget(db);
    count("recovery", RECORDS, || {
        let (db, _) = open(&device, protocol, 0)?;
        // Including the creation of the table.
        assert!(db.recovery().transactions > RECORDS);
        std::mem::forget(db);
        Ok(())
    })
}

/// Runs `operation` while callgrind counts, and prints its number of operations.
fn count(name: &str, operations: u64, mut operation: impl FnMut() -> Outcome) -> Outcome {
    measured(&mut operation)?;
    println!("{name} {operations}");
    Ok(())
}

/// The function that callgrind selects by name.
#[inline(never)]
fn measured(operation: &mut dyn FnMut() -> Outcome) -> Outcome {
    black_box(operation)()
}

fn open(
    device: &MemoryDevice,
    protocol: Protocol,
    log_bytes: u64,
) -> Result<(Database, Table<u64, Bytes>), braid::Error> {
    let db = Database::builder()
        .protocol(protocol)
        // The same number on every machine.
        .strands(2)
        .preallocated_log_bytes(log_bytes)
        .background_threads(false)
        // The shortest, so that waiting for each commit of `epoch` ends.
        .epoch(Duration::from_micros(10))
        .open_on(Arc::new(device.clone()))?;
    let table = db.open_table("records")?;
    Ok((db, table))
}

/// Makes [`RECORDS`] writes, many of them in each transaction.
fn in_batches(
    db: &Database,
    mut write: impl FnMut(u64, &mut braid::Transaction) -> Outcome,
) -> Outcome {
    for first in (0..RECORDS).step_by(BATCH as usize) {
        let mut tx = db.begin();
        (first..first + BATCH).try_for_each(|i| write(i, &mut tx))?;
        tx.commit()?;
    }
    Ok(())
}

/// Updates one record per transaction, with many transactions waiting for one flush.
fn in_flight(
    db: &Database,
    table: &Table<u64, Bytes>,
    transactions: u64,
    rng: &mut fastrand::Rng,
) -> Outcome {
    let mut tickets: Vec<Ticket> = Vec::with_capacity(IN_FLIGHT);
    for _ in 0..transactions {
        let mut tx = db.begin();
        tx.insert(table, &rng.u64(..RECORDS), &VALUE)?;
        tickets.push(tx.commit_async()?);
        if tickets.len() == IN_FLIGHT {
            if let Some(newest) = tickets.last() {
                newest.wait()?;
            }
            tickets.clear();
        }
    }
    db.sync()?;
    Ok(())
}
