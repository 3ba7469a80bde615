//! A parallel write-ahead log with group commit, tickets and pluggable commit protocols.
//!
//! The log accepts opaque records from many threads, assigns each a position in one global order,
//! and makes them durable together. It does not know tables or pages, so it suits a storage engine,
//! a message broker, a Raft log or an event store. All I/O uses a [`braid_io::Device`].
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use braid_io::MemoryDevice;
//! use braid_log::{Log, LogOptions};
//!
//! # fn main() -> Result<(), braid_log::LogError> {
//! let device = Arc::new(MemoryDevice::new());
//! let log = Log::create(device.clone(), LogOptions::default())?;
//! let ticket = log.append(&[b"hello, ", b"log"])?;
//! ticket.wait()?; // durable from here on
//! log.close()?;
//!
//! let start = Log::recovery_position(&*device)?;
//! let recovered = Log::recover(device, LogOptions::default(), &start, &|_| {})?;
//! recovered.for_each(|log_record| assert_eq!(log_record.payload, b"hello, log"))?;
//! let log = recovered.into_log()?;
//! assert_eq!(log.last_seqno().get(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # How a transaction is logged
//!
//! 1. [`Log::enter`] reserves log space and announces the transaction in its thread's commit slot.
//! 2. [`PendingCommit::assign`] assigns it consecutive sequence numbers of the global order with
//!    one `fetch_add`.
//! 3. [`PendingCommit::append`] copies its record into the buffer of the thread's *strand* (or
//!    [`PendingCommit::abort`] writes an abort record for the numbers).
//! 4. The caller applies the transaction, then calls [`PendingCommit::finish`], and may release its
//!    locks early where [`ProtocolKind::lock_release`] says so.
//! 5. The [`Ticket`] resolves when the transaction is durable: block, poll, await or register a
//!    callback.
//!
//! Steps 1 to 4 neither allocate memory nor make system calls. Between steps 2 and 4 the
//! transaction holds back the *durable seqno*: the greatest sequence number up to which all
//! transactions are durable and finished. A ticket resolves when the durable seqno has reached its
//! number, so everything that a transaction read or overwrote is durable when it is acknowledged,
//! and also after a crash (I1 to I4 below).
//!
//! # Threads that write
//!
//! No thread spins, and no timer delays a flush. A thread that blocks on a ticket leads a flush
//! itself if it may: it seals the buffers of all strands of the *lane* into *chunks*, writes them
//! with one durable gather write, hands leadership to one waiter among the transactions that
//! arrived meanwhile, and wakes the waiters whose transactions it flushed, with one system call. A
//! flusher thread, which otherwise sleeps, serves tickets that no thread blocks on. A few flushes
//! may overlap while they carry few transactions; acknowledgement follows the order.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | flush | one durable write of a lane: chunks that are valid together or not at all |
//! | number | the place in the global order (P-WAL's GLSN); a transaction has one per record, the last is its sequence number |
//! | log record | the data that a transaction appends; recovered completely or not at all |
//! | strand | an append buffer; threads are spread over the strands |
//! | chunk | the part of a flush that comes from one strand: header, log records, CRC-32C; small ones share a block of 4096 bytes |
//! | lane | a sequence of segment files and a flush pipeline, shared by its strands |
//! | segment | a preallocated, zeroed file `log-LL-SSSSSSSS.seg` (lane, sequence number) |
//! | incarnation | the time between two openings; each begins a fresh segment whose header records the older numbers that are kept |
//!
//! # Recovery
//!
//! [`Log::recover`] scans all lanes from the [`CheckpointPosition`] of the last checkpoint. A chunk
//! is valid if its lane, incarnation, sequence number, link (the CRC of the previous chunk) and CRC
//! match, so the old contents of a recycled segment are never taken for new. The protocol then
//! finds the cut. [`Recovered`] hands out the log records that it keeps, in parallel and in no
//! order. [`Log::recover_and_replay`] hands out most of them during the scan: those that a chunk
//! calls durable. [`Recovered::into_log`] begins a new incarnation, which discards the records after
//! the cut forever, even if a crash interrupts it.
//!
//! Each chunk records the durable seqno known when it was sealed. So if damage, rather than a
//! crash, has removed acknowledged log records, recovery reports [`LogError::Corrupted`] instead of
//! shortening the log.
//!
//! # Invariants kept here
//!
//! I1 durability: every acknowledged transaction is recovered. I2 atomicity: log records are
//! recovered completely or not at all. I3 closure: with early lock release, nothing is kept after a
//! missing number. I6: segments are reused only when [`Log::release`] says that a checkpoint covers
//! them. I8 fail stop: after a failed write nothing more is acknowledged, and
//! [`LogError::Poisoned`] carries the cause.
//!
//! # Sources
//!
//! The modules under `protocol` name their sources. The default, `glsn`, is P-WAL's (parallel
//! write-ahead logging, with early lock release and flush pipelining), with an exact durable seqno
//! in place of the minimum over all flushed positions, so that an idle strand delays no
//! transaction, and with strands that share a device's flushes.

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
#![cfg_attr(
    all(test, loom),
    allow(
        clippy::modulo_one,
        reason = "the tables that loom explores have one place, and nobody spins"
    )
)]

mod base;
mod buffer;
mod commit;
mod error;
mod flush;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod log;
#[cfg(all(test, loom))]
mod loom_tests;
mod options;
mod protocol;
mod recovery;
mod segments;
mod stats;
mod tail;

pub use base::numbers::{FlushNo, SeqNo, StrandId};
pub use commit::parts::Fragment;
pub use commit::pending::PendingCommit;
pub use commit::ticket::{Ticket, UnlockPoint};
pub use error::LogError;
pub use flush::backpressure::{CheckpointRun, Checkpointer};
pub use flush::core::Announcer;
pub use flush::pacing::{CommitProgress, Pacer};
pub use format::checkpoint_position::{CheckpointPosition, LanePosition};
pub use format::segment::{is_log_name, lane_of_name};
pub use log::Log;
pub use options::{FlushMode, LogOptions, PmemCommit};
pub use protocol::kind::{LockRelease, ProtocolKind};
pub use recovery::early::DuringScan;
pub use recovery::items::LogRecord;
pub use recovery::recovered::{Recovered, ScanProgress};
pub use segments::ownership::is_file_of;
pub use stats::LogStats;
pub use tail::TailReader;
