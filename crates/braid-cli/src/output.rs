//! Standard output, which may be closed at any time, and progress displays.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;

/// Standard output. Unlike `println!` it reports a closed pipe instead of panicking.
pub(crate) struct Output {
    inner: BufWriter<Stdout>,
    /// First error, which [`fmt::Write`] cannot return.
    error: Option<io::Error>,
}

impl Output {
    pub(crate) fn stdout() -> Self {
        Output {
            inner: BufWriter::new(io::stdout()),
            error: None,
        }
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        writeln!(self.inner, "{text}").map_err(|error| writing(&error))
    }

    /// Writes a line and flushes it, for a reader that waits for it.
    pub(crate) fn line_now(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        self.line(text)?;
        self.flush()
    }

    /// Flushes the buffer.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if let Some(error) = self.error.take() {
            return Err(writing(&error));
        }
        self.inner.flush().map_err(|error| writing(&error))
    }
}

/// For producers of text without access to files; the next flush reports the error.
impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.inner.write_all(text.as_bytes()).map_err(|error| {
            self.error.get_or_insert(error);
            fmt::Error
        })
    }
}

/// Returns the failure for an error of standard output.
pub(crate) fn writing(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::BrokenPipe
    } else {
        Failure::io("cannot write to standard output", error)
    }
}

/// Writes an error to standard error; ignores a closed standard error.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "braid: {text}");
}

/// Returns whether standard error is a terminal.
pub(crate) fn watched() -> bool {
    io::stderr().is_terminal()
}

/// Creates a bar of `length` units on standard error, invisible unless that is a terminal.
pub(crate) fn bar(length: u64, what: &'static str) -> ProgressBar {
    bar_of(length, what, "{prefix:<9} [{bar:32}] {percent:>3} %  {msg}")
}

/// As [`bar`], with the remaining time, for long operations.
pub(crate) fn bar_with_time(length: u64, what: &'static str) -> ProgressBar {
    bar_of(
        length,
        what,
        "{prefix:<9} [{bar:24}] {percent:>3} %, {eta} left  {msg}",
    )
}

fn bar_of(length: u64, what: &'static str, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), target());
    styled(bar, template).with_prefix(what)
}

/// Creates a spinner with a message, invisible unless standard error is a terminal.
pub(crate) fn spinner() -> ProgressBar {
    styled(
        ProgressBar::with_draw_target(None, target()),
        "{spinner} {msg}",
    )
}

fn target() -> ProgressDrawTarget {
    if watched() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
