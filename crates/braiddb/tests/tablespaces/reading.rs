//! Reading and checking a database with tablespaces.

use super::*;

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
    let reader = small().open_read_only(&directories.data);
    let Err(Error::Tablespace(TablespaceError::Unsupported { operation, .. })) = reader else {
        panic!("{reader:?}");
    };
    assert!(operation.contains("while another process writes"));
    let verified = braid::offline::verify(&directories.data, &mut |_| ());
    assert!(verified.is_err(), "{verified:?}");
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
    // Two readers at once, and no writer meanwhile.
    let readers = [(); 2].map(|()| small().open_read_only(&directories.data).unwrap());
    let writer = small().open(&directories.data);
    assert!(matches!(writer, Err(Error::Locked { .. })), "{writer:?}");
    drop(readers);
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
