//! Devices of tablespaces that are full or fail.

use std::io::Write;

use super::*;

#[test]
fn a_full_tablespace_refuses_only_its_own_writers() {
    let simulated = Simulated::new(1, 2);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    let bytes = vec![7; 1_000];
    for key in 0..100 {
        put(&db, &tables, key, &bytes).unwrap();
    }
    db.checkpoint().unwrap();
    let full = &simulated.devices[1];
    full.set_capacity(Some(full.used() + (100 << 10)));
    let refused = (100..5_000).find_map(|key| put(&db, &tables[1..2], key, &bytes).err());
    let refused = refused.unwrap();
    let Error::OutOfSpace { what } = &refused else {
        panic!("{refused}");
    };
    assert!(what.contains("\"one\""), "{what}");
    let others = [tables[0].clone(), tables[2].clone()];
    for key in 100..600 {
        put(&db, &others, key, &bytes).unwrap();
    }
    let across = put(&db, &tables, 1_000_000, &bytes);
    assert!(matches!(across, Err(Error::OutOfSpace { .. })));
    for table in &others {
        assert_eq!(
            db.get(table, &1_000_000).unwrap(),
            None,
            "nothing is left of it"
        );
    }
    // Reads and checkpoints work, and removals make room.
    assert_eq!(db.get(&tables[1], &5).unwrap().as_deref(), Some(&bytes[..]));
    db.checkpoint().unwrap();
    for key in 0..90 {
        db.transact(|tx| tx.remove(&tables[1], &key)).unwrap();
    }
    db.compact().unwrap();
    put(&db, &tables, 1_000_000, &bytes).unwrap();
    drop((tables, others));
    db.close().unwrap();
    let db = simulated.open().unwrap();
    for table in simulated.tables(&db).unwrap() {
        assert!(db.get(&table, &1_000_000).unwrap().is_some());
    }
}

/// A device that dies takes its own tables' future along, and nobody's past.
#[test]
fn after_the_device_of_a_tablespace_died_the_others_are_readable_and_writable() {
    let mut simulated = Simulated::new(2, 2);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    for key in 0..50 {
        put(&db, &tables, key, b"before").unwrap();
    }
    simulated.devices[1].break_after(1);
    // The message and the health name the file, of which there is one in each tablespace.
    let names_it = |error: &Error| {
        error
            .to_string()
            .contains("data.braid of tablespace \"one\"")
    };
    let failed = db.checkpoint().unwrap_err();
    assert!(names_it(&failed), "{failed}");
    let others = [tables[0].clone(), tables[2].clone()];
    for key in 50..100 {
        put(&db, &others, key, b"after").unwrap();
    }
    for table in &others {
        assert_eq!(db.get(table, &7).unwrap().as_deref(), Some(&b"before"[..]));
        assert_eq!(db.get(table, &70).unwrap().as_deref(), Some(&b"after"[..]));
    }
    drop((tables, others));
    // It failed again at the end; the log has everything.
    let _ = db.close();
    simulated.devices[1].repair();
    simulated.crash();
    let db = simulated.open().unwrap();
    for (index, table) in simulated.tables(&db).unwrap().iter().enumerate() {
        assert_eq!(db.get(table, &7).unwrap().as_deref(), Some(&b"before"[..]));
        assert_eq!(db.get(table, &70).unwrap().is_some(), index != 1);
    }
}

/// It is unknown which pages a failed sync lost, so no checkpoint is published until the database is
/// opened again. The log has everything, so commits continue, and the health says that this ends.
#[test]
fn a_failed_sync_of_a_tablespace_is_in_the_health_and_in_all_errors() {
    for failing in 0..=1 {
        let (sender, reported) = std::sync::mpsc::channel();
        let simulated = Simulated::new(11 + failing, 1);
        let builder = simulated.builder();
        let builder = builder.on_health_change(move |health| drop(sender.send(health.clone())));
        let db = simulated.open_as(builder).unwrap();
        simulated.create_all(&db).unwrap();
        let tables = simulated.tables(&db).unwrap();
        put(&db, &tables, 1, b"before").unwrap();
        let name = ["cannot sync data.braid", "data.braid of tablespace \"one\""];
        let names_it = |cause: &str| {
            cause.contains(name[failing as usize])
                && (failing == 1 || !cause.contains("tablespace"))
        };
        simulated.devices[failing as usize].fail_sync_after(1);
        let first = db.checkpoint().unwrap_err();
        if !matches!(db.health(), Health::CheckpointFailing { .. }) {
            // The log's own sync failed.
            assert!(
                failing == 0 && matches!(db.health(), Health::Poisoned { .. }),
                "{first}"
            );
            continue;
        }
        assert!(names_it(&first.to_string()), "{first}");
        for health in [reported.recv().unwrap(), db.health()] {
            let Health::CheckpointFailing {
                error: Error::Poisoned { cause },
            } = &health
            else {
                panic!("{health:?}");
            };
            assert!(names_it(cause), "{cause}");
        }
        assert!(db.stats().checkpoint_failing && !db.stats().poisoned);
        let again = db.checkpoint().unwrap_err();
        assert!(
            matches!(&again, Error::Poisoned { cause } if names_it(cause)),
            "{again}"
        );
        // The tablespace refuses its writers; the main one's go on as long as the log has room.
        let written = 2 - failing as usize;
        put(&db, &tables[..written], 2, b"after").unwrap();
        for table in &tables[..written] {
            assert_eq!(db.get(table, &2).unwrap().as_deref(), Some(&b"after"[..]));
        }
        drop(tables);
        assert!(db.close().is_err());
        let db = simulated.open().unwrap();
        assert!(matches!(db.health(), Health::Good));
        for table in &simulated.tables(&db).unwrap()[..written] {
            assert_eq!(db.get(table, &2).unwrap().as_deref(), Some(&b"after"[..]));
        }
        db.checkpoint().unwrap();
    }
}

/// A page that was damaged on its medium while the database is open.
#[test]
fn damage_is_reported_with_the_file_of_its_tablespace() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    let path = directories.at("one").join("data.braid");
    let mut bytes = fs::read(&path).unwrap();
    // All pages; the superblocks and the page map were read.
    let pages = bytes[2 * 8_192 + 4_000..].iter_mut().step_by(8_192);
    pages.for_each(|byte| *byte ^= 1);
    // In place, because the database has the file open.
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&bytes).unwrap();
    let table = db.existing_table::<u64, Bytes>("in one").unwrap().unwrap();
    let read = db.get(&table, &7);
    let Err(Error::Corrupted { location, .. }) = &read else {
        panic!("{read:?}");
    };
    let named = "data.braid of tablespace \"one\", block ";
    assert!(location.starts_with(named), "{location}");
}
