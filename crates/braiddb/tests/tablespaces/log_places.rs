//! Tablespaces whose logs are in directories of their own, apart from their data files.

use super::*;

use braid::backup::Restore;
use braid::offline::{Salvage, Verify};

/// A database with the tablespaces `one` and `two`, whose logs are in `one-log` and `two-log`.
fn with_log_directories() -> Directories {
    let directories = Directories::new();
    let db = small().open(&directories.data).unwrap();
    for name in ["one", "two"] {
        db.create_tablespace(name, options(&directories, name))
            .unwrap();
    }
    fill(&db, 1);
    db.close().unwrap();
    let db = small().open(&directories.data).unwrap();
    fill(&db, 2);
    db.close().unwrap();
    directories
}

fn options(directories: &Directories, name: &str) -> TablespaceOptions {
    let log = directories.at(&format!("{name}-log"));
    directories.options(name).log_directory(log)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "LOCK").collect();
    names.sort();
    names
}

#[test]
fn the_log_of_a_tablespace_is_in_its_directory() {
    let directories = with_log_directories();
    assert_eq!(
        names(&directories.at("one")),
        ["TABLESPACE-OWNER", "data.braid"]
    );
    let [note, logs @ ..] = &names(&directories.at("one-log"))[..] else {
        panic!("no file");
    };
    assert_eq!(note, "TABLESPACE-LOG-OWNER");
    assert!(!logs.is_empty() && logs.iter().all(|name| name.starts_with("log-01-")));
    let db = small().open(&directories.data).unwrap();
    check(&db, 2);
    for space in db.stats().tablespaces {
        let log = directories.at(&format!("{}-log", space.name));
        assert_eq!(space.log_directory, Some(fs::canonicalize(log).unwrap()));
        assert!(space.own_log);
    }
    // Both directories are locked, and emptied by a drop.
    let other = Database::builder().open(directories.at("other")).unwrap();
    let taken = options(&directories, "three").log_directory(directories.at("one-log"));
    let taken = other.create_tablespace("three", taken);
    assert!(matches!(taken, Err(Error::Locked { .. })), "{taken:?}");
    db.drop_table("in one").unwrap();
    db.drop_tablespace("one").unwrap();
    for name in ["one", "one-log"] {
        assert_eq!(names(&directories.at(name)), [""; 0], "{name}");
    }
    db.create_tablespace("one", options(&directories, "one"))
        .unwrap();
}

#[test]
fn a_directory_of_a_log_that_is_missing_is_named_and_the_rest_is_read_and_verified() {
    let directories = with_log_directories();
    let log = directories.at("one-log");
    fs::rename(&log, directories.at("elsewhere")).unwrap();
    let is_named = |error: &TablespaceError| matches!(error, TablespaceError::Missing { name, path, .. } if name == "one" && path.ends_with("one-log"));
    let before = directories.files();
    let error = fault(small().open(&directories.data));
    assert!(
        is_named(&error) && error.to_string().contains("tablespace_log_directory"),
        "{error}"
    );
    let reader = small().open_read_only(&directories.data).unwrap();
    for name in ["in main", "in two"] {
        let table: Table<u64, Bytes> = reader.existing_table(name).unwrap().unwrap();
        assert_eq!(
            reader.get(&table, &7).unwrap().as_deref(),
            Some(&[2; 100][..])
        );
    }
    let missing = reader.existing_table::<u64, Bytes>("in one").unwrap_err();
    assert!(
        matches!(&missing, Error::Tablespace(error) if is_named(error)),
        "{missing}"
    );
    drop(reader);
    let mut damages = Vec::new();
    let report = braid::offline::verify(&directories.data, &mut |damage| damages.push(damage));
    let report = report.unwrap();
    // The data file of `one` is verified, too.
    assert_eq!((report.damages, report.tables), (1, 4), "{damages:?}");
    assert!(damages[0].contains("one-log"), "{damages:?}");
    assert_eq!(directories.files(), before);
    // Where it is now.
    let verify = Verify::new().tablespace_log_directory("one", directories.at("elsewhere"));
    let report = verify.check(&directories.data, &mut |damage| panic!("{damage}"));
    assert_eq!(report.unwrap().tables, 4);
    // What the newest checkpoint has is salvaged without it.
    let salvaged = directories.at("salvaged");
    let report = Salvage::new().run(&directories.data, &salvaged, &mut |_| ());
    assert!(report.unwrap().entries >= 600);
    let moved = small().tablespace_log_directory("one", directories.at("elsewhere"));
    check(&moved.open(&directories.data).unwrap(), 2);
    // The list has it from now on.
    check(&small().open(&directories.data).unwrap(), 2);
    fs::rename(directories.at("elsewhere"), &log).unwrap();
    // An empty directory, as that of a disk that is not mounted.
    fs::create_dir(directories.at("elsewhere")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "one"),
        "{error}"
    );
    assert!(
        error.to_string().contains("TABLESPACE-LOG-OWNER"),
        "{error}"
    );
}

