//! Writes that arrive together: they run in one transaction, and each is answered as if it had run on
//! its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid::Database;
use braid_io::{File, Layer, LayeredDevice, MemoryDevice};
use redis::Value;

use super::support::{TestServer, run, script};

#[test]
fn writes_that_arrive_together_are_one_transaction() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("SET n 0\r\n");
    assert_eq!(raw.line(), "+OK");
    let mut connection = server.connect();
    let (position, _): (String, Value) = run(&mut connection, "BRAID.CHANGES $");
    raw.send("INCR n\r\nSET a 1\r\nHSET h f 1 g 2\r\nRPUSH l x y\r\nINCR n\r\nAPPEND a 2\r\n");
    assert_eq!(raw.lines(6), [":1", "+OK", ":2", ":2", ":2", ":2"]);
    let changes = format!("BRAID.CHANGES {position}");
    let (_, transactions): (String, Vec<Value>) = run(&mut connection, &changes);
    assert_eq!(transactions.len(), 1, "{transactions:?}");
    // Others run on their own, in their place.
    raw.send("INCR n\r\nGET n\r\nINCR n\r\nMSET b 1 c 2\r\nSELECT 1\r\nINCR n\r\nINCR n\r\n");
    assert_eq!(raw.lines(4), [":3", "$1", "3", ":4"]);
    assert_eq!(raw.lines(4), ["+OK", "+OK", ":1", ":2"]);
    script(&mut connection, "GET n => 4\nDBSIZE => 6");
}

#[test]
fn a_request_that_fails_undoes_no_other_of_its_pipeline() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("SET a 1\r\nLPUSH a x\r\nINCR a\r\nHSET h f x\r\nHINCRBY h f 1\r\nINCR a\r\nINCR\r\n");
    let replies = raw.lines(7);
    assert_eq!(replies[0], "+OK");
    assert!(replies[1].starts_with("-WRONGTYPE"), "{replies:?}");
    assert_eq!(replies[2..4], [":2", ":1"]);
    assert!(replies[4].starts_with("-ERR hash value"), "{replies:?}");
    assert_eq!(replies[5], ":3");
    assert!(replies[6].starts_with("-ERR wrong number"), "{replies:?}");
    let mut connection = server.connect();
    script(&mut connection, "GET a => 3\nHGET h f => x\nDBSIZE => 2");
    // What a user may not do fails in its place, too.
    script(
        &mut connection,
        "ACL SETUSER default resetkeys ~a* -@all +incr",
    );
    raw.send("INCR a\r\nINCR b\r\nINCR a\r\nSET a 1\r\nINCR a\r\n");
    let replies = raw.lines(5);
    assert_eq!(replies[0], ":4");
    assert!(replies[1].starts_with("-NOPERM"), "{replies:?}");
    assert_eq!(replies[2], ":5");
    assert!(replies[3].starts_with("-NOPERM"), "{replies:?}");
    assert_eq!(replies[4], ":6");
}

/// A client that wants no replies gets none of the others'.
#[test]
fn replies_of_a_pipeline_are_left_out_as_the_client_wants() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("INCR n\r\nCLIENT REPLY SKIP\r\nINCR n\r\nINCR n\r\nINCR n\r\n");
    assert_eq!(raw.lines(3), [":1", ":3", ":4"]);
    raw.send("CLIENT REPLY OFF\r\nINCR n\r\nINCR n\r\nCLIENT REPLY ON\r\nINCR n\r\nINCR n\r\n");
    assert_eq!(raw.lines(3), ["+OK", ":7", ":8"]);
}

/// Pipelines lock the same keys in different orders, so some of their transactions conflict.
#[test]
fn pipelines_on_the_same_keys_lose_nothing() {
    const ROUNDS: usize = 300;
    let server = TestServer::new();
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    std::thread::scope(|scope| {
        for client in 0..4 {
            let mut raw = server.raw();
            scope.spawn(move || {
                let mut keys = keys;
                keys.rotate_left(client);
                if client % 2 == 1 {
                    keys.reverse();
                }
                let request: String = keys.iter().map(|key| format!("INCR {key}\r\n")).collect();
                let mut last = [0; 8];
                for _ in 0..ROUNDS {
                    raw.send(&request);
                    for (last, line) in last.iter_mut().zip(raw.lines(8)) {
                        let number: u64 = line.strip_prefix(':').expect(&line).parse().unwrap();
                        assert!(number > *last, "{number} after {last}");
                        *last = number;
                    }
                }
            });
        }
    });
    let mut connection = server.connect();
    for key in keys {
        script(&mut connection, &format!("GET {key} => {}", ROUNDS * 4));
    }
}

