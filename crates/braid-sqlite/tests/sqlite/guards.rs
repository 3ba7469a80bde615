//! SQLite without the extension never opens a database whose log has frames.

use std::fs;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode};

use crate::model::{Directory, is_sound, open, rows, run};

fn code<T>(result: rusqlite::Result<T>) -> ErrorCode {
    match result {
        Err(Error::SqliteFailure(error, _)) => error.code,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it works"),
    }
}

/// Checks that SQLite without the extension neither reads nor writes.
fn is_refused(path: &Path) {
    let before = fs::read(path).unwrap();
    for sql in [
        "SELECT * FROM t",
        "CREATE TABLE u (a)",
        "PRAGMA integrity_check",
    ] {
        let stock = Connection::open(path).unwrap();
        let found = code(rows(&stock, sql));
        assert!(
            matches!(
                found,
                ErrorCode::NotADatabase | ErrorCode::CannotOpen | ErrorCode::SystemIoFailure
            ),
            "{sql}: {found:?}"
        );
    }
    assert!(
        fs::read(path).unwrap() == before,
        "the database was written"
    );
}

/// Copies the files that a crash leaves.
fn copy_after_crash(directory: &Directory) -> (tempfile::TempDir, std::path::PathBuf) {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("copy.db");
    fs::copy(directory.path(), &path).unwrap();
    fs::copy(directory.wal(), copy.path().join("copy.db-wal")).unwrap();
    (copy, path)
}

/// Bytes of a `-wal` file before its checksum: a header, a version and a state.
const SUM_AT: usize = 32 + 15 + 8;

/// A `-wal` file whose checksum is that of its text.
fn sealed(mut wal: Vec<u8>) -> Vec<u8> {
    let state = crc32c::crc32c(&wal[SUM_AT - 8..SUM_AT]);
    let sum = crc32c::crc32c_append(state, &wal[SUM_AT + 9..]);
    wal[SUM_AT..SUM_AT + 8].copy_from_slice(format!("{sum:08x}").as_bytes());
    wal
}

/// A `-wal` file that names another log.
fn with_other_log(wal: &[u8], from: &Path, to: &Path) -> Vec<u8> {
    let text = String::from_utf8_lossy(&wal[32..])
        .replace(&*from.to_string_lossy(), &to.to_string_lossy());
    sealed([&wal[..32], text.as_bytes()].concat())
}

#[test]
fn a_connection_without_the_extension_is_refused_while_one_with_it_is_open() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    is_refused(&directory.path());
    run(&db, "PRAGMA wal_checkpoint(TRUNCATE)");
    is_refused(&directory.path());
    run(&db, "INSERT INTO t VALUES (1)");
    is_refused(&directory.path());
    run(&db, "PRAGMA wal_checkpoint(TRUNCATE)");
    // A checkpoint writes the page with the versions.
    run(&db, "CREATE TABLE u (a)");
    run(&db, "PRAGMA wal_checkpoint(TRUNCATE)");
    is_refused(&directory.path());
    drop(db);
    let stock = directory.stock();
    run(&stock, "INSERT INTO t VALUES (2)");
    assert_eq!(rows(&stock, "SELECT * FROM t").unwrap().len(), 2);
}

#[test]
fn a_connection_with_the_extension_waits_for_one_without_it() {
    let directory = Directory::new();
    let stock = directory.stock();
    run(&stock, "PRAGMA journal_mode = WAL");
    run(&stock, "CREATE TABLE t (a)");
    run(&stock, "PRAGMA wal_checkpoint(TRUNCATE)");
    let db = open(&directory.uri()).unwrap();
    db.busy_timeout(std::time::Duration::ZERO).unwrap();
    assert_eq!(code(rows(&db, "SELECT * FROM t")), ErrorCode::DatabaseBusy);
    // It works on, and its log is not touched.
    run(&stock, "INSERT INTO t VALUES (1)");
    assert_eq!(code(rows(&db, "SELECT * FROM t")), ErrorCode::CannotOpen);
    drop(stock);
    assert_eq!(rows(&db, "SELECT * FROM t").unwrap().len(), 1);
    is_refused(&directory.path());
}

