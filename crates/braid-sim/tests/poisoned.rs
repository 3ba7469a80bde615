//! A commit that is logged and fails while it is applied: no transaction sees a part of it, and no
//! checkpoint contains a part of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid::{Bytes, Database, Durability, Error, Health, Protocol, Readable, Table};
use braid_io::SimDevice;
use braid_rt::{simulation, thread};

const BALLAST: u64 = 24;
const LARGE: usize = 60_000;

fn open(device: &SimDevice, protocol: Protocol) -> Database {
    let builder = Database::builder()
        .protocol(protocol)
        .strands(if protocol.forced_strands().is_some() {
            1
        } else {
            2
        })
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(256 << 10);
    builder.open_on(Arc::new(device.clone())).unwrap()
}

fn value(first: u8) -> Vec<u8> {
    let mut value = vec![first; LARGE];
    value[1] = 7;
    value
}

/// The values that a reader finds of keys that each transaction writes together.
fn found(reader: &impl Readable, table: &Table<u64, Bytes>) -> braid::Result<(u8, u8)> {
    let first = |key: u64| -> braid::Result<u8> {
        let found = reader.get(table, &key)?;
        Ok(found.map_or(0, |bytes| bytes[0]))
    };
    Ok((first(0)?, first(1)?))
}

/// Fills the pool with other data, so that the pages of the large value are read again when it is
/// replaced.
fn cool(db: &Database) {
    let ballast: Table<u64, Bytes> = db.open_table("ballast").unwrap();
    for key in 0..BALLAST {
        let mut tx = db.begin();
        tx.set_durability(Durability::None);
        tx.insert(&ballast, &key, &value(9)[..]).unwrap();
        tx.commit().unwrap();
    }
}

fn history(protocol: Protocol, seed: u64) {
    let device = SimDevice::new(seed);
    let db = open(&device, protocol);
    let table: Table<u64, Bytes> = db.open_table("t").unwrap();
    let mut tx = db.begin();
    tx.insert(&table, &0, &[1][..]).unwrap();
    tx.insert(&table, &1, &value(1)[..]).unwrap();
    tx.commit().unwrap();
    cool(&db);
    let mut tx = db.begin();
    tx.insert(&table, &0, &[2][..]).unwrap();
    tx.insert(&table, &1, &value(2)[..]).unwrap();
    device.fail_reads_at_random(1);
    let other = {
        let (db, table) = (db.clone(), table.clone());
        thread::spawn("other", move || {
            let checkpoint = db.checkpoint();
            // It contains only states from before, or of a complete commit.
            drop(checkpoint);
            if let Ok(one) = db.get(&table, &0) {
                assert_eq!(one.unwrap()[..], [1]);
            }
        })
        .unwrap()
    };
    let error = tx.commit().unwrap_err();
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    assert!(matches!(db.health(), Health::Poisoned { .. }));
    other.join().unwrap();
    device.repair();
    // Every read sees the state before it, or an error.
    assert_eq!(db.get(&table, &0).unwrap().unwrap()[..], [1]);
    assert_eq!(db.get(&table, &1).unwrap().unwrap()[0], 1);
    assert_eq!(found(&db.snapshot(), &table).unwrap(), (1, 1));
    let snapshot = db.snapshot();
    let scanned: Vec<u8> = snapshot
        .iter(&table)
        .unwrap()
        .map(|e| e.unwrap().1[0])
        .collect();
    assert_eq!(scanned, [1, 1]);
    for options in [
        braid::TransactionOptions::default(),
        braid::TransactionOptions {
            isolation: braid::Isolation::Snapshot,
            ..Default::default()
        },
    ] {
        let tx = db.begin_with(options);
        match found(&tx, &table) {
            Ok(found) => assert_eq!(found, (1, 1)),
            Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{error}"),
        }
        let scanned: braid::Result<Vec<_>> = tx.iter(&table).unwrap().collect();
        match scanned {
            Ok(scanned) => assert!(scanned.iter().all(|(_, bytes)| bytes[0] == 1)),
            Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{error}"),
        }
    }
    // The database accepts no writes.
    assert!(matches!(db.checkpoint(), Err(Error::Poisoned { .. })));
    assert!(matches!(db.compact(), Err(Error::Poisoned { .. })));
    assert!(matches!(
        db.backup_to(&mut Vec::new()),
        Err(Error::Poisoned { .. })
    ));
    let mut tx = db.begin();
    assert!(matches!(
        tx.insert(&table, &2, &[1][..]),
        Err(Error::Poisoned { .. })
    ));
    drop((tx, snapshot));
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })));
    drop(table);
    let device = match seed % 2 {
        0 => device.after_crash(),
        _ => device.after_kill(),
    };
    let db = open(&device, protocol);
    let table: Table<u64, Bytes> = db.open_table("t").unwrap();
    let found = found(&db.snapshot(), &table).unwrap();
    assert!(found == (1, 1) || found == (2, 2), "{found:?}");
    db.close().unwrap();
}

