//! `braid shell` at a terminal, with its line editor.

#![cfg(target_os = "linux")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use rexpect::session::{PtySession, spawn_command};

/// Maximum duration of a session in milliseconds, after which it counts as stuck.
const PATIENCE: u64 = 60_000;

const PROMPT: &str = "braid> ";
const IN_TRANSACTION: &str = "braid (transaction)> ";
const UP: &str = "\x1b[A";
const ENTER: &str = "\r";
/// Ends an empty line, and with it the session.
const END: char = 'd';

/// A shell over the database `db` of a place that is also the person's home.
struct Shell {
    terminal: PtySession,
}

impl Shell {
    fn open(place: &Path) -> Shell {
        let mut command = Command::new("sh");
        command
            .args(["-c", "\"$0\" \"$@\"; echo \"exit code $?\""])
            .args([env!("CARGO_BIN_EXE_braid"), "shell"])
            .arg(place.join("db"))
            .arg("--create")
            .env("HOME", place)
            .env("TERM", "xterm")
            .env_remove("XDG_STATE_HOME")
            .env_remove("NO_COLOR");
        let terminal = spawn_command(command, Some(PATIENCE)).expect("the shell starts");
        let mut shell = Shell { terminal };
        shell.expect("`help` for the commands");
        shell.expect(PROMPT);
        shell
    }

    /// Waits for `text`; returns the output before it.
    #[track_caller]
    fn expect(&mut self, text: &str) -> String {
        match self.terminal.exp_string(text) {
            Ok(before) => before,
            Err(error) => panic!("{text:?} does not come: {error}"),
        }
    }

    fn keys(&mut self, keys: &str) {
        self.terminal.send(keys).unwrap();
        self.terminal.flush().unwrap();
    }

    /// Enters a line; returns the output up to the next prompt, beginning with the echo.
    #[track_caller]
    fn enter(&mut self, line: &str, prompt: &str) -> String {
        self.keys(line);
        self.keys(ENTER);
        self.expect(prompt)
    }

    /// Ends the session from the keyboard; returns its remaining output and its exit code.
    fn end(mut self) -> (String, String) {
        self.terminal.send_control(END).unwrap();
        let last = self.expect("exit code ");
        let code = self.terminal.exp_eof().unwrap();
        (last, code.trim().to_owned())
    }
}

#[test]
fn the_history_outlives_the_session() {
    let place = tempfile::tempdir().unwrap();
    let mut shell = Shell::open(place.path());
    shell.enter("create ages string u32", PROMPT);
    shell.enter("put ages ada 36", PROMPT);
    assert_eq!(shell.end().1, "0");
    let file = place.path().join(".local/state/braid/shell_history");
    let mode = file
        .metadata()
        .expect("it is where such files are kept")
        .mode();
    assert_eq!(mode & 0o077, 0, "nobody else reads it");

    let mut shell = Shell::open(place.path());
    shell.keys(UP);
    shell.expect("put ages ada 36");
    shell.enter("7", PROMPT);
    let shown = shell.enter("get ages ada", PROMPT);
    assert!(shown.contains("367"), "{shown:?}");
    assert_eq!(shell.end().1, "0");
}

#[test]
fn the_tab_key_completes() {
    let place = tempfile::tempdir().unwrap();
    let mut shell = Shell::open(place.path());
    shell.enter("create ages string u32", PROMPT);
    shell.enter("put ages ada 36", PROMPT);
    shell.keys("get a\t");
    shell.expect("ges");
    let shown = shell.enter(" ada", PROMPT);
    assert!(shown.contains("36"), "{shown:?}");
    assert_eq!(shell.end().1, "0");
}

#[test]
fn an_open_transaction_is_reported_at_the_end() {
    let place = tempfile::tempdir().unwrap();
    let mut shell = Shell::open(place.path());
    shell.enter("create ages string u32", PROMPT);
    shell.enter("begin", IN_TRANSACTION);
    shell.enter("put ages ada 36", IN_TRANSACTION);
    let (last, code) = shell.end();
    assert!(last.contains("`commit` is missing"), "{last:?}");
    assert_eq!(code, "1");

    let mut shell = Shell::open(place.path());
    let shown = shell.enter("get ages ada", PROMPT);
    assert!(shown.contains("(not found)"), "{shown:?}");
    let (last, code) = shell.end();
    assert!(!last.contains("commit"), "{last:?}");
    assert_eq!(code, "0");
}

#[test]
fn an_interrupt_drops_the_line_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let mut shell = Shell::open(place.path());
    shell.enter("create ages string u32", PROMPT);
    shell.enter("begin", IN_TRANSACTION);
    shell.enter("put ages ada 36", IN_TRANSACTION);
    shell.keys("abo");
    shell.expect("abo");
    shell.terminal.send_control('c').unwrap();
    shell.expect(IN_TRANSACTION);
    let shown = shell.enter("commit", PROMPT);
    assert!(!shown.contains("no command"), "{shown:?}");
    let shown = shell.enter("get ages ada", PROMPT);
    assert!(shown.contains("36"), "{shown:?}");
    // The line was never entered, so it is not in the history.
    shell.keys(&UP.repeat(3));
    shell.expect("put ages ada 36");
    shell.terminal.send_control('c').unwrap();
    shell.expect(PROMPT);
    assert_eq!(shell.end().1, "0");
}

#[test]
fn a_mistake_is_reported_and_the_session_continues() {
    let place = tempfile::tempdir().unwrap();
    let mut shell = Shell::open(place.path());
    let shown = shell.enter("frob", PROMPT);
    assert!(shown.contains("no command \"frob\""), "{shown:?}");
    let shown = shell.enter("create ages string u32; tables", PROMPT);
    assert!(shown.contains("ages: string -> u32"), "{shown:?}");
    shell.keys("quit\r");
    shell.terminal.exp_eof().unwrap();
}
