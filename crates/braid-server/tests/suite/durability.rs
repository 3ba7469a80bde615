//! Answers while the device holds durable writes back: nothing that is not durable is answered or
//! sent, and replies keep their order.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use braid::Database;
use braid_io::{Device, File, Layer, LayeredDevice, MemoryDevice};

use super::support::{Raw, TestServer, run, script};

/// Holds durable writes and syncs back while it is closed.
#[derive(Clone, Debug, Default)]
struct Barrier(Arc<(Mutex<bool>, Condvar)>);

impl Barrier {
    fn set(&self, is_closed: bool) {
        *self.0.0.lock().unwrap() = is_closed;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let is_closed = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(is_closed, |is_closed| *is_closed));
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

fn server() -> (TestServer, OpenOnDrop) {
    let barrier = Barrier::default();
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let device = Arc::new(LayeredDevice::over(memory, barrier.clone()));
    let db = Database::builder().open_on(device).unwrap();
    (TestServer::with(db, |_| {}), OpenOnDrop(barrier))
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
    let (server, barrier) = server();
    let mut other = server.connect();
    let mut raw = server.raw();
    raw.send("PING\r\n");
    assert_eq!(raw.line(), "+PONG");
    barrier.0.set(true);
    raw.send("SET a 1\r\nECHO x\r\nGET a\r\nMULTI\r\nINCR a\r\nEXEC\r\n");
    wait_for_calls(&mut other, "exec", 1);
    // Connections of both threads get answers meanwhile, and see the durable state.
    for _ in 0..4 {
        script(&mut server.connect(), "GET a => nil\nPING => PONG");
    }
    expect_nothing(&mut raw);
    barrier.0.set(false);
    assert_eq!(raw.lines(5), ["+OK", "$1", "x", "$1", "1"]);
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
