//! SLOWLOG, LATENCY, MONITOR, MEMORY and CLIENT PAUSE.

use std::collections::BTreeMap;

use redis::{Connection, Value};

use super::support::{TestServer, run, script, show};

#[test]
fn slow_commands_are_kept() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(
        connection,
        "
        CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3
        CLIENT SETNAME me
        SET a 1
        AUTH secret => (ERR)
        CONFIG SET slowlog-log-slower-than -1
        SET b 1
        SLOWLOG LEN => 3
        SLOWLOG GET -2 => (ERR)
        SLOWLOG GET x => (ERR)
        SLOWLOG LEN x => (ERR)
        ",
    );
    let entries: Vec<(u64, u64, u64, Vec<String>, String, String)> =
        run(connection, "SLOWLOG GET -1");
    let commands: Vec<String> = entries.iter().map(|entry| entry.3.join(" ")).collect();
    // The one that changed the threshold is not slow any more when it has run.
    assert_eq!(
        commands,
        ["AUTH (redacted)", "SET a 1", "CLIENT SETNAME me"]
    );
    assert_eq!(entries[1].5, "me");
    assert!(entries[1].4.starts_with("127.0.0.1:"));
    assert!(entries[0].0 > entries[1].0);
    script(
        connection,
        "SLOWLOG RESET\nSLOWLOG LEN => 0\nSLOWLOG GET => []",
    );
    assert_eq!(
        show(connection, "CONFIG GET slowlog*"),
        "[slowlog-log-slower-than -1 slowlog-max-len 3]"
    );
}

#[test]
fn durations_of_commands() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    for _ in 0..5 {
        run::<()>(connection, "SET a 1");
    }
    script(connection, "SADD a 1 => (WRONGTYPE)");
    let histogram: BTreeMap<String, BTreeMap<String, Value>> =
        run(connection, "LATENCY HISTOGRAM set sadd get nosuchcommand");
    assert_eq!(histogram.keys().collect::<Vec<_>>(), ["sadd", "set"]);
    assert_eq!(histogram["set"]["calls"], Value::Int(5));
    let info: String = run(connection, "INFO commandstats");
    assert!(
        info.contains("cmdstat_sadd:calls=1,") && info.contains("failed_calls=1"),
        "{info}"
    );
    assert!(!run::<String>(connection, "INFO").contains("cmdstat"));
    let field = |connection: &mut Connection, name: &str| -> f64 {
        let info: String = run(connection, "INFO everything");
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.strip_prefix(':'));
        value
            .unwrap_or_else(|| panic!("no {name}: {info}"))
            .parse()
            .unwrap()
    };
    // What monitoring reads.
    assert!(field(connection, "total_error_replies") >= 1.0);
    assert_eq!(field(connection, "pubsub_channels"), 0.0);
    assert!(field(connection, "instantaneous_ops_per_sec") >= 0.0);
    assert!(field(connection, "total_net_output_bytes") > 0.0);
    let before = field(connection, "total_net_input_bytes");
    // Both bulk strings and the request for the field itself.
    run::<()>(connection, &format!("ECHO {}", "x".repeat(5000)));
    assert!(field(connection, "total_net_input_bytes") >= before + 5000.0);
    if cfg!(target_os = "linux") {
        for name in ["used_memory_rss", "total_system_memory"] {
            assert!(field(connection, name) > 0.0, "{name}");
        }
        assert!(field(connection, "used_cpu_user") >= 0.0);
    }
    script(
        connection,
        "
        LATENCY LATEST => []
        LATENCY HISTORY commit => []
        CONFIG SET latency-monitor-threshold 1
        DEBUG SLEEP 0.002
        CONFIG SET latency-monitor-threshold 60000
        ",
    );
    let latest: Vec<(String, u64, u64, u64)> = run(connection, "LATENCY LATEST");
    let (_, time, last, longest) = latest.iter().find(|event| event.0 == "command").unwrap();
    assert!(
        *time > 1_600_000_000 && *last >= 2 && longest >= last,
        "{latest:?}"
    );
    let history: Vec<(u64, u64)> = run(connection, "LATENCY HISTORY command");
    assert_eq!(history.last(), Some(&(*time, *last)));
    let graph: String = run(connection, "LATENCY GRAPH command");
    let extremes = format!(" ms (all time high {longest} ms)\n");
    assert!(
        graph.starts_with("command - high ") && graph.contains(&extremes),
        "{graph}"
    );
    let report: String = run(connection, "LATENCY DOCTOR");
    assert!(
        report.contains("command: ") && report.contains("SLOWLOG GET"),
        "{report}"
    );
    script(
        connection,
        "
        LATENCY RESET nosuchevent => 0
        LATENCY RESET command => 1
        LATENCY HISTORY => (ERR)
        LATENCY GRAPH => (ERR)
        LATENCY GRAPH command => (ERR)
        LATENCY NOSUCH => (ERR)
        CONFIG RESETSTAT
        LATENCY HISTOGRAM set => []
        ",
    );
}

