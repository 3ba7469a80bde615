//! Tablespaces whose own log is missing or damaged, while their data file is there.

use super::*;

use braid::offline::{Finding, Salvage, Verify, VerifyReport};

/// A database whose tablespace `one` has a log of its own, and a copy that looks as after a kill.
struct Copied {
    directories: Arc<Directories>,
    copies: tempfile::TempDir,
}

impl Copied {
    fn new() -> Self {
        let directories = Directories::new();
        let db = small().open(&directories.data).unwrap();
        for (name, own_log) in [("one", true), ("two", false)] {
            let options = directories.options(name).own_log(own_log);
            db.create_tablespace(name, options).unwrap();
        }
        fill(&db, 1);
        db.close().unwrap();
        let db = small().open(&directories.data).unwrap();
        fill(&db, 2);
        let copies = tempfile::tempdir().unwrap();
        for name in ["data", "one", "two"] {
            copy(&directories.at(name), &copies.path().join(name));
        }
        db.close().unwrap();
        Self {
            directories: Arc::new(directories),
            copies,
        }
    }

    /// Copies the copy.
    fn copied_again(&self) -> Self {
        let copies = tempfile::tempdir().unwrap();
        for name in ["data", "one", "two"] {
            copy(&self.at(name), &copies.path().join(name));
        }
        Self {
            directories: Arc::clone(&self.directories),
            copies,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.copies.path().join(name)
    }

    /// Names the directories of the copy.
    fn builder(&self) -> Builder {
        small()
            .tablespace_directory("one", self.at("one"))
            .tablespace_directory("two", self.at("two"))
    }

    fn verify(&self) -> (VerifyReport, Vec<String>) {
        let mut damages = Vec::new();
        let verify = Verify::new()
            .tablespace_directory("one", self.at("one"))
            .tablespace_directory("two", self.at("two"));
        let report = verify.check(self.at("data"), &mut |damage| damages.push(damage));
        (report.unwrap(), damages)
    }

    /// The files of the log of `one`.
    fn log_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.at("one")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
            .collect()
    }
}

/// Reads the tables of `main` and `two`: each key has the same in both, and most have the newest.
fn read_others(copied: &Copied) -> TablespaceError {
    let read = copied.builder().open_read_only(copied.at("data")).unwrap();
    assert_eq!(read.tablespace_names(), ["two"]);
    let [main, two] = ["in main", "in two"].map(|name| {
        let table: Table<u64, Bytes> = read.existing_table(name).unwrap().unwrap();
        let entries = read.snapshot();
        let entries = entries.range(&table, ..).unwrap();
        entries
            .map(|entry| entry.unwrap().1[0])
            .collect::<Vec<u8>>()
    });
    assert_eq!((main.len(), &main), (200, &two));
    // What the last flush had is not proven to be durable.
    assert!(main.iter().filter(|value| **value == 2).count() > 150);
    match read.existing_table::<u64, Bytes>("in one") {
        Err(Error::Tablespace(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tablespace_whose_log_is_missing_is_named_and_the_rest_is_read_and_verified() {
    let copied = Copied::new();
    let (whole, damages) = copied.verify();
    assert_eq!(damages, [""; 0]);
    let logs = copied.log_files();
    assert!(!logs.is_empty());
    let elsewhere = copied.at("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for log in &logs {
        fs::rename(log, elsewhere.join(log.file_name().unwrap())).unwrap();
    }
    let error = fault(copied.builder().open(copied.at("data")));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "one"),
        "{error}"
    );
    assert!(error.to_string().contains("log"), "{error}");
    let error = read_others(&copied);
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "one"),
        "{error}"
    );
    assert!(
        error.to_string().contains("up to sequence number"),
        "{error}"
    );
    let (report, damages) = copied.verify();
    assert_eq!((report.damages, damages.len()), (1, 1), "{damages:?}");
    assert!(
        damages[0].contains("\"one\"") && damages[0].contains("log"),
        "{damages:?}"
    );
    // Its data file is verified, too, and the rest of the log.
    assert_eq!((report.tables, report.pages), (whole.tables, whole.pages));
    assert!(report.log_transactions > 0, "{report:?}");
    for log in &logs {
        fs::rename(elsewhere.join(log.file_name().unwrap()), log).unwrap();
    }
    check(&copied.builder().open(copied.at("data")).unwrap(), 2);
    drop(copied.directories);
}