/// Writes of several connections run in one transaction; what a client sends after its write comes
/// after it nevertheless.
#[test]
fn requests_do_not_overtake_writes_that_run_with_those_of_others() {
    const ROUNDS: usize = 500;
    let server = TestServer::new();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let mut raw = server.raw();
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    // Each in a packet of its own.
                    raw.send(format!("INCR own:{client}\r\n"));
                    raw.send(format!("GET own:{client}\r\n"));
                    raw.send("INCR all\r\n");
                    raw.send(format!("STRLEN own:{client}\r\n"));
                    let number = round.to_string();
                    let replies = raw.lines(3);
                    assert_eq!(replies[0], format!(":{round}"));
                    assert_eq!(replies[1..], [format!("${}", number.len()), number.clone()]);
                    let replies = raw.lines(2);
                    assert!(replies[0].starts_with(':'), "{replies:?}");
                    assert_eq!(replies[1], format!(":{}", number.len()));
                }
            });
        }
    });
    let expected = format!("GET all => {}", ROUNDS * 4);
    script(&mut server.connect(), &expected);
}

/// Reads that arrive together share what they read from, unless something else comes between them.
#[test]
fn reads_that_arrive_together_are_answered_in_turn() {
    let server = TestServer::new();
    let mut raw = server.raw();
    let mut connection = server.connect();
    script(&mut connection, "SET a 1\nSELECT 1\nSET a 2");
    raw.send("GET a\r\nLLEN a\r\nSTRLEN a\r\nGET b\r\nSELECT 1\r\nGET a\r\nINCR a\r\nGET a\r\n");
    assert_eq!(raw.lines(2), ["$1", "1"]);
    assert!(raw.line().starts_with("-WRONGTYPE"));
    assert_eq!(raw.lines(3), [":1", "$-1", "+OK"]);
    assert_eq!(raw.lines(5), ["$1", "2", ":3", "$1", "3"]);
    raw.send("MULTI\r\nGET a\r\nSELECT 0\r\nGET a\r\nEXEC\r\nGET a\r\nDBSIZE\r\n");
    assert_eq!(raw.lines(4), ["+OK", "+QUEUED", "+QUEUED", "+QUEUED"]);
    assert_eq!(raw.lines(6), ["*3", "$1", "3", "+OK", "$1", "1"]);
    assert_eq!(raw.lines(3), ["$1", "1", ":1"]);
    // Later reads see later writes.
    for number in 5..50 {
        script(&mut connection, &format!("SELECT 0\nSET a {number}"));
        raw.send("GET a\r\nGET a\r\n");
        let (len, number) = (format!("${}", number.to_string().len()), number.to_string());
        assert_eq!(raw.lines(4).concat(), format!("{len}{number}").repeat(2));
    }
    let info: String = run(&mut connection, "INFO stats");
    assert!(info.contains("keyspace_misses:1\r\n"), "{info}");
}

/// Counts reads that were handed to the device alone.
#[derive(Clone, Debug, Default)]
struct Alone(Arc<AtomicUsize>);

impl Layer for Alone {
    fn read_at(&self, file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        file.read_at(buf, offset)
    }
}

/// Keys that are not in memory are read at the same time, not one after another.
#[test]
fn requests_that_arrive_together_wait_for_the_device_once() {
    const KEYS: usize = 24_000;
    let alone = Alone::default();
    let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), alone.clone());
    let builder = Database::builder().pool_bytes(4 << 20);
    let server = TestServer::with(builder.open_on(Arc::new(device)).unwrap(), |_| {});
    let mut connection = server.connect();
    let value = "x".repeat(1_000);
    for begin in (0..KEYS).step_by(500) {
        let mut load = redis::pipe();
        (begin..begin + 500).for_each(|key| {
            load.set(key, &value).ignore();
        });
        load.exec(&mut connection).unwrap();
    }
    // Keys are in the order of their hashes, so nearly each has a page of its own.
    let together = |begin: usize| begin..begin + 32;
    let reads = || alone.0.swap(0, Ordering::SeqCst);
    reads();
    let many: Vec<String> = together(0).map(|key| key.to_string()).collect();
    let found: Vec<String> = run(&mut connection, &format!("MGET {}", many.join(" ")));
    assert!(found.len() == 32 && found.iter().all(|found| *found == value));
    let by_mget = reads();
    let mut pipeline = redis::pipe();
    together(2000).for_each(|key| {
        pipeline.append(key, "y").ignore();
    });
    pipeline.exec(&mut connection).unwrap();
    let by_pipeline = reads();
    let mut transaction = redis::pipe();
    transaction.atomic();
    together(4000).for_each(|key| {
        transaction.strlen(key).append(key, "y").ignore();
    });
    let lengths: Vec<usize> = transaction.query(&mut connection).unwrap();
    assert_eq!(lengths, [1_000; 32]);
    let by_exec = reads();
    let alone = [by_mget, by_pipeline, by_exec];
    assert!(alone.iter().all(|&reads| reads < 8), "{alone:?}");
}