#[test]
fn a_new_log_needs_a_directory_of_its_own() {
    let directories = with_log_directories();
    let others = with_log_directories();
    let db = small().open(&directories.data).unwrap();
    fs::create_dir(directories.at("full")).unwrap();
    fs::write(directories.at("full/file"), "").unwrap();
    for (log, reason) in [
        (directories.at("three"), "data file is there"),
        (directories.at("one"), "tablespace \"one\" is there"),
        (directories.at("two-log"), "the log of tablespace \"two\""),
        (directories.data.clone(), "the database itself"),
        (directories.at("full"), "\"file\""),
        (others.at("one"), "a tablespace of the database"),
        (others.at("one-log"), "the log of a tablespace"),
    ] {
        let options = directories.options("three").log_directory(&log);
        let error = db.create_tablespace("three", options).unwrap_err();
        let is_it = matches!(&error, Error::Tablespace(TablespaceError::Occupied { .. }));
        assert!(
            is_it && error.to_string().contains(reason),
            "{log:?}: {error}"
        );
    }
    // One device for both.
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let both = TablespaceOptions::on_device(device.clone()).pool_bytes(1 << 20);
    let error = db.create_tablespace("three", both.log_on(device.clone()));
    assert!(
        matches!(
            &error,
            Err(Error::Tablespace(TablespaceError::Occupied { .. }))
        ),
        "{error:?}"
    );
    assert!(device.list().unwrap().is_empty());
    let no_log = options_error(
        &db,
        directories.options("three").log_device(DeviceChoice::File),
    );
    assert_eq!(no_log, "log_device");
    let off = options(&directories, "three").own_log(false);
    assert_eq!(options_error(&db, off), "own_log");
    assert_eq!(db.tablespace_names(), ["one", "two"]);
    drop(db);
    check(&small().open(&directories.data).unwrap(), 2);
}

#[track_caller]
fn options_error(db: &Database, options: TablespaceOptions) -> &'static str {
    match db.create_tablespace("three", options) {
        Err(Error::InvalidOption { option, .. }) => option,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_log_of_another_tablespace_database_or_state_is_refused_by_name() {
    let (directories, others) = (with_log_directories(), with_log_directories());
    let with_log = |log: PathBuf| small().tablespace_log_directory("one", log);
    for log in [others.at("one-log"), others.at("two-log")] {
        let error = fault(with_log(log).open(&directories.data));
        assert!(
            matches!(&error, TablespaceError::Foreign { name, .. } if name == "one"),
            "{error}"
        );
    }
    // Of this database: exchanged, or at other parts.
    let exchanged = with_log(directories.at("two-log"));
    let exchanged = exchanged.tablespace_log_directory("two", directories.at("one-log"));
    let error = fault(exchanged.open(&directories.data));
    assert!(matches!(error, TablespaceError::Foreign { .. }), "{error}");
    for log in [directories.at("one"), directories.data.clone()] {
        let error = fault(with_log(log).open(&directories.data));
        assert!(
            matches!(&error, TablespaceError::Foreign { name, .. } if name == "one"),
            "{error}"
        );
    }
    // An older copy of the log alone.
    let older = directories.at("older");
    copy(&directories.at("one-log"), &older);
    let db = small().open(&directories.data).unwrap();
    fill(&db, 3);
    db.close().unwrap();
    let newer = directories.at("newer");
    fs::rename(directories.at("one-log"), &newer).unwrap();
    fs::rename(&older, directories.at("one-log")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Damaged { name, reason, .. } if name == "one" && reason.contains("log")),
        "{error}"
    );
    fs::remove_dir_all(directories.at("one-log")).unwrap();
    fs::rename(&newer, directories.at("one-log")).unwrap();
    check(&small().open(&directories.data).unwrap(), 3);
    // A copy of the database without its logs would write to those of the original.
    for name in ["data", "one", "two"] {
        copy(&directories.at(name), &others.at(&format!("copied-{name}")));
    }
    let copied = small()
        .tablespace_directory("one", others.at("copied-one"))
        .tablespace_directory("two", others.at("copied-two"));
    let error = fault(copied.open(others.at("copied-data")));
    assert!(matches!(error, TablespaceError::Foreign { .. }), "{error}");
    check(&small().open(&directories.data).unwrap(), 3);
}

