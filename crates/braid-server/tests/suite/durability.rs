//! Answers while the device holds durable writes back: nothing that is not durable is answered or
//! sent, and replies keep their order.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use braid::Database;
use braid_io::{Device, File, Layer, LayeredDevice, MemoryDevice};
use redis::Value;

use super::support::{Raw, TestServer, run, script};

/// Holds durable writes and syncs back while it is closed. Opens by itself after about a minute, so
/// that a test fails whose server waits for a write that the test holds back.
#[derive(Clone, Debug, Default)]
struct Barrier(Arc<(Mutex<bool>, Condvar)>);

impl Barrier {
    fn set(&self, is_closed: bool) {
        *self.0.0.lock().unwrap() = is_closed;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut is_closed = self.0.0.lock().unwrap();
        // Many short waits: a process that is stopped and continued loses only one of them.
        for _ in 0..600 {
            let short = Duration::from_millis(100);
            is_closed = self
                .0
                .1
                .wait_timeout_while(is_closed, short, |is_closed| *is_closed)
                .unwrap()
                .0;
            if !*is_closed {
                return;
            }
        }
        *is_closed = false;
        self.0.1.notify_all();
    }
}

impl Layer for Barrier {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.pass();
        file.write_durable_at(bufs, offset)
    }

    fn sync(&self, file: &dyn File) -> io::Result<()> {
        self.pass();
        file.sync()
    }
}

/// Opens the barrier when a test ends, so that the server can stop.
struct OpenOnDrop(Barrier);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Lets other threads run while it writes.
#[derive(Clone, Debug, Default)]
struct Slow;

impl Layer for Slow {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        std::thread::yield_now();
        file.write_durable_at(bufs, offset)
    }
}

/// Few clients, each of which waits for its replies: nobody else wakes a thread that has forgotten them.
#[test]
fn the_last_write_of_all_is_answered() {
    let device = Arc::new(LayeredDevice::over(Arc::new(MemoryDevice::new()), Slow));
    let server = TestServer::with(Database::builder().open_on(device).unwrap(), |_| {});
    for clients in [1, 3, 5, 8, 12] {
        std::thread::scope(|scope| {
            for client in 0..clients {
                let mut connection = server.connect();
                scope.spawn(move || {
                    for number in 0..800 {
                        let _: () = run(&mut connection, &format!("SET {client} {number}"));
                        let read: u32 = run(&mut connection, &format!("GET {client}"));
                        assert_eq!(read, number);
                        let _: Value = run(&mut connection, "GET shared");
                        let mut transaction = redis::pipe();
                        transaction.atomic().incr("shared", 1).incr("other", 1);
                        let (_, _): (i64, i64) = transaction.query(&mut connection).unwrap();
                    }
                });
            }
        });
    }
}

fn server() -> (TestServer, OpenOnDrop) {
    let barrier = Barrier::default();
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let device = Arc::new(LayeredDevice::over(memory, barrier.clone()));
    let db = Database::builder().open_on(device).unwrap();
    (TestServer::with(db, |_| {}), OpenOnDrop(barrier))
}

/// Returns a server that serves two connections and whose device holds durable writes back.
fn held_server() -> (TestServer, OpenOnDrop, Raw, redis::Connection) {
    let (server, barrier) = server();
    let other = server.connect();
    let mut raw = server.raw();
    raw.send("PING\r\n");
    assert_eq!(raw.line(), "+PONG");
    barrier.0.set(true);
    (server, barrier, raw, other)
}

/// Waits until the server has executed a command this often.
fn wait_for_calls(connection: &mut redis::Connection, command: &str, calls: u64) {
    let wanted = format!("cmdstat_{command}:calls={calls},");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !run::<String>(connection, "INFO commandstats").contains(&wanted) {
        assert!(Instant::now() < deadline, "{command} was not executed");
        std::thread::yield_now();
    }
}

/// Expects that a connection has received nothing.
fn expect_nothing(raw: &mut Raw) {
    let stream = raw.stream();
    stream.set_nonblocking(true).unwrap();
    let mut byte = [0];
    let error = stream.peek(&mut byte).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
}

