//! Conversion of the engine's errors to the exceptions of `braid.errors`.

use braid::{ConflictKind, Error as EngineError};
use pyo3::prelude::*;

macro_rules! exceptions {
    ($($name:ident)*) => {$(pyo3::import_exception!(braid.errors, $name);)*};
}
exceptions! {
    BackupError ClosedError ConflictError CorruptError DecodeError Error FeedNotFoundError ForeignPositionError
    ForeignTableError ForkError IncompatibleError IoError LimitError LockTimeoutError LockedError LogDirectoryError NotADatabaseError OpenedReadOnlyError
    OptionError OutOfOrderError OutOfSpaceError PoisonedError PositionLostError ReadOnlyError SavepointError
    SnapshotExistsError SnapshotNotFoundError SnapshotTooOldError TableDroppedError TableExistsError TableNotFoundError TableNameError
    TableOptionsError TableTypeError TablespaceError TransactionEndedError WouldDeadlockError
}

/// Converts the result of an operation of the engine.
pub(crate) trait IntoPyResult<T> {
    fn py(self) -> PyResult<T>;
}

impl<T> IntoPyResult<T> for braid::Result<T> {
    #[inline]
    fn py(self) -> PyResult<T> {
        self.map_err(exception)
    }
}

/// Returns the exception for an error.
#[cold]
pub(crate) fn exception(error: EngineError) -> PyErr {
    let message = error.to_string();
    match error {
        EngineError::Conflict(kind) => {
            with(ConflictError::new_err(message), "kind", kind_name(kind))
        }
        EngineError::Corrupted { location, .. } => {
            with(CorruptError::new_err(message), "location", location)
        }
        EngineError::OutOfSpace { .. } => OutOfSpaceError::new_err(message),
        EngineError::Poisoned { .. } => PoisonedError::new_err(message),
        EngineError::Incompatible { .. } => IncompatibleError::new_err(message),
        EngineError::Locked { .. } => LockedError::new_err(message),
        EngineError::LogDirectory { .. } => LogDirectoryError::new_err(message),
        EngineError::Tablespace(_) => TablespaceError::new_err(message),
        EngineError::NotADatabase { .. } => NotADatabaseError::new_err(message),
        EngineError::ReadOnly { .. } => ReadOnlyError::new_err(message),
        EngineError::KeyTooLong { .. }
        | EngineError::ValueTooLong { .. }
        | EngineError::TransactionTooLarge { .. } => LimitError::new_err(message),
        EngineError::TableNotFound { .. } => TableNotFoundError::new_err(message),
        EngineError::TableExists { .. } => TableExistsError::new_err(message),
        EngineError::TableDropped { .. } => TableDroppedError::new_err(message),
        EngineError::InvalidTableName { .. } => TableNameError::new_err(message),
        EngineError::TableTypeMismatch { .. } => TableTypeError::new_err(message),
        EngineError::ForeignTable { .. } => ForeignTableError::new_err(message),
        EngineError::OpenedReadOnly => OpenedReadOnlyError::new_err(message),
        EngineError::InvalidSavepoint => SavepointError::new_err(message),
        EngineError::OutOfOrder { .. } => OutOfOrderError::new_err(message),
        EngineError::TableOptionsMismatch { .. } => TableOptionsError::new_err(message),
        EngineError::SnapshotExists { .. } => SnapshotExistsError::new_err(message),
        EngineError::SnapshotNotFound { .. } => SnapshotNotFoundError::new_err(message),
        EngineError::PositionLost { .. } => PositionLostError::new_err(message),
        EngineError::ForeignPosition { .. } => ForeignPositionError::new_err(message),
        EngineError::FeedNotFound { .. } => FeedNotFoundError::new_err(message),
        EngineError::SelfDeadlock => WouldDeadlockError::new_err(message),
        EngineError::SnapshotTooOld { .. } => SnapshotTooOldError::new_err(message),
        EngineError::LockTimeout { .. } => LockTimeoutError::new_err(message),
        EngineError::Backup(_) => BackupError::new_err(message),
        EngineError::Decode { .. } => DecodeError::new_err(message),
        EngineError::InvalidOption { .. } => OptionError::new_err(message),
        EngineError::Closed => ClosedError::new_err(message),
        EngineError::Forked => ForkError::new_err(message),
        EngineError::Io { source, .. } => match system_error(&source) {
            Some(errno) => IoError::new_err((errno, message)),
            None => IoError::new_err(message),
        },
        _ => Error::new_err(message),
    }
}

/// Returns the operating system's error number, also from an error that wraps it with the file's
/// name.
fn system_error(error: &std::io::Error) -> Option<i32> {
    let wrapped = || {
        let inner = error.get_ref()?.source()?;
        inner.downcast_ref::<std::io::Error>()?.raw_os_error()
    };
    error.raw_os_error().or_else(wrapped)
}

fn kind_name(kind: ConflictKind) -> &'static str {
    match kind {
        ConflictKind::Read => "read",
        ConflictKind::Range => "range",
        ConflictKind::Deadlock => "deadlock",
        ConflictKind::Write => "write",
        _ => "other",
    }
}

fn with<T>(error: PyErr, name: &str, value: T) -> PyErr
where
    T: for<'py> IntoPyObject<'py>,
{
    Python::attach(|py| {
        // Without the attribute, the message still says the same.
        let _ = error.value(py).setattr(name, value);
    });
    error
}

/// The error for a use of a transaction after its end.
#[cold]
pub(crate) fn ended(how: &str) -> PyErr {
    TransactionEndedError::new_err(format!("the transaction was {how}; begin another one"))
}

/// The error after a panic poisoned a mutex.
#[cold]
pub(crate) fn broken() -> PyErr {
    Error::new_err("an earlier call failed with a panic; close and reopen the database")
}
