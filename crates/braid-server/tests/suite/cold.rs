//! Reads and writes of what is not in memory: only their own connection waits for the medium.

use std::io::Read;
use std::mem::take;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use braid::Database;
use braid_io::{Layer, LayeredDevice, MemoryDevice};
use redis::Connection;

use super::support::{Raw, TestServer, run};

const KEYS: usize = 12_000;

/// Large values, which together exceed [`OUTPUT_LIMIT`] several times.
const LARGE: usize = 40;
const LARGE_LEN: usize = 400_000;

/// Most bytes of replies that wait for a client.
const OUTPUT_LIMIT: usize = 4 << 20;

/// Longest time that a test waits for something that should come at once.
const SOON: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    waiting: usize,
    /// Reads so far on threads that serve connections, and on others that read for these.
    served: usize,
    loaded: usize,
}

/// Keeps reads of the data file for connections waiting while it is closed.
#[derive(Clone, Debug, Default)]
struct Medium(Arc<(Mutex<State>, Condvar)>);

impl Layer for Medium {
    fn before_read(&self, name: &str, _range: Range<u64>) {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or_default();
        if name != "data.braid" || !thread.starts_with("serve") {
            return;
        }
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        match thread {
            "serve-load" => state.loaded += 1,
            _ => state.served += 1,
        }
        state.waiting += 1;
        changed.notify_all();
        let mut state = changed
            .wait_while(state, |state| state.is_closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
    }
}

impl Medium {
    fn close(&self, is_closed: bool) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = is_closed;
        changed.notify_all();
    }

    /// Returns and forgets the reads so far: those of threads that serve connections, and others.
    fn take_reads(&self) -> (usize, usize) {
        let mut state = self.0.0.lock().unwrap();
        (take(&mut state.served), take(&mut state.loaded))
    }

    /// Waits until as many threads wait for the medium.
    fn wait_for(&self, threads: usize) {
        let (state, changed) = &*self.0;
        let few = |state: &mut State| state.waiting < threads;
        let waited = changed
            .wait_timeout_while(state.lock().unwrap(), SOON, few)
            .unwrap();
        assert!(!waited.1.timed_out(), "{:?}", waited.0);
    }
}

/// Opens the medium even if the test fails, so that the server can stop.
struct Opened<'a>(&'a Medium);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.close(false);
    }
}

fn value(key: usize) -> String {
    format!("{key}").repeat(1_000 / format!("{key}").len())
}

/// A server with one thread that has begun a moment ago: of its data, hardly anything is in memory, and
/// what comes into memory stays there.
fn filled() -> (TestServer, Medium) {
    let medium = Medium::default();
    let device = Arc::new(MemoryDevice::new());
    let begin = || {
        let device = LayeredDevice::over(device.clone(), medium.clone());
        let db = Database::builder().open_on(Arc::new(device)).unwrap();
        let server = TestServer::with(db.clone(), |options| {
            options.threads = Some(1);
            options.client_output_buffer_limit = OUTPUT_LIMIT;
        });
        (db, server)
    };
    let (db, server) = begin();
    let mut connection = server.connect();
    for begin in (0..KEYS).step_by(500) {
        let mut load = redis::pipe();
        (begin..begin + 500).for_each(|key| {
            load.set(key, value(key)).ignore();
            load.hset(format!("h{key}"), "f", key).ignore();
        });
        load.exec(&mut connection).unwrap();
    }
    for key in 0..LARGE {
        run::<()>(
            &mut connection,
            &format!("SETRANGE large{key} {LARGE_LEN} x"),
        );
    }
    drop(connection);
    server.stop();
    db.close().unwrap();
    (begin().1, medium)
}

fn raw(server: &TestServer) -> Raw {
    let raw = server.raw();
    raw.stream().set_read_timeout(Some(SOON)).unwrap();
    raw
}

