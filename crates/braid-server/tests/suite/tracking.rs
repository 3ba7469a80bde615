//! CLIENT TRACKING: clients that keep what they read learn of every change.

use std::time::{Duration, Instant};

use braid::Database;

use super::support::{Raw, TestServer, run, script, show};

/// A client of RESP3 with a mode of tracking.
pub(crate) fn tracked(server: &TestServer, mode: &str) -> Raw {
    let mut raw = server.raw();
    raw.send("HELLO 3\r\n");
    // The rest of the reply: seven pairs.
    assert_eq!(raw.line(), "%7");
    raw.lines(14 + 8 + 3);
    raw.send(format!("CLIENT TRACKING {mode}\r\n"));
    assert_eq!(raw.line(), "+OK");
    raw
}

/// Reads a message that keys have changed; `None` for all keys.
pub(crate) fn changed(raw: &mut Raw) -> Option<Vec<String>> {
    assert_eq!(raw.lines(3), [">2", "$10", "invalidate"]);
    let line = raw.line();
    if line == "_" {
        return None;
    }
    let count: usize = line.strip_prefix('*').unwrap().parse().unwrap();
    Some((0..count).map(|_| raw.lines(2).remove(1)).collect())
}

pub(crate) fn keys(keys: &[&str]) -> Option<Vec<String>> {
    Some(keys.iter().map(|key| (*key).to_owned()).collect())
}

pub(crate) fn read(raw: &mut Raw, request: &str, expected: &[&str]) {
    raw.send(format!("{request}\r\n"));
    assert_eq!(raw.lines(expected.len()), expected, "{request}");
}

#[test]
fn keys_that_were_read_are_sent_once_when_they_change() {
    let server = TestServer::new();
    let mut writer = server.connect();
    script(
        &mut writer,
        "SET a 1\nSET b 1\nHSET h f v => 1\nRPUSH l x => 1",
    );
    let mut reader = tracked(&server, "ON");
    read(&mut reader, "GET a", &["$1", "1"]);
    read(&mut reader, "MGET a missing", &["*2", "$1", "1", "_"]);
    read(&mut reader, "HGET h f", &["$1", "v"]);
    read(&mut reader, "LLEN l", &[":1"]);
    script(&mut writer, "SET b 2\nSET a 2");
    // Of `b`, which it has not read, the client learns nothing.
    assert_eq!(changed(&mut reader), keys(&["a"]));
    script(&mut writer, "SET a 3\nINCR missing => 1");
    assert_eq!(changed(&mut reader), keys(&["missing"]));
    script(&mut writer, "HSET h g w => 1");
    assert_eq!(changed(&mut reader), keys(&["h"]));
    script(&mut writer, "LPOP l => x");
    assert_eq!(changed(&mut reader), keys(&["l"]));
    read(&mut reader, "GET a", &["$1", "3"]);
    // Its own changes, too.
    read(&mut reader, "DEL a", &[":1"]);
    assert_eq!(changed(&mut reader), keys(&["a"]));
    // All commands of a transaction, and the keys that a failed one did not change.
    reader.send("MULTI\r\nGET a\r\nSTRLEN b\r\nEXEC\r\n");
    let expected = ["+OK", "+QUEUED", "+QUEUED", "*2", "_", ":1"];
    assert_eq!(reader.lines(6), expected);
    script(
        &mut writer,
        "
        MULTI
        LPUSH b x => QUEUED
        SET a 1 => QUEUED
        EXEC => (WRONGTYPE)
        APPEND b x => 2
        ",
    );
    assert_eq!(changed(&mut reader), keys(&["a"]));
    assert_eq!(changed(&mut reader), keys(&["b"]));
    read(&mut reader, "CLIENT TRACKING OFF", &["+OK"]);
    read(&mut reader, "GET a", &["$1", "1"]);
    script(&mut writer, "SET a 2");
    read(&mut reader, "PING", &["+PONG"]);
    let info: String = run(&mut writer, "INFO clients");
    assert!(info.contains("tracking_clients:0\r\n"), "{info}");
}

#[test]
fn expiration_and_flushes_are_changes() {
    let server = TestServer::new();
    let mut writer = server.connect();
    let mut reader = tracked(&server, "ON");
    script(&mut writer, "SET a 1 PX 200\nSET b 1");
    // It may have expired by now, and is noted anyway.
    reader.send("EXISTS a\r\n");
    reader.line();
    assert_eq!(changed(&mut reader), keys(&["a"]));
    for flush in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
        reader.send("GET b\r\n");
        while !matches!(reader.line().as_str(), "1" | "_") {}
        script(&mut writer, flush);
        assert_eq!(changed(&mut reader), None);
    }
}

