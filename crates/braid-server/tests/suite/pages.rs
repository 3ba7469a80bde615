//! The pages for people and monitoring.

use std::io::{Read, Write};
use std::net::TcpStream;

use braid::Database;

use super::support::{TestServer, run};

fn server() -> TestServer {
    TestServer::with(Database::in_memory().unwrap(), |options| {
        options.http = Some("127.0.0.1:0".parse().unwrap());
    })
}

fn send(server: &TestServer, request: &str) -> String {
    let mut stream = TcpStream::connect(server.http_address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn get(server: &TestServer, path: &str) -> (String, String) {
    let response = send(server, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn metrics_count_what_clients_do() {
    let server = server();
    let mut client = server.connect();
    run::<()>(&mut client, "SET a 1");
    run::<()>(&mut client, "SET a 2");
    run::<String>(&mut client, "GET a");
    let (status, text) = get(&server, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(' '))
        });
        let line = line.unwrap_or_else(|| panic!("{name} is missing in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("braid_server_commands_total") >= 3.0);
    assert_eq!(value("braid_server_keyspace_hits_total"), 1.0);
    assert_eq!(value("braid_server_clients"), 1.0);
    assert_eq!(value("braid_server_write_seconds_count"), 2.0);
    assert_eq!(value("braid_server_write_seconds_bucket{le=\"+Inf\"}"), 2.0);
    assert!(value("braid_commits_total") >= 2.0);
    // Every metric has a name of its own, a help text and a type.
    let mut names = std::collections::BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        assert!(names.insert(line.split(' ').nth(2).unwrap()), "{line}");
    }
    assert!(
        names
            .iter()
            .all(|name| text.contains(&format!("# HELP {name} ")))
    );
}

#[test]
fn other_pages() {
    let server = server();
    assert_eq!(
        get(&server, "/health"),
        ("HTTP/1.1 200 OK".to_owned(), "good\n".to_owned())
    );
    let (status, page) = get(&server, "/");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(page.starts_with("<!DOCTYPE html>"));
    // The page is one file: it loads nothing from elsewhere.
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("src="));
    let (_, live) = get(&server, "/live");
    let live: serde_json::Value = serde_json::from_str(&live).unwrap();
    assert_eq!(live["health"], "good");
    for name in [
        "commands",
        "commits",
        "flushes",
        "clients",
        "pool_bytes",
        "durable",
    ] {
        assert!(live[name].is_u64(), "{name}: {live}");
        assert!(page.contains(name), "the page shows {name}");
    }
    assert_eq!(get(&server, "/../etc/passwd").0, "HTTP/1.1 404 Not Found");
    let refused = send(
        &server,
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 405 "), "{refused}");
    let broken = send(&server, "nonsense\r\n\r\n");
    assert!(broken.starts_with("HTTP/1.1 400 "), "{broken}");
    let long = send(
        &server,
        &format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(20_000)),
    );
    assert!(long.is_empty() || long.starts_with("HTTP/1.1 4"), "{long}");
    // Nobody can stop the others by not asking.
    let silent: Vec<_> = (0..10)
        .map(|_| TcpStream::connect(server.http_address()).unwrap())
        .collect();
    assert_eq!(get(&server, "/health").1, "good\n");
    drop(silent);
    server.stop();
}
