//! Runs the binary.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `braid` with these arguments in a new directory, and collects its output.
pub(crate) fn braid_in(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(args)
        .current_dir(dir)
        .env_remove("TMPDIR")
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts")
}

pub(crate) fn braid(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    braid_in(dir.path(), args)
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
pub(crate) fn expect_code(output: &Output, code: i32) {
    let (out, err) = (stdout(output), stderr(output));
    assert_eq!(
        output.status.code(),
        Some(code),
        "stdout:\n{out}\nstderr:\n{err}"
    );
    assert!(!err.contains("panicked"), "{err}");
}