/// A client that reads again after each message has the newest value in the end: it gets one after the
/// change is durable, because readers do not see it before.
#[test]
fn a_cache_is_never_stale() {
    const CHANGES: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    for mode in ["ON", "ON BCAST", "ON OPTOUT"] {
        let mut writer = server.connect();
        let _: Option<String> = run(&mut writer, "GETDEL n");
        let mut reader = tracked(&server, mode);
        let writing = std::thread::spawn(move || {
            for _ in 0..CHANGES {
                let _: i64 = run(&mut writer, "INCR n");
            }
        });
        let mut value = String::new();
        reader.send("GET n\r\n");
        let mut asked = 1;
        let last = CHANGES.to_string();
        while value != last || asked > 0 {
            match reader.line().as_str() {
                ">2" => {
                    reader.lines(2);
                    let keys = reader.line();
                    if keys != "_" {
                        reader.lines(2);
                    }
                    reader.send("GET n\r\n");
                    asked += 1;
                }
                "_" => asked -= 1,
                len => {
                    assert!(len.starts_with('$'), "{len}");
                    value = reader.line();
                    asked -= 1;
                }
            }
        }
        writing.join().unwrap();
    }
    server.stop();
    db.close().unwrap();
}

#[test]
fn broadcasts_are_by_prefix() {
    let server = TestServer::new();
    let mut writer = server.connect();
    let mut all = tracked(&server, "ON BCAST");
    let mut some = tracked(&server, "ON BCAST PREFIX user: PREFIX order:");
    script(&mut writer, "MSET x 1 user:1 a order:1 b users 1");
    let mut every = changed(&mut all).unwrap();
    every.sort();
    assert_eq!(every, ["order:1", "user:1", "users", "x"]);
    let mut found = changed(&mut some).unwrap();
    found.sort();
    assert_eq!(found, ["order:1", "user:1"]);
    script(&mut writer, "SET z 1\nDEL user:1 => 1");
    assert_eq!(changed(&mut some), keys(&["user:1"]));
    // Another prefix is added to the others.
    read(&mut some, "CLIENT TRACKING ON BCAST PREFIX z", &["+OK"]);
    script(&mut writer, "SET z 1");
    assert_eq!(changed(&mut some), keys(&["z"]));
    let info: String = run(&mut writer, "INFO stats");
    assert!(info.contains("tracking_total_prefixes:4\r\n"), "{info}");
}

#[test]
fn noloop_leaves_out_own_changes() {
    let server = TestServer::new();
    let mut writer = server.connect();
    for (mode, [a, b]) in [("ON NOLOOP", ["a", "b"]), ("ON NOLOOP BCAST", ["c", "d"])] {
        let mut reader = tracked(&server, mode);
        read(&mut reader, &format!("EXISTS {a} {b}"), &[":0"]);
        read(&mut reader, &format!("SET {a} 1"), &["+OK"]);
        script(&mut writer, &format!("SET {b} 1"));
        assert_eq!(changed(&mut reader), keys(&[b]));
        // The client still learns of others' changes of what it has written.
        script(&mut writer, &format!("DEL {a} => 1"));
        assert_eq!(changed(&mut reader), keys(&[a]));
    }
}

#[test]
fn optin_and_optout_select_reads() {
    let server = TestServer::new();
    let mut writer = server.connect();
    let mut optin = tracked(&server, "ON OPTIN");
    let mut optout = tracked(&server, "ON OPTOUT");
    read(&mut optin, "EXISTS a", &[":0"]);
    read(&mut optin, "CLIENT CACHING YES", &["+OK"]);
    read(&mut optin, "EXISTS b", &[":0"]);
    read(&mut optin, "EXISTS c", &[":0"]);
    read(&mut optin, "CLIENT CACHING YES", &["+OK"]);
    optin.send("MULTI\r\nEXISTS d\r\nEXISTS e\r\nEXEC\r\nEXISTS f\r\n");
    optin.lines(7);
    read(&mut optout, "EXISTS a", &[":0"]);
    read(&mut optout, "CLIENT CACHING NO", &["+OK"]);
    read(&mut optout, "EXISTS b", &[":0"]);
    read(&mut optout, "EXISTS c", &[":0"]);
    script(
        &mut writer,
        "SET a 1\nSET b 1\nSET c 1\nSET d 1\nSET f 1\nSET e 1",
    );
    for key in ["b", "d", "e"] {
        assert_eq!(changed(&mut optin), keys(&[key]));
    }
    for key in ["a", "c"] {
        assert_eq!(changed(&mut optout), keys(&[key]));
    }
}