#[test]
fn a_crashed_log_of_sqlite_is_left_to_sqlite() {
    let directory = Directory::new();
    let stock = directory.stock();
    run(&stock, "PRAGMA journal_mode = WAL");
    run(&stock, "CREATE TABLE t (a)");
    let (copy, path) = copy_after_crash(&directory);
    let uri = format!("file:{}?vfs=braid", path.display());
    let wal = copy.path().join("copy.db-wal");
    let before = fs::read(&wal).unwrap();
    assert_eq!(
        code(rows(&open(&uri).unwrap(), "SELECT * FROM t")),
        ErrorCode::CannotOpen
    );
    assert_eq!(fs::read(&wal).unwrap(), before);
    drop(Connection::open(&path).map(|stock| run(&stock, "INSERT INTO t VALUES (1)")));
    assert_eq!(
        rows(&open(&uri).unwrap(), "SELECT * FROM t").unwrap().len(),
        1
    );
}

#[test]
fn a_crashed_database_is_refused_without_the_extension_and_without_the_log() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    run(&db, "INSERT INTO t VALUES (1)");
    let (copy, path) = copy_after_crash(&directory);
    is_refused(&path);
    // Guard A alone, and guard B alone.
    let wal = copy.path().join("copy.db-wal");
    let stub = fs::read(&wal).unwrap();
    fs::remove_file(&wal).unwrap();
    is_refused(&path);
    fs::write(&wal, &stub).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[18..20].copy_from_slice(&[2, 2]);
    fs::write(&path, &bytes).unwrap();
    let _ = fs::remove_file(copy.path().join("copy.db-shm"));
    is_refused(&path);
    bytes[18..20].copy_from_slice(&[3, 3]);
    fs::write(&path, &bytes).unwrap();

    // The copy of the log is where the copied file says, after a change of the path.
    let log = copy.path().join("log");
    let place = directory.logs().remove(0);
    fs::copy(&place, &log).unwrap();
    let moved = with_other_log(&stub, &place, &log);
    fs::write(&wal, &moved).unwrap();
    let uri = format!("file:{}?vfs=braid&braid_memory=emulated", path.display());
    let recovered = open(&uri).unwrap();
    assert_eq!(rows(&recovered, "SELECT * FROM t").unwrap().len(), 1);
    is_sound(&recovered);
    drop(recovered);
    assert!(!log.exists() && !wal.exists());

    // A lost log is an error, also if the file that names it is lost, until the user accepts the loss.
    let (copy, path) = copy_after_crash(&directory);
    let wal = copy.path().join("copy.db-wal");
    let uri = format!("file:{}?vfs=braid&braid_memory=emulated", path.display());
    let mut torn = moved.clone();
    *torn.last_mut().unwrap() = 0;
    for lost in [moved.clone(), vec![0; moved.len()], torn] {
        fs::write(&wal, &lost).unwrap();
        let db = open(&uri).unwrap();
        assert_eq!(
            code(rows(&db, "SELECT 1 FROM sqlite_schema")),
            ErrorCode::CannotOpen
        );
        drop(db);
        assert_eq!(fs::read(&wal).unwrap(), lost);
    }
    fs::remove_file(&wal).unwrap();
    let accepted = open(&uri).unwrap();
    assert!(
        rows(&accepted, "SELECT 1 FROM sqlite_schema")
            .unwrap()
            .is_empty()
    );
}

/// SQLite keeps the `-wal` file of a closed database if the program asks for it, with the frames or without.
#[test]
fn a_database_whose_wal_file_is_kept_stays_guarded() {
    let persist = |db: &Connection, is_kept: bool| {
        let mut value = std::ffi::c_int::from(is_kept);
        // SAFETY: the connection is open, and the argument is the address of a number.
        let code = unsafe {
            rusqlite::ffi::sqlite3_file_control(
                db.handle(),
                c"main".as_ptr(),
                rusqlite::ffi::SQLITE_FCNTL_PERSIST_WAL,
                (&raw mut value).cast(),
            )
        };
        assert_eq!(code, rusqlite::ffi::SQLITE_OK);
    };
    for has_frames in [false, true] {
        let directory = Directory::new();
        let mut db = directory.open();
        run(&db, "CREATE TABLE t (a)");
        for number in 1..=3 {
            run(&db, "INSERT INTO t VALUES (1)");
            persist(&db, true);
            let no_checkpoint = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            db.set_db_config(no_checkpoint, has_frames).unwrap();
            drop(db);
            assert!(directory.wal().exists() && directory.logs().len() == 1);
            is_refused(&directory.path());
            db = directory.open();
            assert_eq!(rows(&db, "SELECT * FROM t").unwrap().len(), number);
            is_sound(&db);
        }
        persist(&db, false);
        drop(db);
        assert!(!directory.wal().exists() && directory.logs().is_empty());
        let stock = directory.stock();
        assert_eq!(rows(&stock, "SELECT * FROM t").unwrap().len(), 3);
        is_sound(&stock);
    }
}

