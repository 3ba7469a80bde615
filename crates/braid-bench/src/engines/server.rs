//! Servers: started for the benchmark in its directory, reached by a Unix socket, and stopped when
//! they are dropped.

use std::fs::File;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::BenchError;

/// Maximum time for a server to answer, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// User and group of a server.
#[derive(Clone, Copy)]
pub(super) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// Returns the account for a server: `None`, the current user, unless that is root. Root runs a
    /// server as the user that the server's package created, or as nobody. PostgreSQL refuses to
    /// run as root, and no benchmark needs to.
    pub(super) fn for_server(user: &str) -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        [user, "nobody"].iter().find_map(|user| {
            Some(Account {
                uid: id("-u", user)?,
                gid: id("-g", user)?,
            })
        })
    }

    /// Creates a directory that belongs to the account.
    pub(super) fn create_dir(account: Option<Self>, dir: &Path) -> Result<(), BenchError> {
        let what = "cannot create the server's directory";
        std::fs::create_dir_all(dir).map_err(|error| BenchError::io(what, error))?;
        if let Some(Account { uid, gid }) = account {
            chown(dir, Some(uid), Some(gid)).map_err(|error| BenchError::io(what, error))?;
        }
        Ok(())
    }

    /// Returns a command that the account runs in a directory.
    pub(super) fn command(account: Option<Self>, program: &Path, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).current_dir(dir);
        if let Some(Account { uid, gid }) = account {
            command.uid(uid).gid(gid);
        }
        command
    }
}

/// Returns the number of a user or a group. The system may look it up in other places than a file.
fn id(option: &str, user: &str) -> Option<u32> {
    let output = Command::new("id").args([option, user]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Returns the first path that is a program; names without a slash are searched in `PATH`.
pub(super) fn find_program(candidates: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    candidates.into_iter().find_map(|candidate| {
        if candidate.is_absolute() {
            return candidate.is_file().then_some(candidate);
        }
        std::env::split_paths(&path)
            .map(|dir| dir.join(&candidate))
            .find(|program| program.is_file())
    })
}

/// Returns the output of `program --version`.
pub(super) fn version_text(program: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| format!("{} does not run: {error}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A server's process and the directory of its socket, whose path must be short.
pub(super) struct Server {
    name: &'static str,
    child: Child,
    stop: Signal,
    log: PathBuf,
    _sockets: tempfile::TempDir,
}

/// How a server is started.
pub(super) struct Start<'a> {
    pub(super) name: &'static str,
    pub(super) account: Option<Account>,
    /// Signal that makes the server stop cleanly without waiting for its clients.
    pub(super) stop: Signal,
    /// Directory of the server, which belongs to the account.
    pub(super) dir: &'a Path,
}

impl Server {
    /// Starts the command that `command` returns for the socket's directory, and waits until
    /// `connect`, called with the same directory, has a connection.
    pub(super) fn start<T>(
        start: &Start<'_>,
        command: impl FnOnce(&Path) -> Command,
        connect: impl Fn(&Path) -> Result<T, String>,
    ) -> Result<(Self, T, PathBuf), BenchError> {
        let what = "cannot start a server";
        let io = |error| BenchError::io(what, error);
        let sockets = tempfile::Builder::new()
            .prefix("braid-")
            .tempdir()
            .map_err(io)?;
        Account::create_dir(start.account, sockets.path())?;
        let log = start.dir.join("server.log");
        let output = File::create(&log).map_err(io)?;
        let mut command = command(sockets.path());
        command
            .stdout(output.try_clone().map_err(io)?)
            .stderr(output);
        let path = sockets.path().to_owned();
        let mut server = Server {
            name: start.name,
            child: command.spawn().map_err(io)?,
            stop: start.stop,
            log,
            _sockets: sockets,
        };
        let begun = Instant::now();
        loop {
            let error = match connect(&path) {
                Ok(connection) => return Ok((server, connection, path)),
                Err(error) => error,
            };
            if let Some(status) = server.child.try_wait().map_err(io)? {
                return Err(server.failure(&format!("ended with {status}")));
            }
            if begun.elapsed() > PATIENCE {
                return Err(server.failure(&format!("does not answer: {error}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns an error with the end of the server's output.
    fn failure(&self, what: &str) -> BenchError {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        BenchError::peer(self.name, with_tail(&format!("the server {what}"), &said))
    }

    /// Returns the server's process; its worker processes are children of that process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Returns a text and the last lines of another.
pub(super) fn with_tail(text: &str, said: &str) -> String {
    let lines: Vec<_> = said.trim().lines().collect();
    let tail = &lines[lines.len().saturating_sub(10)..];
    format!("{text}\n{}", tail.join("\n"))
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            // An error means that the process has already ended.
            let _ = kill_process(pid, self.stop);
        }
        let begun = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if begun.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
