//! Opening a database one of whose tablespaces is missing, foreign, of another state, or damaged.

use super::*;

#[test]
fn a_missing_tablespace_is_named_and_nothing_is_written() {
    let directories = Directories::with_tablespaces();
    fs::rename(directories.at("two"), directories.at("elsewhere")).unwrap();
    let before = directories.files();
    let error = fault(small().open(&directories.data));
    let TablespaceError::Missing { name, path, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (&name[..], path),
        (
            "two",
            &fs::canonicalize(directories.at("")).unwrap().join("two")
        )
    );
    assert!(error.to_string().contains("mount its disk"), "{error}");
    // An empty directory, as the mount point of a disk that is not mounted.
    fs::create_dir(directories.at("two")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "two"),
        "{error}"
    );
    fs::remove_file(directories.at("two").join("LOCK")).ok();
    fs::remove_dir(directories.at("two")).unwrap();
    assert_eq!(directories.files(), before);
    // Moved: named once, then recorded.
    let moved = small().tablespace_directory("two", directories.at("elsewhere"));
    check(&moved.open(&directories.data).unwrap(), 1);
    check(&small().open(&directories.data).unwrap(), 1);
    // Its data file is lost.
    fs::remove_file(directories.at("elsewhere/data.braid")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "two"),
        "{error}"
    );
    assert!(error.to_string().contains("data.braid"), "{error}");
}

/// Reads the tables of `main` and `one`, and expects the error of `two`.
#[track_caller]
fn without_two(reader: &Database, value: u8) -> TablespaceError {
    assert_eq!(reader.tablespace_names(), ["one"]);
    assert_eq!(
        reader.table_names().unwrap(),
        ["in main", "in one", "in two"]
    );
    for name in ["in main", "in one"] {
        let table: Table<u64, Bytes> = reader.existing_table(name).unwrap().unwrap();
        let snapshot = reader.snapshot();
        let entries = snapshot.range(&table, ..).unwrap();
        let right = entries.map(|entry| entry.unwrap().1 == [value; 100][..]);
        assert_eq!(right.filter(|right| *right).count(), 200, "{name}");
        let written = reader.transact(|tx| tx.insert(&table, &1, b"new"));
        assert!(matches!(written, Err(Error::OpenedReadOnly)), "{written:?}");
    }
    let opened = reader.open_table_in::<u64, Bytes>("two", "in two", Default::default());
    match (reader.existing_table::<u64, Bytes>("in two"), opened) {
        (Err(Error::Tablespace(error)), Err(Error::Tablespace(again))) => {
            assert_eq!(error, again);
            error
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_one_tablespace_the_others_are_readable() {
    let directories = Directories::with_tablespaces();
    let two = directories.at("two");
    fs::rename(&two, directories.at("elsewhere")).unwrap();
    let before = directories.files();
    let read = |value| without_two(&small().open_read_only(&directories.data).unwrap(), value);
    let missing = read(1);
    assert!(
        matches!(&missing, TablespaceError::Missing { name, .. } if name == "two"),
        "{missing}"
    );
    assert_eq!(directories.files(), before);
    // It is damaged, of an older state, or another database's.
    fs::rename(directories.at("elsewhere"), &two).unwrap();
    copy(&two, &directories.at("older"));
    let bytes = fs::read(two.join("data.braid")).unwrap();
    fs::write(two.join("data.braid"), vec![7; bytes.len()]).unwrap();
    let damaged = read(1);
    assert!(
        matches!(damaged, TablespaceError::Damaged { .. }),
        "{damaged}"
    );
    fs::write(two.join("data.braid"), &bytes).unwrap();
    let db = small().open(&directories.data).unwrap();
    fill(&db, 2);
    // The log is not replayed into the one that is missing.
    let copied = tempfile::tempdir().unwrap();
    let at = |name: &str| copied.path().join(name);
    for name in ["data", "one"] {
        copy(&directories.at(name), &at(name));
    }
    db.close().unwrap();
    let reader = small().tablespace_directory("one", at("one"));
    let reader = reader.tablespace_directory("two", at("two"));
    let missing = without_two(&reader.open_read_only(at("data")).unwrap(), 2);
    assert!(
        matches!(missing, TablespaceError::Missing { .. }),
        "{missing}"
    );
    fs::remove_dir_all(&two).unwrap();
    fs::rename(directories.at("older"), &two).unwrap();
    let older = read(2);
    assert!(
        matches!(older, TablespaceError::OtherState { .. }),
        "{older}"
    );
    // Only a reader accepts that.
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::OtherState { name, .. } if name == "two"),
        "{error}"
    );
}

#[test]
fn a_tablespace_of_another_database_is_refused() {
    let (directories, others) = (
        Directories::with_tablespaces(),
        Directories::with_tablespaces(),
    );
    let with_others = |name: &str| small().tablespace_directory(name, others.at("one"));
    for name in ["one", "two"] {
        let error = fault(with_others(name).open(&directories.data));
        assert!(matches!(&error, TablespaceError::Foreign { name: found, .. } if found == name));
        let database = fs::canonicalize(&others.data).unwrap();
        assert!(
            error.to_string().contains(&database.display().to_string()),
            "{error}"
        );
    }
    // The two of the same database exchanged, and both in one directory.
    let exchanged = small()
        .tablespace_directory("one", directories.at("two"))
        .tablespace_directory("two", directories.at("one"));
    let error = fault(exchanged.open(&directories.data));
    assert!(matches!(error, TablespaceError::Foreign { .. }), "{error}");
    let error = fault(
        small()
            .tablespace_directory("two", directories.at("one"))
            .open(&directories.data),
    );
    assert!(
        matches!(&error, TablespaceError::Foreign { name, .. } if name == "two"),
        "{error}"
    );
    assert!(error.to_string().contains("\"one\" is there"), "{error}");
    // Without a note that says so, the data file tells.
    fs::copy(
        others.at("one/data.braid"),
        directories.at("one/data.braid"),
    )
    .unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Foreign { name, .. } if name == "one"),
        "{error}"
    );
    // A copy of the database without its tablespaces would write to those of the original.
    let copied = others.at("copy");
    copy(&others.data, &copied);
    let error = fault(small().open(&copied));
    assert!(matches!(error, TablespaceError::Foreign { .. }), "{error}");
    check(&small().open(&others.data).unwrap(), 1);
    // A tablespace is no database.
    let opened = small().open(others.at("one"));
    assert!(
        matches!(&opened, Err(Error::NotADatabase { reason, .. }) if reason.contains("tablespace"))
    );
}