/// Expects that the database takes a row with the extension, and is then one of SQLite again.
fn expect_use_and_a_way_back(directory: &Directory) {
    let db = directory.open();
    run(&db, "INSERT INTO t VALUES (1)");
    is_sound(&db);
    drop(db);
    let stock = Connection::open(directory.path()).unwrap();
    assert_eq!(rows(&stock, "SELECT * FROM t").unwrap().len(), 1);
}

/// The power failed while the `-wal` file was written for the first time.
#[test]
fn zeros_instead_of_a_wal_file_are_none() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    drop(db);
    let mut wal = directory.path().into_os_string();
    wal.push("-wal");
    fs::write(&wal, [0; 100]).unwrap();
    expect_use_and_a_way_back(&directory);
}

/// The power failed while other paths were written, of which a part lies in the second sector. The log
/// had nothing.
#[test]
fn a_torn_wal_file_is_written_again() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    let written = fs::read(directory.wal()).unwrap();
    drop(db);
    let text = ["/no/such/log/", &"x".repeat(600), "\0/a.db\n"].concat();
    let mut torn = sealed([&written[..SUM_AT + 9], text.as_bytes()].concat());
    torn[512..].fill(b'y');
    *torn.last_mut().unwrap() = b'\n';
    torn[600] = 0;
    fs::write(directory.wal(), &torn).unwrap();
    let stock = Connection::open(directory.path()).unwrap();
    assert_eq!(code(rows(&stock, "SELECT * FROM t")), ErrorCode::CannotOpen);
    drop(stock);
    expect_use_and_a_way_back(&directory);
}

#[test]
fn a_copy_does_not_use_the_log_of_the_original() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    run(&db, "INSERT INTO t VALUES (1)");
    let (_copy, path) = copy_after_crash(&directory);
    let uri = format!("file:{}?vfs=braid", path.display());
    let copied = open(&uri).unwrap();
    let wal = path.with_file_name("copy.db-wal");
    let before = fs::read(&wal).unwrap();
    assert_eq!(
        code(rows(&copied, "SELECT * FROM t")),
        ErrorCode::CannotOpen
    );
    drop(copied);
    assert_eq!(fs::read(&wal).unwrap(), before);
    // The original keeps its log.
    run(&db, "INSERT INTO t VALUES (2)");
    is_sound(&db);
    let other = directory.open();
    assert_eq!(rows(&other, "SELECT * FROM t").unwrap().len(), 2);
    // What was moved with its -wal file keeps its log.
    drop((db, other));
    let (_copy, path) = {
        let db = directory.open();
        run(&db, "INSERT INTO t VALUES (3)");
        let copied = copy_after_crash(&directory);
        let log = directory.logs().remove(0);
        fs::copy(&log, log.with_extension("kept")).unwrap();
        drop(db);
        fs::rename(log.with_extension("kept"), &log).unwrap();
        fs::remove_file(directory.path()).unwrap();
        copied
    };
    let moved = open(&format!("file:{}?vfs=braid", path.display())).unwrap();
    assert_eq!(rows(&moved, "SELECT * FROM t").unwrap().len(), 3);
    is_sound(&moved);
}

