//! A write-ahead log of page differences in persistent memory, for any pager.
//!
//! After NVWAL (Kim, Kim, Baek, Nam, Won: NVWAL: Exploiting NVRAM in Write-Ahead Logging, ASPLOS
//! 2016). A [`Writer`] appends the images of changed pages, and the log keeps of each the bytes that
//! differ from the page's last frame. A commit makes the transaction durable in one of three
//! [modes](CommitMode), without a system call. [`Reader`]s, also in other processes, see committed
//! transactions. Processes that take turns at writing use a [`SharedWriter`] each. A [`Checkpoint`] has the newest image of each page; when the caller has written them
//! into its database, [`Writer::new_generation`] empties the log.
//!
//! ```
//! use std::sync::Arc;
//! use braid_nvwal::{LogOptions, Reader, Writer, WriterOptions};
//! use braid_pmem::{Mapping, Region, RegionOptions, SimulatedMemory, SimulatedOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = SimulatedMemory::new(1 << 18, SimulatedOptions::default());
//! let region = Arc::new(Region::create_in(
//!     Mapping::simulated(&memory),
//!     &RegionOptions::default(),
//! )?);
//! let start = Region::DATA_START;
//! let log = LogOptions::default().block_size(4096).max_bytes(1 << 20);
//! let mut writer = Writer::create(Arc::clone(&region), start, &log, &WriterOptions::default())?;
//!
//! let mut page = vec![0; 4096];
//! page[100..105].copy_from_slice(b"Braid");
//! writer.append(7, &page)?;
//! writer.commit(1)?;
//! page[200] = 1;
//! writer.append(7, &page)?;
//! writer.commit(1)?;
//! assert!(writer.stats().bytes < 200);
//!
//! let reader = Reader::open(Arc::clone(region.mapping()), start)?;
//! let mut image = vec![0; 4096];
//! assert!(reader.read(7, &mut image)?);
//! assert_eq!(image, page);
//!
//! let mut database = std::collections::BTreeMap::new();
//! let checkpoint = writer.checkpoint()?;
//! let mark = checkpoint.mark();
//! for page in checkpoint {
//!     let (number, image) = page?;
//!     database.insert(number, image);
//! }
//! // The database is durable now.
//! writer.new_generation(mark)?;
//! assert_eq!(database[&7], page);
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! Recovery and readers rely on these:
//!
//! - **R1: a transaction counts as a whole.** It ends with a commit record whose checksum covers
//!   every record of the generation before it. Records after the last valid commit record do not
//!   count, and neither does anything after an invalid record.
//! - **R2: a record is valid at one place.** Its checksum includes the log's identity, the generation
//!   and its position. A commit record has the number of the writer's opening, so that records which
//!   an earlier opening lost do not follow those of a later one.
//! - **R3: everything before the mark is durable** before the mark is stored. A log that ends before
//!   its mark has lost transactions: an error. In mode `checksum` the mark is that of the transaction
//!   before, or one that is at most [`WriterOptions::mark_interval`] older.
//! - **R4: the number of a generation is durable before anything of the former one is lost.** Until
//!   the first pointer is cleared, it leads to a block of the former generation, which does not
//!   count.
//! - **R5: a block is allocated (pending), gets its header, gets a pointer, and is published**, each
//!   durably. Recovery removes a pointer to a block that is not in use before it allocates, and frees
//!   blocks that no pointer leads to.
//! - **R6: a difference is one to the newest frame of its page**, which it names. The first frame of
//!   a page in a generation is whole. The number of differences in a row is limited.
//! - **R7: recovery makes durable what it relies on** before it changes or shows anything.
//! - **R8: a reader checks the generation after it has read.** A writer stores its number before it
//!   uses blocks again.
//! - **R9: of a pin and a new generation, or a checkpoint, one sees the other.**
//! - **R10: one process at a time has the turn to write.** A process that takes its turn recovers what
//!   it does not know yet, and stores the number of its opening durably before it appends. A process
//!   that finds another number has lost its turn, and its open transaction.
//! - **R11: what is shown is in the mapping.** With [`WriterOptions::gather`], the writer holds the records
//!   of the open transaction, and writes them before it shows or flushes the transaction.

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod cache;
mod chain;
mod checkpoint;
mod difference;
mod error;
mod format;
mod header;
mod images;
mod index;
mod options;
mod page_map;
mod reader;
mod recovery;
mod scan;
mod shared;
mod view;
mod writer;

pub use checkpoint::Checkpoint;
pub use error::LogError;
pub use format::Mark;
pub use options::{CommitMode, LogOptions, WriterOptions};
pub use reader::Reader;
pub use recovery::Recovery;
pub use shared::{Change, PendingSync, SharedWriter};
pub use writer::{LogStats, Savepoint, Writer};
