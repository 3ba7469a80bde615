//! Changes that no command on the key itself makes: caches, WATCH and waiting clients notice them.

use std::time::{Duration, Instant};

use super::blocking::{blocked, waiting};
use super::support::{Raw, TestServer, run, script, show};
use super::tracking::{changed, keys, read, tracked};

/// What there is at first, and a change of `k`.
const CHANGES: [(&str, &str); 30] = [
    ("SET x 1", "RENAME x k"),
    ("SET k 1", "RENAME k x"),
    ("SET x 1", "COPY x k"),
    ("SET k 1", "MOVE k 1"),
    ("SET k 1 EX 100", "PERSIST k"),
    ("SET k 1", "GETEX k PX 100000"),
    ("SET k 1", "PEXPIREAT k 1"),
    ("RPUSH x 2 1", "SORT x STORE k"),
    ("RPUSH x 1", "LMOVE x k LEFT LEFT"),
    ("RPUSH k 1", "BLMOVE k x LEFT LEFT 0"),
    ("RPUSH k 1", "BLMPOP 0 1 k LEFT"),
    ("SADD x a", "SUNIONSTORE k x"),
    ("SADD k a", "SMOVE k x a"),
    ("ZADD x 1 a", "ZUNIONSTORE k 1 x"),
    ("ZADD x 1 a", "ZRANGESTORE k x 0 0"),
    ("ZADD k 1 a", "BZPOPMIN k 0"),
    (
        "GEOADD x 13 38 a",
        "GEOSEARCHSTORE k x FROMMEMBER a BYRADIUS 1 m",
    ),
    ("PFADD x a", "PFMERGE k x"),
    ("SET x a", "BITOP NOT k x"),
    ("XADD k 1-1 a 1", "XADD k MAXLEN 1 2-1 a 1"),
    ("XADD k 1-1 a 1", "XTRIM k MAXLEN 0"),
    ("XADD k 1-1 a 1", "XGROUP CREATE k g 0"),
    ("XGROUP CREATE k g 0 MKSTREAM", "XGROUP DESTROY k g"),
    (
        "XGROUP CREATE k g 0 MKSTREAM",
        "XGROUP CREATECONSUMER k g c",
    ),
    (
        "XADD k 1-1 a 1;XGROUP CREATE k g 0",
        "XREADGROUP GROUP g c STREAMS k >",
    ),
    (
        "XADD k 1-1 a 1;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >",
        "XACK k g 1-1",
    ),
    (
        "XADD k 1-1 a 1;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >",
        "XCLAIM k g d 0 1-1",
    ),
    (
        "XADD k 1-1 a 1;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >;XDEL k 1-1",
        "XAUTOCLAIM k g d 0 0",
    ),
    ("HSET k f 1", "HPEXPIREAT k 1 FIELDS 1 f"),
    ("HSET k f 1", "HEXPIRE k 100 FIELDS 1 f"),
];

/// Runs commands that are separated by semicolons.
fn all(connection: &mut redis::Connection, commands: &str) {
    for command in commands.split(';') {
        let _: redis::Value = run(connection, command);
    }
}

#[test]
fn caches_and_watch_notice_indirect_changes() {
    for (before, change) in CHANGES {
        // With a server of its own, so that nothing from before the tracking is sent late.
        let server = TestServer::new();
        let (mut one, mut other) = (server.connect(), server.connect());
        all(&mut one, before);
        let mut reader = tracked(&server, "ON");
        reader.send("EXISTS k\r\n");
        reader.line();
        script(&mut one, "WATCH k");
        all(&mut other, change);
        assert_eq!(changed(&mut reader), keys(&["k"]), "{change}");
        script(&mut one, "MULTI\nSET done 1 => QUEUED\nEXEC => nil");
        assert_eq!(show(&mut one, "EXISTS done"), "0", "{change}");
    }
}

#[cfg(feature = "scripts")]
#[test]
fn caches_and_watch_notice_changes_of_scripts() {
    let server = TestServer::new();
    let (mut one, mut other) = (server.connect(), server.connect());
    let mut reader = tracked(&server, "ON");
    read(&mut reader, "EXISTS k", &[":0"]);
    script(&mut one, "WATCH k");
    let text = "redis.call('SET', 'k', 1); return redis.call('INCR', 'k')";
    let sum: i64 = redis::cmd("EVAL")
        .arg(text)
        .arg(0)
        .query(&mut other)
        .unwrap();
    assert_eq!(sum, 2);
    assert_eq!(changed(&mut reader), keys(&["k"]));
    script(&mut one, "MULTI\nPING => QUEUED\nEXEC => nil");
}

/// An element that arrives for a client that waits is a change, and that the client takes it.
#[test]
fn caches_and_watch_notice_elements_that_pass_through() {
    let server = TestServer::new();
    let (mut one, mut other) = (server.connect(), server.connect());
    let mut client = waiting(&server, "BLMOVE from k LEFT LEFT 0");
    blocked(&server, 1);
    let mut reader = tracked(&server, "ON");
    read(&mut reader, "EXISTS k", &[":0"]);
    script(&mut one, "WATCH k");
    script(&mut other, "RPUSH from x => 1");
    assert_eq!(client.lines(2), ["$1", "x"]);
    assert_eq!(changed(&mut reader), keys(&["k"]));
    script(&mut one, "MULTI\nPING => QUEUED\nEXEC => nil");
}

/// Starts to let a field of `h` expire while the sweeper rests.
fn expire_without_sweeper(connection: &mut Raw) {
    // Nothing changes during a pause, which begins before the time has passed.
    let text = "HSET h a 1 b 2\r\nHPEXPIRE h 300 FIELDS 1 a\r\nCLIENT PAUSE 60000 WRITE\r\n";
    connection.send(text);
    assert_eq!(connection.lines(4), [":2", "*1", ":1", "+OK"]);
}

