//! Commands that wait for elements.

use std::time::{Duration, Instant};

use super::support::{Raw, TestServer, run, script};

/// Waits until this many clients are blocked.
pub(crate) fn blocked(server: &TestServer, count: usize) {
    let mut connection = server.connect();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let info: String = run(&mut connection, "INFO clients");
        if info.contains(&format!("blocked_clients:{count}\r\n")) {
            return;
        }
        assert!(Instant::now() < deadline, "{info}");
        std::thread::yield_now();
    }
}

pub(crate) fn waiting(server: &TestServer, command: &str) -> Raw {
    let mut raw = server.raw();
    raw.send(format!("{command}\r\n"));
    raw
}

#[test]
fn the_client_that_waited_longest_is_served_first() {
    let server = TestServer::new();
    let mut waiting_clients = Vec::new();
    for number in 0..4 {
        waiting_clients.push(waiting(&server, "BLPOP a b 0"));
        blocked(&server, number + 1);
    }
    let mut connection = server.connect();
    script(&mut connection, "RPUSH b 1 => 1\nRPUSH a 2 => 1");
    for (client, key) in waiting_clients.iter_mut().zip(["b", "a"]) {
        assert_eq!(client.lines(3)[..], ["*2", "$1", key]);
        client.lines(2);
    }
    script(&mut connection, "RPUSH a 3 4 => 2");
    for (client, value) in waiting_clients[2..].iter_mut().zip(["3", "4"]) {
        assert_eq!(client.lines(5)[..], ["*2", "$1", "a", "$1", value]);
    }
    blocked(&server, 0);
    script(&mut connection, "EXISTS a b => 0");
}

#[test]
fn every_form_waits() {
    let server = TestServer::new();
    let mut connection = server.connect();
    for (command, push, lines, last) in [
        ("BRPOP q 0", "RPUSH q 1", 5, "1"),
        ("BLMOVE q r LEFT RIGHT 0", "RPUSH q 2", 2, "2"),
        ("BRPOPLPUSH q r 0", "RPUSH q 3", 2, "3"),
        ("BLMPOP 0 2 p q LEFT COUNT 9", "RPUSH q 4 5", 8, "5"),
        ("BZPOPMIN q 0", "ZADD q 6 m", 7, "6"),
        ("BZPOPMAX q 0", "ZADD q 7 m", 7, "7"),
        ("BZMPOP 0 1 q MIN", "ZADD q 8 m", 9, "8"),
        ("BLPOP q 0", "LPUSH other x", 0, ""),
    ] {
        let mut client = waiting(&server, command);
        blocked(&server, 1);
        let _: redis::Value = run(&mut connection, push);
        if lines == 0 {
            let _: redis::Value = run(&mut connection, "RENAME other q");
            assert_eq!(client.lines(5)[4], "x");
        } else {
            assert_eq!(client.lines(lines).last().unwrap(), last, "{command}");
        }
        blocked(&server, 0);
    }
}

#[test]
fn waiting_ends() {
    let server = TestServer::new();
    let mut connection = server.connect();
    script(
        &mut connection,
        "BLPOP a 0.01 => nil\nBLMOVE a b LEFT LEFT 0.01 => nil\nBLPOP a -1 => (ERR)\nBLPOP a x => (ERR)",
    );
    let mut client = waiting(&server, "CLIENT ID\r\nBLPOP a 0\r\nPING");
    let id = client.line();
    let id = id.trim_start_matches(':');
    blocked(&server, 1);
    script(&mut connection, &format!("CLIENT UNBLOCK {id} => 1"));
    // The request behind the wait is answered after it.
    assert_eq!(client.lines(2), ["*-1", "+PONG"]);
    client.send("BLPOP a 0\r\n");
    blocked(&server, 1);
    script(&mut connection, &format!("CLIENT UNBLOCK {id} ERROR => 1"));
    assert!(client.line().starts_with("-UNBLOCKED"));
    client.send("BLPOP a 0\r\n");
    blocked(&server, 1);
    drop(client);
    blocked(&server, 0);
    // In MULTI nothing waits, and nothing is lost to a client that left.
    script(
        &mut connection,
        "MULTI\nBLPOP a 0 => QUEUED\nEXEC => [nil]\nRPUSH a 1 => 1\nLLEN a => 1",
    );
}

/// Nothing waits in a script, as in Redis 7.2.
#[cfg(feature = "scripts")]
#[test]
fn scripts_do_not_wait() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        EVAL return(redis.call('blpop','a',0)) 0 => nil
        EVAL return(redis.call('wait',1,0)) 0 => 0
        EVAL return(redis.call('waitaof',1,0,0)) 0 => [1 0]
        EVAL return(redis.call('waitaof',2,0,0)) 0 => (ERR)
        EVAL return(redis.call('multi')) 0 => (ERR)
        ",
    );
}
