//! What is particular about a table.

use std::ffi::c_int;
use std::time::Duration;

use braid::{Compression, TableOptions};

use crate::boundary::{Failure, Outcome, call};
use crate::database::database;
use crate::handles::braid_db;
use crate::memory::Optional;
use crate::status::braid_status::{self, BRAID_OK};

/// How a table's values are compressed. Keys are not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_compression {
    /// Not at all.
    BRAID_COMPRESSION_NONE = 0,
    /// Each value for itself as an LZ4 block, if that makes it smaller.
    BRAID_COMPRESSION_LZ4 = 1,
    /// In a way that this version of the interface has no name for.
    BRAID_COMPRESSION_OTHER = -1,
}

use braid_compression::*;

/// What is particular about a table, given when it is created and stored with it. All zeros: nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_table_options {
    /// A `braid_compression`.
    pub compression: c_int,
    /// How long an entry lives after it was written last, in milliseconds; 0 for ever. After that it is not there
    /// for reads and scans, and is removed sometime by the maintenance thread or by `braid_db_remove_expired`.
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

/// Removes all entries whose time to live is over, from all tables; sets `count`, which may be NULL, to how many.
/// Keys that a transaction has locked are left alone.
///
/// # Safety
///
/// `count` is NULL or points to where a number fits.
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
