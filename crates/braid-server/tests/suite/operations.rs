//! Backups, the archive, the feed of changes, and what an idle server does.

use std::time::{Duration, Instant};

use braid::{Bytes, Database, Readable};
use redis::Value;

use super::support::{TestServer, run, script, show};

/// Waits until the backup in the background has ended.
fn wait_for_backup(connection: &mut redis::Connection) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while run::<String>(connection, "INFO persistence").contains("rdb_bgsave_in_progress:1") {
        assert!(Instant::now() < deadline, "the backup does not end");
        std::thread::yield_now();
    }
}

#[test]
fn a_backup_is_made_while_clients_write() {
    let dir = tempfile::tempdir().unwrap();
    let backups = dir.path().join("backups");
    std::fs::create_dir(&backups).unwrap();
    let db = Database::open(dir.path().join("db")).unwrap();
    let server = TestServer::with(db.clone(), |options| {
        options.backup_directory = Some(backups.clone());
    });
    let connection = &mut server.connect();
    let started: i64 = run(connection, "LASTSAVE");
    script(connection, "SET a 1\nBGSAVE => Background saving started");
    wait_for_backup(connection);
    script(connection, "SET b 2\nSAVE\nBGSAVE NOW => (ERR)");
    let info: String = run(connection, "INFO persistence");
    assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
    assert!(run::<i64>(connection, "LASTSAVE") >= started);
    // In a transaction the backup begins after the commit.
    script(
        connection,
        "MULTI\nBGSAVE => QUEUED\nSET c 3 => QUEUED\nBGSAVE SCHEDULE => QUEUED\n\
         EXEC => [Background saving scheduled OK Background saving scheduled]",
    );
    wait_for_backup(connection);
    let mut files: Vec<_> = std::fs::read_dir(&backups)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort_by_key(|path| braid::backup::info(path).unwrap().seqno);
    assert_eq!(files.len(), 3);
    assert!(braid::backup::info(&files[1]).unwrap().parent.is_some());
    server.stop();
    db.close().unwrap();
    let restore = braid::backup::Restore::new()
        .backup(&files[0])
        .backup(&files[1])
        .backup(&files[2]);
    restore.run(dir.path().join("restored")).unwrap();
    let db = Database::open(dir.path().join("restored")).unwrap();
    let server = TestServer::with(db, |_| {});
    script(&mut server.connect(), "MGET a b c => [1 2 3]");
    server.stop();
    // A directory that is missing fails the backup, and nothing else.
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.backup_directory = Some(dir.path().join("none").join("such"));
    });
    let connection = &mut server.connect();
    script(connection, "BGSAVE => Background saving started");
    wait_for_backup(connection);
    let info: String = run(connection, "INFO persistence");
    assert!(info.contains("rdb_last_bgsave_status:err"), "{info}");
    assert!(show(connection, "SAVE").starts_with('('));
    script(connection, "SET a 1");
}

#[test]
fn the_log_is_archived_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::builder()
        .archive(dir.path().join("archive"))
        .archive_interval(Duration::from_secs(3600))
        .open(dir.path().join("db"))
        .unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    let connection = &mut server.connect();
    run::<()>(connection, "SET a 1");
    let seqno: u64 = run(connection, "BRAID.ARCHIVE");
    assert!(seqno > 0 && seqno <= db.durable_seqno());
    server.stop();
    db.close().unwrap();
    let server = TestServer::new();
    script(&mut server.connect(), "BRAID.ARCHIVE => (ERR)");
}

type Changes = (String, Vec<(u64, Vec<(u32, String, Value)>)>);

