//! Parsing of arguments.

use std::time::Duration;

use bytes::Bytes;

use crate::failure::{Failure, Result};
use crate::resp::Reply;
use crate::resp::number::{parse_f64, parse_i64};

/// Parses an integer.
pub(super) fn integer(argument: &[u8]) -> Result<i64> {
    parse_i64(argument).ok_or(Failure::NOT_AN_INTEGER)
}

/// Parses a number that must not be negative; any other argument fails with the text `otherwise`.
pub(super) fn natural(argument: &[u8], otherwise: &'static str) -> Result<usize> {
    let number = parse_i64(argument).and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| Failure::client(otherwise))
}

/// Most elements that a negative count asks for: the reply is in memory as a whole, however small the
/// collection is.
const REPEATED_MAX: i64 = 1 << 20;

/// Checks how many random elements a client wants.
pub(super) fn check_random_count(count: i64) -> Result<()> {
    if (-REPEATED_MAX..=i64::MAX / 2).contains(&count) {
        Ok(())
    } else {
        Err(Failure::client("ERR value is out of range"))
    }
}

/// Parses a floating-point number. Infinity has a name: digits do not stand for it.
pub(super) fn float(argument: &[u8]) -> Result<f64> {
    let number = parse_f64(argument).ok_or(Failure::NOT_A_FLOAT)?;
    if number.is_infinite() && argument.iter().any(u8::is_ascii_digit) {
        return Err(Failure::NOT_A_FLOAT);
    }
    Ok(number)
}

/// Parses the time-out of a blocking command, in seconds; zero waits forever.
pub(super) fn timeout(argument: &[u8]) -> Result<Option<Duration>> {
    let seconds = parse_f64(argument)
        .ok_or_else(|| Failure::client("ERR timeout is not a float or out of range"))?;
    if seconds < 0.0 {
        return Err(Failure::client("ERR timeout is negative"));
    }
    if seconds == 0.0 {
        return Ok(None);
    }
    if seconds * 1000.0 > i64::MAX as f64 {
        return Err(Failure::client("ERR timeout is out of range"));
    }
    // At least a millisecond: zero would wait forever.
    let timeout = Duration::try_from_secs_f64(seconds)
        .map_err(|_| Failure::client("ERR timeout is out of range"))?;
    Ok(Some(timeout.max(Duration::from_millis(1))))
}

/// Parses the time-out of a blocking command, in milliseconds; zero waits forever.
pub(super) fn timeout_ms(argument: &[u8]) -> Result<Option<Duration>> {
    let ms = parse_i64(argument)
        .ok_or_else(|| Failure::client("ERR timeout is not an integer or out of range"))?;
    let ms = u64::try_from(ms).map_err(|_| Failure::client("ERR timeout is negative"))?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// Returns whether an argument is this word, in any case.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Reads options one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    rest: &'a [Bytes],
}

impl<'a> Options<'a> {
    pub(super) fn new(rest: &'a [Bytes]) -> Self {
        Options { rest }
    }

    pub(super) fn next(&mut self) -> Option<&'a Bytes> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// Returns the value of an option.
    pub(super) fn value(&mut self) -> Result<&'a Bytes> {
        self.next().ok_or(Failure::SYNTAX)
    }

    /// Removes the next option if it is this word.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let found = self.rest.first().is_some_and(|next| is(next, word));
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    pub(super) fn rest(&self) -> &'a [Bytes] {
        self.rest
    }

    /// Parses `[COUNT count]` at the end; 1 without it.
    pub(super) fn last_count(&mut self) -> Result<u64> {
        let mut count = 1;
        if self.take("COUNT") {
            const POSITIVE: &str = "ERR count should be greater than 0";
            count = natural(self.value()?, POSITIVE)? as u64;
            if count == 0 {
                return Err(Failure::client(POSITIVE));
            }
        }
        self.end()?;
        Ok(count)
    }

    pub(super) fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Failure::SYNTAX)
        }
    }
}

/// Returns the part of a list of `len` elements from `start` to `stop`, both inclusive, where
/// negative numbers count from the end; `None` if it is empty.
pub(super) fn part(start: i64, stop: i64, len: u64) -> Option<(u64, u64)> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { len.saturating_add(at) } else { at };
    let start = from_end(start).max(0);
    let stop = from_end(stop).min(len - 1);
    (start <= stop && stop >= 0).then_some((start as u64, stop as u64))
}

/// Returns the part of a string of `len` bytes or bits as [`part`], but as Redis does: an end before the
/// string stands for its first byte.
pub(super) fn part_of_string(start: i64, stop: i64, len: u64) -> Option<(u64, u64)> {
    if start < 0 && stop < 0 && start > stop {
        return None;
    }
    let before = i64::try_from(len).unwrap_or(i64::MAX).saturating_neg();
    part(start, stop.max(before), len)
}

/// Returns the error for a wrong number of arguments.
pub(super) fn wrong_arity(name: &str) -> Failure {
    Failure::client(format!(
        "ERR wrong number of arguments for '{name}' command"
    ))
}

/// Returns the error for a subcommand that is unknown or has too many arguments.
pub(super) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Failure {
    let shown = String::from_utf8_lossy(&subcommand[..subcommand.len().min(128)]).into_owned();
    Failure::client(format!(
        "ERR unknown subcommand or wrong number of arguments for '{shown}'. Try {} HELP.",
        command.to_uppercase()
    ))
}

/// Answers HELP.
pub(super) fn help(lines: &[&'static str]) -> Reply {
    Reply::Array(lines.iter().map(|line| Reply::Status(line)).collect())
}
