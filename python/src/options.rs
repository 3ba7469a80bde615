//! Conversion of keyword arguments to the engine's options.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use braid::{Builder, Compression, Durability, Isolation, TableOptions, TransactionOptions};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDelta, PyDict, PyString};

use crate::errors::OptionError;
use crate::notifier;

/// Names of the options of `braid.open`, for the error about an unknown one.
const NAMES: &str = "archive, archive_interval, checkpoint_log_bytes, create_if_missing, device, discard, durability, \
    epoch, feed_log_bytes, file_mode, flushes_in_flight, group_size, lanes, lock_timeout, log_device, log_directory, max_log_bytes, max_version_bytes, numa, on_health_change, pmem_commit, pmem_in_place, pmem_lines, pool_bytes, \
    preallocated_log_bytes, protocol, read_only, remote_access, segment_bytes, stats_file, strands, transaction_bytes_max";

/// The options of `braid.open`.
pub(crate) struct OpenOptions {
    pub(crate) builder: Builder,
    /// Default durability of transactions.
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
}

fn wrong(option: &str, wanted: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let given = given.get_type();
    let given = given
        .name()
        .map_or(String::from("?"), |name| name.to_string());
    PyTypeError::new_err(format!(
        "invalid option {option}: must be {wanted}, not {given}"
    ))
}

fn integer<T>(option: &str, value: &Bound<'_, PyAny>) -> PyResult<T>
where
    T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>,
{
    if value.is_instance_of::<PyBool>() {
        return Err(wrong(option, "an int", value));
    }
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            return OptionError::new_err(format!(
                "invalid option {option}: {value} is out of range"
            ));
        }
        wrong(option, "an int", value)
    })
}

fn boolean(option: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value
        .extract()
        .map_err(|_| wrong(option, "True or False", value))
}

fn text<'a>(option: &str, value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    match value.cast::<PyString>() {
        Ok(text) => text.to_str(),
        Err(_) => Err(wrong(option, "a str", value)),
    }
}

