//! The data after a restart, and the work of the background thread.

use std::time::{Duration, Instant};

use braid::{Bytes, Database, Readable};

use super::support::{TestServer, run, script};

#[test]
fn everything_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    script(
        &mut server.connect(),
        "
        SET s 1 EX 1000 => OK
        HSET h f v => 1
        RPUSH l a b => 2
        ZADD z 1 a 2 b 3 c => 3
        SADD t x => 1
        SELECT 3 => OK
        SET other 1 => OK
        ",
    );
    server.stop();
    db.close().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let server = TestServer::with(db, |_| {});
    script(
        &mut server.connect(),
        "
        GET s => 1
        HGET h f => v
        LPUSH l z => 3
        LRANGE l 0 -1 => [z a b]
        ZADD z 2.5 d => 1
        ZRANK z c => 3
        RPUSH new 1 => 1
        HLEN h => 1
        DBSIZE => 6
        SELECT 3 => OK
        DBSIZE => 1
        ",
    );
    let ttl: i64 = run(&mut server.connect(), "TTL s");
    assert!((900..=1000).contains(&ttl));
}

/// Nothing is evicted: what does not fit into the pool is read from the disk.
#[test]
fn data_of_four_times_the_pool_are_served() {
    const POOL: usize = 4 << 20;
    const LEN: usize = 4000;
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let builder = Database::builder().pool_bytes(POOL);
        builder.open(dir.path()).unwrap()
    };
    let value = |number: usize| format!("{number:04}").repeat(LEN / 4);
    let keys = 4 * POOL / LEN + 1;
    let mut db = open();
    let mut server = TestServer::with(db.clone(), |_| {});
    let mut connection = server.connect();
    let numbers: Vec<usize> = (0..keys).collect();
    for numbers in numbers.chunks(100) {
        let mut pipeline = redis::pipe();
        for number in numbers {
            pipeline.set(format!("k{number}"), value(*number)).ignore();
        }
        pipeline.exec(&mut connection).unwrap();
    }
    for is_restarted in [false, true] {
        if is_restarted {
            server.stop();
            db.close().unwrap();
            db = open();
            server = TestServer::with(db.clone(), |_| {});
            connection = server.connect();
        }
        for numbers in numbers.chunks(100) {
            let mut get = redis::cmd("MGET");
            for number in numbers {
                get.arg(format!("k{number}"));
            }
            let found: Vec<String> = get.query(&mut connection).unwrap();
            assert!(
                found
                    .iter()
                    .eq(&numbers.iter().map(|n| value(*n)).collect::<Vec<_>>())
            );
        }
        let size: usize = run(&mut connection, "DBSIZE");
        assert_eq!(size, keys);
    }
    // Three quarters of the pages did not fit.
    let evictions = db.stats().store.evictions;
    assert!(evictions > 500, "{evictions}");
}

/// Deleted collections and flushed databases leave nothing behind.
#[test]
fn garbage_is_removed_in_the_background() {
    let db = Database::in_memory().unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    let mut connection = server.connect();
    for number in 0..20 {
        let members: Vec<String> = (0..100).map(|member| format!("1 m{member}")).collect();
        let _: i64 = run(
            &mut connection,
            &format!("ZADD z{number} {}", members.join(" ")),
        );
        let _: i64 = run(&mut connection, &format!("EXPIRE z{number} 1000"));
    }
    script(&mut connection, "DEL z0 z1 => 2");
    let _: redis::Value = run(&mut connection, "ZPOPMIN z2 100");
    script(
        &mut connection,
        "EXISTS z2 => 0\nSET z3 1 => OK\nFLUSHALL => OK\nSET k 1 => OK",
    );
    let tables = ["elements", "garbage", "deadlines"]
        .map(|name| db.open_table::<Bytes, Bytes>(name).unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let snapshot = db.snapshot();
        if tables.iter().all(|table| snapshot.is_empty(table).unwrap()) {
            break;
        }
        assert!(Instant::now() < deadline, "garbage is left");
        std::thread::yield_now();
    }
    script(&mut connection, "DBSIZE => 1\nGET k => 1");
}