#[test]
fn a_log_without_its_wal_file_is_not_dropped() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    let (_copy, path) = copy_after_crash(&directory);
    let uri = format!("file:{}?vfs=braid&braid_memory=emulated", path.display());
    fs::copy(
        directory.logs().remove(0),
        path.with_file_name("copy.db-braid"),
    )
    .unwrap();
    fs::remove_file(path.with_file_name("copy.db-wal")).unwrap();
    let refused = open(&uri).unwrap();
    assert_eq!(
        code(rows(&refused, "SELECT 1 FROM sqlite_schema")),
        ErrorCode::CannotOpen
    );
    drop(refused);
    assert!(path.with_file_name("copy.db-braid").exists());
    fs::remove_file(path.with_file_name("copy.db-braid")).unwrap();
    let accepted = open(&uri).unwrap();
    assert!(
        rows(&accepted, "SELECT 1 FROM sqlite_schema")
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_new_database_does_not_get_the_log_of_a_deleted_one() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    let log = directory.logs().remove(0);
    let copy = log.with_extension("copy");
    fs::copy(&log, &copy).unwrap();
    drop(db);
    // As if the process had been killed, and the user had deleted the database.
    fs::rename(&copy, &log).unwrap();
    fs::remove_file(directory.path()).unwrap();
    let db = directory.open();
    assert_eq!(rows(&db, "SELECT 1 FROM sqlite_schema").unwrap(), [""; 0]);
    run(&db, "CREATE TABLE u (a)");
    drop(db);
    is_sound(&directory.stock());
}

#[test]
fn a_connection_that_expects_longer_pages_sees_the_versions() {
    let directory = Directory::new();
    // It has not read the database, and reads more than the file has.
    let first = open(&directory.uri()).unwrap();
    run(&first, "PRAGMA page_size = 8192");
    let second = open(&directory.uri()).unwrap();
    run(&second, "PRAGMA page_size = 1024");
    run(&second, "CREATE TABLE t (a)");
    run(&second, "PRAGMA journal_mode = WAL");
    run(&second, "INSERT INTO t VALUES (1)");
    assert_eq!(rows(&first, "SELECT * FROM t").unwrap().len(), 1);
}

#[test]
fn a_new_database_leaves_the_log_of_one_that_was_moved_away() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    // The files of a crash take the place of those of the connection, which ends.
    let (_copy, path) = copy_after_crash(&directory);
    let log = directory.logs().remove(0);
    let kept = log.with_extension("kept");
    fs::copy(&log, &kept).unwrap();
    drop(db);
    fs::remove_file(directory.path()).unwrap();
    fs::rename(&kept, &log).unwrap();

    for number in 1..=2 {
        let new = directory.open();
        run(&new, "CREATE TABLE u (a)");
        assert_eq!(directory.logs().len(), 2, "{number}");
        is_sound(&new);
        drop(new);
        assert_eq!(directory.logs(), [log.as_path()], "{number}");
        fs::remove_file(directory.path()).unwrap();
    }
    let moved = open(&format!("file:{}?vfs=braid", path.display())).unwrap();
    assert!(rows(&moved, "SELECT * FROM t").unwrap().is_empty());
    is_sound(&moved);
}

#[test]
fn a_database_that_was_moved_with_all_its_files_keeps_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let uri = |name: &str| format!("file:{}?vfs=braid", path(name).display());
    let db = open(&uri("first.db")).unwrap();
    rows(&db, "PRAGMA journal_mode = WAL").unwrap();
    run(&db, "CREATE TABLE t (a)");
    let each_file = |from: &str, to: &str, act: &dyn Fn(&Path, &Path)| {
        for ending in ["", "-wal", "-braid"] {
            act(
                &path(&format!("{from}{ending}")),
                &path(&format!("{to}{ending}")),
            );
        }
    };
    each_file("first.db", "copy.db", &|from, to| {
        fs::copy(from, to).unwrap();
    });
    // While the original exists, its copy is refused.
    let copy = open(&uri("copy.db")).unwrap();
    assert_eq!(code(rows(&copy, "SELECT * FROM t")), ErrorCode::CannotOpen);
    drop((copy, db));
    assert_eq!(
        code(rows(&open(&uri("copy.db")).unwrap(), "SELECT * FROM t")),
        ErrorCode::CannotOpen
    );
    fs::remove_file(path("first.db")).unwrap();

    each_file("copy.db", "moved.db", &|from, to| {
        fs::rename(from, to).unwrap()
    });
    let moved = open(&uri("moved.db")).unwrap();
    run(&moved, "INSERT INTO t VALUES (1)");
    assert_eq!(rows(&moved, "SELECT * FROM t").unwrap().len(), 1);
    is_sound(&moved);
    drop(moved);
    let stock = Connection::open(path("moved.db")).unwrap();
    assert_eq!(rows(&stock, "SELECT * FROM t").unwrap().len(), 1);
    assert!(!path("moved.db-braid").exists());
}
