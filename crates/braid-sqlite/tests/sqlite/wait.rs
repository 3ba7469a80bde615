//! `braid_wait()` in SQL and in C.

use std::ffi::CString;
use std::ptr::null;

use rusqlite::{Connection, ffi};

use crate::model::{Directory, open, pragma, register, run, stat};

fn is_durable(db: &Connection) -> bool {
    stat(db, "durable_bytes") == stat(db, "log_bytes")
}

fn message(db: &Connection, sql: &str) -> String {
    pragma(db, sql).unwrap_err().to_string()
}

/// A connection in mode `ticket`, with a table.
fn ticket(directory: &Directory) -> Connection {
    let db = directory.open();
    run(&db, "CREATE TABLE t (a)");
    run(&db, "PRAGMA braid_mode = ticket");
    db
}

/// Calls the function of C.
fn wait_in_c(db: &Connection, schema: Option<&str>) -> i32 {
    let schema = schema.map(|schema| CString::new(schema).unwrap());
    let name = schema.as_ref().map_or(null(), |schema| schema.as_ptr());
    // SAFETY: the connection is open, and the name is a string or null.
    unsafe { braid_sqlite::braid_sqlite_wait(db.handle().cast(), name) }
}

#[test]
fn a_query_waits_for_commits_of_every_connection() {
    let directory = Directory::new();
    let db = ticket(&directory);
    let other = directory.open();
    for wait in [
        "SELECT braid_wait()",
        "SELECT braid_wait('main')",
        "SELECT braid_wait(NULL)",
    ] {
        run(&db, "INSERT INTO t VALUES (1)");
        assert!(!is_durable(&db));
        assert_eq!(pragma(&other, wait).unwrap(), "durable");
        assert!(is_durable(&db), "{wait}");
    }
    run(&db, "INSERT INTO t VALUES (1)");
    assert_eq!(wait_in_c(&other, None), ffi::SQLITE_OK);
    assert!(is_durable(&db));
    run(&db, "INSERT INTO t VALUES (1)");
    assert_eq!(wait_in_c(&db, Some("main")), ffi::SQLITE_OK);
    assert!(is_durable(&db));
    // With synchronous = NORMAL, no commit waits in any mode.
    run(&db, "PRAGMA braid_mode = checksum");
    run(&db, "PRAGMA synchronous = NORMAL");
    run(&db, "INSERT INTO t VALUES (1)");
    assert!(!is_durable(&db));
    run(&db, "SELECT braid_wait()");
    assert!(is_durable(&db));
}

#[test]
fn an_open_transaction_is_not_waited_for() {
    let directory = Directory::new();
    let db = ticket(&directory);
    run(&db, "BEGIN");
    run(&db, "INSERT INTO t VALUES (1)");
    run(&db, "SELECT braid_wait()");
    run(&db, "ROLLBACK");
    assert_eq!(
        pragma(&db, "SELECT CAST(count(*) AS TEXT) FROM t").unwrap(),
        "0"
    );
    run(&db, "BEGIN");
    run(&db, "INSERT INTO t VALUES (1)");
    run(&db, "SELECT braid_wait()");
    run(&db, "COMMIT");
    assert!(!is_durable(&db));
    assert_eq!(
        pragma(&db, "SELECT CAST(count(*) AS TEXT) FROM t").unwrap(),
        "1"
    );
}

#[test]
fn all_attached_databases_are_waited_for() {
    let (first, second) = (Directory::new(), Directory::new());
    let db = ticket(&first);
    let watcher = ticket(&second);
    run(&db, &format!("ATTACH '{}' AS \"an other\"", second.uri()));
    run(&db, "ATTACH ':memory:' AS memory");
    run(&db, "CREATE TEMP TABLE temporary (a)");
    let insert = || {
        run(&db, "INSERT INTO main.t VALUES (1)");
        run(&db, "INSERT INTO \"an other\".t VALUES (1)");
        assert!(!is_durable(&db) && !is_durable(&watcher));
    };
    insert();
    run(&db, "SELECT braid_wait()");
    assert!(is_durable(&db) && is_durable(&watcher));
    insert();
    run(&db, "SELECT braid_wait('an other')");
    assert!(!is_durable(&db) && is_durable(&watcher));
    assert_eq!(wait_in_c(&db, None), ffi::SQLITE_OK);
    assert!(is_durable(&db));
    for schema in ["memory", "temp"] {
        assert_eq!(
            wait_in_c(&db, Some(schema)),
            ffi::SQLITE_NOTFOUND,
            "{schema}"
        );
    }
}

#[test]
fn a_wait_for_nothing_is_an_error() {
    register();
    let plain = Connection::open_in_memory().unwrap();
    let error = message(&plain, "SELECT braid_wait()");
    assert!(
        error.contains("no database of the connection was opened with the VFS \"braid\""),
        "{error}"
    );
    let error = message(&plain, "SELECT braid_wait('main')");
    assert!(error.contains("\"main\" was not opened"), "{error}");
    let error = message(&plain, "SELECT braid_wait('missing')");
    assert!(error.contains("\"missing\": there is none"), "{error}");
    assert_eq!(wait_in_c(&plain, None), ffi::SQLITE_NOTFOUND);
    assert_eq!(wait_in_c(&plain, Some("missing")), ffi::SQLITE_ERROR);
    assert!(message(&plain, "SELECT braid_wait('main', 2)").contains("number of arguments"));
    // SQLite's own journal is synced by each commit.
    let directory = Directory::new();
    let db = open(&directory.uri()).unwrap();
    run(&db, "CREATE TABLE t (a)");
    run(&db, "SELECT braid_wait()");
    // Nothing in a file can make a program wait.
    run(&db, "CREATE VIEW v AS SELECT braid_wait()");
    assert!(message(&db, "SELECT * FROM v").contains("unsafe use of braid_wait"));
}
