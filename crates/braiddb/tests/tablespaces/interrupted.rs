//! Moves of tables that a crash interrupts.

use super::logs::{devices, inline, open, with_logs};
use super::moves::{Contents, contents};
use super::*;

/// A crash at any step of any device leaves the table in one place, with everything acknowledged.
#[test]
fn an_interrupted_move_leaves_the_table_in_one_place() {
    let (mut moved, mut stayed) = (0, 0);
    for case in 0..160_u64 {
        let step = 1 + case / 2;
        let disturbed = case as usize % 2;
        let mut simulated = Simulated::new(case, 1);
        let builder = simulated.builder();
        let builder = builder.protocol(PROTOCOLS[case as usize / 2 % PROTOCOLS.len()]);
        let db = simulated.open_as(builder).unwrap();
        simulated.create_all(&db).unwrap();
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        let mut acknowledged = Contents::new();
        for key in 0..150 {
            acknowledged.insert(key, value(key, 150));
        }
        let fill = db.transact(|tx| {
            let mut all = acknowledged.iter();
            all.try_for_each(|(key, value)| tx.insert(&t, key, &value[..]))
        });
        fill.unwrap();
        if case % 3 == 0 {
            db.checkpoint().unwrap();
        }
        // With what may have been committed when the power failed.
        let mut doubtful: Option<(u64, Vec<u8>)> = None;
        simulated.devices[disturbed].crash_after(step);
        let mut number = 1_000;
        let mut write = |doubtful: &mut Option<(u64, Vec<u8>)>| {
            if doubtful.is_some() {
                return;
            }
            number += 1;
            let (key, bytes) = (number * 7 % 170, value(number, 100));
            match db.transact(|tx| tx.insert(&t, &key, &bytes[..])) {
                Ok(()) => drop(acknowledged.insert(key, bytes)),
                Err(_) => *doubtful = Some((key, bytes)),
            }
        };
        let done = db.move_table_with("t", Some("one"), |so_far| {
            write(&mut doubtful);
            if so_far.records % 5 == case % 5 {
                let _ = db.checkpoint();
            }
        });
        write(&mut doubtful);
        if case % 4 == 0 {
            let _ = db.checkpoint();
        }
        drop((db, t));
        if case % 5 == 0 {
            simulated.kill();
        } else {
            simulated.crash();
        }
        let db = simulated.open();
        let db = db.unwrap_or_else(|error| panic!("case {case}: {error}"));
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        let found = contents(&db, &t);
        let mut with_doubtful = acknowledged.clone();
        with_doubtful.extend(doubtful);
        assert!(
            found == acknowledged || found == with_doubtful,
            "case {case}: {:?}",
            db.tablespace_of(&t)
        );
        let is_there = db.tablespace_of(&t).unwrap().is_some();
        assert!(is_there || done.is_err(), "case {case}");
        (moved, stayed) = (moved + u32::from(is_there), stayed + u32::from(!is_there));
        // No other tree is left.
        drop(t);
        db.drop_table("t").unwrap();
        db.compact().unwrap();
        db.checkpoint().unwrap();
        let stats = db.stats();
        let pages = stats.tablespaces[0].store.pages;
        assert!(pages == 0, "case {case}: {pages} pages of one");
    }
    println!("{moved} moved, {stayed} stayed");
    assert!(moved > 20 && stayed > 20, "{moved} {stayed}");
}

/// A table in a tablespace, which is created if it does not exist; `None` is the main one.
fn table_in(db: &Database, space: Option<&str>, name: &str) -> Table<u64, Bytes> {
    match space {
        None => db.open_table(name).unwrap(),
        Some(space) => db.open_table_in(space, name, Default::default()).unwrap(),
    }
}

/// Writes the same to two tables.
fn put_both(
    db: &Database,
    tables: [&Table<u64, Bytes>; 2],
    records: &Contents,
) -> braid::Result<()> {
    db.transact(|tx| {
        let mut all = records
            .iter()
            .flat_map(|record| tables.map(|table| (table, record)));
        all.try_for_each(|(table, (key, value))| tx.insert(table, key, &value[..]))
    })
}

/// The power fails at any step of any device, while a table goes from log to log, and transactions
/// write to it and to one that stays.
#[test]
fn a_move_between_logs_leaves_no_transaction_torn() {
    // `one` and `two` have logs of their own.
    const PLACES: [Option<&str>; 3] = [None, Some("one"), Some("two")];
    let (mut moves, mut unmoved) = (0, 0);
    for case in 0..72_usize {
        let mut rng = fastrand::Rng::with_seed(case as u64);
        let mut devices = devices(case as u64 + 5_000);
        let builder = inline().protocol([Protocol::Glsn, Protocol::Epoch][case % 2]);
        let db = with_logs(&devices, &builder);
        let start = case % 3;
        let moving = table_in(&db, PLACES[start], "moving");
        let staying = table_in(&db, PLACES[case / 3 % 3], "staying");
        let mut acknowledged: Contents = (0..90).map(|key| (key, value(key, 100))).collect();
        put_both(&db, [&moving, &staying], &acknowledged).unwrap();
        devices[case / 9 % 3].crash_after(rng.u64(1..70));
        // What the last transaction wrote, if it is unknown whether it was committed.
        let mut doubtful: Option<Contents> = None;
        let mut place = start;
        for step in 1..=4 {
            let next = (start + step) % 3;
            let moved = db.move_table_with("moving", PLACES[next], |_| {
                let number = rng.u64(1_000..2_000);
                let keys = [rng.u64(..100), rng.u64(..100)];
                let records = keys.map(|key| (key, value(number, 50))).into();
                if doubtful.is_none() {
                    match put_both(&db, [&moving, &staying], &records) {
                        Ok(()) => acknowledged.extend(records),
                        Err(_) => doubtful = Some(records),
                    }
                }
                if rng.u32(..8) == 0 {
                    let _ = db.checkpoint();
                }
            });
            match moved {
                Ok(_) => (place, moves) = (next, moves + 1),
                Err(_) => break,
            }
        }
        drop((db, moving, staying));
        devices.iter().for_each(SimDevice::power_off);
        devices = devices.iter().map(SimDevice::after_crash).collect();
        let db = open(&devices, builder).unwrap_or_else(|error| panic!("case {case}: {error}"));
        let [moving, staying] = ["moving", "staying"].map(|name| db.open_table(name).unwrap());
        let found = contents(&db, &moving);
        assert!(found == contents(&db, &staying), "case {case}: torn");
        let mut with_doubtful = acknowledged.clone();
        with_doubtful.extend(doubtful.into_iter().flatten());
        assert!(
            found == acknowledged || found == with_doubtful,
            "case {case}"
        );
        // Where the last complete move left it, or where the next one was to bring it.
        let actual = db.tablespace_of(&moving).unwrap();
        let next = (place + 1) % 3;
        let is_right = [place, next].map(|place| PLACES[place] == actual.as_deref());
        assert!(is_right.contains(&true), "case {case}: {actual:?}");
        unmoved += u32::from(place == start);
        // It is used and moved further.
        db.move_table("moving", PLACES[(place + 2) % 3]).unwrap();
        put_both(&db, [&moving, &staying], &[(7, value(1, 1))].into()).unwrap();
        assert!(contents(&db, &moving) == contents(&db, &staying));
    }
    println!("{moves} moves, {unmoved} stayed");
    assert!(moves > 20 && unmoved > 10, "{moves} {unmoved}");
}
