//! `braid serve`: kills under load, a clean stop, errors.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{braid, expect_code, stderr};

/// A running server.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: String,
    output: BufReader<std::process::ChildStdout>,
}

impl Served {
    /// Starts a server whose output is a pipe, and waits until it serves.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Served {
            child,
            address,
            output,
        }
    }
}

/// Ends the server of a test that failed: it would run on, and keep its database open.
impl Drop for Served {
    fn drop(&mut self) {
        // A server that has ended, and was waited for, is left alone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn serve(dir: &Path) -> Served {
    serve_with(dir, &["--port", "0", "--threads", "2", "--pool", "32"])
}

/// Returns the command that serves a database.
pub(crate) fn command(dir: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.arg("serve").args(options).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn serve_with(dir: &Path, options: &[&str]) -> Served {
    Served::start(command(dir, options))
}

pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(address: &str) -> Self {
        // No time limit: with one, a read fails when the process is stopped and continued.
        Client(BufReader::new(TcpStream::connect(address).unwrap()))
    }

    pub(crate) fn send(&mut self, text: &str) -> std::io::Result<()> {
        self.0.get_mut().write_all(text.as_bytes())
    }

    /// Reads a line; an error at the end of the connection, also within a line.
    pub(crate) fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Reads a reply, and shows it: lists in brackets, texts without their length.
    pub(crate) fn reply(&mut self) -> std::io::Result<String> {
        let line = self.line()?;
        let len = || line[1..].parse::<i64>().unwrap();
        match line.as_bytes()[0] {
            b'$' | b'*' if len() < 0 => Ok("nil".to_owned()),
            b'$' => self.line(),
            b'*' => {
                let items: Result<Vec<_>, _> = (0..len()).map(|_| self.reply()).collect();
                Ok(format!("[{}]", items?.join(" ")))
            }
            _ => Ok(line),
        }
    }

    pub(crate) fn ask(&mut self, text: &str) -> String {
        self.send(&format!("{text}\r\n")).unwrap();
        self.line().unwrap()
    }
}

/// Transactions of one client: a counter and a list that grow together. Counts the answers.
fn write(
    address: &str,
    client: usize,
    answered: &AtomicU64,
    sent: &AtomicU64,
) -> std::io::Result<()> {
    let mut connection = Client::connect(address);
    loop {
        let mut batch = String::new();
        for _ in 0..8 {
            batch += &format!(
                "MULTI\r\nINCR c{client}\r\nRPUSH l{client} x\r\nZINCRBY z 1 m{client}\r\nEXEC\r\n"
            );
        }
        sent.fetch_add(8, Ordering::SeqCst);
        connection.send(&batch)?;
        for _ in 0..8 {
            // OK, three times QUEUED, the list of three replies: two numbers and a text.
            for _ in 0..4 {
                connection.line()?;
            }
            assert_eq!(connection.line()?, "*3");
            for _ in 0..4 {
                connection.line()?;
            }
            answered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn answered_transactions_survive_kills() {
    const CLIENTS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("served");
    let mut before = [0; CLIENTS];
    for round in 0..4 {
        let mut served = serve(&path);
        let counters: [(AtomicU64, AtomicU64); CLIENTS] = Default::default();
        let address = served.address.clone();
        std::thread::scope(|scope| {
            for (client, (answered, sent)) in counters.iter().enumerate() {
                let address = &address;
                // Ends with the connection's error when the server is killed.
                scope.spawn(move || write(address, client, answered, sent).unwrap_err());
            }
            let wanted = 100 + round * 70;
            let deadline = Instant::now() + Duration::from_secs(120);
            while counters
                .iter()
                .map(|(answered, _)| answered.load(Ordering::SeqCst))
                .sum::<u64>()
                < wanted
            {
                assert!(Instant::now() < deadline, "the server is too slow");
                std::thread::yield_now();
            }
            served.child.kill().unwrap();
        });
        served.child.wait().unwrap();
        let mut served = serve(&path);
        let mut client = Client::connect(&served.address);
        for (number, (answered, sent)) in counters.iter().enumerate() {
            client.send(&format!("GET c{number}\r\n")).unwrap();
            let found: u64 = match client.line().unwrap().as_str() {
                "$-1" => 0,
                _ => client.line().unwrap().parse().unwrap(),
            };
            let answered = before[number] + answered.load(Ordering::SeqCst);
            let sent = before[number] + sent.load(Ordering::SeqCst);
            assert!(
                (answered..=sent).contains(&found),
                "{answered} <= {found} <= {sent}"
            );
            assert_eq!(client.ask(&format!("LLEN l{number}")), format!(":{found}"));
            client.send(&format!("ZSCORE z m{number}\r\n")).unwrap();
            if client.line().unwrap() != "$-1" {
                assert_eq!(client.line().unwrap(), found.to_string());
            }
            before[number] = found;
        }
        stop(&mut served, "SHUTDOWN");
    }
    expect_code(&braid(&["verify", path.to_str().unwrap()]), 0);
}

/// Stops a server by a command, and expects that it ends well.
pub(crate) fn stop(served: &mut Served, command: &str) {
    let mut client = Client::connect(&served.address);
    client.send(&format!("{command}\r\n")).unwrap();
    assert!(client.line().is_err());
    let mut line = String::new();
    served.output.read_line(&mut line).unwrap();
    assert!(line.ends_with("stopping\n"), "{line}");
    assert!(served.child.wait().unwrap().success());
}

#[test]
fn a_test_that_fails_ends_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(&dir.path().join("served"));
    let address = served.address.clone();
    TcpStream::connect(&address).unwrap();
    let test = std::panic::AssertUnwindSafe(move || {
        let _served = served;
        std::panic::resume_unwind(Box::new("the test has failed"));
    });
    assert!(std::panic::catch_unwind(test).is_err());
    TcpStream::connect(&address).unwrap_err();
}

/// A signal stops the server after everything in progress is answered.
#[cfg(unix)]
#[test]
fn a_signal_stops_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = serve(&dir.path().join("served"));
    let mut client = Client::connect(&served.address);
    assert_eq!(client.ask("SET a 1"), "+OK");
    assert_eq!(client.ask("BLPOP l 0.01"), "*-1");
    client.send("BLPOP l 0\r\n").unwrap();
    // SAFETY: `kill` accesses no memory.
    unsafe { libc::kill(served.child.id() as i32, libc::SIGTERM) };
    // The request may have arrived after the server began to stop.
    if let Ok(line) = client.line() {
        assert!(line.starts_with("-UNBLOCKED"), "{line}");
    }
    assert!(served.child.wait().unwrap().success());
    let mut served = serve(&dir.path().join("served"));
    let mut client = Client::connect(&served.address);
    client.send("GET a\r\n").unwrap();
    assert_eq!(
        [client.line().unwrap(), client.line().unwrap()],
        ["$1", "1"]
    );
    stop(&mut served, "SHUTDOWN NOSAVE");
}

/// A stop interrupts the system calls of a process, and none of them may fail because of it.
#[cfg(target_os = "linux")]
#[test]
fn a_server_that_was_stopped_and_continued_answers() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = serve(&dir.path().join("served"));
    let process = served.child.id() as i32;
    let mut writer = Client::connect(&served.address);
    let mut waiter = Client::connect(&served.address);
    for round in 1..=40 {
        waiter.send("BLPOP l 0\r\n").unwrap();
        writer.send("INCR n\r\nRPUSH l x\r\n").unwrap();
        // SAFETY: `kill` accesses no memory; `waitpid` needs none. It returns when the child, which is
        // no other thread's, has stopped.
        unsafe {
            assert_eq!(libc::kill(process, libc::SIGSTOP), 0);
            let stopped = libc::waitpid(process, std::ptr::null_mut(), libc::WUNTRACED);
            assert_eq!(stopped, process);
            assert_eq!(libc::kill(process, libc::SIGCONT), 0);
        }
        assert_eq!(writer.line().unwrap(), format!(":{round}"));
        assert_eq!(writer.line().unwrap(), ":1");
        assert_eq!(waiter.reply().unwrap(), "[l x]");
    }
    stop(&mut served, "SHUTDOWN");
}

#[test]
fn a_port_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let path = dir.path().join("served");
    let output = braid(&["serve", path.to_str().unwrap(), "--port", &port]);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_file_configures_the_server_and_arguments_override_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("serve.toml");
    std::fs::write(
        &file,
        "port = 0\nmaxclients = 5\ntimeout = 7\npool = \"32mb\"\nhttp = \"127.0.0.1:0\"\n",
    )
    .unwrap();
    let data = dir.path().join("data");
    let mut served = serve_with(
        &data,
        &["--config", file.to_str().unwrap(), "--maxclients", "6"],
    );
    let mut pages = String::new();
    served.output.read_line(&mut pages).unwrap();
    assert!(pages.starts_with("pages at http://127.0.0.1:"), "{pages}");
    let mut client = Client::connect(&served.address);
    for (name, value) in [("maxclients", "6"), ("timeout", "7")] {
        client.send(&format!("CONFIG GET {name}\r\n")).unwrap();
        let lines: Vec<String> = (0..5).map(|_| client.line().unwrap()).collect();
        assert_eq!(lines[4], value, "{lines:?}");
    }
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    // A wrong file is refused before the database is touched.
    std::fs::write(&file, "port = 0\nmaxclient = 5\n").unwrap();
    let other = dir.path().join("other");
    let output = braid(&[
        "serve",
        "--config",
        file.to_str().unwrap(),
        other.to_str().unwrap(),
    ]);
    expect_code(&output, 2);
    let text = stderr(&output);
    assert!(
        text.contains("serve.toml") && text.contains("maxclient"),
        "{text}"
    );
    assert!(!other.exists());
}