#[test]
fn errors_are_counted_by_kind_and_command() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(
        connection,
        "
        SET a 1 => OK
        GET => (ERR)
        SADD a 1 => (WRONGTYPE)
        NOSUCHCOMMAND => (ERR)
        MULTI => OK
        SADD a 1 => QUEUED
        EXEC => (WRONGTYPE)
        ",
    );
    let info: String = run(connection, "INFO commandstats errorstats");
    for line in [
        "cmdstat_get:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0",
        "errorstat_ERR:count=2",
        "errorstat_WRONGTYPE:count=2",
    ] {
        assert!(info.lines().any(|found| found == line), "{line}: {info}");
    }
    let stats: String = run(connection, "INFO stats");
    assert!(stats.contains("total_error_replies:4\r\n"), "{stats}");
    script(connection, "CONFIG RESETSTAT");
    let info: String = run(connection, "INFO errorstats");
    assert_eq!(info, "# Errorstats\r\n");
}

#[test]
fn monitors_see_requests_without_passwords() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("MONITOR\r\n");
    assert_eq!(raw.line(), "+OK");
    let connection = &mut server.connect();
    script(
        connection,
        "
        SELECT 2
        SET a 1
        AUTH secret => (ERR)
        CONFIG GET port => [port 0]
        MULTI
        GET a => QUEUED
        EXEC => [1]
        ",
    );
    let mut seen = Vec::new();
    while !seen
        .last()
        .is_some_and(|line: &String| line.contains("EXEC"))
    {
        let line = raw.line();
        let (stamp, request) = line.split_once("] ").unwrap();
        assert!(
            stamp.starts_with('+') && stamp.contains(" 127.0.0.1:"),
            "{line}"
        );
        if !request.contains("SETINFO") {
            seen.push(format!(
                "{} {request}",
                &stamp[stamp.find('[').unwrap() + 1..][..1]
            ));
        }
    }
    assert_eq!(
        seen,
        [
            r#"0 "SELECT" "2""#,
            r#"2 "SET" "a" "1""#,
            r#"2 "AUTH" "(redacted)""#,
            r#"2 "MULTI""#,
            r#"2 "GET" "a""#,
            r#"2 "EXEC""#,
        ]
    );
    // After RESET, the monitor's connection serves requests like any other.
    raw.send("RESET\r\n");
    while raw.line() != "+RESET" {}
    run::<()>(connection, "SET a 2");
    raw.send("PING\r\n");
    loop {
        // Copies from before may still come.
        let line = raw.line();
        assert!(!line.contains(r#""a" "2""#), "{line}");
        if line == "+PONG" {
            break;
        }
    }
}

#[test]
fn paused_clients_wait() {
    let server = TestServer::new();
    let admin = &mut server.connect();
    let mut raw = server.raw();
    script(admin, "SET a 1\nCLIENT PAUSE 600000 WRITE");
    // Reads are answered; the write waits, and everything after it.
    raw.send("GET a\r\nINCR a\r\nGET a\r\n");
    assert_eq!(raw.lines(2), ["$1", "1"]);
    script(
        admin,
        "
        GET a => 1
        MULTI
        GET a => QUEUED
        EXEC => [1]
        CLIENT UNPAUSE
        ",
    );
    assert_eq!(raw.lines(3), [":2", "$1", "2"]);
    // The pause of all ends by itself, and a longer one is not shortened.
    let began = std::time::Instant::now();
    script(admin, "CLIENT PAUSE 30 ALL\nCLIENT PAUSE 1 WRITE");
    raw.send("GET a\r\n");
    assert_eq!(raw.lines(2), ["$1", "2"]);
    // From before the pause began, so it holds however late the threads run.
    assert!(began.elapsed().as_millis() >= 30);
    script(
        admin,
        "
        CLIENT PAUSE x => (ERR)
        CLIENT PAUSE -1 => (ERR)
        CLIENT PAUSE 1 SOME => (ERR)
        CLIENT PAUSE 600000
        ",
    );
    raw.send("MULTI\r\nINCR a\r\nEXEC\r\n");
    run::<()>(admin, "CLIENT UNPAUSE");
    assert_eq!(raw.lines(4), ["+OK", "+QUEUED", "*1", ":3"]);
    // A stop does not wait for the end of a pause.
    run::<()>(admin, "CLIENT PAUSE 600000");
    raw.send("GET a\r\n");
    server.stop();
    assert!(["", "-UNBLOCKED the server is stopping"].contains(&raw.line().as_str()));
}

#[test]
fn memory_of_keys() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(
        connection,
        "MEMORY USAGE missing => nil\nMEMORY USAGE => (ERR)",
    );
    for member in 0..1_000 {
        run::<()>(connection, &format!("SADD set member:{member:0100}"));
    }
    let all: u64 = run(connection, "MEMORY USAGE set SAMPLES 0");
    let estimate: u64 = run(connection, "MEMORY USAGE set");
    assert!((120_000..160_000).contains(&all), "{all}");
    assert!(all.abs_diff(estimate) < 2_000, "{all} {estimate}");
    let stats: BTreeMap<String, u64> = run(connection, "MEMORY STATS");
    assert_eq!(stats["keys.count"], 1);
    script(
        connection,
        "
        MEMORY PURGE
        MEMORY USAGE set SAMPLES -1 => (ERR)
        MEMORY USAGE set FOO 1 => (ERR)
        MEMORY NOSUCH => (ERR)
        OBJECT FREQ set => (ERR)
        OBJECT IDLETIME set => 0
        CLIENT GETREDIR => -1
        CLIENT NO-EVICT ON
        CLIENT NO-TOUCH OFF
        ",
    );
}
