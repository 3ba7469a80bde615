//! Connections: authentication, versions of the protocol, limits, order of replies.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use braid::Database;

use super::support::{TestServer, redis_server, run, script, show};

#[test]
fn nothing_works_before_authentication() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.requirepass = Some("secret".to_owned());
    });
    let mut raw = server.raw();
    raw.send(
        "GET a\r\nPING\r\nAUTH wrong\r\nAUTH other secret\r\nHELLO 3\r\nAUTH secret\r\nGET a\r\n",
    );
    for code in ["-NOAUTH", "-NOAUTH", "-WRONGPASS", "-WRONGPASS", "-NOAUTH"] {
        let line = raw.line();
        assert!(line.starts_with(code), "{line}");
    }
    assert_eq!(raw.lines(2), ["+OK", "$-1"]);
    let mut raw = server.raw();
    raw.send("*2\r\n$3\r\nGET\r\n$16385\r\n");
    // A server that accepts the length waits for the argument, and finds the end of the connection.
    raw.stream().shutdown(Shutdown::Write).unwrap();
    assert!(
        raw.rest()
            .starts_with("-ERR Protocol error: unauthenticated bulk length")
    );
    let mut raw = server.raw();
    raw.send("HELLO 3 AUTH default secret SETNAME me\r\nCLIENT GETNAME\r\n");
    assert_eq!(raw.line(), "%7");
    // Seven pairs: four values of two lines each, two numbers, an empty list; and the name.
    assert_eq!(raw.lines(14 + 8 + 3 + 2).last().unwrap(), "me");
}

#[test]
fn both_versions_of_the_protocol() {
    let server = TestServer::new();
    let mut connection = server.connect_with("?protocol=resp3");
    script(
        &mut connection,
        "
        HSET h a 1 => 1
        HGETALL h => [a 1]
        ZADD z 1.5 m => 1
        ZSCORE z m => 1.5
        ZRANGE z 0 -1 WITHSCORES => [[m 1.5]]
        GET missing => nil
        ",
    );
    let mut raw = server.raw();
    raw.send("HELLO 4\r\nHELLO 2 SETNAME\r\n");
    assert!(raw.line().starts_with("-NOPROTO"));
    assert!(raw.line().starts_with("-ERR"));
}

#[test]
fn replies_keep_the_order_of_requests() {
    let server = TestServer::new();
    let mut raw = server.raw();
    let mut requests = String::new();
    for number in 0..500 {
        requests += &format!("SET k {number}\r\nGET k\r\nINCR n\r\n");
    }
    raw.send(requests);
    for number in 0..500 {
        assert_eq!(raw.line(), "+OK");
        assert_eq!(raw.lines(2)[1], number.to_string());
        assert_eq!(raw.line(), format!(":{}", number + 1));
    }
}

#[test]
fn replies_can_be_turned_off() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("CLIENT REPLY OFF\r\nSET a 1\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nINCR a\r\nGET a\r\n");
    assert_eq!(raw.lines(3), ["+OK", "$1", "2"]);
}

#[test]
fn bad_requests_end_the_connection_with_a_reason() {
    let server = TestServer::new();
    for (request, reason) in [
        ("*x\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n:5\r\n", "-ERR Protocol error: expected '$', got ':'"),
        (
            "SET \"a\r\n",
            "-ERR Protocol error: unbalanced quotes in request",
        ),
    ] {
        let mut raw = server.raw();
        raw.send(format!("PING\r\n{request}"));
        assert_eq!(raw.rest(), format!("+PONG\r\n{reason}\r\n"));
    }
    let mut raw = server.raw();
    raw.send("NOSUCH a b\r\nGET\r\nGET a b\r\nPING\r\n");
    assert_eq!(
        raw.line(),
        "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b'"
    );
    assert_eq!(
        raw.line(),
        "-ERR wrong number of arguments for 'get' command"
    );
    raw.line();
    assert_eq!(raw.line(), "+PONG");
}