/// A client of RESP2 has a second connection, a subscriber, for the messages.
#[test]
fn messages_are_redirected() {
    let server = TestServer::new();
    let mut writer = server.connect();
    let mut target = server.raw();
    target.send("CLIENT ID\r\n");
    let id = target.line()[1..].to_owned();
    target.send("SUBSCRIBE __redis__:invalidate\r\n");
    target.lines(6);
    let mut reader = server.raw();
    read(
        &mut reader,
        &format!("CLIENT TRACKING ON REDIRECT {id}"),
        &["+OK"],
    );
    read(&mut reader, "CLIENT GETREDIR", &[&format!(":{id}")]);
    read(&mut reader, "GET a", &["$-1"]);
    script(&mut writer, "SET a 1");
    let message = ["*3", "$7", "message", "$20", "__redis__:invalidate"];
    assert_eq!(target.lines(5), message);
    assert_eq!(target.lines(3), ["*1", "$1", "a"]);
    script(&mut writer, "FLUSHALL");
    assert_eq!(target.lines(5), message);
    assert_eq!(target.line(), "$-1");
    // One that listens to something else must not get what it cannot tell from a reply.
    let mut other = server.raw();
    other.send("CLIENT ID\r\n");
    let other_id = other.line()[1..].to_owned();
    read(
        &mut reader,
        &format!("CLIENT TRACKING ON REDIRECT {other_id}"),
        &["+OK"],
    );
    read(&mut reader, "GET b", &["$-1"]);
    let mut watcher = tracked(&server, "ON");
    read(&mut watcher, "GET b", &["_"]);
    script(&mut writer, "SET b 1");
    assert_eq!(changed(&mut watcher), keys(&["b"]));
    read(&mut other, "PING", &["+PONG"]);
}

#[test]
fn a_redirection_to_a_vanished_client_is_reported() {
    let server = TestServer::new();
    let mut writer = server.connect();
    let mut target = server.raw();
    target.send("CLIENT ID\r\n");
    let id = target.line()[1..].to_owned();
    let mut reader = tracked(&server, &format!("ON REDIRECT {id}"));
    read(&mut reader, "GET a", &["_"]);
    drop(target);
    let deadline = Instant::now() + Duration::from_secs(60);
    while run::<String>(&mut writer, "CLIENT LIST").contains(&format!("id={id} ")) {
        assert!(Instant::now() < deadline, "the connection remains");
        std::thread::yield_now();
    }
    script(&mut writer, "SET a 1");
    let expected = [">2", "$21", "tracking-redir-broken", &format!(":{id}")];
    assert_eq!(reader.lines(4), expected);
    reader.send("CLIENT TRACKINGINFO\r\n");
    let lines = reader.lines(12);
    assert!(lines.contains(&"broken_redirect".to_owned()), "{lines:?}");
}

/// Beyond the limit, keys count as changed: memory does not grow, and nothing is stale.
#[test]
fn the_limit_of_keys_holds() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.tracking_table_max_keys = 10;
    });
    let mut writer = server.connect();
    let mut reader = tracked(&server, "ON");
    let mut kept: Vec<String> = Vec::new();
    for number in 0..50 {
        read(&mut reader, &format!("EXISTS k{number}"), &[":0"]);
        kept.push(format!("k{number}"));
        while kept.len() > 10 {
            let forgotten = changed(&mut reader).unwrap().remove(0);
            kept.retain(|key| *key != forgotten);
        }
    }
    let info: String = run(&mut writer, "INFO stats");
    for line in [
        "tracking_total_keys:10\r\n",
        "tracking_total_items:10\r\n",
        "tracking_evicted_keys:40\r\n",
    ] {
        assert!(info.contains(line), "{info}");
    }
    for key in kept {
        script(&mut writer, &format!("SET {key} 1"));
        assert_eq!(changed(&mut reader), Some(vec![key]));
    }
}

