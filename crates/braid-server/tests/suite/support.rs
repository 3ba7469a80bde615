//! Servers and clients for the tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use braid::Database;
use braid_server::{Server, ServerOptions};
use redis::{Connection, FromRedisValue, Value};

/// A server on a database in memory.
pub(crate) struct TestServer {
    server: Option<Server>,
    pub(crate) port: u16,
}

impl TestServer {
    pub(crate) fn new() -> Self {
        Self::with(Database::in_memory().unwrap(), |_| {})
    }

    pub(crate) fn with(db: Database, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut options = ServerOptions {
            bind: vec!["127.0.0.1:0".parse().unwrap()],
            threads: Some(2),
            ..ServerOptions::default()
        };
        change(&mut options);
        let server = Server::start(db, options).unwrap();
        let port = server.addresses()[0].port();
        TestServer {
            server: Some(server),
            port,
        }
    }

    /// Connects a client. Neither it nor any other one of these tests has a time limit: with one, a
    /// read fails when the process is stopped and continued.
    pub(crate) fn connect(&self) -> Connection {
        self.connect_with("")
    }

    pub(crate) fn connect_with(&self, query: &str) -> Connection {
        let address = format!("redis://127.0.0.1:{}/{query}", self.port);
        let client = redis::Client::open(address).unwrap();
        client.get_connection().unwrap()
    }

    pub(crate) fn raw(&self) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        Raw {
            reader: BufReader::new(stream),
        }
    }

    pub(crate) fn http_address(&self) -> std::net::SocketAddr {
        self.server.as_ref().unwrap().http_address().unwrap()
    }

    pub(crate) fn stop(mut self) {
        self.server.take().unwrap().stop();
    }
}

/// A connection that sends and receives bytes.
pub(crate) struct Raw {
    reader: BufReader<TcpStream>,
}

impl Raw {
    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub(crate) fn stream_mut(&mut self) -> &mut TcpStream {
        self.reader.get_mut()
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.reader.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Reads one line without its end; empty at the end of the connection.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    /// Reads until the server closes the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        let _ = self.reader.read_to_string(&mut rest);
        rest
    }
}

/// Runs a command given as words separated by spaces.
pub(crate) fn run<T: FromRedisValue>(connection: &mut Connection, words: &str) -> T {
    try_run(connection, words).unwrap_or_else(|error| panic!("{words}: {error}"))
}

pub(crate) fn try_run<T: FromRedisValue>(
    connection: &mut Connection,
    words: &str,
) -> redis::RedisResult<T> {
    let mut command = redis::Cmd::new();
    for word in words.split_whitespace() {
        command.arg(if word == "''" { "" } else { word });
    }
    command.query(connection)
}

/// Runs a command, and returns its reply as text: integers and texts as they are, lists in
/// brackets, errors by their code and text.
pub(crate) fn show(connection: &mut Connection, words: &str) -> String {
    match try_run::<Value>(connection, words) {
        Ok(value) => text(&value),
        Err(error) => match error.code() {
            Some(code) => format!("({code})"),
            None => format!("({error})"),
        },
    }
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Double(number) => number.to_string(),
        Value::Array(list) | Value::Set(list) => {
            let parts: Vec<String> = list.iter().map(text).collect();
            format!("[{}]", parts.join(" "))
        }
        Value::Map(pairs) => {
            let parts: Vec<String> = pairs
                .iter()
                .map(|(k, v)| format!("{} {}", text(k), text(v)))
                .collect();
            format!("[{}]", parts.join(" "))
        }
        Value::ServerError(error) => format!("({})", error.code()),
        other => format!("{other:?}"),
    }
}

/// Runs commands, one a line, each followed by `=>` and its reply. In the reply, `~100` stands for the
/// seconds that are left of 100.
pub(crate) fn script(connection: &mut Connection, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (words, expected) = line.split_once("=>").unwrap_or((line, "OK"));
        let reply = show(connection, words);
        assert!(is_reply(&reply, expected.trim()), "{line}, not {reply:?}");
    }
}

/// Returns whether a reply is as expected. Seconds may have passed since a time was set, on a busy
/// machine many.
fn is_reply(reply: &str, expected: &str) -> bool {
    if reply == expected {
        return true;
    }
    let (words, expected): (Vec<_>, Vec<_>) =
        (reply.split(' ').collect(), expected.split(' ').collect());
    let is_word = |(word, expected): (&&str, &&str)| {
        let number = |text: &str| text.trim_matches(['[', ']']).parse::<u64>().ok();
        match expected.split_once('~') {
            None => word == expected,
            Some((_, most)) => {
                number(word).is_some_and(|left| left > 0 && Some(left) <= number(most))
            }
        }
    };
    words.len() == expected.len() && words.iter().zip(&expected).all(is_word)
}

/// A process that ends with the test, and the directory of its files.
pub(crate) struct Process(std::process::Child, #[allow(dead_code)] tempfile::TempDir);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts Redis on a Unix socket, and returns a client that connects to it; `None` if it is not
/// installed.
pub(crate) fn redis_server() -> Option<(redis::Client, Process)> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let process = std::process::Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--enable-debug-command", "yes"])
        .arg("--unixsocket")
        .arg(&socket)
        .stdout(std::process::Stdio::null())
        .spawn();
    let process = Process(process.ok()?, dir);
    let client = redis::Client::open(format!("unix://{}", socket.display())).unwrap();
    // The connection is refused until Redis has started.
    let has_started = (0..1_000).any(|_| {
        let is_connected = client.get_connection().is_ok();
        if !is_connected {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        is_connected
    });
    assert!(has_started, "Redis starts");
    Some((client, process))
}
