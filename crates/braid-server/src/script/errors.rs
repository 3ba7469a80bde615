//! The errors of scripts, as their clients get them.

use mlua::{Error, Value};

pub(super) fn first_line(error: &Error) -> String {
    let text = match error {
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

/// Returns the error that a script raised for its client.
pub(super) fn raised(error: &Value, name: &str) -> String {
    let text = match error {
        // Of `redis.call`.
        Value::Table(table) => match table.raw_get("err") {
            Ok(Value::String(text)) => text.to_string_lossy(),
            _ => "ERR the script raised a table as an error".to_owned(),
        },
        Value::String(text) => format!("ERR {}", text.to_string_lossy()),
        Value::Error(error) => return describe(error, name),
        other => format!("ERR the script raised a {} as an error", other.type_name()),
    };
    format!("{text} script: {name}")
}

/// Returns the error of a script for its client.
pub(super) fn describe(error: &Error, name: &str) -> String {
    match error {
        Error::CallbackError { cause, .. } => describe(cause, name),
        Error::MemoryError(_) => {
            "ERR Error running script: it needs more memory than script-memory-limit".to_owned()
        }
        error => {
            let line = first_line(error);
            format!("ERR {line} script: {name}")
        }
    }
}