/// What a client has read is forgotten with its connection, and by RESET.
#[test]
fn nothing_remains_of_a_client() {
    let server = TestServer::new();
    let mut writer = server.connect();
    let mut one = tracked(&server, "ON");
    let mut other = tracked(&server, "ON");
    read(&mut one, "EXISTS a", &[":0"]);
    read(&mut other, "EXISTS a b", &[":0"]);
    let figures = |writer: &mut redis::Connection| {
        let info: String = run(writer, "INFO");
        let value = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().parse::<usize>().unwrap()
        };
        (
            value("tracking_clients:"),
            value("tracking_total_keys:"),
            value("tracking_total_items:"),
        )
    };
    assert_eq!(figures(&mut writer), (2, 2, 3));
    read(&mut other, "RESET", &["+RESET"]);
    assert_eq!(figures(&mut writer), (1, 1, 1));
    drop(one);
    let deadline = Instant::now() + Duration::from_secs(60);
    while figures(&mut writer) != (0, 0, 0) {
        assert!(Instant::now() < deadline, "something remains");
        std::thread::yield_now();
    }
}

#[test]
fn wrong_modes_are_refused() {
    let server = TestServer::new();
    let mut connection = server.connect();
    script(
        &mut connection,
        "
        CLIENT GETREDIR => -1
        CLIENT TRACKINGINFO => [flags [off] redirect -1 prefixes []]
        CLIENT CACHING YES => (ERR)
        CLIENT TRACKING MAYBE => (ERR)
        CLIENT TRACKING ON REDIRECT 123456 => (ERR)
        CLIENT TRACKING ON REDIRECT => (ERR)
        CLIENT TRACKING ON PREFIX a => (ERR)
        CLIENT TRACKING ON OPTIN OPTOUT => (ERR)
        CLIENT TRACKING ON BCAST OPTIN => (ERR)
        CLIENT TRACKING ON BCAST PREFIX a PREFIX ab => (ERR)
        CLIENT TRACKING ON NOSUCH => (ERR)
        CLIENT TRACKINGINFO => [flags [off] redirect -1 prefixes []]
        CLIENT TRACKING ON OPTIN NOLOOP => OK
        CLIENT GETREDIR => 0
        CLIENT CACHING NO => (ERR)
        CLIENT CACHING YES => OK
        CLIENT TRACKINGINFO => [flags [on optin caching-yes noloop] redirect 0 prefixes []]
        CLIENT TRACKING ON BCAST => (ERR)
        CLIENT TRACKING ON OPTOUT => (ERR)
        CLIENT TRACKING OFF => OK
        CLIENT TRACKING ON BCAST PREFIX a => OK
        CLIENT TRACKING ON BCAST PREFIX ab => (ERR)
        CLIENT TRACKING ON BCAST PREFIX b => OK
        CLIENT TRACKINGINFO => [flags [on bcast] redirect 0 prefixes [a b]]
        RESET => RESET
        CLIENT TRACKINGINFO => [flags [off] redirect -1 prefixes []]
        ",
    );
    assert_eq!(show(&mut connection, "CLIENT TRACKING OFF"), "OK");
}

/// A script may read keys that it does not declare.
#[cfg(feature = "scripts")]
#[test]
fn keys_that_a_script_reads_are_tracked() {
    let server = TestServer::new();
    let mut writer = server.connect();
    script(&mut writer, "SET a 1\nSET b 1\nSET c 1");
    let mut reader = tracked(&server, "ON");
    let text = "return redis.call('GET', 'a') + redis.call('INCR', 'c') + #KEYS";
    reader.send(format!("EVAL \"{text}\" 1 declared\r\n"));
    assert_eq!(reader.line(), ":4");
    // What the script wrote it has not read.
    assert_eq!(run::<String>(&mut writer, "GET c"), "2");
    script(&mut writer, "SET b 2\nSET c 3\nSET a 2");
    assert_eq!(changed(&mut reader), keys(&["a"]));
    script(&mut writer, "SET declared 1");
    assert_eq!(changed(&mut reader), keys(&["declared"]));
    // With OPTIN, only of a script that follows CLIENT CACHING YES.
    let mut reader = tracked(&server, "ON OPTIN");
    read(
        &mut reader,
        "EVAL \"return redis.call('GET', 'a')\" 0",
        &["$1", "2"],
    );
    read(&mut reader, "CLIENT CACHING YES", &["+OK"]);
    read(
        &mut reader,
        "EVAL \"return redis.call('GET', 'b')\" 0",
        &["$1", "2"],
    );
    script(&mut writer, "SET a 3\nSET b 3");
    assert_eq!(changed(&mut reader), keys(&["b"]));
}
