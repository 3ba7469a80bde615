//! MULTI, EXEC and WATCH.

use super::support::{TestServer, run, script, show, try_run};

#[test]
fn exec_runs_all_and_undoes_what_fails() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("MULTI\r\nSET a 1\r\nLPUSH a 2\r\nINCR a\r\nEXEC\r\n");
    assert_eq!(raw.lines(5), ["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "*3"]);
    let replies = raw.lines(3);
    assert_eq!(replies[0], "+OK");
    assert!(replies[1].starts_with("-WRONGTYPE"), "{replies:?}");
    assert_eq!(replies[2], ":2");
    raw.send("MULTI\r\nMULTI\r\nSELECT 1\r\nSET b 1\r\nEXEC\r\nGET b\r\nEXEC\r\nDISCARD\r\n");
    assert!(raw.lines(2)[1].starts_with("-ERR MULTI calls can not be nested"));
    assert_eq!(raw.lines(5), ["+QUEUED", "+QUEUED", "*2", "+OK", "+OK"]);
    assert_eq!(raw.lines(2), ["$1", "1"]);
    assert_eq!(
        raw.lines(2),
        ["-ERR EXEC without MULTI", "-ERR DISCARD without MULTI"]
    );
    raw.send("MULTI\r\nNOSUCH\r\nSET c 1\r\nEXEC\r\nEXISTS c\r\n");
    let replies = raw.lines(5);
    assert!(replies[3].starts_with("-EXECABORT"), "{replies:?}");
    assert_eq!(replies[4], ":0");
    raw.send("MULTI\r\nSET c 1\r\nDISCARD\r\nEXISTS c\r\n");
    assert_eq!(raw.lines(4), ["+OK", "+QUEUED", "+OK", ":0"]);
}

/// The transaction is gone, and the next request runs at once.
#[test]
fn an_exec_that_cannot_run_discards_the_transaction() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("WATCH c\r\nMULTI\r\nSET c 1\r\nEXEC x\r\nEXISTS c\r\nEXEC\r\nEXEC x\r\n");
    let abort =
        "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
    let without = "-ERR EXEC without MULTI";
    let expected = ["+OK", "+OK", "+QUEUED", abort, ":0", without, abort];
    assert_eq!(raw.lines(7), expected);
}

/// Also if a command fails, so that those before it run again.
#[test]
fn hello_in_a_transaction_changes_only_later_replies() {
    let server = TestServer::new();
    for last in ["PING", "INCR h"] {
        let mut raw = server.raw();
        raw.send("DEL h\r\nHSET h a 1\r\nMULTI\r\nHGETALL h\r\nHELLO 3\r\nHGETALL h\r\n");
        raw.send(format!("{last}\r\nEXEC\r\nHGETALL h\r\n"));
        raw.lines(2);
        assert_eq!(raw.lines(6)[5], "*4", "{last}");
        assert_eq!(raw.lines(5), ["*2", "$1", "a", "$1", "1"]);
        assert_eq!(raw.line(), "%7");
        while raw.line() != "modules" {}
        assert_eq!(raw.line(), "*0");
        let pairs = ["%1", "$1", "a", "$1", "1"];
        assert_eq!(raw.lines(5), pairs);
        assert!(raw.line().starts_with(['+', '-']));
        assert_eq!(raw.lines(5), pairs);
    }
}

#[test]
fn commands_before_one_that_fails_take_effect_once() {
    let server = TestServer::new();
    let mut client = server.connect();
    script(
        &mut client,
        "SET n 5\nSET gone 1\nMULTI\nINCR n => QUEUED\nFLUSHDB => QUEUED\nINCR n => QUEUED\n\
         SELECT 1 => QUEUED\nRPUSH l a => QUEUED\nINCR l => QUEUED\nRPUSH l b => QUEUED",
    );
    // EXEC with an error among its replies.
    let _: redis::RedisResult<redis::Value> = try_run(&mut client, "EXEC");
    script(
        &mut client,
        "LRANGE l 0 -1 => [a b]\nDBSIZE => 1\nSELECT 0\nGET n => 1\nDBSIZE => 1\n\
         MULTI\nSET n 7 => QUEUED\nBLPOP l 0 => QUEUED\nGET n => QUEUED\nEXEC => [OK nil 7]",
    );
}

