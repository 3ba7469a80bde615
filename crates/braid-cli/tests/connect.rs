//! `braid bench --connect`: YCSB over the socket of a server.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{braid, expect_code, stderr, stdout};
use crate::serve::{Client, command, serve, stop};

/// Runs a workload on a server; returns the report.
fn measure(address: &str, workload: &str, options: &[&str]) -> Value {
    let fixed = ["--records", "200", "--seconds", "0.3", "--json"];
    let args = [
        &["bench", workload, "--connect", address],
        &fixed[..],
        options,
    ]
    .concat();
    let output = braid(&args);
    expect_code(&output, 0);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The kinds of operations of a workload.
fn kinds(report: &Value) -> Vec<&str> {
    let kinds = report["kinds"].as_array().unwrap().iter();
    kinds.map(|kind| kind["kind"].as_str().unwrap()).collect()
}

/// Runs every workload on a server, and checks the reports.
fn measure_all(address: &str, name: &str) {
    for (workload, wanted) in [
        ("ycsb-load", &["insert"][..]),
        ("ycsb-a", &["read", "update"]),
        ("ycsb-b", &["read", "update"]),
        ("ycsb-c", &["read"]),
        ("ycsb-d", &["read", "insert"]),
        ("ycsb-e", &["insert", "scan"]),
        ("ycsb-f", &["read", "read-modify-write"]),
        ("u1", &["transaction"]),
        ("u10", &["transaction"]),
    ] {
        let report = measure(address, workload, &["--threads", "3"]);
        assert_eq!(report["workload"], workload);
        let server = report["server"].as_str().unwrap();
        assert!(server.starts_with(name), "{server}");
        assert_eq!(report["clients"], 3);
        assert_eq!(kinds(&report), wanted, "{report}");
        assert!(report["ops_per_s"].as_f64().unwrap() > 0.0, "{report}");
        let [p50, p99, max] = ["p50_us", "p99_us", "max_us"].map(|n| report[n].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99 && p99 <= max, "{report}");
        if !matches!(workload, "ycsb-d") {
            assert_eq!(report["missing"], 0, "{report}");
        }
    }
}

#[test]
fn every_workload_runs_over_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = serve(&dir.path().join("served"));
    measure_all(&served.address, "braid ");
    let mut client = Client::connect(&served.address);
    client
        .send("ZRANGE ycsb-200-1000-index 0 0\r\nGET ycsb-200-1000-loaded\r\n")
        .unwrap();
    let member = client.reply().unwrap();
    let member = member.trim_matches(['[', ']']);
    assert_eq!(client.reply().unwrap(), "200");
    let loaded = client.ask("ZCARD ycsb-200-1000-index");
    let loaded: u64 = loaded.trim_start_matches(':').parse().unwrap();
    assert!(loaded >= 200, "{loaded}");
    for (request, reply) in [("HLEN", ":10"), ("HSTRLEN", ":100")] {
        let field = if request == "HLEN" { "" } else { "field9" };
        let asked = format!("{request} ycsb-200-1000:{member} {field}");
        assert_eq!(client.ask(&asked), reply, "{asked}");
    }
    // Each run of the load writes records of its own.
    assert_eq!(client.ask("GET ycsb-loads"), "$1");
    assert_eq!(client.line().unwrap(), "1");
    measure(&served.address, "ycsb-load", &[]);
    assert_eq!(client.ask("EXISTS ycsb-load-2-index"), ":1");
    stop(&mut served, "SHUTDOWN");
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let socket = socket.to_str().unwrap();
    let options = ["--port", "0", "--unixsocket", socket];
    let mut served = crate::serve::Served::start(command(&dir.path().join("served"), &options));
    let report = measure(socket, "ycsb-a", &[]);
    assert_eq!(report["address"], socket);
    stop(&mut served, "SHUTDOWN");
}

/// With one client and a rate that no server reaches, operations wait for those before them.
#[test]
fn with_a_rate_latencies_count_from_when_operations_were_due() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = serve(&dir.path().join("served"));
    let free = measure(&served.address, "ycsb-c", &[]);
    assert_eq!(free["unfinished"], 0);
    let report = measure(&served.address, "ycsb-c", &["--rate", "10000000"]);
    assert!(report["unfinished"].as_u64().unwrap() > 10_000, "{report}");
    // The last operations were due near the beginning, 0.3 seconds before the end.
    assert!(report["p99_us"].as_f64().unwrap() > 100_000.0, "{report}");
    let slow = measure(&served.address, "ycsb-c", &["--rate", "100"]);
    let rate = slow["ops_per_s"].as_f64().unwrap();
    assert!((20.0..=150.0).contains(&rate), "{slow}");
    stop(&mut served, "SHUTDOWN");
}

#[test]
fn both_servers_are_in_one_figure() {
    let dir = tempfile::tempdir().unwrap();
    let [mut one, mut other] = ["one", "other"].map(|name| serve(&dir.path().join(name)));
    let out = dir.path().join("figures");
    let servers = [("one", &one), ("other", &other)]
        .map(|(name, served)| format!("--server={name}={}", served.address));
    let [out, first, second] = [out.to_str().unwrap(), &servers[0], &servers[1]];
    let fixed = [
        "bench",
        "paper",
        "server",
        "--records",
        "100",
        "--seconds",
        "0.05",
    ];
    let output = braid(
        &[
            &fixed[..],
            &["--threads", "1,2", "--out", out, first, second],
        ]
        .concat(),
    );
    expect_code(&output, 0);
    for workload in ["load", "a", "b", "c", "d", "e", "f"] {
        for ending in ["", "-p99"] {
            let path = format!("{out}/server-ycsb-{workload}{ending}.csv");
            let lines = std::fs::read_to_string(&path).unwrap();
            let points: Vec<_> = lines
                .lines()
                .skip(1)
                .map(|line| line.rsplit_once(',').unwrap())
                .collect();
            let names: Vec<_> = points.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, ["one,1", "other,1", "one,2", "other,2"], "{path}");
            assert!(points.iter().all(|(_, y)| y.parse::<f64>().unwrap() > 0.0));
        }
    }
    stop(&mut one, "SHUTDOWN");
    stop(&mut other, "SHUTDOWN");
}

#[test]
fn errors_name_the_server_and_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nobody");
    let socket = socket.to_str().unwrap();
    for (args, code, wanted) in [
        (&["bench", "ycsb-a", "--connect", socket][..], 1, socket),
        (
            &["bench", "tpcb", "--connect", socket],
            2,
            "workload must be u1, u10, ycsb-load",
        ),
        (&["bench", "ycsb-a", "--rate", "5"], 2, "--connect"),
        (
            &["bench", "ycsb-a", "--connect", socket, "--kill"],
            2,
            "--kill",
        ),
        (
            &["bench", "paper", "server", "--server", "x"],
            2,
            "a name and an address",
        ),
    ] {
        let output = braid(args);
        expect_code(&output, code);
        let text = stderr(&output);
        assert!(text.contains(wanted), "{args:?}: {text}");
    }
}

/// Ends the process when the test does.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(unix)]
#[test]
fn redis_runs_the_same_workloads() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let started = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .spawn();
    let Ok(child) = started else {
        eprintln!("skipped: redis-server is not in PATH");
        return;
    };
    let _server = Ended(child);
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < deadline, "redis-server does not listen");
        std::thread::yield_now();
    }
    measure_all(socket.to_str().unwrap(), "redis ");
}