#[test]
fn a_tablespace_whose_log_is_damaged_is_named_and_the_rest_is_read_and_verified() {
    let copied = Copied::new();
    let (whole, _) = copied.verify();
    let logs = copied.log_files();
    let intact: Vec<Vec<u8>> = logs.iter().map(|log| fs::read(log).unwrap()).collect();
    for log in &logs {
        let mut bytes = fs::read(log).unwrap();
        bytes[..64].fill(0x55);
        fs::write(log, bytes).unwrap();
    }
    let error = fault(copied.builder().open(copied.at("data")));
    assert!(
        matches!(&error, TablespaceError::Damaged { name, .. } if name == "one"),
        "{error}"
    );
    let error = read_others(&copied);
    assert!(
        matches!(&error, TablespaceError::Damaged { name, .. } if name == "one"),
        "{error}"
    );
    let (report, damages) = copied.verify();
    assert_eq!((report.damages, damages.len()), (1, 1), "{damages:?}");
    assert!(
        damages[0].contains("\"one\"") && damages[0].contains("log"),
        "{damages:?}"
    );
    assert_eq!((report.tables, report.pages), (whole.tables, whole.pages));
    assert!(report.log_transactions > 0, "{report:?}");
    for (log, bytes) in logs.iter().zip(&intact) {
        fs::write(log, bytes).unwrap();
    }
    check(&copied.builder().open(copied.at("data")).unwrap(), 2);
}

/// If the database's own log is damaged, the log of no tablespace is blamed, and the data files are
/// verified.
#[test]
fn a_damaged_log_of_the_database_is_not_taken_for_that_of_a_tablespace() {
    let copied = Copied::new();
    let (whole, _) = copied.verify();
    let entries = fs::read_dir(copied.at("data")).unwrap();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "seg") {
            let mut bytes = fs::read(&path).unwrap();
            bytes[..64].fill(0x55);
            fs::write(&path, bytes).unwrap();
        }
    }
    for log in copied.log_files() {
        let mut bytes = fs::read(&log).unwrap();
        bytes[..64].fill(0x55);
        fs::write(&log, bytes).unwrap();
    }
    let opened = copied.builder().open_read_only(copied.at("data"));
    assert!(matches!(opened, Err(Error::Corrupted { .. })), "{opened:?}");
    let (report, damages) = copied.verify();
    assert_eq!(report.damages, 1, "{damages:?}");
    assert!(damages[0].contains("log-"), "{damages:?}");
    assert_eq!((report.tables, report.pages), (whole.tables, whole.pages));
}

/// Salvages the copy. Returns the losses, and how many keys of each table have their newest value.
fn salvage(copied: &Copied) -> (Vec<String>, [usize; 3]) {
    let (mut losses, into) = (Vec::new(), tempfile::tempdir().unwrap());
    let salvage = Salvage::new()
        .tablespace_directory("one", copied.at("one"))
        .tablespace_directory("two", copied.at("two"));
    let mut sink = |finding| {
        if let Finding::Lost(loss) = finding {
            losses.push(loss);
        }
    };
    salvage
        .run(copied.at("data"), into.path(), &mut sink)
        .unwrap();
    let db = small().open(into.path()).unwrap();
    let newest = ["in main", "in one", "in two"].map(|name| {
        let table: Table<u64, Bytes> = db.existing_table(name).unwrap().unwrap();
        let snapshot = db.snapshot();
        let values = snapshot.iter(&table).unwrap();
        let values = values.map(|entry| entry.unwrap().1[0]);
        values.filter(|value| *value == 2).count()
    });
    (losses, newest)
}

/// Files of a tablespace's log that are gone or damaged cost salvage what they have, and not what the
/// other logs have.
#[test]
fn a_damaged_log_of_a_tablespace_costs_only_what_it_has() {
    let whole = Copied::new();
    assert_eq!(salvage(&whole), (Vec::new(), [200; 3]));
    for is_gone in [true, false] {
        let copied = whole.copied_again();
        for log in copied.log_files() {
            if is_gone {
                fs::remove_file(log).unwrap();
            } else {
                let mut bytes = fs::read(&log).unwrap();
                bytes[..64].fill(0x55);
                fs::write(&log, bytes).unwrap();
            }
        }
        let (losses, [main, one, two]) = salvage(&copied);
        // What the last flush had is not proven to be durable.
        assert!(main == two && main > 150, "{main} {two} {losses:?}");
        assert_eq!(one, 0, "its data file has the checkpoint");
        let is_named = |loss: &String| loss.starts_with("log: ") && loss.contains("\"one\"");
        assert!(losses.iter().any(is_named), "{losses:?}");
    }
}
