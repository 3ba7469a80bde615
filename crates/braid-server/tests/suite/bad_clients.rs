//! Clients that read slowly, stop halfway or vanish, and a device without room.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid::Database;
use braid_io::SimDevice;
use socket2::SockRef;

use super::support::{TestServer, run, script, show, try_run};

/// Waits until the server has this many connections.
fn wait_for_connections(connection: &mut redis::Connection, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while run::<String>(connection, "CLIENT LIST").lines().count() != count {
        assert!(Instant::now() < deadline, "connections remain");
        std::thread::yield_now();
    }
}

#[test]
fn requests_may_arrive_byte_by_byte() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.stream().set_nodelay(true).unwrap();
    let requests = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nb\r\nc\n\r\nGET a\r\n\
                    *1\r\n$4\r\nPING\r\nMULTI\r\nINCR n\r\nEXEC\r\n";
    for byte in requests.bytes() {
        raw.send([byte]);
    }
    let expected = [
        "+OK", "$5", "b", "c", "", "+PONG", "+OK", "+QUEUED", "*1", ":1",
    ];
    assert_eq!(raw.lines(expected.len()), expected);
}

/// A client that ends its half of the connection gets the answers to everything that it sent.
#[test]
fn a_half_closed_connection_is_answered() {
    let server = TestServer::new();
    let mut raw = server.raw();
    let mut requests = String::new();
    for number in 0..500 {
        requests += &format!("SET k{number} {number}\r\n");
    }
    // The last request is incomplete.
    raw.send(requests + "*2\r\n$3\r\nDEL\r\n$2\r\nk");
    raw.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(raw.rest(), "+OK\r\n".repeat(500));
    script(
        &mut server.connect(),
        "DBSIZE => 500\nGET k0 => 0\nGET k499 => 499",
    );
}

/// Elements that arrive after a waiting client has vanished stay in their list.
#[test]
fn a_waiting_client_that_vanishes_takes_nothing() {
    let server = TestServer::new();
    let mut connection = server.connect();
    let mut waiting = server.raw();
    waiting.send("BLPOP l 0\r\n");
    let mut subscriber = server.raw();
    subscriber.send("SUBSCRIBE c\r\n");
    subscriber.lines(6);
    let mut in_multi = server.raw();
    in_multi.send("WATCH a\r\nMULTI\r\nSET a 1\r\n");
    assert_eq!(in_multi.lines(3), ["+OK", "+OK", "+QUEUED"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !run::<String>(&mut connection, "CLIENT LIST").contains(" flags=b ") {
        assert!(Instant::now() < deadline, "nobody waits");
        std::thread::yield_now();
    }
    // One says goodbye, the others reset their connections.
    drop(waiting);
    for raw in [subscriber, in_multi] {
        SockRef::from(raw.stream())
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }
    wait_for_connections(&mut connection, 1);
    script(
        &mut connection,
        "
        RPUSH l x => 1
        LRANGE l 0 -1 => [x]
        PUBLISH c m => 0
        GET a => nil
        ",
    );
}

/// A client that vanishes amid a batch may find any part of it done, in order.
#[test]
fn a_batch_of_a_client_that_vanishes_is_done_up_to_some_request() {
    let server = TestServer::new();
    let mut connection = server.connect();
    for round in 0..10 {
        let mut raw = server.raw();
        let mut requests = String::new();
        for number in 0..300 {
            requests += &format!("RPUSH r{round} {number}\r\n");
        }
        raw.send(requests);
        // Some are answered; the rest of the answers nobody reads.
        raw.lines(round * 10 + 1);
        SockRef::from(raw.stream())
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(raw);
        wait_for_connections(&mut connection, 1);
        let list: Vec<usize> = run(&mut connection, &format!("LRANGE r{round} 0 -1"));
        assert!(list.len() > round * 10);
        assert!(list.iter().copied().eq(0..list.len()), "{list:?}");
    }
}

/// A reader within the limit gets everything, however late; the server meanwhile serves others and
/// holds its requests back.
#[test]
fn a_slow_reader_gets_everything() {
    const REQUESTS: usize = 400;
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.client_output_buffer_limit = 2 << 20;
    });
    let mut connection = server.connect();
    let value = "x".repeat(100_000);
    let _: () = run(&mut connection, &format!("SET big {value}"));
    let mut slow = server.raw();
    // 40 MB of answers, far more than the limit and what the system buffers.
    slow.send("GET big\r\nINCR n\r\n".repeat(REQUESTS));
    script(&mut connection, "SET other 1 => OK\nGET other => 1");
    for number in 1..=REQUESTS {
        assert_eq!(slow.line(), "$100000");
        assert_eq!(slow.line().len(), 100_000);
        assert_eq!(slow.line(), format!(":{number}"));
    }
}