#[test]
fn a_backup_is_restored_with_logs_in_directories_of_their_own_or_without() {
    let directories = with_log_directories();
    let db = small().open(&directories.data).unwrap();
    let backup = directories.at("backup");
    db.backup(&backup).unwrap();
    db.close().unwrap();
    for apart in [true, false] {
        let at = |name: &str| directories.at(&format!("{name}-{apart}"));
        let mut restore = Restore::new().backup(&backup).pool_bytes(1 << 20);
        restore = restore.device(DeviceChoice::File);
        for name in ["one", "two"] {
            restore = restore.tablespace_directory(name, at(name));
            if apart {
                restore = restore.tablespace_log_directory(name, at(&format!("{name}-log")));
            }
        }
        restore.run(at("data")).unwrap();
        let db = small().open(at("data")).unwrap();
        check(&db, 2);
        fill(&db, 4);
        db.close().unwrap();
        check(&small().open(at("data")).unwrap(), 4);
        let of_log = names(&at(if apart { "one-log" } else { "one" }));
        assert!(
            of_log.iter().any(|name| name.ends_with(".seg")),
            "{of_log:?}"
        );
    }
    let unknown = Restore::new().backup(&backup);
    let unknown = unknown.tablespace_log_directory("none", directories.at("none"));
    let unknown = unknown
        .tablespace_directory("one", directories.at("a"))
        .tablespace_directory("two", directories.at("b"));
    assert!(unknown.run(directories.at("c")).is_err());
}

/// The devices of a database, of its tablespace's data file, and of that one's log.
struct Three([SimDevice; 3]);

impl Three {
    fn new(seed: u64) -> Self {
        Self([0, 1, 2].map(|index| SimDevice::new(seed * 8 + index)))
    }

    fn open(&self) -> braid::Result<Database> {
        let [main, data, log] = self.0.clone().map(Arc::new);
        let builder = small().background_threads(false).strands(2);
        let builder = builder.tablespace_device("one", data);
        builder.tablespace_log_on("one", log).open_on(main)
    }

    fn create(&self, db: &Database) -> braid::Result<()> {
        let [_, data, log] = self.0.clone().map(Arc::new);
        let options = TablespaceOptions::on_device(data).pool_bytes(1 << 20);
        db.create_tablespace("one", options.log_on(log))
    }

    fn crash(&mut self) {
        self.0.iter().for_each(SimDevice::power_off);
        self.0 = self.0.clone().map(|device| device.after_crash());
    }
}

/// The power fails at each step of a creation and of a drop: both places have the tablespace's files, or none.
#[test]
fn an_interrupted_creation_or_drop_leaves_both_places_or_none() {
    let (mut exists, mut is_gone) = (0, 0);
    for case in 0..150_u64 {
        let (step, disturbed, drops) = (1 + case / 6, case as usize % 3, case / 3 % 2 == 1);
        let mut devices = Three::new(case + 9_000);
        let db = devices.open().unwrap();
        let db = if drops {
            devices.create(&db).unwrap();
            db.close().unwrap();
            let db = devices.open().unwrap();
            if step % 2 == 0 {
                db.checkpoint().unwrap();
            }
            db
        } else {
            db
        };
        devices.0[disturbed].crash_after(step);
        let done = if drops {
            db.drop_tablespace("one")
        } else {
            devices.create(&db)
        };
        let before = db.tablespace_names();
        drop(db);
        devices.crash();
        let db = devices.open();
        let db = db.unwrap_or_else(|error| panic!("case {case}: {error}"));
        if done.is_ok() {
            assert_eq!(db.tablespace_names(), before, "case {case}");
        }
        if db.tablespace_names().is_empty() {
            is_gone += 1;
            for device in &devices.0[1..] {
                let files = device.list().unwrap();
                assert!(files.is_empty(), "case {case}: {files:?}");
            }
            devices.create(&db).unwrap();
        } else {
            exists += 1;
        }
        drop(db);
        let db = devices.open().unwrap();
        let table = db.open_table_in("one", "in one", Default::default());
        let table: Table<u64, Bytes> = table.unwrap();
        db.transact(|tx| tx.insert(&table, &1, b"a")).unwrap();
        let on_log = devices.0[2].list().unwrap();
        assert!(on_log.iter().any(|file| file.name.ends_with(".seg")));
        drop((table, db));
        devices.crash();
        let db = devices.open().unwrap();
        let table: Table<u64, Bytes> = db.open_table("in one").unwrap();
        assert_eq!(db.get(&table, &1).unwrap().as_deref(), Some(&b"a"[..]));
    }
    println!("{exists} exist, {is_gone} do not");
    assert!(exists > 20 && is_gone > 20, "{exists} {is_gone}");
}