#[test]
fn a_failed_command_of_a_transaction_changes_no_counts() {
    let server = TestServer::new();
    let mut raw = server.raw();
    // The pairs before the incomplete one must not count.
    raw.send("SET a 1\r\nMULTI\r\nMSETNX x 1 y\r\nMSET x 1 y\r\nEXEC\r\nDBSIZE\r\n");
    let replies = raw.lines(8);
    assert_eq!(replies[4], "*2");
    assert_eq!(replies[7], ":1");
}

#[test]
fn watch_notices_every_change() {
    let server = TestServer::new();
    let (mut one, mut other) = (server.connect(), server.connect());
    for (before, change) in [
        ("SET k 1", "SET k 1"),
        ("SET k 1", "DEL k"),
        ("SET k 1", "EXPIRE k 100"),
        ("DEL k", "SET k 1"),
        ("HSET k f 1", "HSET k f 1"),
        ("RPUSH k 1", "LSET k 0 1"),
        ("ZADD k 1 a", "ZADD k 2 a"),
        ("SET k 1", "FLUSHALL"),
    ] {
        let _: redis::Value = run(&mut one, "DEL k");
        let _: redis::Value = run(&mut one, before);
        script(&mut one, "WATCH k");
        let _: redis::Value = run(&mut other, change);
        script(&mut one, "MULTI\nSET done 1 => QUEUED\nEXEC => nil");
        assert_eq!(show(&mut one, "EXISTS done"), "0", "{before}, {change}");
    }
    script(
        &mut one,
        "DEL k => 0\nWATCH k\nMULTI\nSET k 2 => QUEUED\nEXEC => [OK]\nGET k => 2",
    );
    script(&mut one, "WATCH k\nUNWATCH");
    script(&mut other, "SET k 3");
    script(&mut one, "MULTI\nGET k => QUEUED\nEXEC => [3]");
    script(&mut one, "WATCH k\nMULTI\nWATCH k => (ERR)\nEXEC => []");
}

/// Counters of several clients, read and written by WATCH and EXEC: no increment is lost.
#[test]
fn optimistic_increments_are_serializable() {
    let server = TestServer::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = server.connect();
                let mut done = 0;
                while done < 50 {
                    script(&mut connection, "WATCH n");
                    let before: Option<u64> = run(&mut connection, "GET n");
                    script(&mut connection, "MULTI");
                    let set = format!("SET n {}", before.unwrap_or(0) + 1);
                    assert_eq!(show(&mut connection, &set), "QUEUED");
                    done += u64::from(show(&mut connection, "EXEC") != "nil");
                }
            });
        }
    });
    assert_eq!(show(&mut server.connect(), "GET n"), "200");
}

#[test]
fn unwatch_inside_multi_has_a_reply() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(
        connection,
        "MULTI => OK
         UNWATCH => QUEUED
         SET a 1 => QUEUED
         EXEC => [OK OK]",
    );
}

/// Redis refuses these, too, when it would queue them.
#[test]
fn wrong_subcommands_are_not_queued() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    for request in [
        "CONFIG NOSUCH",
        "OBJECT NOSUCH k",
        "XGROUP NOSUCH k g",
        "CLIENT ID extra",
        "OBJECT ENCODING",
        "MEMORY USAGE",
    ] {
        script(connection, "MULTI\nSET k 1 => QUEUED");
        assert_eq!(show(connection, request), "(ERR)", "{request}");
        script(connection, "EXEC => (EXECABORT)\nEXISTS k => 0");
    }
    let mut raw = server.raw();
    raw.send("CONFIG NOSUCH\r\nOBJECT ENCODING\r\nACL CAT a b\r\n");
    let expected = [
        "-ERR unknown subcommand 'NOSUCH'. Try CONFIG HELP.",
        "-ERR wrong number of arguments for 'object|encoding' command",
        "-ERR unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP.",
    ];
    assert_eq!(raw.lines(3), expected);
}
