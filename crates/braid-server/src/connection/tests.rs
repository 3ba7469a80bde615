//! Tests of [`super`]: random pipelines, in builds whose connections reach their limits with few requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use braid::Database;
use braid::device::MemoryDevice;

use crate::options::ServerOptions;
use crate::server::Server;

const COLD: usize = 5_000;
const CLIENTS: u64 = 5;
const ROUNDS: usize = 250;

/// Longest time that a client waits for bytes that should come at once.
const SOON: Duration = Duration::from_secs(60);

fn cold(key: usize) -> String {
    format!("{key:0700}")
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A server whose pool is smaller than its data.
fn start(device: &Arc<MemoryDevice>) -> Server {
    let db = Database::builder()
        .pool_bytes(2 << 20)
        .open_on(Arc::clone(device) as _)
        .unwrap();
    let options = ServerOptions {
        bind: vec!["127.0.0.1:0".parse().unwrap()],
        threads: Some(2),
        ..ServerOptions::default()
    };
    Server::start(db, options).unwrap()
}

/// A client, and what it expects its keys to hold.
struct Client {
    stream: TcpStream,
    random: fastrand::Rng,
    id: u64,
    number: u64,
    text: String,
    sent: String,
    expected: String,
}

impl Client {
    fn new(server: &Server, id: u64, seed: u64) -> Client {
        let stream = TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Client {
            stream,
            random: fastrand::Rng::with_seed(seed),
            id,
            number: 0,
            text: String::new(),
            sent: String::new(),
            expected: String::new(),
        }
    }

    fn add(&mut self, request: &str, reply: &str) {
        self.sent += request;
        self.sent += "\r\n";
        self.expected += reply;
    }

    fn add_any(&mut self) {
        let id = self.id;
        match self.random.u32(..16) {
            0..3 => {
                self.number += 1;
                self.add(&format!("INCR n{id}"), &format!(":{}\r\n", self.number));
            }
            3 => {
                self.number += 1;
                let reply = format!("+OK\r\n+QUEUED\r\n*1\r\n:{}\r\n", self.number);
                self.add(&format!("MULTI\r\nINCR n{id}\r\nEXEC"), &reply);
            }
            // Spoils the transaction that it would run in together with others.
            4 => {
                self.text = "x".to_owned();
                let reply = "+OK\r\n-ERR value is not an integer or out of range\r\n";
                self.add(&format!("SET t{id} x\r\nINCR t{id}"), reply);
            }
            5 => {
                self.text = "y".repeat(self.random.usize(1..500));
                self.add(&format!("SET t{id} {}", self.text), "+OK\r\n");
            }
            6 if !self.text.is_empty() => {
                self.add(&format!("GET t{id}"), &bulk(&self.text.clone()));
            }
            7 if self.number > 0 => {
                self.add(&format!("GET n{id}"), &bulk(&self.number.to_string()));
            }
            8 | 9 => {
                let key = self.random.usize(..COLD);
                self.add(&format!("GET c{key}"), &bulk(&cold(key)));
            }
            10 => {
                // Changes nothing, so that others can read it.
                let key = self.random.usize(..COLD);
                let request = format!("SETRANGE c{key} 0 {}", &cold(key)[..1]);
                self.add(&request, &format!(":{}\r\n", cold(key).len()));
            }
            11 => {
                let (first, second) = (self.random.usize(..COLD), self.random.usize(..COLD));
                self.number += 1;
                let (number, len) = (self.number, cold(first).len());
                let requests = format!(
                    "MULTI\r\nINCR n{id}\r\nSETRANGE c{first} 0 0\r\nGET c{second}\r\nEXEC"
                );
                let text = bulk(&cold(second));
                let replies = format!("*3\r\n:{number}\r\n:{len}\r\n{text}");
                self.add(
                    &requests,
                    &format!("+OK\r\n{}{replies}", "+QUEUED\r\n".repeat(3)),
                );
            }
            12 => {
                let (first, second) = (self.random.usize(..COLD), self.random.usize(..COLD));
                let request = format!("BITOP OR b{id} c{first} c{second}");
                self.add(&request, &format!(":{}\r\n", cold(first).len()));
            }
            13 => {
                let key = self.random.usize(..COLD);
                let requests = format!("WATCH n{id}\r\nMULTI\r\nGET c{key}\r\nEXEC");
                let reply = format!("+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n{}", bulk(&cold(key)));
                self.add(&requests, &reply);
            }
            14 => {
                let text = "z".repeat(self.random.usize(1..500));
                self.add(&format!("ECHO {text}"), &bulk(&text));
            }
            _ => self.add("PING", "+PONG\r\n"),
        }
    }

    /// Sends what was added, in some pieces, and expects all replies.
    fn exchange(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        let mut left = sent.as_bytes();
        while !left.is_empty() {
            let len = match self.random.u32(..3) {
                0 => self.random.usize(1..=left.len()),
                _ => left.len(),
            };
            self.stream.write_all(&left[..len]).unwrap();
            left = &left[len..];
        }
        let expected = std::mem::take(&mut self.expected);
        let mut received = vec![0; expected.len()];
        let all = self.stream.read_exact(&mut received);
        all.unwrap_or_else(|error| panic!("{error}, sent:\n{sent}"));
        assert!(
            received == expected.as_bytes(),
            "sent:\n{sent}\nreceived:\n{}",
            String::from_utf8_lossy(&received),
        );
    }
}

/// However requests arrive, and whichever limits a connection reaches, each request is answered, in
/// its turn, although its client sends nothing more.
#[test]
fn every_request_of_a_pipeline_is_answered_in_its_turn() {
    let device = Arc::new(MemoryDevice::new());
    let server = start(&device);
    let mut loader = Client::new(&server, 0, 0);
    for key in 0..COLD {
        loader.add(&format!("SET c{key} {}", cold(key)), "+OK\r\n");
        if key % 100 == 99 {
            loader.exchange();
        }
    }
    server.stop();
    let server = start(&device);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    std::thread::scope(|scope| {
        for id in 0..CLIENTS {
            let mut client = Client::new(&server, id, seed.wrapping_add(id));
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let requests = client.random.usize(1..60);
                    (0..requests).for_each(|_| client.add_any());
                    client.exchange();
                }
            });
        }
    });
    server.stop();
}
