//! Keys of any type: expiration, names, databases, scans.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::support::{TestServer, run, script, show};

#[test]
fn keys_are_renamed_copied_moved_and_deleted() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        SET a 1 => OK
        RPUSH l 1 2 3 => 3
        EXISTS a a missing l => 3
        TYPE l => list
        TYPE missing => none
        RENAME l m => OK
        RENAME l m => (ERR)
        LRANGE m 0 -1 => [1 2 3]
        RENAMENX a m => 0
        RENAME m a => OK
        LRANGE a 0 -1 => [1 2 3]
        DBSIZE => 1
        COPY a b => 1
        COPY a b => 0
        RPUSH b 4 => 4
        LRANGE a 0 -1 => [1 2 3]
        COPY a b REPLACE => 1
        LLEN b => 3
        COPY a a => (ERR)
        COPY a a DB 3 => 1
        MEMORY USAGE missing => nil
        MOVE b 1 => 1
        MOVE b 1 => 0
        DBSIZE => 1
        SELECT 1 => OK
        LRANGE b 0 -1 => [1 2 3]
        MOVE b 16 => (ERR)
        SELECT 16 => (ERR)
        SELECT 0 => OK
        SWAPDB 0 1 => OK
        EXISTS b => 1
        FLUSHDB => OK
        DBSIZE => 0
        SELECT 1 => OK
        EXISTS a => 1
        UNLINK a b => 1
        DBSIZE => 0
        SELECT 3 => OK
        DBSIZE => 1
        FLUSHALL => OK
        DBSIZE => 0
        KEYS * => []
        RANDOMKEY => nil
        OBJECT ENCODING missing => nil
        ",
    );
}

#[test]
fn expiration() {
    let server = TestServer::new();
    let mut connection = server.connect();
    script(
        &mut connection,
        "
        EXPIRE a 10 => 0
        SET a 1 => OK
        TTL a => -1
        TTL missing => -2
        EXPIRE a 100 => 1
        TTL a => ~100
        EXPIRE a 200 LT => 0
        EXPIRE a 200 GT => 1
        EXPIRE a 300 NX => 0
        EXPIRE a 300 XX => 1
        EXPIRE a 300 GT LT => (ERR)
        EXPIRE a 9223372036854775807 => (ERR)
        PERSIST a => 1
        PERSIST a => 0
        EXPIREAT a 32503680000 => 1
        EXPIRETIME a => 32503680000
        PEXPIRETIME a => 32503680000000
        SET a 1 KEEPTTL => OK
        EXPIRETIME a => 32503680000
        SET a 1 => OK
        TTL a => -1
        EXPIRE a -1 => 1
        EXISTS a => 0
        DBSIZE => 0
        ",
    );
}

/// Reads hide an expired key at once; the background removes the key.
#[test]
fn expired_keys_vanish_by_themselves() {
    let server = TestServer::new();
    let mut connection = server.connect();
    script(
        &mut connection,
        "SET a 1 PX 30 => OK\nRPUSH b 1 2 => 2\nPEXPIRE b 30 => 1\nSET c 1 => OK",
    );
    let deadline = Instant::now() + Duration::from_secs(30);
    while run::<i64>(&mut connection, "DBSIZE") != 1 {
        assert!(Instant::now() < deadline, "the keys are still there");
        std::thread::yield_now();
    }
    script(
        &mut connection,
        "GET a => nil\nEXISTS b => 0\nGET c => 1\nRPUSH b 7 => 1\nLRANGE b 0 -1 => [7]",
    );
}

/// Every key that exists during the whole scan is returned, whatever else changes.
#[test]
fn scans_return_what_was_there_all_the_time() {
    let server = TestServer::new();
    let mut connection = server.connect();
    for number in 0..500 {
        let _: () = run(&mut connection, &format!("SET stays{number} x"));
    }
    let mut cursor = "0".to_owned();
    let mut seen = BTreeSet::new();
    let mut steps = 0;
    loop {
        let (next, keys): (String, Vec<String>) =
            run(&mut connection, &format!("SCAN {cursor} COUNT 7"));
        seen.extend(keys.into_iter().filter(|key| key.starts_with("stays")));
        let _: () = run(&mut connection, &format!("SET comes{steps} x"));
        let _: () = run(&mut connection, &format!("DEL comes{}", steps / 2));
        steps += 1;
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 500);
    assert!(steps > 50);
    script(
        &mut connection,
        "
        SCAN x => (ERR)
        SCAN 0 COUNT 0 => (ERR)
        SCAN 0 COUNT 1000 TYPE list => [0 []]
        SCAN 0 COUNT 1000 MATCH stays77 => [0 [stays77]]
        KEYS stays4[8]1 => [stays481]
        ",
    );
}

#[test]
fn random_keys_are_fair() {
    let server = TestServer::new();
    let mut connection = server.connect();
    for number in 0..100 {
        let _: () = run(&mut connection, &format!("SADD s {number}"));
    }
    let mut counts = [0u32; 100];
    for _ in 0..100 {
        let members: Vec<usize> = run(&mut connection, "SRANDMEMBER s -100");
        for member in members {
            counts[member] += 1;
        }
    }
    // Of 10,000 choices each member has 100 on average; ten standard deviations are 100.
    assert!(
        counts.iter().all(|count| (20..=200).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn long_keys_and_strange_bytes() {
    let server = TestServer::new();
    let mut connection = server.connect();
    let long = "k".repeat(8_000);
    assert_eq!(show(&mut connection, &format!("SET {long} 1")), "OK");
    assert_eq!(show(&mut connection, &format!("GET {long}")), "1");
    let longer = "k".repeat(9_000);
    assert_eq!(show(&mut connection, &format!("SET {longer} 1")), "(ERR)");
    let mut raw = server.raw();
    raw.send(b"*3\r\n$3\r\nSET\r\n$3\r\n\0\r\n\r\n$2\r\n\xff\0\r\n*2\r\n$6\r\nSTRLEN\r\n$3\r\n\0\r\n\r\n");
    assert_eq!(raw.lines(2), ["+OK", ":2"]);
}
