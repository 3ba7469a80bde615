//! One process: what SQLite's users do, against SQLite without the extension.

use std::ffi::CStr;

use rusqlite::Connection;

use crate::model::{Directory, is_sound, open, pragma, rows, run, stat};

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, value BLOB, other TEXT)";

#[test]
fn a_closed_database_is_plain_sqlite() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, TABLE);
    run(&db, "INSERT INTO t VALUES (1, 'a', 'b')");
    run(&db, "UPDATE t SET value = 'c'");
    assert_eq!(stat(&db, "frames"), 4);
    assert_eq!(stat(&db, "differences"), 2);
    assert!(stat(&db, "bytes") < 1000);
    assert_eq!(directory.logs().len(), 1);
    let bytes = std::fs::read(directory.path()).unwrap();
    assert_eq!(bytes[18..20], [3, 3]);
    drop(db);
    assert_eq!(directory.logs(), [""; 0].map(std::path::PathBuf::from));
    assert!(!directory.wal().exists());
    let bytes = std::fs::read(directory.path()).unwrap();
    assert_eq!(bytes[18..20], [2, 2]);
    let stock = directory.stock();
    let found = rows(&stock, "SELECT id, CAST(value AS TEXT) FROM t").unwrap();
    assert_eq!(found.len(), 1);
    is_sound(&stock);
}

#[test]
fn frames_of_a_rolled_back_transaction_are_gone() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, TABLE);
    run(&db, "PRAGMA cache_size = 5");
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) \
                INSERT INTO t SELECT NULL, randomblob(1000), i FROM n";
    run(&db, fill);
    let committed = (stat(&db, "frames"), stat(&db, "log_bytes"));
    run(&db, "BEGIN");
    run(&db, "UPDATE t SET value = randomblob(1000)");
    assert!(stat(&db, "frames") > committed.0, "the cache spills");
    run(&db, "ROLLBACK");
    run(&db, "UPDATE t SET other = 'x' WHERE id = 1");
    assert_eq!(stat(&db, "frames"), committed.0 + 1);
    assert!(
        stat(&db, "log_bytes") < committed.1 + 1000,
        "no bytes of it are left"
    );
    is_sound(&db);
    // A spilled transaction writes frames twice, and then all of its checksums.
    run(&db, "BEGIN");
    for _ in 0..3 {
        run(&db, "UPDATE t SET value = randomblob(1000)");
    }
    run(&db, "COMMIT");
    let expected = rows(&db, "SELECT id, value FROM t").unwrap();
    let second = directory.open();
    assert_eq!(rows(&second, "SELECT id, value FROM t").unwrap(), expected);
    is_sound(&second);
}

#[test]
fn a_reader_keeps_its_snapshot() {
    let directory = Directory::new();
    let (writer, reader) = (directory.open(), directory.open());
    run(&writer, TABLE);
    run(&writer, "INSERT INTO t VALUES (1, 'a', 'b')");
    run(&reader, "BEGIN");
    let before = rows(&reader, "SELECT * FROM t").unwrap();
    run(&writer, "UPDATE t SET other = 'c'");
    run(&writer, "PRAGMA wal_checkpoint(PASSIVE)");
    assert_eq!(rows(&reader, "SELECT * FROM t").unwrap(), before);
    run(&reader, "COMMIT");
    assert_ne!(rows(&reader, "SELECT * FROM t").unwrap(), before);
}

#[test]
fn an_export_is_a_log_of_sqlite() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, TABLE);
    run(&db, "INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd')");
    let copy = directory.path().with_file_name("copy.db");
    std::fs::copy(directory.path(), &copy).unwrap();
    let wal = directory.path().with_file_name("copy.db-wal");
    run(&db, &format!("PRAGMA braid_export = '{}'", wal.display()));
    // The copy of a guarded database needs its versions back.
    let mut bytes = std::fs::read(&copy).unwrap();
    assert_eq!(bytes[18..20], [3, 3]);
    bytes[18..20].copy_from_slice(&[2, 2]);
    std::fs::write(&copy, bytes).unwrap();
    let stock = Connection::open(&copy).unwrap();
    assert_eq!(
        rows(&stock, "SELECT * FROM t").unwrap(),
        rows(&db, "SELECT * FROM t").unwrap()
    );
    is_sound(&stock);
}

