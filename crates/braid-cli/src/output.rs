//! Standard output that may be closed at any moment, and progress for people who watch.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;

/// Standard output. Unlike `println!` it reports a closed pipe instead of panicking.
pub(crate) struct Output {
    inner: BufWriter<Stdout>,
    /// The first error that came up where [`fmt::Write`] can't carry one.
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

    /// Writes a line that somebody waits for, at once.
    pub(crate) fn line_now(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        self.line(text)?;
        self.flush()
    }

    /// Hands over what is buffered.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if let Some(error) = self.error.take() {
            return Err(writing(&error));
        }
        self.inner.flush().map_err(|error| writing(&error))
    }
}

/// For producers of text that know nothing of files; the error shows at the next flush.
impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.inner.write_all(text.as_bytes()).map_err(|error| {
            self.error.get_or_insert(error);
            fmt::Error
        })
    }
}

/// The failure of writing what a command is to write.
pub(crate) fn writing(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::BrokenPipe
    } else {
        Failure::io("cannot write to standard output", error)
    }
}

/// Writes an error for people; a closed standard error is ignored.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "braid: {text}");
}

/// Whether somebody watches standard error.
pub(crate) fn watched() -> bool {
    io::stderr().is_terminal()
}

/// A bar of `length` units on standard error, invisible unless that is a terminal.
pub(crate) fn bar(length: u64, what: &'static str) -> ProgressBar {
    bar_of(length, what, "{prefix:<9} [{bar:32}] {percent:>3} %  {msg}")
}

/// The same with the time that is left, for what takes long.
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

/// A spinner with a message, invisible unless standard error is a terminal.
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
