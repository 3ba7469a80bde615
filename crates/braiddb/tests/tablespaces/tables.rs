//! Tables, snapshots and transactions across tablespaces.

use super::*;

#[test]
fn tables_are_in_their_tablespaces_and_found_again() {
    let directories = Directories::with_tablespaces();
    for round in 2..5 {
        let db = small().open(&directories.data).unwrap();
        check(&db, round - 1);
        assert_eq!(db.tablespace_names(), ["one", "two"]);
        let [main, one, two] = tables(&db);
        assert_eq!(db.tablespace_of(&main).unwrap(), None);
        for (table, name) in [(&one, "one"), (&two, "two")] {
            assert_eq!(db.tablespace_of(table).unwrap().as_deref(), Some(name));
            let again: Table<u64, Bytes> = db.open_table(&table.name()).unwrap();
            assert_eq!(db.tablespace_of(&again).unwrap().as_deref(), Some(name));
        }
        let asked = db.open_table_in::<u64, Bytes>("two", "in one", Default::default());
        let Err(Error::Tablespace(TablespaceError::OtherTablespace { found, .. })) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(found, "one");
        let before = db.stats();
        fill(&db, round);
        // One half of the rounds replays the log.
        if round % 2 == 0 {
            db.checkpoint().unwrap();
        }
        let stats = db.stats();
        assert_eq!(
            stats.checkpoints - before.checkpoints,
            u64::from(round % 2 == 0)
        );
        let names: Vec<_> = stats
            .tablespaces
            .iter()
            .map(|space| &space.name[..])
            .collect();
        assert_eq!(names, ["one", "two"]);
        for space in &stats.tablespaces {
            assert!(space.store.pages >= 5, "{space:?}");
            let directory = fs::canonicalize(directories.at(&space.name)).unwrap();
            assert_eq!(space.directory.as_ref(), Some(&directory));
        }
        // The process is killed, as far as the files show.
        let copied = tempfile::tempdir().unwrap();
        for name in ["data", "one", "two"] {
            copy(&directories.at(name), &copied.path().join(name));
        }
        drop(db);
        let killed = small()
            .tablespace_directory("one", copied.path().join("one"))
            .tablespace_directory("two", copied.path().join("two"))
            .open(copied.path().join("data"));
        check(&killed.unwrap(), round);
        // The copy knows its own directories now.
        check(&small().open(copied.path().join("data")).unwrap(), round);
    }
}

#[test]
fn snapshots_scans_and_large_values_work_across_tablespaces() {
    let devices: Vec<Arc<MemoryDevice>> = (0..3).map(|_| Arc::default()).collect();
    let db = small()
        .background_threads(false)
        .open_on(devices[0].clone());
    let db = db.unwrap();
    for (name, device) in ["one", "two"].iter().zip(&devices[1..]) {
        let options = TablespaceOptions::on_device(device.clone()).pool_bytes(2 << 20);
        db.create_tablespace(name, options).unwrap();
    }
    let tables = tables(&db);
    let large = |fill: u8| vec![fill; 300_000];
    for key in 0..3 {
        put(&db, &tables, key, &large(1)).unwrap();
    }
    let pages = |db: &Database| -> Vec<u64> {
        let stats = db.stats();
        let spaces = stats.tablespaces.iter().map(|space| space.store.pages);
        std::iter::once(stats.store.pages).chain(spaces).collect()
    };
    db.checkpoint().unwrap();
    let before = pages(&db);
    let snapshot = db.snapshot();
    for key in 0..3 {
        put(&db, &tables, key, &large(2)).unwrap();
    }
    for table in &tables {
        for key in 0..3 {
            assert_eq!(snapshot.get(table, &key).unwrap().unwrap(), large(1));
            assert_eq!(db.get(table, &key).unwrap().unwrap(), large(2));
        }
        assert_eq!(snapshot.range(table, ..).unwrap().count(), 3);
    }
    // The pages of the replaced values become free in their own data files.
    drop(snapshot);
    db.compact().unwrap();
    for (before, after) in before.iter().zip(pages(&db)) {
        assert!(after <= before + 3, "{before} pages before, {after} after");
    }
    for table in &tables {
        for key in 0..3 {
            assert_eq!(db.get(table, &key).unwrap().unwrap(), large(2));
        }
        db.transact(|tx| (0..3).try_for_each(|key| tx.remove(table, &key).map(drop)))
            .unwrap();
        assert_eq!(db.snapshot().range(table, ..).unwrap().count(), 0);
    }
    db.compact().unwrap();
    assert!(
        pages(&db).iter().all(|pages| *pages < 10),
        "{:?}",
        pages(&db)
    );
}

/// Page ids, and so the roots of trees, are the same in two data files. A transaction that uses both
/// in turn must not take a hint about one for the other.
#[test]
fn transactions_that_alternate_between_tablespaces_read_their_own_tables() {
    let (main, one) = (
        Arc::<MemoryDevice>::default(),
        Arc::<MemoryDevice>::default(),
    );
    let db = small().background_threads(false).open_on(main).unwrap();
    let options = TablespaceOptions::on_device(one).pool_bytes(1 << 20);
    db.create_tablespace("one", options).unwrap();
    let in_main: Table<u64, u64> = db.open_table("m").unwrap();
    let in_one = db.open_table_in("one", "o", Default::default()).unwrap();
    for round in 0..50 {
        db.transact(|tx| {
            for key in 0..40 {
                tx.insert(&in_main, &key, &(2 * round))?;
                tx.insert(&in_one, &key, &(2 * round + 1))?;
            }
            Ok(())
        })
        .unwrap();
        db.transact(|tx| {
            for key in 0..40 {
                assert_eq!(tx.get(&in_main, &key)?, Some(2 * round));
                assert_eq!(tx.get(&in_one, &key)?, Some(2 * round + 1));
            }
            Ok(())
        })
        .unwrap();
    }
}