/// GETs of distant keys, most of which are not in memory, and the lines of their replies.
fn reads(begin: usize) -> (String, Vec<String>) {
    let keys = (0..16).map(|i| (begin + i * 701) % KEYS);
    let requests = keys.clone().map(|key| format!("GET {key}\r\n")).collect();
    let lines = keys.flat_map(|key| [format!("${}", value(key).len()), value(key)]);
    (requests, lines.collect())
}

/// Writes to distant keys, most of which are not in memory, and the lines of their replies.
fn writes(begin: usize, count: usize) -> (String, Vec<String>) {
    let keys = (0..count).map(|i| (begin + i * 701) % KEYS);
    let requests = keys
        .clone()
        .map(|key| format!("APPEND {key} {}\r\n", &value(key)[..1]))
        .collect();
    let lines = keys.map(|key| format!(":{}", value(key).len() + 1));
    (requests, lines.collect())
}

fn calls(connection: &mut Connection, command: &str) -> usize {
    let info: String = run(connection, "INFO commandstats");
    let line = info.lines().find_map(|line| {
        let calls = line.strip_prefix(&format!("cmdstat_{command}:calls="))?;
        calls.split(',').next()
    });
    line.map_or(0, |calls| calls.parse().unwrap())
}

#[test]
fn a_read_of_the_medium_keeps_no_other_connection_waiting() {
    let (server, medium) = filled();
    let mut other = raw(&server);
    other.send("SET hot 1\r\nGET hot\r\n");
    assert_eq!(other.lines(3), ["+OK", "$1", "1"]);
    let opened = Opened(&medium);
    medium.close(true);
    let mut clients: Vec<(Raw, Vec<String>)> = (0..8)
        .map(|client| {
            let (requests, mut lines) = reads(client * 31);
            let mut raw = raw(&server);
            // Every request after the reads is answered in its place.
            raw.send(requests + "HGET h7 f\r\nHGETALL h9\r\nLLEN 1\r\n");
            raw.send(format!("INCR n{client}\r\nGET n{client}\r\nPING\r\n"));
            lines.extend(["$1", "7", "*2", "$1", "f", "$1", "9"].map(str::to_owned));
            (raw, lines)
        })
        .collect();
    medium.wait_for(1);
    for number in 2..20 {
        other.send("INCR hot\r\nGET hot\r\nPING\r\n");
        assert_eq!(other.line(), format!(":{number}"));
        assert_eq!(other.lines(2)[1], number.to_string());
        assert_eq!(other.line(), "+PONG");
    }
    drop(opened);
    for (raw, lines) in &mut clients {
        assert_eq!(raw.lines(lines.len()), *lines);
        assert!(raw.line().starts_with("-WRONGTYPE"));
        assert_eq!(raw.lines(4), [":1", "$1", "1", "+PONG"]);
    }
    let mut connection = server.connect();
    let gets = 16 * 8 + 8 + 19;
    assert_eq!(calls(&mut connection, "get"), gets);
    assert_eq!(calls(&mut connection, "hget"), 8);
    let info: String = run(&mut connection, "INFO stats");
    let hits = format!("keyspace_hits:{}\r\n", gets + 2 * 8);
    assert!(info.contains(&hits), "{hits} {info}");
    let info: String = run(&mut connection, "INFO errorstats");
    assert!(info.contains("errorstat_WRONGTYPE:count=8"), "{info}");
}