/// One answer above the limit ends its connection, and no other one.
#[test]
fn an_answer_above_the_limit_ends_the_connection() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.client_output_buffer_limit = 1 << 20;
    });
    let mut connection = server.connect();
    let part = "x".repeat(700_000);
    let _: () = run(&mut connection, &format!("MSET a {part} b {part}"));
    let mut greedy = server.raw();
    greedy.send("MGET a b\r\nSET after 1\r\n");
    assert!(greedy.rest().len() < 1 << 20);
    script(&mut connection, "PING => PONG\nSTRLEN a => 700000");
}

/// A small collection makes no endless reply.
#[test]
fn repeated_random_elements_are_limited() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        SADD s a => 1
        HSET h f v => 1
        ZADD z 1 m => 1
        SRANDMEMBER s -3 => [a a a]
        SRANDMEMBER s -1048577 => (ERR)
        HRANDFIELD h -1048577 => (ERR)
        ZRANDMEMBER z -1048577 => (ERR)
        ZRANDMEMBER z -9223372036854775808 => (ERR)
        HPEXPIRE h 100000000 FIELDS 1 f => [1]
        HRANDFIELD h -2 => [f f]
        HRANDFIELD h -1048577 => (ERR)
        ",
    );
}

/// A request above the limit of what a client may send ahead ends its connection.
#[test]
fn a_request_above_the_limit_ends_the_connection() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.client_query_buffer_limit = 1 << 20;
    });
    let mut raw = server.raw();
    let stream: &mut TcpStream = raw.stream_mut();
    stream
        .write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3000000\r\n")
        .unwrap();
    // The server may end the connection before everything is sent.
    let _ = stream.write_all(&vec![b'x'; 3_000_002]);
    assert_eq!(raw.rest(), "");
    script(&mut server.connect(), "GET a => nil");
}

/// The system looks after connections whose client is silent, and ends those that nobody holds.
#[cfg(target_os = "linux")]
#[test]
fn silent_connections_are_probed() {
    let has_timer = |server: &TestServer| {
        let mut raw = server.raw();
        raw.send("PING\r\n");
        assert_eq!(raw.line(), "+PONG");
        let peer = raw.stream().local_addr().unwrap().port();
        let ends = format!(":{:04X} 0100007F:{peer:04X} 01 ", server.port);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let row = table.lines().find(|row| row.contains(&ends));
            let row = row.unwrap_or_else(|| panic!("{ends} is not in {table}"));
            // The kind of the timer that runs: 01 until the reply is acknowledged, 02 for probes.
            let timer = row.split_whitespace().nth(5).unwrap();
            if !timer.starts_with("01:") {
                break timer.starts_with("02:");
            }
            assert!(Instant::now() < deadline, "the reply is not acknowledged");
        }
    };
    assert!(has_timer(&TestServer::new()));
    let without = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.tcp_keepalive = Duration::ZERO;
    });
    assert!(!has_timer(&without));
}

/// While the device is full, writes get an error, reads work, and no answered write is lost. The
/// server accepts writes again by itself when there is room.
#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let device = SimDevice::new(1);
    let open = |device: &SimDevice| {
        Database::builder()
            .pool_bytes(4 << 20)
            .segment_bytes(1 << 20)
            .checkpoint_log_bytes(4 << 20)
            .max_log_bytes(16 << 20)
            .open_on(Arc::new(device.clone()))
            .unwrap()
    };
    let db = open(&device);
    let server = TestServer::with(db.clone(), |_| {});
    let mut connection = server.connect();
    script(&mut connection, "SET first 1 => OK\nRPUSH l a b => 2");
    device.set_capacity(Some(device.used() + (2 << 20)));
    let value = "x".repeat(50_000);
    let mut answered = 0;
    let refused = loop {
        match try_run::<String>(&mut connection, &format!("SET k{answered} {value}")) {
            Ok(_) => answered += 1,
            Err(error) => break error,
        }
        assert!(answered < 10_000, "the device is not full");
    };
    assert_eq!(refused.code(), Some("MISCONF"), "{refused}");
    assert!(answered > 0);
    // The connection and others continue to read.
    let mut other = server.connect();
    for connection in [&mut connection, &mut other] {
        script(connection, "GET first => 1\nLRANGE l 0 -1 => [a b]");
    }
    let blocked: String = show(&mut other, "MULTI");
    assert_eq!(blocked, "OK");
    script(&mut other, &format!("SET m {value} => QUEUED"));
    assert_eq!(show(&mut other, "EXEC"), "(MISCONF)");
    assert_eq!(show(&mut other, "EXISTS m"), "0");
    device.set_capacity(None);
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = try_run::<String>(&mut connection, "SET again 1") {
        assert_eq!(error.code(), Some("MISCONF"), "{error}");
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    script(&mut other, &format!("SET m {value} => OK"));
    server.stop();
    drop(db);
    // Everything that was answered survives a power failure.
    let server = TestServer::with(open(&device.after_crash()), |_| {});
    let mut connection = server.connect();
    script(
        &mut connection,
        "GET first => 1\nGET again => 1\nSTRLEN m => 50000\nLLEN l => 2",
    );
    for number in 0..answered {
        assert_eq!(show(&mut connection, &format!("STRLEN k{number}")), "50000");
    }
}
