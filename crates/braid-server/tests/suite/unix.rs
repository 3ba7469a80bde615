//! Unix sockets.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use braid::Database;
use braid_server::{Server, ServerError, ServerOptions};

use super::support::{run, script};

fn serve(path: &Path, permissions: Option<u32>) -> Result<Server, ServerError> {
    let options = ServerOptions {
        bind: Vec::new(),
        unixsocket: Some(path.to_owned()),
        unixsocketperm: permissions,
        threads: Some(1),
        ..ServerOptions::default()
    };
    Server::start(Database::in_memory().unwrap(), options)
}

fn connect(path: &Path) -> redis::Connection {
    let client = redis::Client::open(format!("unix://{}", path.display())).unwrap();
    client.get_connection().unwrap()
}

fn permissions(path: &Path) -> u32 {
    let file = std::fs::symlink_metadata(path).unwrap();
    file.permissions().mode() & 0o7777
}

#[test]
fn clients_connect_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let server = serve(&path, None).unwrap();
    assert!(server.addresses().is_empty());
    let mut connection = connect(&path);
    script(
        &mut connection,
        "
        SET a 1
        MULTI
        INCR a => QUEUED
        EXEC => [2]
        CONFIG GET unixsocketperm => [unixsocketperm 0]
        ",
    );
    let list: String = run(&mut connection, "CLIENT LIST");
    let peer = format!("addr={}:0 ", path.display());
    assert!(list.contains(&peer), "{list}");
    server.stop();
    assert!(!path.exists());
}

#[test]
fn the_socket_has_the_wanted_permissions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    for wanted in [0o600, 0o770, 0o777] {
        let server = serve(&path, Some(wanted)).unwrap();
        assert_eq!(permissions(&path), wanted);
        let expected = format!("CONFIG GET unixsocketperm => [unixsocketperm {wanted:o}]");
        script(&mut connect(&path), &expected);
        server.stop();
    }
}

/// A server that was killed leaves its file.
#[test]
fn a_socket_that_no_process_serves_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(UnixStream::connect(&path).is_err());
    let server = serve(&path, Some(0o700)).unwrap();
    assert_eq!(permissions(&path), 0o700);
    script(&mut connect(&path), "PING => PONG");
    server.stop();
}

#[test]
fn a_served_socket_and_other_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    let server = serve(&served, None).unwrap();
    let error = serve(&served, None).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    script(&mut connect(&served), "PING => PONG");
    server.stop();

    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let error = serve(path, None).unwrap_err().to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "precious");
    }
}

/// Limits hold for these clients, too: nothing before AUTH, and no more of them than allowed.
#[test]
fn limits_hold_for_unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let options = ServerOptions {
        bind: Vec::new(),
        unixsocket: Some(path.clone()),
        requirepass: Some("secret".to_owned()),
        maxclients: 1,
        threads: Some(1),
        ..ServerOptions::default()
    };
    let server = Server::start(Database::in_memory().unwrap(), options).unwrap();
    let mut first = UnixStream::connect(&path).unwrap();
    first
        .write_all(b"GET a\r\nAUTH secret\r\nGET a\r\n")
        .unwrap();
    let expected = "-NOAUTH Authentication required.\r\n+OK\r\n$-1\r\n";
    let mut reply = vec![0; expected.len()];
    first.read_exact(&mut reply).unwrap();
    assert_eq!(String::from_utf8_lossy(&reply), expected);
    let mut rest = String::new();
    let mut second = UnixStream::connect(&path).unwrap();
    second.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "-ERR max number of clients reached\r\n");
    server.stop();
}