/// Some clients send one write at a time, which run together, others many.
#[test]
fn a_write_of_what_is_not_in_memory_keeps_no_other_connection_waiting() {
    let (server, medium) = filled();
    let mut other = raw(&server);
    other.send("SET hot 1\r\nSET other 1\r\n");
    assert_eq!(other.lines(2), ["+OK", "+OK"]);
    let opened = Opened(&medium);
    medium.close(true);
    let mut clients: Vec<(Raw, Vec<String>)> = (0..12)
        .map(|client| {
            let (requests, lines) = writes(client * 31, [1, 1, 9][client % 3]);
            let mut raw = raw(&server);
            raw.send(requests);
            (raw, lines)
        })
        .collect();
    medium.wait_for(1);
    // Every request after the writes is answered in its place, whether it arrives before these run or not.
    for (client, (raw, lines)) in clients.iter_mut().enumerate() {
        // Keys that nobody writes.
        let (reads, read) = reads(400 + client * 17);
        raw.send(format!("INCR n\r\n{reads}PING\r\nAPPEND n{client} x\r\n"));
        lines.push(":n".to_owned());
        lines.extend(read);
        lines.extend(["+PONG", ":1"].map(str::to_owned));
    }
    for number in 2..20 {
        other.send("INCR hot\r\nSET other 1\r\nPING\r\n");
        assert_eq!(other.line(), format!(":{number}"));
        assert_eq!(other.lines(2), ["+OK", "+PONG"]);
    }
    assert_eq!(medium.take_reads().0, 0);
    drop(opened);
    for (raw, lines) in &mut clients {
        for line in lines {
            let found = raw.line();
            if line == ":n" {
                assert!(found.starts_with(':'), "{found}");
            } else {
                assert_eq!(found, *line);
            }
        }
    }
    other.send("GET n\r\n");
    assert_eq!(other.lines(2)[1], "12");
    assert_eq!(calls(&mut server.connect(), "append"), 8 + 4 * 9 + 12);
}

#[test]
fn what_is_no_request_is_refused_after_the_requests_before_it() {
    let (server, medium) = filled();
    for (requests, lines) in [reads(5), writes(5_007, 1), writes(7_007, 9)] {
        let mut raw = raw(&server);
        let opened = Opened(&medium);
        medium.close(true);
        raw.send(requests + "*1\r\n!\r\n");
        medium.wait_for(1);
        drop(opened);
        assert_eq!(raw.lines(lines.len()), lines);
        assert!(raw.line().starts_with("-ERR Protocol error"));
        assert_eq!(raw.rest(), "");
    }
}

#[test]
fn a_server_that_stops_answers_what_waits_for_the_medium() {
    let (server, medium) = filled();
    let (mut raw, mut other, mut writer) = (raw(&server), raw(&server), raw(&server));
    // So that the two below need no page together: the upper levels of the tree.
    for begin in 100..120 {
        let (requests, lines) = reads(begin);
        other.send(requests);
        other.lines(lines.len());
    }
    let opened = Opened(&medium);
    medium.close(true);
    let (requests, lines) = reads(11);
    raw.send(requests + "PING\r\n");
    let (requests, written) = writes(300, 9);
    writer.send(requests + "PING\r\n");
    medium.wait_for(2);
    std::thread::scope(|scope| {
        let stops = scope.spawn(|| server.stop());
        // The server has begun to stop.
        let end = other.stream_mut().read(&mut [0]).unwrap();
        assert_eq!(end, 0);
        assert!(!stops.is_finished());
        drop(opened);
        assert_eq!(raw.lines(lines.len()), lines);
        assert_eq!(raw.line(), "+PONG");
        assert_eq!(writer.lines(written.len()), written);
        assert_eq!(writer.line(), "+PONG");
    });
}

/// Such a client is sent changes after the replies to what it asked before.
#[test]
fn a_client_that_keeps_what_it_reads_waits_for_pages_alone() {
    let (server, medium) = filled();
    let (mut raw, mut other) = (raw(&server), raw(&server));
    raw.send("HELLO 3\r\nCLIENT TRACKING ON\r\n");
    while raw.line() != "+OK" {}
    other.send("SET a old\r\nSET b old\r\n");
    assert_eq!(other.lines(2), ["+OK", "+OK"]);
    medium.take_reads();
    let opened = Opened(&medium);
    medium.close(true);
    raw.send("GET a\r\nGET 7000\r\nGET b\r\n");
    assert_eq!(raw.lines(2), ["$3", "old"]);
    medium.wait_for(1);
    // The client has read the first key, and the last not yet.
    other.send("SET a new\r\nSET b new\r\n");
    assert_eq!(other.lines(2), ["+OK", "+OK"]);
    let told = |key: &str| lines(&[">2", "$10", "invalidate", "*1", "$1", key]);
    assert_eq!(raw.lines(6), told("a"));
    drop(opened);
    assert_eq!(raw.lines(4)[1..], [&value(7_000), "$3", "new"]);
    // The client is told of changes of everything that it has read.
    other.send("SET b newer\r\nSET 7000 x\r\n");
    assert_eq!(other.lines(2), ["+OK", "+OK"]);
    assert_eq!(raw.lines(6), told("b"));
    assert_eq!(raw.lines(6)[5], "7000");
    let (served, loaded) = medium.take_reads();
    assert!(served == 0 && loaded > 0, "{served} {loaded}");
}