#[test]
fn pragmas_answer_or_say_what_is_wrong() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, TABLE);
    assert_eq!(pragma(&db, "PRAGMA braid_mode").unwrap(), "lazy");
    for mode in ["checksum", "eager", "lazy"] {
        run(&db, &format!("PRAGMA braid_mode = {mode}"));
        assert_eq!(pragma(&db, "PRAGMA braid_mode").unwrap(), mode);
        run(&db, "INSERT INTO t VALUES (NULL, 'a', 'b')");
    }
    for (wrong, message) in [
        ("PRAGMA braid_mode = never", "not a commit mode"),
        ("PRAGMA braid_export", "name a file"),
        (
            "PRAGMA braid_export = '/no/such/directory/x'",
            "cannot export",
        ),
    ] {
        let error = pragma(&db, wrong).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let plain = directory.path().with_file_name("other.db");
    let plain = open(&format!("file:{}?vfs=braid", plain.display())).unwrap();
    let error = pragma(&plain, "PRAGMA braid_stats")
        .unwrap_err()
        .to_string();
    assert!(error.contains("journal_mode = WAL"), "{error}");
    run(&plain, "CREATE TABLE t (a)");
    assert_eq!(pragma(&plain, "PRAGMA journal_mode").unwrap(), "delete");
}

#[test]
fn a_refusal_leaves_its_reason() {
    let nowhere = "file:/tmp/x.db?vfs=braid&braid_log=/no/such/directory";
    assert!(open(nowhere).is_err());
    let db = Connection::open_in_memory().unwrap();
    let reason = || {
        db.query_row("SELECT braid_error()", [], |row| row.get(0))
            .unwrap()
    };
    let found: Option<String> = reason();
    let expected = "cannot open the log in /no/such/directory: it is not an absolute path";
    assert!(
        found
            .as_ref()
            .is_some_and(|text| text.starts_with(expected)),
        "{found:?}"
    );
    assert_eq!(reason(), None);

    assert!(open(nowhere).is_err());
    let in_c = || {
        let text = braid_sqlite::braid_sqlite_error();
        if text.is_null() {
            return None;
        }
        // SAFETY: the function returned a string, and this thread calls it later.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    };
    // The reason is that of the thread which was refused.
    std::thread::scope(|scope| assert_eq!(scope.spawn(in_c).join().unwrap(), None));
    assert!(in_c().is_some_and(|text| text.starts_with(expected)));
    assert_eq!(in_c(), None);
}

/// A random statement that both connections execute in the same way.
fn statement(random: &mut fastrand::Rng, depth: &mut u32) -> String {
    let id = random.u32(1..400);
    let text = "x".repeat(random.usize(..1500));
    match random.u8(..100) {
        0..30 => format!(
            "INSERT OR REPLACE INTO t VALUES ({id}, '{text}', '{}')",
            random.u32(..)
        ),
        30..55 => format!("UPDATE t SET other = '{}' WHERE id = {id}", random.u32(..)),
        55..65 => format!("DELETE FROM t WHERE id BETWEEN {id} AND {id} + 10"),
        65..70 => "UPDATE t SET value = other || value".to_owned(),
        70..78 if *depth == 0 => {
            *depth = 1;
            "BEGIN".to_owned()
        }
        78..83 if *depth > 0 => {
            *depth += 1;
            format!("SAVEPOINT s{depth}")
        }
        83..88 if *depth > 1 => {
            let level = random.u32(2..=*depth);
            *depth = level;
            format!("ROLLBACK TO s{level}")
        }
        88..95 if *depth > 0 => {
            *depth = 0;
            "COMMIT".to_owned()
        }
        95..97 if *depth > 0 => {
            *depth = 0;
            "ROLLBACK".to_owned()
        }
        _ => {
            format!("INSERT OR IGNORE INTO t SELECT id + 1000, value, other FROM t WHERE id = {id}")
        }
    }
}

/// A statement that changes nothing that a query sees.
fn upkeep(random: &mut fastrand::Rng) -> &'static str {
    match random.u8(..12) {
        0 => "PRAGMA wal_checkpoint(PASSIVE)",
        1 => "PRAGMA wal_checkpoint(FULL)",
        2 => "PRAGMA wal_checkpoint(RESTART)",
        3 => "PRAGMA wal_checkpoint(TRUNCATE)",
        4 => "PRAGMA journal_mode = DELETE",
        5 => "PRAGMA journal_mode = WAL",
        6 => "PRAGMA synchronous = NORMAL",
        7 => "PRAGMA synchronous = FULL",
        8 => "PRAGMA mmap_size = 1000000",
        9 => "PRAGMA mmap_size = 0",
        10 => "PRAGMA braid_mode = checksum",
        _ => "VACUUM",
    }
}