#[test]
fn a_reply_waits_for_its_write_and_later_replies_for_it() {
    let (server, barrier, mut raw, mut other) = held_server();
    raw.send("SET b 1\r\nSET a 1\r\nECHO x\r\nGET a\r\nMULTI\r\nINCR a\r\nEXEC\r\n");
    wait_for_calls(&mut other, "exec", 1);
    // Connections of both threads get answers meanwhile, and see the durable state.
    for _ in 0..4 {
        script(&mut server.connect(), "GET a => nil\nPING => PONG");
    }
    expect_nothing(&mut raw);
    barrier.0.set(false);
    assert_eq!(raw.lines(6), ["+OK", "+OK", "$1", "x", "$1", "1"]);
    assert_eq!(raw.lines(4), ["+OK", "+QUEUED", "*1", ":2"]);
    script(&mut other, "GET a => 2");
}

#[test]
fn a_change_is_sent_to_caches_when_it_is_durable() {
    let (server, barrier) = server();
    let mut other = server.connect();
    let mut reader = server.raw();
    reader.send("HELLO 3\r\n");
    reader.lines(1 + 14 + 8 + 3);
    reader.send("CLIENT TRACKING ON\r\nGET a\r\n");
    assert_eq!(reader.lines(2), ["+OK", "_"]);
    barrier.0.set(true);
    let mut writer = server.raw();
    writer.send("SET a 1\r\n");
    wait_for_calls(&mut other, "set", 1);
    // The thread that would send the message has time to do so.
    for _ in 0..200 {
        reader.send("PING\r\n");
        assert_eq!(reader.line(), "+PONG");
    }
    expect_nothing(&mut reader);
    expect_nothing(&mut writer);
    barrier.0.set(false);
    assert_eq!(writer.line(), "+OK");
    assert_eq!(reader.lines(3), [">2", "$10", "invalidate"]);
    assert_eq!(reader.lines(3), ["*1", "$1", "a"]);
}

/// Readers see all changes of a transaction or none, whenever they look.
#[test]
fn a_transaction_is_atomic_for_readers() {
    const TIMES: u64 = 2_000;
    let server = TestServer::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut raw = server.raw();
            for _ in 0..TIMES / 20 {
                raw.send("MULTI\r\nINCR a\r\nINCR b\r\nRPUSH l x\r\nEXEC\r\n".repeat(20));
                raw.lines(20 * 8);
            }
        });
        let mut reader = server.connect();
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            script(&mut reader, "MULTI\nGET a => QUEUED\nGET b => QUEUED");
            script(&mut reader, "LLEN l => QUEUED");
            let (a, b, len): (Option<u64>, Option<u64>, u64) = run(&mut reader, "EXEC");
            assert_eq!(a, b);
            assert_eq!(a.unwrap_or(0), len);
            if len == TIMES {
                break;
            }
            assert!(Instant::now() < deadline);
        }
    });
}

/// Counts durable writes, and fails them while its flag is set.
#[derive(Clone, Debug, Default)]
struct Writes(Arc<(AtomicU64, AtomicBool)>);

impl Writes {
    fn count(&self) -> u64 {
        self.0.0.load(Ordering::SeqCst)
    }
}

impl Layer for Writes {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        if self.0.1.load(Ordering::SeqCst) {
            return Err(io::Error::other("the device is gone"));
        }
        self.0.0.fetch_add(1, Ordering::SeqCst);
        file.write_durable_at(bufs, offset)
    }
}

/// Without background threads, only the server's threads flush: the log's own thread may flush once more
/// for a request that another thread has served.
fn counted_server() -> (TestServer, Writes) {
    let writes = Writes::default();
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let device = Arc::new(LayeredDevice::over(memory, writes.clone()));
    let builder = Database::builder().background_threads(false);
    let db = builder.open_on(device).unwrap();
    (TestServer::with(db, |_| {}), writes)
}

/// As many replies wait for the device as may; then those requests continue that have arrived already.
#[test]
fn a_pipeline_that_was_held_back_continues_after_the_flush() {
    // Few enough to arrive while the first of them run.
    const PINGS: usize = 4_300;
    let (_server, barrier, mut raw, mut other) = held_server();
    let calls = |pings: usize| 1 + pings as u64;
    raw.send(format!("INCR a\r\n{}", "PING\r\n".repeat(PINGS)));
    wait_for_calls(&mut other, "ping", calls(4_095));
    barrier.0.set(false);
    wait_for_calls(&mut other, "ping", calls(PINGS));
    assert_eq!(raw.line(), ":1");
    assert_eq!(raw.lines(PINGS), vec!["+PONG"; PINGS]);
}

