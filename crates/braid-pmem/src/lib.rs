//! Regions of persistent memory and the order of stores, for the Braid storage engine.
//!
//! A store to persistent memory is durable once its cache line was flushed and the thread has passed
//! a fence. A [`Mapping`] has the same interface for memory that a file system offers for direct
//! access (DAX), for ordinary files, for emulated persistent memory in measurements, and for
//! [`SimulatedMemory`], which loses lines in a crash as a seed determines. A [`Region`] is a mapping
//! with a header that says whose it is, and a [`Heap`] divides a region into blocks.
//!
//! ```no_run
//! use braid_pmem::{MapAs, MapOptions, Mapping};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = std::fs::OpenOptions::new();
//! let file = options.read(true).write(true).open("/dev/shm/region")?;
//! // Measure as if each line took 437 ns.
//! let options = MapOptions::default().map_as(MapAs::Emulated { line_latency: 437 });
//! let mapping = Mapping::of_file(file, &options)?;
//! mapping.write(0, b"two lines, one fence");
//! mapping.write(100, b"and the second");
//! mapping.flush(0..20);
//! mapping.flush(100..114);
//! mapping.fence()?;
//! assert_eq!(mapping.stats().lines_flushed, 2);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
// Only mapped files use every part.
#![cfg_attr(not(unix), allow(dead_code, unused_imports))]

#[cfg(target_os = "linux")]
mod bad_blocks;
#[cfg(unix)]
mod claim;
mod counters;
mod damage;
#[cfg(unix)]
mod detect;
mod error;
#[cfg(unix)]
mod file_backed;
mod flush;
mod header;
mod heap;
#[cfg(unix)]
mod mapped;
mod mapping;
mod options;
mod region;
#[cfg(unix)]
mod sigbus;
mod simulated;
mod words;

pub use counters::MappingStats;
pub use error::{FenceError, MapError, MediaError, SystemError};
pub use flush::{FlushMethod, Flusher, LONG_COPY, PersistenceDomain, Unsupported};
pub use heap::{Block, BlockState, Heap, HeapError, HeapOptions, HeapReport};
pub use mapping::Mapping;
pub use options::{MapAs, MapOptions, MappingKind};
pub use region::{Name, Region, RegionDamage, RegionError, RegionOptions};
pub use simulated::{Image, SimulatedMemory, SimulatedOptions, Survivors};