#[test]
fn random_statements_do_what_sqlite_does() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = Directory::new();
        let mut db = open(&directory.uri()).unwrap();
        run(
            &db,
            &format!("PRAGMA page_size = {}", 512 << random.u32(..6)),
        );
        run(&db, "PRAGMA journal_mode = WAL");
        let oracle = Connection::open_in_memory().unwrap();
        for connection in [&db, &oracle] {
            run(connection, "PRAGMA cache_size = 8");
            run(connection, TABLE);
            run(connection, "CREATE INDEX other ON t (other)");
        }
        let mut depth = 0;
        for step in 0..400 {
            let sql = statement(&mut random, &mut depth);
            let result = |connection| rows(connection, &sql).map_err(|error| error.to_string());
            assert_eq!(
                result(&db),
                result(&oracle),
                "seed {seed}, step {step}: {sql}"
            );
            if random.u8(..20) == 0 {
                let all = "SELECT * FROM t ORDER BY id";
                assert_eq!(
                    rows(&db, all).unwrap(),
                    rows(&oracle, all).unwrap(),
                    "seed {seed}"
                );
            }
            if depth == 0 && random.u8(..8) == 0 {
                // Leaving the mode for a log removes it, with a pragma that then has no log.
                let _ = rows(&db, upkeep(&mut random));
            }
            if depth == 0 && random.u8(..40) == 0 {
                is_sound(&db);
                drop(db);
                db = open(&directory.uri()).unwrap();
                run(&db, "PRAGMA cache_size = 8");
            }
        }
        drop(db);
        let stock = directory.stock();
        if depth == 0 {
            let all = "SELECT * FROM t ORDER BY id";
            assert_eq!(
                rows(&stock, all).unwrap(),
                rows(&oracle, all).unwrap(),
                "seed {seed}"
            );
        }
        is_sound(&stock);
    }
}

#[test]
fn the_lock_of_one_connection_needs_no_shared_memory() {
    let directory = Directory::new();
    let db = open(&directory.uri()).unwrap();
    run(&db, "PRAGMA locking_mode = EXCLUSIVE");
    run(&db, "PRAGMA journal_mode = WAL");
    run(&db, TABLE);
    run(&db, "INSERT INTO t VALUES (1, 'a', 'b')");
    assert!(stat(&db, "frames") > 0);
    is_sound(&db);
    drop(db);
    assert_eq!(
        rows(&directory.stock(), "SELECT * FROM t").unwrap().len(),
        1
    );
}

#[test]
fn a_log_in_a_file_lies_next_to_the_database() {
    let directory = tempfile::tempdir_in(".").unwrap();
    let path = std::path::absolute(directory.path().join("app.db")).unwrap();
    let uri = format!("file:{}?vfs=braid", path.display());
    let db = open(&uri).unwrap();
    run(&db, "PRAGMA journal_mode = WAL");
    run(&db, TABLE);
    let stats = pragma(&db, "PRAGMA braid_stats").unwrap();
    assert!(
        stats.contains("memory=file") || stats.contains("memory=dax"),
        "{stats}"
    );
    assert!(path.with_file_name("app.db-braid").exists());
    run(&db, "INSERT INTO t VALUES (1, 'a', 'b')");
    drop(db);
    assert!(!path.with_file_name("app.db-braid").exists());
    let stock = Connection::open(&path).unwrap();
    assert_eq!(rows(&stock, "SELECT * FROM t").unwrap().len(), 1);
}

#[test]
fn a_ticket_waits_for_the_device_once() {
    let directory = Directory::new();
    let db = directory.open();
    run(&db, TABLE);
    let is_durable = || stat(&db, "durable_bytes") == stat(&db, "log_bytes");
    assert!(is_durable());
    run(&db, "PRAGMA braid_mode = ticket");
    assert_eq!(pragma(&db, "PRAGMA braid_mode").unwrap(), "ticket");
    for _ in 0..5 {
        run(&db, "INSERT INTO t VALUES (NULL, 'a', 'b')");
        assert!(!is_durable());
    }
    // Another connection sees them, and waits for them as well.
    let other = directory.open();
    assert_eq!(rows(&other, "SELECT id FROM t").unwrap().len(), 5);
    assert_eq!(pragma(&other, "PRAGMA braid_wait").unwrap(), "durable");
    assert!(is_durable());
    // A checkpoint copies durable frames only.
    for checkpoint in ["PASSIVE", "FULL"] {
        run(&db, "INSERT INTO t VALUES (NULL, 'a', 'b')");
        assert!(!is_durable());
        run(&db, &format!("PRAGMA wal_checkpoint({checkpoint})"));
        assert!(is_durable(), "{checkpoint}");
    }
    // Without its locks in shared memory, SQLite's syncs do not say what they are for: the first write
    // into the database waits.
    drop(other);
    run(&db, "PRAGMA locking_mode = EXCLUSIVE");
    for checkpoint in ["PASSIVE", "FULL"] {
        run(&db, "INSERT INTO t VALUES (NULL, 'a', 'b')");
        assert!(!is_durable());
        assert_eq!(pragma(&db, "PRAGMA braid_wait").unwrap(), "durable");
        assert!(is_durable());
        run(&db, "INSERT INTO t VALUES (NULL, 'a', 'b')");
        assert!(!is_durable());
        run(&db, &format!("PRAGMA wal_checkpoint({checkpoint})"));
        assert!(is_durable(), "{checkpoint}");
    }
    run(&db, "PRAGMA braid_mode = checksum");
    run(&db, "INSERT INTO t VALUES (NULL, 'a', 'b')");
    assert!(is_durable());
}