pub(crate) fn parsed<T: FromStr<Err: std::fmt::Display>>(
    option: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<T> {
    let parsed = text(option, value)?.parse();
    parsed.map_err(|error: T::Err| {
        let text = error.to_string();
        let prefix = format!("invalid option {option}: ");
        let reason = text.strip_prefix(&prefix).unwrap_or(&text);
        OptionError::new_err(format!("{prefix}{reason}"))
    })
}

fn path(option: &str, value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    value.extract().map_err(|_| wrong(option, "a path", value))
}

fn duration(option: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    if !value.is_instance_of::<PyDelta>() {
        return Err(wrong(option, "a datetime.timedelta", value));
    }
    value
        .extract()
        .map_err(|_| OptionError::new_err(format!("invalid option {option}: {value} is negative")))
}

fn durability(value: &Bound<'_, PyAny>) -> PyResult<Durability> {
    const OPTION: &str = "durability";
    if value.is_instance_of::<PyDelta>() {
        return Ok(Durability::Buffered(duration(OPTION, value)?));
    }
    if !value.is_instance_of::<PyString>() {
        return Err(wrong(
            OPTION,
            "\"immediate\", \"none\" or a datetime.timedelta",
            value,
        ));
    }
    match text(OPTION, value)? {
        "immediate" => Ok(Durability::Immediate),
        "none" => Ok(Durability::None),
        other => Err(OptionError::new_err(format!(
            "invalid option {OPTION}: must be \"immediate\", \"none\" or a datetime.timedelta, not {other:?}"
        ))),
    }
}

impl OpenOptions {
    pub(crate) fn of(options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut b = Builder::default();
        let mut default_durability = Durability::Immediate;
        let mut read_only = false;
        for (name, value) in options.into_iter().flatten() {
            let name: String = name.extract()?;
            let (n, v) = (name.as_str(), &value);
            b = match n {
                "protocol" => b.protocol(parsed(n, v)?),
                "strands" => b.strands(integer(n, v)?),
                "lanes" => b.lanes(integer(n, v)?),
                "epoch" => b.epoch(duration(n, v)?),
                "device" => b.device(parsed(n, v)?),
                "log_directory" => b.log_directory(path(n, v)?),
                "log_device" => b.log_device(parsed(n, v)?),
                "pool_bytes" => b.pool_bytes(integer(n, v)?),
                "segment_bytes" => b.segment_bytes(integer(n, v)?),
                "checkpoint_log_bytes" => b.checkpoint_log_bytes(integer(n, v)?),
                "max_log_bytes" => b.max_log_bytes(integer(n, v)?),
                "preallocated_log_bytes" => b.preallocated_log_bytes(integer(n, v)?),
                "transaction_bytes_max" => b.transaction_bytes_max(integer(n, v)?),
                "flushes_in_flight" => b.flushes_in_flight(integer(n, v)?),
                "group_size" => b.group_size(integer(n, v)?),
                "pmem_commit" => b.pmem_commit(parsed(n, v)?),
                "pmem_lines" => b.pmem_lines(boolean(n, v)?),
                "pmem_in_place" => b.pmem_in_place(boolean(n, v)?),
                "create_if_missing" => b.create_if_missing(boolean(n, v)?),
                "discard" => b.discard(boolean(n, v)?),
                "numa" => b.numa(boolean(n, v)?),
                "remote_access" => b.remote_access(parsed(n, v)?),
                "lock_timeout" => b.lock_timeout(duration(n, v)?),
                "max_version_bytes" => b.max_version_bytes(integer(n, v)?),
                "file_mode" => b.file_mode(integer(n, v)?),
                "feed_log_bytes" => b.feed_log_bytes(integer(n, v)?),
                "archive" => b.archive(path(n, v)?),
                "archive_interval" => b.archive_interval(duration(n, v)?),
                "stats_file" => b.stats_file(boolean(n, v)?),
                "on_health_change" => {
                    if !v.is_callable() {
                        return Err(wrong(n, "a function", v));
                    }
                    b.on_health_change(notifier::health_listener(v)?)
                }
                "read_only" => {
                    read_only = boolean(n, v)?;
                    b
                }
                "durability" => {
                    default_durability = durability(v)?;
                    b
                }
                _ => {
                    return Err(PyTypeError::new_err(format!(
                        "unknown option {name:?}; there are {NAMES}"
                    )));
                }
            };
        }
        Ok(Self {
            builder: b,
            durability: default_durability,
            read_only,
        })
    }
}

/// Converts the arguments `isolation`, `durability` and `lock_timeout` of a transaction.
pub(crate) fn transaction_options(
    isolation: Option<&str>,
    given: Option<&Bound<'_, PyAny>>,
    lock_timeout: Option<&Bound<'_, PyAny>>,
    default_durability: Durability,
) -> PyResult<TransactionOptions> {
    let isolation = match isolation {
        None | Some("serializable") => Isolation::Serializable,
        Some("snapshot") => Isolation::Snapshot,
        Some(other) => {
            return Err(OptionError::new_err(format!(
                "invalid option isolation: must be \"serializable\" or \"snapshot\", not {other:?}"
            )));
        }
    };
    let durability = given.map_or(Ok(default_durability), durability)?;
    let lock_timeout = lock_timeout.map(|value| duration("lock_timeout", value));
    Ok(TransactionOptions {
        isolation,
        durability,
        lock_timeout: lock_timeout.transpose()?,
    })
}

/// Converts the arguments `compression` and `time_to_live` of a table.
pub(crate) fn table_options(
    compression: Option<&str>,
    time_to_live: Option<&Bound<'_, PyAny>>,
) -> PyResult<TableOptions> {
    let compression = match compression {
        None => Compression::None,
        Some("lz4") => Compression::Lz4,
        Some(other) => {
            return Err(OptionError::new_err(format!(
                "invalid option compression: must be \"lz4\" or None, not {other:?}"
            )));
        }
    };
    let time_to_live = time_to_live.map(|time| duration("time_to_live", time));
    Ok(TableOptions {
        compression,
        time_to_live: time_to_live.transpose()?,
    })
}
