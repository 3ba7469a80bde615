//! The errors of the store.

use std::io;
use std::sync::Arc;

use crate::missing_pages::MissingPages;

/// An error of the store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The medium refused a read or write.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The medium's error.
        source: Arc<io::Error>,
    },
    /// Bytes on the medium differ from the bytes written.
    #[error("corrupted: {what} at {location}")]
    Corrupted {
        /// The damaged object.
        what: String,
        /// File and block, or page.
        location: String,
    },
    /// The medium is full.
    #[error("out of space: {what}; free space, then retry")]
    OutOfSpace {
        /// The object that needed the space.
        what: String,
    },
    /// The file is of another format.
    #[error("{what}")]
    Incompatible {
        /// The mismatch.
        what: String,
    },
    /// An option is out of its range.
    #[error("invalid option {option}: {reason}")]
    Options {
        /// The option.
        option: &'static str,
        /// The allowed values.
        reason: String,
    },
    /// All frames of the pool are in use at once; the pool is too small for this many threads.
    #[error("cannot load a page: every page of the buffer pool is in use; make the pool larger")]
    PoolExhausted,
    /// A read needs pages that are not in memory, and its thread refuses to load pages, see
    /// [`LoadRefusal`](crate::LoadRefusal).
    #[error("{} pages are not in memory", .0.len())]
    NotInMemory(MissingPages),
    /// A sync failed earlier, so no further checkpoint can be trusted.
    #[error("cannot use the data file after a failed sync: {cause}; close and reopen the database")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
}

impl StoreError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::OutOfSpace { what },
            io::ErrorKind::UnexpectedEof => Self::Corrupted {
                what,
                location: "beyond the end of the file".into(),
            },
            _ => Self::Io {
                what,
                source: Arc::new(source),
            },
        }
    }

    /// The error of a damaged page of a file whose name in messages is `file`.
    pub(crate) fn damaged_page(file: &str, id: u64, what: impl Into<String>) -> Self {
        Self::Corrupted {
            what: what.into(),
            location: format!("{file}, page {id}"),
        }
    }
}

/// Continues with further operations on one store when one lacks pages, and then fails with what all of them
/// lack.
///
/// # Errors
/// The first other error, or [`StoreError::NotInMemory`].
pub fn collect_missing(
    outcomes: impl IntoIterator<Item = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let mut all: Option<MissingPages> = None;
    for outcome in outcomes {
        match outcome {
            Err(StoreError::NotInMemory(more)) => {
                all = Some(match all {
                    Some(some) => some.and(more.ids().iter().copied()),
                    None => more,
                });
            }
            outcome => outcome?,
        }
    }
    all.map_or(Ok(()), |pages| Err(StoreError::NotInMemory(pages)))
}
