//! The errors of scripts, as their clients get them.

use mlua::{Error, Value};

pub(super) fn first_line(error: &Error) -> String {
    let text = match error {
        Error::CallbackError { cause, .. } => return first_line(cause),
        Error::SyntaxError { message, .. } | Error::RuntimeError(message) => message.clone(),
        error => error.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

pub(super) fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::MemoryError(_) => true,
        Error::CallbackError { cause, .. } => is_out_of_memory(cause),
        _ => false,
    }
}

/// Returns the text of an error that a script raised.
pub(super) fn text_of(error: &Value) -> String {
    match error {
        // Of `redis.call`.
        Value::Table(table) => match table.raw_get("err") {
            Ok(Value::String(text)) => text.to_string_lossy(),
            _ => "ERR the script raised a table as an error".to_owned(),
        },
        Value::Error(error) => text(error),
        other => {
            let shown = other.to_string();
            format!("ERR {}", shown.unwrap_or_default())
        }
    }
}

/// Returns the error that a script raised for its client.
pub(super) fn raised(error: &Value, name: &str) -> String {
    match error {
        Value::Error(error) => describe(error, name),
        error => format!("{} script: {name}", text_of(error)),
    }
}

fn text(error: &Error) -> String {
    match error {
        Error::CallbackError { cause, .. } => text(cause),
        Error::MemoryError(_) => {
            "ERR Error running script: it needs more memory than script-memory-limit".to_owned()
        }
        error => format!("ERR {}", first_line(error)),
    }
}

/// Returns the error of a script for its client.
pub(super) fn describe(error: &Error, name: &str) -> String {
    if is_out_of_memory(error) {
        text(error)
    } else {
        format!("{} script: {name}", text(error))
    }
}