#[test]
fn changes_are_reported() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    run::<()>(connection, "SET before 1");
    let feed: String = run(connection, "BRAID.FEED CREATE index");
    script(
        connection,
        "
        SET a 1
        MULTI
        RPUSH l x => QUEUED
        SELECT 2 => QUEUED
        ZADD z 1 m => QUEUED
        EXEC => [1 OK 1]
        DEL z => 1
        ",
    );
    let (next, transactions): Changes = run(connection, &format!("BRAID.CHANGES {feed}"));
    let reported: Vec<String> = transactions
        .iter()
        .map(|(_, keys)| {
            let mut keys: Vec<String> = keys
                .iter()
                .map(|(database, key, kind)| {
                    format!("{database}:{key}:{}", super::support::text(kind))
                })
                .collect();
            keys.sort();
            keys.join(" ")
        })
        .collect();
    assert_eq!(reported, ["0:a:string", "0:l:list 2:z:zset", "2:z:nil"]);
    assert!(transactions[0].0 < transactions[1].0);
    let (middle, first): Changes = run(connection, &format!("BRAID.CHANGES {feed} COUNT 1"));
    assert_eq!(first.len(), 1);
    let (end, rest): Changes = run(connection, &format!("BRAID.CHANGES {middle} COUNT 10"));
    assert_eq!((end, rest.len()), (next.clone(), 2));
    script(
        connection,
        &format!(
            "
            BRAID.FEED ACK index {next}
            BRAID.FEED LIST => [index {next}]
            BRAID.FEED ACK none {next} => (ERR)
            BRAID.FEED DROP index => 1
            BRAID.FEED DROP index => 0
            BRAID.FEED NOSUCH => (ERR)
            BRAID.CHANGES nowhere => (ERR)
            BRAID.CHANGES $ COUNT 0 => (ERR)
            "
        ),
    );
    let (_, none): Changes = run(connection, "BRAID.CHANGES $");
    assert!(none.is_empty());
    let (_, all): Changes = run(connection, "BRAID.CHANGES -");
    assert!(all.len() >= 3);
}

#[test]
fn a_group_without_news_writes_nothing() {
    let db = Database::in_memory().unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    let connection = &mut server.connect();
    script(
        connection,
        "
        XADD s 1-1 a b => 1-1
        XGROUP CREATE s g 0
        XREADGROUP GROUP g c STREAMS s > => [[s [[1-1 [a b]]]]]
        ",
    );
    let before = db.durable_seqno();
    script(
        connection,
        "
        XREADGROUP GROUP g c STREAMS s > => nil
        XREADGROUP GROUP g c COUNT 5 STREAMS s > => nil
        XREADGROUP GROUP g c STREAMS s 5-0 => [[s []]]
        ",
    );
    db.sync().unwrap();
    assert_eq!(db.durable_seqno(), before);
    // A new consumer exists from then on.
    script(connection, "XREADGROUP GROUP g d STREAMS s > => nil");
    assert!(show(connection, "XINFO CONSUMERS s g").contains("name d"));
}

#[test]
fn a_destroyed_group_leaves_no_elements() {
    let db = Database::in_memory().unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    let connection = &mut server.connect();
    script(
        connection,
        "XGROUP CREATE s g 0 MKSTREAM\nXGROUP CREATE s other 0",
    );
    for number in 1..=600 {
        run::<()>(connection, &format!("XADD s {number} a b"));
    }
    run::<Value>(connection, "XREADGROUP GROUP g c STREAMS s >");
    run::<Value>(connection, "XREADGROUP GROUP other c COUNT 5 STREAMS s >");
    script(
        connection,
        "
        XGROUP DESTROY s g => 1
        XGROUP CREATE s g 0
        XPENDING s g => [0 nil nil nil]
        XGROUP DESTROY s g => 1
        ",
    );
    let (elements, garbage) = (
        db.open_table::<Bytes, Bytes>("elements").unwrap(),
        db.open_table::<Bytes, Bytes>("garbage").unwrap(),
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while !db.snapshot().is_empty(&garbage).unwrap() {
        assert!(Instant::now() < deadline, "garbage is left");
        std::thread::yield_now();
    }
    // Entries, the other group, its consumer, and what is pending for it twice.
    let count = db.snapshot().range(&elements, ..).unwrap().count();
    assert_eq!(count, 600 + 1 + 1 + 2 * 5);
    script(connection, "XLEN s => 600\nXACK s other 1 2 => 2");
}