#[test]
fn caches_learn_of_fields_that_expire_in_the_background() {
    let server = TestServer::new();
    let mut writer = server.raw();
    expire_without_sweeper(&mut writer);
    // Later than the writes, of which it would be told if it read the key before their notices are sent.
    let mut reader = tracked(&server, "ON");
    // The field may be gone by now.
    reader.send("HGETALL h\r\n");
    let pairs: usize = reader.line()[1..].parse().unwrap();
    reader.lines(pairs * 4);
    read(&mut writer, "CLIENT UNPAUSE", &["+OK"]);
    assert_eq!(changed(&mut reader), keys(&["h"]));
    read(&mut reader, "HKEYS h", &["*1", "$1", "b"]);
}

#[test]
fn watch_notices_fields_that_have_expired() {
    let server = TestServer::new();
    let mut client = server.raw();
    expire_without_sweeper(&mut client);
    read(&mut client, "WATCH h", &["+OK"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        client.send("HEXISTS h a\r\n");
        if client.line() == ":0" {
            break;
        }
        assert!(Instant::now() < deadline, "the field does not expire");
        std::thread::yield_now();
    }
    client.send("MULTI\r\nHLEN h\r\nEXEC\r\n");
    assert_eq!(client.lines(3), ["+OK", "+QUEUED", "*-1"]);
    // It has noticed, and a second attempt succeeds.
    client.send("WATCH h\r\nMULTI\r\nHKEYS h\r\nEXEC\r\n");
    let expected = ["+OK", "+OK", "+QUEUED", "*1", "*1", "$1", "b"];
    assert_eq!(client.lines(7), expected);
}

/// A client that waits is served by whatever brings elements to its key.
#[test]
fn waiting_clients_notice_keys_that_arrive_whole() {
    let server = TestServer::new();
    let mut connection = server.connect();
    script(&mut connection, "RPUSH payload p => 1");
    let payload: Vec<u8> = run(&mut connection, "DUMP payload");
    let list = [
        "RPUSH x 1;RENAME x k",
        "RPUSH x 1;RENAMENX x k",
        "RPUSH x 1;COPY x k",
        "SELECT 1;RPUSH k 1;MOVE k 0;SELECT 0",
        "SELECT 1;RPUSH k 1;SWAPDB 0 1;SELECT 0",
        "RPUSH x 1;SORT x STORE k",
        "RPUSH x 1;LMOVE x k LEFT LEFT",
        "RPUSH x 1;RPOPLPUSH x k",
        "RESTORE",
        "MULTI;RPUSH k 1;EXEC",
    ];
    let sorted_set = [
        "ZINCRBY k 1 a",
        "ZADD x 1 a;ZUNIONSTORE k 1 x",
        "ZADD x 1 a;ZINTERSTORE k 1 x",
        "ZADD x 1 a;ZDIFFSTORE k 1 x",
        "ZADD x 1 a;ZRANGESTORE k x 0 0",
        "GEOADD k 13 38 a",
        "GEOADD x 13 38 a;GEOSEARCHSTORE k x FROMMEMBER a BYRADIUS 1 m",
        "GEOADD x 13 38 a;GEORADIUS x 13 38 1 km STORE k",
    ];
    let stream = ["XADD x 1-1 a 1;RENAME x k", "XADD x 1-1 a 1;COPY x k"];
    let waits = [
        ("BLPOP k 0", &list[..], 5),
        ("BZPOPMIN k 0", &sorted_set, 7),
        ("XREAD BLOCK 0 STREAMS k 0", &stream, 13),
    ];
    for (wait, arrivals, lines) in waits {
        for arrival in arrivals {
            all(&mut connection, "FLUSHALL");
            let mut client = waiting(&server, wait);
            blocked(&server, 1);
            if *arrival == "RESTORE" {
                let mut restore = redis::cmd("RESTORE");
                restore.arg("k").arg(0).arg(&payload[..]);
                restore.exec(&mut connection).unwrap();
            } else {
                all(&mut connection, arrival);
            }
            let reply = client.lines(lines);
            assert!(reply.contains(&"k".to_owned()), "{arrival}: {reply:?}");
        }
    }
}

/// A reader of a group does not wait for a stream that is gone, however that happened.
#[test]
fn readers_of_groups_notice_that_their_stream_is_gone() {
    let server = TestServer::new();
    let mut connection = server.connect();
    for (end, error) in [
        ("DEL k", "-NOGROUP"),
        ("XGROUP DESTROY k g", "-NOGROUP"),
        ("RENAME k x", "-NOGROUP"),
        ("MOVE k 1", "-NOGROUP"),
        ("PEXPIRE k 1", "-NOGROUP"),
        ("FLUSHDB", "-NOGROUP"),
        ("FLUSHALL", "-NOGROUP"),
        ("SWAPDB 0 1", "-NOGROUP"),
        ("SET k 1", "-WRONGTYPE"),
        ("MSET k 1", "-WRONGTYPE"),
        ("RENAME other k", "-WRONGTYPE"),
        ("COPY other k REPLACE", "-WRONGTYPE"),
        ("SORT other STORE k", "-WRONGTYPE"),
        ("BITOP NOT k none", "-NOGROUP"),
    ] {
        let before = "FLUSHALL;RPUSH other 1;XGROUP CREATE k g 0 MKSTREAM";
        all(&mut connection, before);
        let mut client = waiting(&server, "XREADGROUP GROUP g c BLOCK 0 STREAMS k >");
        blocked(&server, 1);
        all(&mut connection, end);
        let reply = client.line();
        assert!(reply.starts_with(error), "{end}: {reply}");
    }
}