/// Sends requests, each of which needs pages unless a background thread has just read them, and expects lines
/// of each; no thread that serves connections reads.
fn served_without_reads(server: &TestServer, medium: &Medium, requests: &[(String, Vec<String>)]) {
    let mut raw = raw(server);
    medium.take_reads();
    let mut cold = 0;
    for (request, lines) in requests {
        raw.send(format!("{request}\r\n"));
        assert_eq!(raw.lines(lines.len()), *lines, "{request}");
        let (served, loaded) = medium.take_reads();
        assert_eq!(served, 0, "{request}");
        cold += usize::from(loaded > 0);
    }
    assert!(cold > requests.len() / 2, "{cold}");
}

fn lines(of: &[&str]) -> Vec<String> {
    of.iter().map(|&line| line.to_owned()).collect()
}

/// Requests of all kinds, and what they need beyond the entries of their keys.
#[test]
fn every_kind_of_request_leaves_reads_to_other_threads() {
    let (server, medium) = filled();
    let appended = format!(":{}", LARGE_LEN + 2);
    let keys: Vec<String> = (0..150).map(|i| (i * 79 + 11).to_string()).collect();
    let many = keys.join(" ");
    let requests = [
        // A large string.
        ("APPEND large7 x".to_owned(), vec![appended]),
        // Fields.
        ("HINCRBY h77 f 1".to_owned(), lines(&[":78"])),
        ("HSETNX h5017 f 1".to_owned(), lines(&[":0"])),
        ("HDEL h8811 f g".to_owned(), lines(&[":1"])),
        // Several keys.
        ("RENAME h200 h20000".to_owned(), lines(&["+OK"])),
        ("COPY h9000 h30000".to_owned(), lines(&[":1"])),
        (
            format!("EXISTS {many}\r\nDEL {many}"),
            lines(&[":150", ":150"]),
        ),
        // Transactions.
        (
            "MULTI\r\nHINCRBY h777 f 1\r\nPUBLISH c x\r\nHGET h4777 f\r\nSELECT 1\r\nSELECT 0\r\nHGET h10777 f\r\nEXEC"
                .to_owned(),
            lines(&[
                "+OK", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED", "*6",
                ":778", ":0", "$4", "4777", "+OK", "+OK", "$5", "10777",
            ]),
        ),
        (
            "WATCH 3333 9333\r\nMULTI\r\nHGET h3333 f\r\nEXEC".to_owned(),
            lines(&["+OK", "+OK", "+QUEUED", "*1", "$4", "3333"]),
        ),
        // A command that fails, so that the others run once more, and those of another database.
        (
            "MULTI\r\nINCR h6006\r\nHINCRBY h11006 f 1\r\nSELECT 1\r\nSET x y\r\nEXEC\r\nDBSIZE\r\nSELECT 0"
                .to_owned(),
            lines(&[
                "+OK",
                "+QUEUED",
                "+QUEUED",
                "+QUEUED",
                "+QUEUED",
                "*4",
                "-WRONGTYPE Operation against a key holding the wrong kind of value",
                ":11007",
                "+OK",
                "+OK",
                ":1",
                "+OK",
            ]),
        ),
        // A read of a client whose last write may not be durable.
        (
            "BRAID.DURABILITY buffered\r\nSET y 1\r\nHGET h2121 f\r\nBRAID.DURABILITY immediate"
                .to_owned(),
            lines(&["$12", "buffered 100", "+OK", "$4", "2121", "$9", "immediate"]),
        ),
        (
            "STRLEN 1234\r\nBITOP OR z 1234 9876\r\nSTRLEN z\r\nSTRLEN 9876".to_owned(),
            vec![
                format!(":{}", value(1_234).len()),
                format!(":{}", value(9_876).len().max(value(1_234).len())),
                format!(":{}", value(9_876).len().max(value(1_234).len())),
                format!(":{}", value(9_876).len()),
            ],
        ),
    ];
    served_without_reads(&server, &medium, &requests);
    // Nothing ran twice.
    let mut connection = server.connect();
    assert_eq!(calls(&mut connection, "append"), 1);
    assert_eq!(calls(&mut connection, "exec"), 3);
    for (key, number) in [("h77", 78), ("h777", 778), ("h11006", 11_007)] {
        let found: usize = run(&mut connection, &format!("HGET {key} f"));
        assert_eq!(found, number);
    }
}