#[test]
fn limits_hold() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.maxclients = 2;
        options.client_output_buffer_limit = 1 << 20;
    });
    let mut first = server.raw();
    first.send("SUBSCRIBE c\r\n");
    first.lines(6);
    let mut second = server.connect();
    assert_eq!(show(&mut second, "PING"), "PONG");
    let mut third = server.raw();
    assert_eq!(third.rest(), "-ERR max number of clients reached\r\n");
    // A subscriber that does not read is disconnected, and the publisher does not wait.
    let text = "x".repeat(100_000);
    let deadline = Instant::now() + Duration::from_secs(60);
    while run::<i64>(&mut second, &format!("PUBLISH c {text}")) == 1 {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn every_command_with_subcommands_explains_them() {
    let server = TestServer::new();
    let mut connection = server.connect();
    let mut names = vec![
        "ACL", "CLIENT", "COMMAND", "CONFIG", "LATENCY", "MEMORY", "OBJECT", "PUBSUB", "SLOWLOG",
        "XGROUP", "XINFO",
    ];
    if cfg!(feature = "scripts") {
        names.extend(["FUNCTION", "SCRIPT"]);
    }
    for name in names {
        let shown = show(&mut connection, &format!("{name} HELP"));
        assert!(
            shown.starts_with(&format!("[{name} <subcommand>")),
            "{shown}"
        );
    }
}

/// As Redis 7.0 answers; both servers are asked if it is installed.
#[test]
fn keys_have_the_uses_that_redis_names() {
    let lines = "
        COMMAND GETKEYSANDFLAGS SET a 1 => [[a [OW update]]]
        COMMAND GETKEYSANDFLAGS SET a 1 GET => [[a [RW access update]]]
        COMMAND GETKEYSANDFLAGS GET a => [[a [RO access]]]
        COMMAND GETKEYSANDFLAGS EXISTS a b => [[a [RO]] [b [RO]]]
        COMMAND GETKEYSANDFLAGS LMOVE a b LEFT LEFT => [[a [RW access delete]] [b [RW insert]]]
        COMMAND GETKEYSANDFLAGS RENAME a b => [[a [RW access delete]] [b [OW update]]]
        COMMAND GETKEYSANDFLAGS ZUNIONSTORE a 2 b c => [[a [OW update]] [b [RO access]] [c [RO access]]]
        COMMAND GETKEYSANDFLAGS PFMERGE a b => [[a [RW access insert]] [b [RO access]]]
        COMMAND GETKEYSANDFLAGS DEL a b => [[a [RM delete]] [b [RM delete]]]
        COMMAND GETKEYSANDFLAGS HSET a f 1 => [[a [RW update]]]
        COMMAND GETKEYSANDFLAGS INCR a => [[a [RW access update]]]
        COMMAND GETKEYSANDFLAGS BITFIELD a GET u8 0 => [[a [RO access]]]
        COMMAND GETKEYSANDFLAGS BITFIELD a INCRBY u8 0 1 => [[a [RW access update]]]
        COMMAND GETKEYSANDFLAGS BITFIELD a GET u8 0 SET u8 0 1 => [[a [RW access update]]]
        COMMAND GETKEYSANDFLAGS OBJECT FREQ a => [[a [RO]]]
        COMMAND GETKEYSANDFLAGS MEMORY USAGE a => [[a [RO]]]
        COMMAND GETKEYSANDFLAGS XGROUP CREATE a g $ => [[a [RW insert]]]
        COMMAND GETKEYSANDFLAGS XGROUP SETID a g 0 => [[a [RW update]]]
        COMMAND GETKEYSANDFLAGS XGROUP DELCONSUMER a g c => [[a [RW delete]]]
        COMMAND GETKEYSANDFLAGS PING => (ERR)";
    script(&mut TestServer::new().connect(), lines);
    if let Some((redis, _process)) = redis_server() {
        script(&mut redis.get_connection().unwrap(), lines);
    }
}

#[test]
fn clients_are_listed_named_and_killed() {
    let server = TestServer::new();
    let (mut one, mut other) = (server.connect(), server.connect());
    script(
        &mut one,
        "CLIENT SETNAME one\nCLIENT GETNAME => one\nCLIENT SETNAME a\tb => (ERR)",
    );
    let id: i64 = run(&mut one, "CLIENT ID");
    let list: String = run(&mut other, "CLIENT LIST");
    assert!(
        list.contains(&format!("id={id} ")) && list.contains(" name=one "),
        "{list}"
    );
    assert_eq!(show(&mut other, &format!("CLIENT KILL ID {id}")), "1");
    assert!(super::support::try_run::<String>(&mut one, "PING").is_err());
    script(
        &mut other,
        "CLIENT KILL 1.2.3.4:5 => (ERR)\nCLIENT NOSUCH => (ERR)",
    );
    let commands: i64 = run(&mut other, "COMMAND COUNT");
    let listed: Vec<redis::Value> = run(&mut other, "COMMAND");
    assert_eq!(listed.len() as i64, commands);
    script(
        &mut other,
        "COMMAND GETKEYS MSET a 1 b 2 => [a b]\nCOMMAND GETKEYS ZUNION 2 a b => [a b]",
    );
}

/// A kind of clients leaves out all others: there are no replicas to end.
#[test]
fn clients_have_kinds() {
    let server = TestServer::new();
    let mut connection = server.connect();
    let mut subscriber = server.raw();
    subscriber.send("SUBSCRIBE c\r\n");
    subscriber.lines(6);
    let count = |connection: &mut redis::Connection, kind: &str| {
        let list: String = run(connection, &format!("CLIENT LIST TYPE {kind}"));
        list.lines().filter(|line| line.contains("id=")).count()
    };
    // The connection tells the others of its subscription after it has answered.
    let deadline = Instant::now() + Duration::from_secs(60);
    while count(&mut connection, "pubsub") != 1 {
        assert!(Instant::now() < deadline, "nobody subscribes");
        std::thread::yield_now();
    }
    for (kind, clients) in [("normal", 1), ("replica", 0), ("master", 0)] {
        assert_eq!(count(&mut connection, kind), clients, "{kind}");
    }
    script(
        &mut connection,
        "
        CLIENT LIST TYPE nobody => (ERR)
        CLIENT KILL TYPE nobody => (ERR)
        CLIENT KILL TYPE replica SKIPME no => 0
        CLIENT KILL TYPE pubsub SKIPME no => 1
        ",
    );
    assert_eq!(subscriber.rest(), "");
    script(&mut connection, "PING => PONG");
}

/// Files are named by the operator alone: no request makes the server read or write a path.
#[test]
fn clients_name_no_paths() {
    let server = TestServer::new();
    let mut connection = server.connect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let path = path.to_str().unwrap();
    for name in [
        "aclfile",
        "appenddirname",
        "appendfilename",
        "archive-directory",
        "backup-directory",
        "dbfilename",
        "dir",
        "log-directory",
        "logfile",
        "pidfile",
        "tls-ca-cert-file",
        "tls-cert-file",
        "tls-key-file",
        "unixsocket",
    ] {
        let set = format!("CONFIG SET {name} {path}");
        assert_eq!(show(&mut connection, &set), "(ERR)", "{name}");
        let found = show(&mut connection, &format!("CONFIG GET {name}"));
        assert!(!found.contains(path), "{name}: {found}");
    }
    for request in [
        "SAVE",
        "BGSAVE",
        "ACL SAVE",
        "ACL LOAD",
        "CONFIG REWRITE",
        "MODULE LOAD",
    ] {
        let request = format!("{request} {path}");
        assert_eq!(show(&mut connection, &request), "(ERR)", "{request}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
