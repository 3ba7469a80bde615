//! First lines of scripts and libraries, such as `#!lua flags=no-writes` and `#!lua name=library`.

use crate::failure::{Failure, Result};
use crate::resp::split_words;

/// Flags of scripts and functions, in the order in which FUNCTION LIST shows them.
pub(crate) const FLAGS: [&str; 5] = [
    "no-writes",
    "allow-oom",
    "allow-stale",
    "no-cluster",
    "allow-cross-slot-keys",
];

/// Flag of a script or function that does not write.
pub(crate) const NO_WRITES: &str = "no-writes";

/// Why a first line that begins with `#!` cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Malformed {
    NoEnd,
    OpenQuote,
}

/// Returns the words of a first line that begins with `#!`, of which the first word is one; `None` if
/// the code has no such line.
fn words(code: &[u8]) -> Option<Result<Vec<String>, Malformed>> {
    if !code.starts_with(b"#!") {
        return None;
    }
    let Some(end) = memchr::memchr(b'\n', code) else {
        return Some(Err(Malformed::NoEnd));
    };
    let text = |word: &bytes::Bytes| String::from_utf8_lossy(word).into_owned();
    let words = split_words(&code[..end]).ok_or(Malformed::OpenQuote);
    Some(words.map(|words| words.iter().map(text).collect()))
}

/// Returns the code after a first line that begins with `#!`. The line stays, empty, for the numbers
/// of the others.
pub(super) fn code_after(code: &[u8]) -> &[u8] {
    if !code.starts_with(b"#!") {
        return code;
    }
    &code[memchr::memchr(b'\n', code).unwrap_or(code.len())..]
}

/// Returns whether the first line of a script says that the script does not write.
pub(crate) fn says_no_writes(code: &[u8]) -> Result<bool> {
    let words = match words(code) {
        None => return Ok(false),
        Some(Ok(words)) => words,
        Some(Err(Malformed::NoEnd)) => {
            return Err(Failure::client("ERR Invalid script shebang"));
        }
        Some(Err(Malformed::OpenQuote)) => {
            return Err(Failure::client("ERR Invalid engine in script shebang"));
        }
    };
    let (engine, options) = words
        .split_first()
        .map_or(("", &[][..]), |(engine, rest)| (engine.as_str(), rest));
    if engine != "#!lua" {
        return Err(Failure::client(format!(
            "ERR Unexpected engine in script shebang: {engine}"
        )));
    }
    let mut no_writes = false;
    for option in options {
        let flags = option
            .strip_prefix("flags=")
            .ok_or_else(|| Failure::client(format!("ERR Unknown lua shebang option: {option}")))?;
        for flag in flags.split(',').filter(|_| !flags.is_empty()) {
            if !FLAGS.contains(&flag) {
                return Err(Failure::client(format!(
                    "ERR Unexpected flag in script shebang: {flag}"
                )));
            }
            no_writes |= flag == NO_WRITES;
        }
    }
    Ok(no_writes)
}

/// Returns the name that the first line of a library gives it.
pub(crate) fn library_name(code: &[u8]) -> Result<String> {
    let words = words(code)
        .ok_or_else(|| Failure::client("ERR Missing library metadata"))?
        .map_err(|_| Failure::client("ERR Invalid library metadata"))?;
    let mut words = words.iter();
    let engine = words.next().map_or("", |word| &word[2..]);
    let mut name = None;
    for word in words {
        let value = word
            .split_at_checked("name=".len())
            .filter(|(option, _)| option.eq_ignore_ascii_case("name="))
            .map(|(_, value)| value);
        let value = value
            .ok_or_else(|| Failure::client(format!("ERR Invalid metadata value given: {word}")))?;
        if name.replace(value).is_some() {
            return Err(Failure::client(
                "ERR Invalid metadata value, name argument was given multiple times",
            ));
        }
    }
    let name = name.ok_or_else(|| Failure::client("ERR Library name was not given"))?;
    if !is_name(name) {
        return Err(Failure::client(format!("ERR {NAME_RULE}")));
    }
    if !engine.eq_ignore_ascii_case("lua") {
        return Err(Failure::client(format!("ERR Engine '{engine}' not found")));
    }
    Ok(name.to_owned())
}

/// What a name of a library or a function has to be, in Redis' words.
pub(super) const NAME_RULE: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// Returns whether a text can be the name of a library or a function.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_plain)
}