/// A transaction writes keys 0, 1 and 2, and fails at key 1. Another one reads keys 0 and 2
/// meanwhile and writes key 3 without waiting for durability. Returns whether the other transaction
/// saw half of the first.
fn overlapping_history(protocol: Protocol, seed: u64) -> bool {
    let device = SimDevice::new(seed);
    let db = open(&device, protocol);
    let table: Table<u64, Bytes> = db.open_table("t").unwrap();
    let mut tx = db.begin();
    tx.insert(&table, &0, &[1][..]).unwrap();
    tx.insert(&table, &1, &value(1)[..]).unwrap();
    tx.insert(&table, &2, &[1][..]).unwrap();
    tx.commit().unwrap();
    cool(&db);
    // Only the pages of the large value stay out of the pool.
    db.get(&table, &0).unwrap();
    let mut failing = db.begin();
    failing.insert(&table, &0, &[2][..]).unwrap();
    failing.insert(&table, &1, &value(2)[..]).unwrap();
    failing.insert(&table, &2, &[2][..]).unwrap();
    let begun = Arc::new(AtomicBool::new(false));
    let saw_a_half = Arc::new(AtomicBool::new(false));
    let other = {
        let (db, table) = (db.clone(), table.clone());
        let (begun, saw_a_half) = (begun.clone(), saw_a_half.clone());
        thread::spawn("other", move || {
            loop {
                let mut tx = db.begin();
                tx.set_durability(Durability::None);
                begun.store(true, Ordering::Relaxed);
                let mut attempt = || -> braid::Result<(u8, u8)> {
                    let first = tx.get(&table, &0)?.map_or(0, |bytes| bytes[0]);
                    let last = tx.get(&table, &2)?.map_or(0, |bytes| bytes[0]);
                    tx.insert(&table, &3, &[first][..])?;
                    Ok((first, last))
                };
                let seen = attempt();
                if matches!(seen, Ok((first, last)) if first != last) {
                    saw_a_half.store(true, Ordering::Relaxed);
                }
                match seen.and_then(|seen| tx.commit().map(|_| seen)) {
                    Ok(seen) => assert!(seen == (1, 1) || seen == (2, 2), "{seen:?} committed"),
                    Err(Error::Conflict(_)) => {}
                    Err(error) => {
                        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
                        return;
                    }
                }
            }
        })
        .unwrap()
    };
    while !begun.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    device.fail_reads_at_random(1);
    let error = failing.commit().unwrap_err();
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    other.join().unwrap();
    saw_a_half.load(Ordering::Relaxed)
}

/// Runs a history under each protocol with some seeds.
fn run_histories(seeds: u64, history: fn(Protocol, u64)) {
    for (i, &protocol) in Protocol::ALL.iter().enumerate() {
        for seed in 0..seeds {
            let seed = seed * 7 + i as u64;
            let options = simulation::Options {
                seed,
                steps_max: 10_000_000,
                stalls: 0,
            };
            let (outcome, _) = simulation::run(&options, move || history(protocol, seed));
            outcome.unwrap_or_else(|failure| panic!("{protocol}, seed {seed}: {failure}"));
        }
    }
}

#[test]
fn a_commit_that_fails_when_it_is_applied_is_whole_or_gone() {
    run_histories(40, history);
}

#[test]
fn nothing_commits_that_saw_half_of_a_failed_commit() {
    static HALVES: AtomicU64 = AtomicU64::new(0);
    run_histories(400, |protocol, seed| {
        let saw_a_half = overlapping_history(protocol, seed);
        HALVES.fetch_add(u64::from(saw_a_half), Ordering::Relaxed);
    });
    // Otherwise the test could not fail.
    assert!(HALVES.load(Ordering::Relaxed) > 0);
}