/// Requests that arrive together share a flush, also those that have a transaction of their own. The
/// log's own thread may flush once more in between, for a request from before that was served.
#[test]
fn writes_that_arrive_together_share_a_flush() {
    const ATTEMPTS: usize = 5;
    let db = Database::in_memory().unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    let mut raw = server.raw();
    // A database of its own has to be created first.
    raw.send("SET a 0\r\n");
    assert_eq!(raw.line(), "+OK");
    let flushes = || db.stats().log.flushes;
    let is_shared = |_| {
        let before = flushes();
        raw.send("MSET a 1 b 2\r\n".repeat(50));
        assert_eq!(raw.lines(50), ["+OK"; 50]);
        flushes() - before == 1
    };
    assert!((0..ATTEMPTS).any(is_shared));
}

#[test]
fn a_buffered_write_starts_no_flush() {
    let (server, writes) = counted_server();
    let mut raw = server.raw();
    raw.send("SET a 0\r\nBRAID.DURABILITY buffered 60000\r\n");
    assert_eq!(raw.lines(3), ["+OK", "$14", "buffered 60000"]);
    let before = writes.count();
    raw.send("INCR a\r\n".repeat(50));
    assert_eq!(raw.lines(50)[49], ":50");
    assert_eq!(writes.count(), before);
    raw.send("WAITAOF 1 0 0\r\n");
    assert_eq!(raw.lines(3), ["*2", ":1", ":0"]);
    assert_eq!(writes.count(), before + 1);
}

/// A connection sees its own writes before they are durable, also those that run together with others'.
#[test]
fn a_connection_sees_its_buffered_writes() {
    let (server, barrier) = server();
    let mut raw = server.raw();
    raw.send("SET a 1\r\nBRAID.DURABILITY buffered 60000\r\n");
    assert_eq!(raw.lines(3)[0], "+OK");
    barrier.0.set(true);
    for (request, replies) in [("SET a 2", &["+OK"][..]), ("GET a", &["$1", "2"])] {
        raw.send(format!("{request}\r\n"));
        assert_eq!(raw.lines(replies.len()), replies, "{request}");
    }
    barrier.0.set(false);
}

/// Many connections of both threads wait for a flush that does not end. Others are served.
#[test]
fn a_flush_that_does_not_end_delays_only_what_waits_for_it() {
    let (server, barrier) = server();
    let mut other = server.connect();
    barrier.0.set(true);
    let mut writers: Vec<Raw> = (0..20).map(|_| server.raw()).collect();
    for writer in &mut writers {
        writer.send("INCR a\r\n");
    }
    wait_for_calls(&mut other, "incr", 20);
    for _ in 0..4 {
        script(&mut server.connect(), "GET a => nil\nPING => PONG");
    }
    writers.iter_mut().for_each(expect_nothing);
    barrier.0.set(false);
    let mut numbers: Vec<String> = writers.iter_mut().map(Raw::line).collect();
    numbers.sort_by_key(|number| number[1..].parse::<u32>().unwrap());
    let expected: Vec<String> = (1..=20).map(|n| format!(":{n}")).collect();
    assert_eq!(numbers, expected);
}

