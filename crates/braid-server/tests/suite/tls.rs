//! TLS, with and without certificates of clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use braid::Database;
use braid_server::{Server, ServerError, ServerOptions, TlsClients};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "tls", name]
        .iter()
        .collect()
}

fn options(clients: TlsClients) -> ServerOptions {
    ServerOptions {
        bind: Vec::new(),
        tls_bind: vec!["127.0.0.1:0".parse().unwrap()],
        tls_cert_file: Some(file("server.crt")),
        tls_key_file: Some(file("server.key")),
        tls_ca_cert_file: Some(file("ca.crt")),
        tls_auth_clients: clients,
        threads: Some(2),
        ..ServerOptions::default()
    }
}

fn start(clients: TlsClients) -> Server {
    Server::start(Database::in_memory().unwrap(), options(clients)).unwrap()
}

type Client = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// Connects, with a certificate if it is named.
fn connect(server: &Server, certificate: Option<&str>) -> Client {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(file("ca.crt")).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = CertificateDer::from_pem_file(file(&format!("{name}.crt"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    };
    let stream = TcpStream::connect(server.tls_addresses()[0]).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    BufReader::new(StreamOwned::new(connection, stream))
}

fn ask(client: &mut Client, request: &str) -> std::io::Result<String> {
    client.get_mut().write_all(request.as_bytes())?;
    client.get_mut().write_all(b"\r\n")?;
    let mut line = String::new();
    client.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// A reader that is slower than the server gets everything, also the end that waits in the buffers of
/// TLS.
#[test]
fn a_slow_reader_gets_everything() {
    const REQUESTS: usize = 30;
    let server = start(TlsClients::Yes);
    let mut client = connect(&server, Some("client"));
    let long = "x".repeat(500_000);
    let request = format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$500000\r\n{long}");
    assert_eq!(ask(&mut client, &request).unwrap(), "+OK");
    // Far more than what the system and the server buffer.
    let requests = "GET long\r\n".repeat(REQUESTS);
    client.get_mut().write_all(requests.as_bytes()).unwrap();
    let mut value = vec![0; "$500000\r\n".len() + long.len() + 2];
    for _ in 0..REQUESTS {
        client.read_exact(&mut value).unwrap();
        assert!(value.ends_with(b"x\r\n"));
    }
}

#[test]
fn clients_with_a_certificate_are_served() {
    let server = start(TlsClients::Yes);
    let mut client = connect(&server, Some("client"));
    assert_eq!(ask(&mut client, "SET a 1").unwrap(), "+OK");
    // A large value crosses many records.
    let long = "x".repeat(1_000_000);
    let request = format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$1000000\r\n{long}");
    assert_eq!(ask(&mut client, &request).unwrap(), "+OK");
    assert_eq!(ask(&mut client, "GET long").unwrap(), "$1000000");
    let mut value = vec![0; long.len()];
    client.read_exact(&mut value).unwrap();
    assert_eq!(value, long.as_bytes());
    // Without a certificate, or with one of another authority, there is no answer.
    for certificate in [None, Some("other")] {
        let mut client = connect(&server, certificate);
        let answer = ask(&mut client, "PING");
        assert!(answer.is_err(), "{certificate:?}: {answer:?}");
    }
    // And none for bytes that are no handshake.
    let mut plain = TcpStream::connect(server.tls_addresses()[0]).unwrap();
    plain.write_all(b"PING\r\nPING\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.contains(&b'+'), "{answer:?}");
    server.stop();
}

#[test]
fn certificates_of_clients_can_be_optional_or_unused() {
    for clients in [TlsClients::Optional, TlsClients::No] {
        let server = start(clients);
        let mut client = connect(&server, None);
        assert_eq!(ask(&mut client, "PING").unwrap(), "+PONG");
        let mut client = connect(&server, Some("client"));
        assert_eq!(ask(&mut client, "PING").unwrap(), "+PONG");
        let refused = connect(&server, Some("other"));
        let answer = ask(&mut { refused }, "PING");
        assert_eq!(answer.is_ok(), clients == TlsClients::No, "{answer:?}");
        server.stop();
    }
}

#[test]
fn a_server_does_not_start_without_its_files() {
    type Change = fn(&mut ServerOptions);
    let changes: [(Change, &str); 5] = [
        (|options| options.tls_cert_file = None, "tls-cert-file"),
        (|options| options.tls_key_file = None, "tls-key-file"),
        (
            |options| options.tls_ca_cert_file = None,
            "tls-ca-cert-file",
        ),
        (
            |options| options.tls_cert_file = Some("/nosuch".into()),
            "/nosuch",
        ),
        (
            |options| options.tls_key_file = options.tls_ca_cert_file.clone(),
            "ca.crt",
        ),
    ];
    for (change, expected) in changes {
        let mut options = options(TlsClients::Yes);
        change(&mut options);
        let error = Server::start(Database::in_memory().unwrap(), options).unwrap_err();
        assert!(matches!(error, ServerError::Tls(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
