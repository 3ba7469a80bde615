//! Databases of earlier formats can be read, and those of later formats are refused.

use std::fs;
use std::path::{Path, PathBuf};

use braid::offline::upgrade;
use braid::{Database, Error, Readable, Table};

/// The format of this build.
const PRESENT: u64 = 6;

/// A database in an older format, written when that format was current.
fn fixture(format: u64) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    tests.join(format!("format-{format}"))
}

fn copy(from: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

/// Contents of the fixture: some in the data file, some only in the log.
fn fill(db: &Database, from: u64, to: u64) {
    let numbers: Table<u64, String> = db.open_table("numbers").unwrap();
    let large: Table<String, Vec<u8>> = db.open_table("large").unwrap();
    db.transact(|tx| {
        for i in from..to {
            tx.insert(&numbers, &i, &format!("number {i}"))?;
        }
        tx.insert(&large, &format!("from {from}"), &vec![from as u8; 10_000])
    })
    .unwrap();
}

#[track_caller]
fn expect_filled(db: &Database) {
    let numbers: Table<u64, String> = db.open_table("numbers").unwrap();
    let large: Table<String, Vec<u8>> = db.open_table("large").unwrap();
    let found: Vec<(u64, String)> = db
        .snapshot()
        .iter(&numbers)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let expected: Vec<(u64, String)> = (0..300).map(|i| (i, format!("number {i}"))).collect();
    assert_eq!(found, expected);
    assert_eq!(db.get(&large, "from 0").unwrap(), Some(vec![0; 10_000]));
    assert_eq!(db.get(&large, "from 200").unwrap(), Some(vec![200; 10_000]));
}

/// Writes the fixture; needed only for a new format: `cargo test -p braiddb --test suite upgrade
/// -- --ignored`.
#[test]
#[ignore = "writes the fixture of a format"]
fn write_the_fixture() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Database::builder()
        .background_threads(false)
        .segment_bytes(64 << 10)
        .strands(2);
    let db = builder.open(dir.path()).unwrap();
    fill(&db, 0, 200);
    db.checkpoint().unwrap();
    fill(&db, 200, 300);
    fs::create_dir_all(fixture(PRESENT)).unwrap();
    for entry in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
        // Preallocated segments are all zeroes.
        if fs::read(entry.path())
            .unwrap()
            .iter()
            .any(|byte| *byte != 0)
        {
            fs::copy(entry.path(), fixture(PRESENT).join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn databases_of_every_format_become_the_present_one() {
    for format in 2..=PRESENT {
        let read = |dir: &Path| {
            let db = Database::open(dir).unwrap();
            assert_eq!(db.recovery().transactions, 1, "one is on the log only");
            expect_filled(&db);
            assert!(matches!(upgrade(dir), Err(Error::Locked { .. })));
            db.close().unwrap();
        };
        // The database can be read with and without conversion.
        read(copy(&fixture(format)).path());
        let dir = copy(&fixture(format));
        let report = upgrade(dir.path()).unwrap();
        assert_eq!((report.from, report.to), (format, PRESENT));
        expect_filled(&Database::open(dir.path()).unwrap());
        let report = upgrade(dir.path()).unwrap();
        assert_eq!((report.from, report.to), (PRESENT, PRESENT));
        let into = dir.path().join("into");
        let report =
            braid::offline::salvage(copy(&fixture(format)).path(), &into, &mut |_| {}).unwrap();
        assert_eq!(report.losses, 0);
        expect_filled(&Database::open(&into).unwrap());
    }
}

/// Writes another format number into both superblocks, with matching checksums.
fn with_format(format: u64) -> tempfile::TempDir {
    let dir = copy(&fixture(PRESENT));
    let file = dir.path().join("data.braid");
    let mut bytes = fs::read(&file).unwrap();
    for block in bytes
        .chunks_mut(8192)
        .take(2)
        .filter(|block| block.iter().any(|byte| *byte != 0))
    {
        block[16..24].copy_from_slice(&format.to_le_bytes());
        let crc = crc32c::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&file, bytes).unwrap();
    dir
}

#[test]
fn other_formats_are_refused_and_left_alone() {
    for (format, what) in [(7, "newer than 6"), (1, "converts 2 and newer")] {
        let dir = with_format(format);
        let before = fs::read(dir.path().join("data.braid")).unwrap();
        let error = upgrade(dir.path()).unwrap_err();
        assert!(
            matches!(&error, Error::Incompatible { what: said } if said.contains(what)),
            "{error}"
        );
        let error = Database::open(dir.path()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Incompatible { .. }), "{error}");
        let into = dir.path().join("into");
        let error = braid::offline::salvage(dir.path(), &into, &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Incompatible { .. }), "{error}");
        assert_eq!(fs::read(dir.path().join("data.braid")).unwrap(), before);
        assert!(!into.exists());
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        upgrade(dir.path()),
        Err(Error::NotADatabase { .. })
    ));
}
