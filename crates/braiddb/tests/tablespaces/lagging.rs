//! Tablespaces whose data files cannot be written: the others go on without them, and nothing is lost.

use super::*;

/// What the tests that end a process do to its devices.
#[derive(Clone, Copy, Debug)]
enum End {
    Closed,
    Killed,
    Crashed,
}

/// Keys of which each table has the value `old` or, from 25 on, `new`; 0 was removed.
const KEYS: u64 = 75;

/// A database of which all tablespaces had a checkpoint before `fault` strikes the device of `one`.
fn with_fault(
    seed: u64,
    builder: impl Fn(Builder) -> Builder,
    fault: impl Fn(&SimDevice),
) -> (Simulated, Database, Vec<Table<u64, Bytes>>) {
    let simulated = Simulated::new(seed, 2);
    let db = simulated.open_as(builder(simulated.builder())).unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    for key in 0..50 {
        put(&db, &tables, key, b"old").unwrap();
    }
    db.checkpoint().unwrap();
    for key in 25..KEYS {
        put(&db, &tables, key, b"new").unwrap();
    }
    for table in &tables {
        db.transact(|tx| tx.remove(table, &0)).unwrap();
    }
    // Its tree is in no checkpoint of `one`, and its name in one of the main tablespace.
    let late = db.open_table_in::<u64, Bytes>("one", "late", Default::default());
    let late = late.unwrap();
    db.transact(|tx| tx.insert(&late, &1, b"late")).unwrap();
    fault(&simulated.devices[1]);
    let failed = db.checkpoint();
    let failed = failed.expect_err("the fault strikes the checkpoint");
    assert!(
        failed.to_string().contains("tablespace \"one\""),
        "{failed}"
    );
    (simulated, db, tables)
}

