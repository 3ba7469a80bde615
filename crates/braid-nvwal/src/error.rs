//! Errors.

use braid_pmem::{FenceError, HeapError, MapError, MediaError, RegionError};

/// An error of a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// There is no log, or creating it was interrupted.
    #[error("there is no log at offset {offset} of the region; create it first")]
    NotALog {
        /// The offset.
        offset: u64,
    },
    /// There is a log.
    #[error("cannot create a log at offset {offset} of the region: there is one; open it")]
    AlreadyExists {
        /// The offset.
        offset: u64,
    },
    /// A savepoint of another transaction.
    #[error("the savepoint is not one of the open transaction; roll the transaction back instead")]
    OtherTransaction,
    /// A newer or older format.
    #[error(
        "cannot open the log: it has format version {found}, this program reads version \
         {supported}; use the program that wrote it"
    )]
    Version {
        /// The log's version.
        found: u32,
        /// The version that this program reads.
        supported: u32,
    },
    /// Invalid options.
    #[error("cannot create a log: {0}")]
    InvalidOptions(&'static str),
    /// Bytes that no writer leaves, after a crash or without one.
    #[error(
        "the log is damaged at offset {offset}: {what}; restore the region and the database from \
         a backup of the same time"
    )]
    Corrupted {
        /// Offset in the region.
        offset: u64,
        /// What was found.
        what: &'static str,
    },
    /// The log ends before its mark: committed transactions are missing.
    #[error(
        "the log is damaged: its mark says that {mark} bytes are durable, and a valid transaction \
         ends at {end}; restore the region and the database from a backup of the same time"
    )]
    Incomplete {
        /// Where the last valid transaction ends, in bytes of the generation.
        end: u64,
        /// The mark, in bytes of the generation.
        mark: u64,
    },
    /// No space for a record. The transaction keeps what it has, and the log continues to work.
    #[error(
        "cannot append {len} bytes to the log: the region is full; roll the transaction back, write \
         a checkpoint and begin a new generation"
    )]
    Full {
        /// The requested bytes.
        len: u64,
    },
    /// An image, or a buffer, that has not the length of a page.
    #[error("pages of this log have {expected} bytes, not {found}")]
    PageLength {
        /// The length in bytes.
        found: usize,
        /// Bytes of a page.
        expected: usize,
    },
    /// No frame starts there.
    #[error("no frame of the log is at position {position}; use a position from `append`")]
    NoFrame {
        /// The position.
        position: u64,
    },
    /// A transaction is open.
    #[error(
        "cannot {action}: a transaction with {frames} frames is open; commit it or roll it back"
    )]
    OpenTransaction {
        /// What was attempted.
        action: &'static str,
        /// Its frames.
        frames: usize,
    },
    /// Readers use the generation.
    #[error(
        "cannot begin a new generation: processes {processes:?} read this one; retry when they have \
         unpinned it, or release the readers of processes that have ended"
    )]
    ReadersActive {
        /// The process of each reader.
        processes: Vec<u32>,
    },
    /// The database lacks a part of the log.
    #[error(
        "cannot begin a new generation: the checkpoint ends at {checkpoint} of {end} bytes; write \
         the pages after it first"
    )]
    NotCheckpointed {
        /// Where the checkpoint ends, in bytes of its generation.
        checkpoint: u64,
        /// Where the log ends.
        end: u64,
    },
    /// The log of the reader's mark is gone.
    #[error(
        "the writer began a new generation of the log, after a checkpoint; call `refresh` and read \
         the database again"
    )]
    GenerationChanged,
    /// A new generation is being started.
    #[error(
        "the writer is beginning a new generation of the log; retry, and open the log for writing \
         if its process has ended"
    )]
    Beginning,
    /// Another process has taken its turn at writing since, or this one never had a turn.
    #[error(
        "cannot {action}: this process has not the turn to write the log; call `take_turn` when no \
         other process writes it"
    )]
    TurnLost {
        /// What was attempted.
        action: &'static str,
    },
    /// Every slot for pinned readers is taken.
    #[error("cannot pin the log: {0} readers have pinned it already; retry when one has ended")]
    TooManyReaders(usize),
    /// A pin is a store into the region.
    #[error("cannot pin a log that is mapped for reading only; map it for writing")]
    ReadOnly,
    /// The medium lost bytes of the log.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// Nothing more can be made durable. The fate of the transaction is unknown until the log is
    /// opened again: all of it or nothing.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The heap with the log's blocks fails.
    #[error(transparent)]
    Heap(HeapError),
    /// The region cannot be extended.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The mapping cannot follow the file.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl From<HeapError> for LogError {
    fn from(error: HeapError) -> Self {
        match error {
            HeapError::Full { len } => Self::Full { len },
            HeapError::Media(error) => Self::Media(error),
            HeapError::Fence(error) => Self::Fence(error),
            HeapError::Region(error) => Self::Region(error),
            error => Self::Heap(error),
        }
    }
}
