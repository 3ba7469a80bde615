//! Reading and checking a database with tablespaces.

use super::*;

/// As [`fill`], in one transaction.
fn fill_at_once(db: &Database, value: u8) {
    let tables = tables(db);
    let keys = (0..200_u64).flat_map(|key| tables.iter().map(move |table| (table, key)));
    let filled = db.transact(|tx| {
        let mut keys = keys.clone();
        keys.try_for_each(|(table, key)| tx.insert(table, &key, &[value; 100]))
    });
    filled.unwrap();
}

#[test]
fn next_to_a_writer_a_database_is_read_verified_dumped_and_copied_with_its_tablespaces() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    fill_at_once(&db, 2);
    let mut reader = small().open_read_only(&directories.data).unwrap();
    assert_eq!(reader.tablespace_names(), ["one", "two"]);
    let kept = reader.snapshot();
    let in_two: Table<u64, Bytes> = reader.existing_table("in two").unwrap().unwrap();
    for value in 3..6 {
        fill_at_once(&db, value);
        db.checkpoint().unwrap();
    }
    fill_at_once(&db, 6);
    assert!(reader.refresh().unwrap());
    check(&reader, 6);
    for key in 0..200 {
        let found = kept.get(&in_two, &key).unwrap();
        assert_eq!(found.as_deref(), Some(&[2; 100][..]), "{key}");
    }
    let verified = braid::offline::verify(&directories.data, &mut |damage| panic!("{damage}"));
    assert_eq!(verified.unwrap().tables, 4);
    let mut dump = String::new();
    braid::offline::dump(&directories.data, &mut dump).unwrap();
    assert!(dump.contains("tablespace \"two\", number 2"), "{dump}");
    // The reader's backup has its state, and the writer goes on.
    let backup = directories.at("backup");
    reader.backup(&backup).unwrap();
    fill_at_once(&db, 7);
    let restored = directories.at("restored");
    braid::backup::Restore::new()
        .backup(&backup)
        .tablespace_directory("one", directories.at("restored-one"))
        .tablespace_directory("two", directories.at("restored-two"))
        .device(DeviceChoice::File)
        .pool_bytes(1 << 20)
        .run(&restored)
        .unwrap();
    check(&small().open(&restored).unwrap(), 6);
    check(&db, 7);
    drop((kept, reader));
    db.close().unwrap();
}

#[test]
fn without_a_writer_a_database_is_read_and_verified_with_its_tablespaces() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    fill(&db, 2);
    // The writer is killed, as far as the files show: the log is replayed in memory.
    let copied = tempfile::tempdir().unwrap();
    for name in ["data", "one", "two"] {
        copy(&directories.at(name), &copied.path().join(name));
    }
    db.close().unwrap();
    let at = |name: &str| copied.path().join(name);
    let in_copy = small()
        .tablespace_directory("one", at("one"))
        .tablespace_directory("two", at("two"));
    let files =
        || ["one/data.braid", "one/TABLESPACE-OWNER"].map(|name| fs::read(at(name)).unwrap());
    let before = files();
    let reader = in_copy.open_read_only(at("data")).unwrap();
    for name in ["in main", "in one", "in two"] {
        let table: Table<u64, Bytes> = reader.existing_table(name).unwrap().unwrap();
        let found = reader.get(&table, &7).unwrap();
        assert_eq!(found.as_deref(), Some(&[2; 100][..]));
        assert_eq!(reader.snapshot().range(&table, ..).unwrap().count(), 200);
    }
    assert_eq!(reader.tablespace_names(), ["one", "two"]);
    drop(reader);
    assert!(files() == before, "reading changes no file");
    // Two readers at once. Without a reader table, there is no writer meanwhile.
    let readers = [(); 2].map(|()| small().open_read_only(&directories.data).unwrap());
    let writer = small().open(&directories.data);
    if cfg!(target_os = "linux") {
        drop(writer.unwrap());
    } else {
        assert!(matches!(writer, Err(Error::Locked { .. })), "{writer:?}");
    }
    drop(readers);
    let table = directories.data.join("READERS");
    if table.exists() {
        fs::remove_file(table).unwrap();
        let reader = small().open_read_only(&directories.data).unwrap();
        let writer = small().open(&directories.data);
        assert!(matches!(writer, Err(Error::Locked { .. })), "{writer:?}");
        drop(reader);
    }
    let mut damages = Vec::new();
    let mut verify = || {
        let sink = &mut |damage| damages.push(damage);
        braid::offline::verify(&directories.data, sink).unwrap()
    };
    let report = verify();
    assert_eq!((report.damages, report.tables), (0, 4), "{report:?}");
    assert!(report.records >= 600, "{report:?}");
    let mut dump = String::new();
    braid::offline::dump(&directories.data, &mut dump).unwrap();
    assert!(dump.contains("tablespace \"two\", number 2"), "{dump}");
    // Damage in a tablespace is found, and named.
    let path = directories.at("two/data.braid");
    let mut bytes = fs::read(&path).unwrap();
    let pages = bytes[2 * 8_192 + 100..].iter_mut().step_by(4_096);
    pages.for_each(|byte| *byte ^= 1);
    fs::write(&path, bytes).unwrap();
    assert!(verify().damages > 0);
    assert!(
        damages.iter().any(|damage| damage.contains("\"two\"")),
        "{damages:?}"
    );
}