/// Starts the server as systemd does with the unit of `packaging/`, and waits for its report.
#[cfg(target_os = "linux")]
#[test]
fn the_unit_starts_a_server_that_reports_when_it_serves() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let unit = std::fs::read_to_string(packaging.join("braid.service")).unwrap();
    assert!(unit.contains("\nType=notify\n"), "{unit}");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/braid "))
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // The file as it is, but for its paths and ports, which other programs may use.
    let config = std::fs::read_to_string(packaging.join("serve.toml")).unwrap();
    let config = config
        .replace("/run/braid/", &place(""))
        .replace("/etc/braid/", &place(""))
        .replace("[\"127.0.0.1\", \"::1\"]", "\"127.0.0.1\"")
        .replace("port = 6379", "port = 0")
        .replace(":8379", ":0")
        .replace("1gb", "32mb");
    std::fs::write(place("serve.toml"), config).unwrap();
    let args: Vec<String> = start
        .split(' ')
        .map(|arg| match arg {
            "/etc/braid/serve.toml" => place("serve.toml"),
            "/var/lib/braid/data" => place("data"),
            other => other.to_owned(),
        })
        .collect();
    let socket = std::os::unix::net::UnixDatagram::bind(place("notify")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(args)
        .env("NOTIFY_SOCKET", place("notify"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut report = [0; 64];
    let len = socket.recv(&mut report);
    let listens = std::os::unix::net::UnixStream::connect(place("braid.sock"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(report[..len.unwrap()].trim_ascii_end(), b"READY=1");
    listens.unwrap();
}

/// The log is lines of JSON if the file says so, with what the server did and the archive that it has.
#[test]
fn the_log_can_be_json() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(place("backups")).unwrap();
    let config = format!(
        "port = 0\nio-threads = 1\npool = \"32mb\"\nslowlog-log-slower-than = -1\nlog-format = \"json\"\nbackup-directory = '{}'\n\
         archive-directory = '{}'\narchive-interval = 3600\n",
        place("backups"),
        place("archive"),
    );
    std::fs::write(place("serve.toml"), config).unwrap();
    let log = std::fs::File::create(place("log")).unwrap();
    let mut command = command(Path::new(&place("db")), &["--config", &place("serve.toml")]);
    command.stderr(log);
    let mut served = Served::start(command);
    let mut client = Client::connect(&served.address);
    assert_eq!(client.ask("SET a 1"), "+OK");
    assert_eq!(client.ask("SAVE"), "+OK");
    assert!(client.ask("BRAID.ARCHIVE").starts_with(':'));
    client.send("SHUTDOWN\r\n").unwrap();
    assert!(served.child.wait().unwrap().success());
    assert!(std::fs::read_dir(place("archive")).unwrap().count() > 0);
    let log = std::fs::read_to_string(place("log")).unwrap();
    let messages: Vec<String> = log
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["timestamp"].is_string() && line["level"].is_string());
            line["message"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(messages, ["serving", "backup made", "stopping"], "{log}");
}