/// WAITAOF waits for the flush of buffered writes, and its thread serves others meanwhile.
#[test]
fn waitaof_delays_only_its_own_connection() {
    let (server, barrier) = server();
    let mut other = server.connect();
    // One on each thread.
    let mut raws = [server.raw(), server.raw()];
    for raw in &mut raws {
        raw.send("WAITAOF 1 0 0\r\nBRAID.DURABILITY buffered 60000\r\n");
        assert_eq!(raw.lines(5)[..3], ["*2", ":1", ":0"]);
    }
    barrier.0.set(true);
    for raw in &mut raws {
        raw.send("INCR a\r\nWAITAOF 0 0 0\r\n");
        assert_eq!(raw.lines(4)[1..], ["*2", ":0", ":0"]);
        raw.send("WAITAOF 1 0 0\r\nECHO x\r\n");
    }
    wait_for_calls(&mut other, "echo", 2);
    for _ in 0..4 {
        script(&mut server.connect(), "GET a => nil\nPING => PONG");
    }
    raws.iter_mut().for_each(expect_nothing);
    barrier.0.set(false);
    for raw in &mut raws {
        assert_eq!(raw.lines(5), ["*2", ":1", ":0", "$1", "x"]);
    }
    script(&mut other, "GET a => 2");
    // In a transaction nothing waits, nor do the commands after it.
    barrier.0.set(true);
    for (request, replies) in [
        ("INCR a", &[":3"][..]),
        ("MULTI", &["+OK"]),
        ("WAITAOF 1 0 0", &["+QUEUED"]),
        ("WAIT 0 0", &["+QUEUED"]),
        ("EXEC", &["*2", "*2", ":0", ":0", ":0"]),
    ] {
        raws[0].send(format!("{request}\r\n"));
        assert_eq!(raws[0].lines(replies.len()), replies, "{request}");
    }
    barrier.0.set(false);
    raws[0].send("WAITAOF 1 0 0\r\n");
    assert_eq!(raws[0].lines(3), ["*2", ":1", ":0"]);
    raws[0].send("MULTI\r\nWAITAOF 1 0 0\r\nEXEC\r\n");
    assert_eq!(raws[0].lines(6)[2..], ["*1", "*2", ":1", ":0"]);
}

/// WAITAOF answers after its time-out that the device has not confirmed what the client wrote, and in
/// its turn. A command that waits longer continues to wait.
#[test]
fn waitaof_ends_after_its_timeout() {
    let (server, barrier) = server();
    let mut raw = server.raw();
    raw.send("BRAID.DURABILITY buffered 60000\r\nINCR a\r\n");
    assert_eq!(raw.lines(3)[2], ":1");
    barrier.0.set(true);
    raw.send("INCR a\r\nWAITAOF 1 0 20\r\nECHO x\r\nBLPOP l 60\r\n");
    assert_eq!(raw.lines(6), [":2", "*2", ":0", ":0", "$1", "x"]);
    let mut other = server.connect();
    script(
        &mut other,
        "BRAID.DURABILITY buffered 60000 => buffered 60000\nRPUSH l y => 1",
    );
    assert_eq!(raw.lines(5), ["*2", "$1", "l", "$1", "y"]);
    barrier.0.set(false);
    raw.send("INCR a\r\nWAITAOF 1 0 60000\r\nWAITAOF 1 0 0.5\r\n");
    assert_eq!(raw.lines(4), [":3", "*2", ":1", ":0"]);
    assert_eq!(raw.line(), "-ERR timeout is not an integer or out of range");
}

/// Requests that arrive together are answered together: nothing is sent before the write among them is
/// durable, and then everything at once.
#[test]
fn replies_of_a_pipeline_are_sent_together() {
    let (server, barrier, mut raw, mut other) = held_server();
    raw.send("MULTI\r\nSET a 1\r\nEXEC\r\n");
    wait_for_calls(&mut other, "exec", 1);
    for _ in 0..4 {
        script(&mut server.connect(), "PING => PONG");
    }
    expect_nothing(&mut raw);
    barrier.0.set(false);
    assert_eq!(raw.lines(4), ["+OK", "+QUEUED", "*1", "+OK"]);
}

/// A failed write of the log is the answer to everything that waits for it, and to later writes.
#[test]
fn a_failed_flush_is_answered_with_an_error() {
    let (server, writes) = counted_server();
    let mut raws: Vec<Raw> = (0..8).map(|_| server.raw()).collect();
    for raw in &mut raws {
        raw.send("INCR a\r\n");
        assert!(raw.line().starts_with(':'));
    }
    writes.0.1.store(true, Ordering::SeqCst);
    for raw in &mut raws {
        raw.send("INCR a\r\nINCR a\r\nPING\r\n");
    }
    for raw in &mut raws {
        let lines = raw.lines(3);
        assert!(lines[0].starts_with("-IOERR"), "{lines:?}");
        assert!(lines[1].starts_with("-IOERR"), "{lines:?}");
        assert_eq!(lines[2], "+PONG");
    }
    let info: String = run(&mut server.connect(), "INFO errorstats");
    assert!(info.contains("errorstat_IOERR:count=16\r\n"), "{info}");
}