#[test]
#[cfg(feature = "scripts")]
fn scripts_leave_reads_to_other_threads() {
    let (server, medium) = filled();
    let long = value(1_235).len() + value(9_875).len();
    let requests = [
        (
            "EVAL \"return #redis.call('GET', KEYS[1]) + #redis.call('GET', KEYS[2])\" 2 1235 9875"
                .to_owned(),
            vec![format!(":{long}")],
        ),
        (
            "EVAL \"redis.pcall('HINCRBY', 'h51', 'f', 1) return redis.pcall('HGET', 'h7051', 'f')\" 0"
                .to_owned(),
            lines(&["$4", "7051"]),
        ),
    ];
    served_without_reads(&server, &medium, &requests);
}

/// While a transaction waits for pages, others run, and may change what it watches.
#[test]
fn a_transaction_that_waits_for_pages_still_watches() {
    let (server, medium) = filled();
    let (mut raw, mut other) = (raw(&server), raw(&server));
    for is_changed in [false, true] {
        raw.send("WATCH hot\r\n");
        assert_eq!(raw.line(), "+OK");
        let opened = Opened(&medium);
        medium.close(true);
        let number = 100 + 5_000 * usize::from(is_changed);
        raw.send(format!(
            "MULTI\r\nHINCRBY h{number} f 1\r\nINCR own\r\nEXEC\r\nGET own\r\n"
        ));
        medium.wait_for(1);
        if is_changed {
            other.send("INCR hot\r\nINCR hot\r\n");
            assert_eq!(other.lines(2), [":1", ":2"]);
        }
        drop(opened);
        assert_eq!(raw.lines(3), ["+OK", "+QUEUED", "+QUEUED"]);
        if is_changed {
            assert_eq!(raw.line(), "*-1");
        } else {
            let result = ["*2".to_owned(), format!(":{}", number + 1), ":1".to_owned()];
            assert_eq!(raw.lines(3), result);
        }
        assert_eq!(raw.lines(2), ["$1", "1"]);
    }
}

/// Requests after the first megabyte of replies wait until the client has read it.
#[test]
fn large_values_from_the_medium_wait_for_their_client() {
    let (server, _) = filled();
    let (mut raw, mut other) = (raw(&server), raw(&server));
    let requests = (0..LARGE).map(|key| format!("GET large{key}\r\n"));
    raw.send(requests.collect::<String>() + "PING\r\n");
    // The client does not read yet.
    other.send("PING\r\n");
    assert_eq!(other.line(), "+PONG");
    for _ in 0..LARGE {
        assert_eq!(raw.line(), format!("${}", LARGE_LEN + 1));
        assert_eq!(raw.line().len(), LARGE_LEN + 1);
    }
    assert_eq!(raw.line(), "+PONG");
}
