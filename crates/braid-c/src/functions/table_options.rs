//! Options of a table.

use std::ffi::c_int;
use std::time::Duration;

use braid::{Compression, TableOptions};

use crate::boundary::{Failure, Outcome, call};
use crate::handles::braid_db;
use crate::memory::Optional;
use crate::registry::database;
use crate::status::braid_status::{self, BRAID_OK};

/// Compression of a table's values. Keys are not compressed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_compression {
    /// No compression.
    BRAID_COMPRESSION_NONE = 0,
    /// Each value is stored as an LZ4 block of its own, if that makes it smaller.
    BRAID_COMPRESSION_LZ4 = 1,
    /// A compression that this version of the interface has no name for.
    BRAID_COMPRESSION_OTHER = -1,
}

use braid_compression::*;

/// Options of a table, set when it is created and stored with it. With all fields zero, they are
/// the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_table_options {
    /// A `braid_compression`.
    pub compression: c_int,
    /// Time to live of an entry after its last write, in milliseconds; 0 for no limit. Reads and
    /// scans skip an expired entry; a background thread or `braid_db_remove_expired` removes it
    /// later.
    pub time_to_live_ms: u64,
}

impl braid_table_options {
    pub(crate) fn parse(options: Option<&Self>) -> Outcome<TableOptions> {
        let Some(options) = options else {
            return Ok(TableOptions::default());
        };
        let compression = options.compression;
        let compression = if compression == BRAID_COMPRESSION_NONE as c_int {
            Compression::None
        } else if compression == BRAID_COMPRESSION_LZ4 as c_int {
            Compression::Lz4
        } else {
            let what = format!(
                "invalid compression {compression}: use one of the BRAID_COMPRESSION constants"
            );
            return Err(Failure::argument(what));
        };
        let lives = (options.time_to_live_ms > 0).then_some(options.time_to_live_ms);
        Ok(TableOptions {
            compression,
            time_to_live: lives.map(Duration::from_millis),
        })
    }

    pub(crate) fn of(options: TableOptions) -> Self {
        let compression = match options.compression {
            Compression::None => BRAID_COMPRESSION_NONE,
            Compression::Lz4 => BRAID_COMPRESSION_LZ4,
            _ => BRAID_COMPRESSION_OTHER,
        };
        let milliseconds = |lives: Duration| u64::try_from(lives.as_millis()).unwrap_or(u64::MAX);
        Self {
            compression: compression as c_int,
            time_to_live_ms: options.time_to_live.map_or(0, milliseconds),
        }
    }
}

/// Removes all expired entries from all tables, and sets `count`, which may be NULL, to their
/// number. It skips keys that a transaction has locked.
///
/// # Safety
///
/// `count` is NULL or points to writable memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_remove_expired(
    db: *mut braid_db,
    count: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(count) };
        out.set(database(db)?.current().remove_expired()?);
        Ok(BRAID_OK)
    })
}
