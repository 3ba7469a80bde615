//! `braid serve` with thousands of connections, most of which do nothing.

use std::process::{Command, Stdio};

use crate::serve::{Client, Served, command, stop};

/// Connections that the server allows by default.
const CONNECTIONS: u64 = 10_000;

/// Raises this program's limit of open files; returns for how many connections it is enough.
fn possible_connections() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls access the structure during the call only.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        // Some systems have a lower limit than they say.
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
    }
    // Tests that run at the same time, and the server, open files, too.
    let files: u64 = limit.rlim_cur;
    CONNECTIONS.min(files.saturating_sub(600))
}

/// Most bytes that the connections may take.
const LIMIT: u64 = 100_000_000;

/// Returns the memory of a process in bytes.
fn memory(served: &Served) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

#[test]
fn thousands_of_idle_connections_cost_little() {
    let count = possible_connections();
    println!("{count} connections");
    let dir = tempfile::tempdir().unwrap();
    let options = [
        "--port",
        "0",
        "--threads",
        "2",
        "--pool",
        "32",
        "--maxclients",
        "10050",
    ];
    let serve = command(&dir.path().join("served"), &options);
    // The server starts with the limit that shells and systemd give, and raises it.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -S -n 1024 && exec \"$0\" \"$@\""])
        .arg(serve.get_program())
        .args(serve.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut served = Served::start(shell);
    let mut active = Client::connect(&served.address);
    assert_eq!(active.ask("SET a 1"), "+OK");
    let before = memory(&served);
    let mut idle: Vec<Client> = (0..count)
        .map(|_| Client::connect(&served.address))
        .collect();
    // One in a hundred works, all at once; so the server has accepted those before it.
    for round in 0..20 {
        for client in idle.iter_mut().step_by(100) {
            client.send("INCR n\r\nGET a\r\n").unwrap();
        }
        for client in idle.iter_mut().step_by(100) {
            assert!(client.line().unwrap().starts_with(':'));
            assert_eq!(client.reply().unwrap(), "1", "round {round}");
        }
    }
    assert_eq!(
        active.ask("INCR n"),
        format!(":{}", count.div_ceil(100) * 20 + 1)
    );
    let costs_little = || {
        let cost = memory(&served).saturating_sub(before);
        let each = cost / count;
        println!("{cost} bytes for {count} connections, {each} each");
        assert!(cost < LIMIT, "{cost} bytes for {count} connections");
    };
    costs_little();
    // Every one is still there, and keeps no memory for what it has sent and received.
    for client in &mut idle {
        client.send("PING\r\n").unwrap();
    }
    for client in &mut idle {
        assert_eq!(client.line().unwrap(), "+PONG");
    }
    costs_little();
    drop(idle);
    stop(&mut served, "SHUTDOWN");
}