#[track_caller]
fn expect_failed<T: std::fmt::Debug>(outcome: braid::Result<T>) {
    match outcome {
        Err(Error::Tablespace(TablespaceError::Failed { name, cause, .. })) => {
            assert!(
                name == "one" && cause.contains("data.braid of tablespace \"one\""),
                "{cause}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn expect_all(db: &Database, simulated: &Simulated) {
    for table in simulated.tables(db).unwrap() {
        for key in 0..KEYS {
            let expected = match key {
                0 => None,
                1..25 => Some(&b"old"[..]),
                _ => Some(&b"new"[..]),
            };
            let found = db.get(&table, &key).unwrap();
            assert_eq!(found.as_deref(), expected, "{} {key}", table.name());
        }
    }
    let late: Table<u64, Bytes> = db.existing_table("late").unwrap().unwrap();
    assert_eq!(db.get(&late, &1).unwrap().as_deref(), Some(&b"late"[..]));
}

#[test]
fn only_writers_of_a_tablespace_that_cannot_be_written_are_refused() {
    let (simulated, db, tables) = with_fault(31, |builder| builder, |device| device.break_after(1));
    expect_failed(put(&db, &tables[1..2], 500, b"refused"));
    expect_failed(put(&db, &tables, 500, b"refused"));
    expect_failed(db.open_table_in::<u64, u64>("one", "more", Default::default()));
    expect_failed(db.bulk_load_in::<u64, u64>("one", "loaded", Default::default()));
    expect_failed(db.move_table("main", Some("one")));
    expect_failed(db.create_tablespace("three", simulated.options(0)));
    expect_failed(db.drop_tablespace("two"));
    assert!(
        db.backup_to(&mut Vec::new()).is_err(),
        "it would lack a tablespace"
    );
    expect_all(&db, &simulated);

    let others = [tables[0].clone(), tables[2].clone()];
    let before = db.stats();
    for key in 500..600 {
        put(&db, &others, key, &[7; 1_000]).unwrap();
        assert_eq!(db.get(&tables[1], &key).unwrap(), None);
    }
    let failed = db.checkpoint().unwrap_err();
    assert!(
        failed.to_string().contains("tablespace \"one\""),
        "{failed}"
    );
    let mut loader = db
        .bulk_load_in::<u64, u64>("two", "loaded", Default::default())
        .unwrap();
    loader.insert(&1, &2).unwrap();
    loader.finish().unwrap();
    let stats = db.stats();
    assert_eq!(stats.checkpoints, before.checkpoints + 2);
    assert!(
        stats.log_bytes_to_recover < 50_000,
        "the others have a checkpoint"
    );
    let [one, two] = &stats.tablespaces[..] else {
        panic!("{stats:?}");
    };
    assert!(one.failing && one.log_kept_bytes > 100_000, "{one:?}");
    assert!(!two.failing && two.log_kept_bytes == 0, "{two:?}");
    assert!(matches!(db.health(), Health::CheckpointFailing { .. }));
}

/// Copies all files of a device to a directory.
fn export(device: &SimDevice, directory: &Path) {
    fs::create_dir(directory).unwrap();
    for entry in device.list().unwrap() {
        let file = device.open(&entry.name, braid_io::OpenMode::Existing);
        let len = entry.len as usize;
        let mut bytes = device.allocate(len.max(1));
        file.unwrap().read_at(&mut bytes[..len], 0).unwrap();
        fs::write(directory.join(&entry.name), &bytes[..len]).unwrap();
    }
}

/// Its pages are sound, and belong to the state of the others by the log.
#[test]
fn a_tablespace_that_lags_is_read_next_to_the_writer_and_verified() {
    let fault = |device: &SimDevice| device.fail_sync_after(1);
    let (mut simulated, db, tables) = with_fault(37, |builder| builder, fault);
    let read = |simulated: &Simulated| {
        let main = Arc::new(simulated.devices[0].clone());
        simulated.builder().open_read_only_on(main).unwrap()
    };
    let (mut reader, unread) = (read(&simulated), read(&simulated));
    expect_all(&reader, &simulated);
    // Checkpoints of the others.
    let others = [tables[0].clone(), tables[2].clone()];
    for key in 500..520 {
        put(&db, &others, key, &[7; 1_000]).unwrap();
        let _ = db.checkpoint();
    }
    expect_all(&unread, &simulated);
    assert!(reader.refresh().unwrap());
    expect_all(&reader, &simulated);
    assert!(
        reader
            .get(&reader.open_table::<u64, Bytes>("main").unwrap(), &519)
            .unwrap()
            .is_some()
    );
    drop((reader, unread, tables, others, db));
    simulated.crash();
    let copy = tempfile::tempdir().unwrap();
    let places = ["data", "one", "two"].map(|name| copy.path().join(name));
    for (device, place) in simulated.devices.iter().zip(&places) {
        export(device, place);
    }
    let verify = braid::offline::Verify::new()
        .tablespace_directory("one", &places[1])
        .tablespace_directory("two", &places[2]);
    let report = verify.check(&places[0], &mut |damage| panic!("{damage}"));
    let report = report.unwrap();
    assert!(
        report.damages == 0 && report.log_transactions > 20,
        "{report:?}"
    );
    let mut dump = String::new();
    verify.dump(&places[0], &mut dump).unwrap();
    assert!(dump.contains("tablespace \"one\""), "{dump}");
}

/// The main tablespace's newest checkpoint names those that lag, and from where on the log has
/// what they lack.
#[test]
fn a_tablespace_that_lags_is_recovered_with_its_device() {
    // From the first page to the superblock, after which it is unknown which one the file has.
    type Fault = fn(&SimDevice, u64);
    let faults: [(&str, Fault); 3] = [
        ("broken", SimDevice::break_after),
        ("not written once", SimDevice::fail_write_after),
        ("not synced once", SimDevice::fail_sync_after),
    ];
    let ends = [End::Closed, End::Killed, End::Crashed];
    for case in 0..24_usize {
        let (what, fault) = faults[case % 3];
        let (after, end) = (1 + case as u64 / 6, ends[case / 3 % 3]);
        let protocol = PROTOCOLS[case % 4];
        eprintln!("{protocol} {what} after {after} steps, {end:?}");
        let with = |builder: Builder| builder.protocol(protocol);
        let strike = |device: &SimDevice| fault(device, after);
        let (mut simulated, db, tables) = with_fault(40 + case as u64, with, strike);
        let others = [tables[0].clone(), tables[2].clone()];
        for key in 500..530 {
            put(&db, &others, key, b"others").unwrap();
            if key % 10 == 0 {
                // Again without `one`, or again with it.
                let _ = db.checkpoint();
            }
        }
        drop((tables, others));
        match end {
            End::Closed => drop(db.close()),
            End::Killed => simulated.kill(),
            End::Crashed => simulated.crash(),
        }
        simulated.devices[1].repair();
        let db = simulated.open_as(with(simulated.builder())).unwrap();
        expect_all(&db, &simulated);
        let tables = simulated.tables(&db).unwrap();
        for (table, is_there) in tables.iter().zip([true, false, true]) {
            assert_eq!(db.get(table, &529).unwrap().is_some(), is_there);
        }
        put(&db, &tables, 600, b"all").unwrap();
        db.checkpoint().unwrap();
        assert!(db.stats().tablespaces.iter().all(|space| !space.failing));
        put(&db, &tables, 601, b"all").unwrap();
        db.sync().unwrap();
        drop(tables);
        simulated.crash();
        let db = simulated.open_as(with(simulated.builder())).unwrap();
        expect_all(&db, &simulated);
        for table in simulated.tables(&db).unwrap() {
            assert!(db.get(&table, &601).unwrap().is_some());
        }
    }
}

/// The first checkpoint after an opening has the number of the one before if there was no transaction,
/// and a later place in the log, because an incarnation begins.
#[test]
fn the_log_is_kept_for_a_tablespace_that_lags_by_no_transaction() {
    let mut lagging = 0;
    for case in 0..20 {
        let (protocol, after) = (PROTOCOLS[case % 4], 1 + case as u64 / 4);
        let mut simulated = Simulated::new(60 + case as u64, 2);
        let open = |simulated: &Simulated| {
            let builder = simulated.builder().protocol(protocol);
            simulated.open_as(builder).unwrap()
        };
        let db = open(&simulated);
        simulated.create_all(&db).unwrap();
        let tables = simulated.tables(&db).unwrap();
        put(&db, &tables, 1, b"before").unwrap();
        drop(tables);
        db.close().unwrap();
        let db = open(&simulated);
        // The first writes are those with which the log begins: if one of them fails, there is no
        // checkpoint.
        simulated.devices[1].fail_write_after(after);
        let _ = db.checkpoint();
        if !db.stats().tablespaces[0].failing {
            continue;
        }
        lagging += 1;
        // Until released segments are used again.
        let tables = simulated.tables(&db).unwrap();
        let others = [tables[0].clone(), tables[2].clone()];
        for key in 500..560 {
            put(&db, &others, key, &[7; 4_000]).unwrap();
        }
        drop((tables, others, db));
        simulated.crash();
        let db = open(&simulated);
        db.checkpoint().unwrap();
        let tables = simulated.tables(&db).unwrap();
        put(&db, &tables, 2, b"after").unwrap();
        drop((tables, db));
        simulated.crash();
        let db = open(&simulated);
        for table in simulated.tables(&db).unwrap() {
            for (key, value) in [(1, &b"before"[..]), (2, b"after")] {
                assert_eq!(db.get(&table, &key).unwrap().as_deref(), Some(value));
            }
        }
    }
    assert!(lagging > 0, "a fault strikes the checkpoint");
}

#[test]
fn without_the_device_of_one_that_lags_the_others_can_be_read() {
    let (mut simulated, db, tables) =
        with_fault(51, |builder| builder, |device| device.break_after(1));
    put(&db, &tables[..1], 500, b"main").unwrap();
    let _ = db.checkpoint();
    put(&db, &tables[2..], 501, b"two").unwrap();
    db.sync().unwrap();
    drop(tables);
    simulated.crash();
    let without = small()
        .strands(2)
        .tablespace_device("two", Arc::new(simulated.devices[2].clone()));
    let refused = fault(simulated.open_as(without.clone()));
    assert!(
        matches!(&refused, TablespaceError::Missing { name, .. } if name == "one"),
        "{refused}"
    );
    let reader = without
        .open_read_only_on(Arc::new(simulated.devices[0].clone()))
        .unwrap();
    for (name, key) in [("main", 500), ("in two", 501)] {
        let table: Table<u64, Bytes> = reader.existing_table(name).unwrap().unwrap();
        assert!(reader.get(&table, &key).unwrap().is_some(), "{name}");
        assert_eq!(
            reader.get(&table, &30).unwrap().as_deref(),
            Some(&b"new"[..])
        );
    }
    let absent = reader.existing_table::<u64, Bytes>("in one");
    assert!(
        matches!(
            absent,
            Err(Error::Tablespace(TablespaceError::Missing { .. }))
        ),
        "{absent:?}"
    );
    drop(reader);
    expect_all(&simulated.open().unwrap(), &simulated);
}

/// The log grows until it is full, since nothing acknowledged may be lost.
#[test]
fn the_tablespace_that_keeps_the_log_is_named_when_the_log_is_full() {
    let small_log = |builder: Builder| {
        let builder = builder.background_threads(true);
        builder.max_log_bytes(2 << 20).checkpoint_log_bytes(1 << 20)
    };
    let (mut simulated, db, tables) = with_fault(61, small_log, |device| device.break_after(1));
    let refused = (1_000..9_000).find_map(|key| put(&db, &tables[..1], key, &[7; 4_000]).err());
    let refused = refused.expect("the log is limited").to_string();
    assert!(refused.contains("kept for tablespace \"one\""), "{refused}");
    assert_eq!(
        db.get(&tables[0], &1_000).unwrap().as_deref(),
        Some(&[7; 4_000][..])
    );
    drop(tables);
    let _ = db.close();
    simulated.devices[1].repair();
    simulated.crash();
    let db = simulated.open_as(small_log(simulated.builder())).unwrap();
    expect_all(&db, &simulated);
    db.checkpoint().unwrap();
    let tables = simulated.tables(&db).unwrap();
    put(&db, &tables, 9_999, &[7; 4_000]).unwrap();
}

/// A write of a page that failed is tried again by the next checkpoint.
#[test]
fn a_tablespace_is_written_again_once_its_device_works() {
    let (simulated, db, tables) =
        with_fault(71, |builder| builder, |device| device.fail_write_after(1));
    expect_failed(put(&db, &tables, 500, b"refused"));
    db.checkpoint().unwrap();
    assert!(matches!(db.health(), Health::Good));
    put(&db, &tables, 500, b"again").unwrap();
    expect_all(&db, &simulated);
}