#[test]
fn a_tablespace_of_another_state_is_refused() {
    let directories = Directories::with_tablespaces();
    let saved = |name: &str| directories.at(&format!("saved {name}"));
    let write = |value| {
        let db = small().open(&directories.data).unwrap();
        fill(&db, value);
        db.close().unwrap();
    };
    let put_back = |name: &str| {
        fs::remove_dir_all(directories.at(name)).unwrap();
        copy(&saved(name), &directories.at(name));
    };
    for name in ["data", "one", "two"] {
        copy(&directories.at(name), &saved(name));
    }
    write(2);
    let newer = directories.at("newer");
    copy(&directories.at("two"), &newer);
    // Older than the others.
    put_back("two");
    let before = directories.files();
    let error = fault(small().open(&directories.data));
    let TablespaceError::OtherState {
        name,
        found,
        expected,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(name == "two" && found < expected, "{error}");
    assert_eq!(directories.files(), before);
    // The others, too: an earlier state of all.
    put_back("one");
    put_back("data");
    check(&small().open(&directories.data).unwrap(), 1);
    // The same numbers, but another history.
    write(3);
    fs::remove_dir_all(directories.at("two")).unwrap();
    copy(&newer, &directories.at("two"));
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::OtherState { name, .. } if name == "two"),
        "{error}"
    );
}

#[test]
fn a_damaged_list_or_data_file_is_an_error_that_says_so() {
    let directories = Directories::with_tablespaces();
    let damaged = |path: PathBuf, from: usize| {
        let bytes = fs::read(&path).unwrap();
        let mut other = bytes.clone();
        other[from..].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&path, other).unwrap();
        let opened = small().open(&directories.data);
        fs::write(&path, bytes).unwrap();
        opened
    };
    let error = damaged(directories.data.join("TABLESPACES"), 100).unwrap_err();
    assert!(matches!(&error, Error::Corrupted { location, .. } if location == "TABLESPACES"));
    let error = fault(damaged(directories.at("one/data.braid"), 0));
    assert!(
        matches!(&error, TablespaceError::Damaged { name, .. } if name == "one"),
        "{error}"
    );
    fs::rename(directories.data.join("TABLESPACES"), directories.at("list")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "one"),
        "{error}"
    );
    fs::rename(directories.at("list"), directories.data.join("TABLESPACES")).unwrap();
    check(&small().open(&directories.data).unwrap(), 1);
}
