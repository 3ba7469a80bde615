//! Safe handles of the C API's objects.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Duration;

use super::ffi::*;
use crate::BenchError;
use crate::engines::{Order, Stop, TableId};

/// Calls a function with an `errptr`, and converts the error that it sets.
pub(super) fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, String> {
    let mut error = null_mut();
    let result = call(&raw mut error);
    if error.is_null() {
        return Ok(result);
    }
    // SAFETY: the library leaves a string that ends with a zero byte and belongs to the caller.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        Err(text)
    }
}

/// The C API returns only the text of a status. These are the beginnings of Busy, TimedOut and
/// TryAgain, which report conflicts, deadlocks and lock timeouts (`rocksdb/status.h`).
pub(super) fn stop(text: String) -> Stop {
    let conflicts = [
        "Resource busy",
        "Operation timed out",
        "Operation failed. Try again.",
    ];
    if conflicts.iter().any(|start| text.starts_with(start)) {
        Stop::Conflict
    } else {
        Stop::Failed(failed(text))
    }
}

pub(super) fn failed(text: String) -> BenchError {
    BenchError::peer("rocksdb", text)
}

#[derive(Clone, Copy)]
enum Handle {
    Plain(*mut rocksdb_t),
    Transactional(*mut rocksdb_transactiondb_t),
}

/// An open database and a column family for each table.
pub(super) struct Db {
    handle: Handle,
    /// One for each table, and RocksDB's own `default` at the end.
    families: Vec<*mut rocksdb_column_family_handle_t>,
    options: *mut rocksdb_options_t,
}

// SAFETY: a `DB`, a `TransactionDB` and a column family may be used by any number of threads at
// once (`rocksdb/db.h`: "A DB is safe for concurrent access from multiple threads without any
// external synchronization"); this owns them.
unsafe impl Send for Db {}
// SAFETY: see above.
unsafe impl Sync for Db {}

/// Settings, after <https://github.com/facebook/rocksdb/wiki/Setup-Options-and-Basic-Tuning>
/// ("Other General Options", block cache, bloom filter, compression); the table format and the
/// compaction's priority that it names have become defaults.
fn options(cache_bytes: usize) -> *mut rocksdb_options_t {
    let jobs = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8));
    // SAFETY: each object is used between its creation and its destruction; the options keep the
    // policy and a share of the cache.
    unsafe {
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_size(table, 16 << 10);
        rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
        rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
        rocksdb_block_based_options_set_filter_policy(
            table,
            rocksdb_filterpolicy_create_bloom_full(10.0),
        );
        let cache = rocksdb_cache_create_lru(cache_bytes);
        rocksdb_block_based_options_set_block_cache(table, cache);
        let options = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_create_missing_column_families(options, 1);
        rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
        rocksdb_options_set_max_background_jobs(options, c_int::try_from(jobs).unwrap_or(2));
        rocksdb_options_set_bytes_per_sync(options, 1 << 20);
        rocksdb_options_set_compression(options, LZ4);
        rocksdb_options_set_bottommost_compression(options, ZSTD);
        rocksdb_options_set_block_based_table_factory(options, table);
        rocksdb_cache_destroy(cache);
        rocksdb_block_based_options_destroy(table);
        options
    }
}

impl Db {
    pub(super) fn open(
        dir: &Path,
        tables: &[&str],
        cache_bytes: usize,
        transactional: bool,
    ) -> Result<Self, BenchError> {
        let no_zero = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
        let path = no_zero(&dir.to_string_lossy())?;
        // With a prefix, because a table may have the name of the family that RocksDB always
        // creates.
        let names: Vec<_> = tables
            .iter()
            .map(|table| no_zero(&format!("table {table}")))
            .chain([no_zero("default")])
            .collect::<Result<_, _>>()?;
        let name_pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let mut families = vec![null_mut(); names.len()];
        let count = c_int::try_from(names.len()).map_err(|error| failed(error.to_string()))?;
        let options = options(cache_bytes);
        let all_options = vec![options.cast_const(); names.len()];
        // SAFETY: the three arrays have `count` elements; strings and options outlive the call.
        let handle = unsafe {
            if transactional {
                let transactions = rocksdb_transactiondb_options_create();
                let db = checked(|error| {
                    rocksdb_transactiondb_open_column_families(
                        options,
                        transactions,
                        path.as_ptr(),
                        count,
                        name_pointers.as_ptr(),
                        all_options.as_ptr(),
                        families.as_mut_ptr(),
                        error,
                    )
                });
                rocksdb_transactiondb_options_destroy(transactions);
                db.map(Handle::Transactional)
            } else {
                checked(|error| {
                    rocksdb_open_column_families(
                        options,
                        path.as_ptr(),
                        count,
                        name_pointers.as_ptr(),
                        all_options.as_ptr(),
                        families.as_mut_ptr(),
                        error,
                    )
                })
                .map(Handle::Plain)
            }
        };
        let handle = handle.map_err(|text| {
            // SAFETY: the options are not used afterwards.
            unsafe { rocksdb_options_destroy(options) };
            failed(text)
        })?;
        Ok(Db {
            handle,
            families,
            options,
        })
    }

    pub(super) fn family(&self, table: TableId) -> *mut rocksdb_column_family_handle_t {
        self.families[table]
    }

    pub(super) fn get(
        &self,
        options: &ReadOptions,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let (pointer, len, family) = (key.as_ptr().cast(), key.len(), self.family(table));
        // SAFETY: `self` keeps database and family open, the key is borrowed for the call.
        let slice = checked(|error| unsafe {
            match self.handle {
                Handle::Plain(db) => {
                    rocksdb_get_pinned_cf(db, options.0, family, pointer, len, error)
                }
                Handle::Transactional(db) => {
                    rocksdb_transactiondb_get_pinned_cf(db, options.0, family, pointer, len, error)
                }
            }
        });
        Ok(borrow_value(slice.map_err(stop)?, found))
    }

    pub(super) fn scan(
        &self,
        options: &ReadOptions,
        table: TableId,
        range: (&[u8], &[u8]),
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        let family = self.family(table);
        // SAFETY: `self` keeps database and family open longer than the iterator lives.
        let iter = Iter(unsafe {
            match self.handle {
                Handle::Plain(db) => rocksdb_create_iterator_cf(db, options.0, family),
                Handle::Transactional(db) => {
                    rocksdb_transactiondb_create_iterator_cf(db, options.0, family)
                }
            }
        });
        iter.visit(range, order, visit)
    }

    /// Writes a batch; the database is one without transactions.
    pub(super) fn write(&self, options: &WriteOptions, batch: &Batch) -> Result<(), Stop> {
        let db = self.plain();
        // SAFETY: all three are open.
        checked(|error| unsafe { rocksdb_write(db, options.0, batch.0, error) }).map_err(stop)
    }

    /// Returns the database, for all that only the one without transactions has.
    pub(super) fn plain(&self) -> *mut rocksdb_t {
        let Handle::Plain(db) = self.handle else {
            unreachable!("batches are for the database without transactions");
        };
        db
    }

    /// Returns the options of the database and of all its families.
    pub(super) fn options(&self) -> *const rocksdb_options_t {
        self.options
    }

    /// Returns the families of all tables, and RocksDB's own `default`.
    pub(super) fn families(&self) -> &[*mut rocksdb_column_family_handle_t] {
        &self.families
    }

    /// Returns the database, for transactions.
    pub(super) fn transactional(&self) -> *mut rocksdb_transactiondb_t {
        let Handle::Transactional(db) = self.handle else {
            unreachable!("transactions are for the database that has them");
        };
        db
    }

    /// Flushes and compacts, as far as the C API permits: a `TransactionDB` compacts by itself, and
    /// this waits for it.
    pub(super) fn settle(&self) -> Result<(), BenchError> {
        for &family in &self.families {
            match self.handle {
                // SAFETY: database and family are open; null bounds mean all.
                Handle::Plain(db) => unsafe {
                    rocksdb_compact_range_cf(db, family, null(), 0, null(), 0);
                },
                // SAFETY: the same, and the options are destroyed after their use.
                Handle::Transactional(db) => unsafe {
                    let options = rocksdb_flushoptions_create();
                    let flushed = checked(|error| {
                        rocksdb_transactiondb_flush_cf(db, options, family, error);
                    });
                    rocksdb_flushoptions_destroy(options);
                    flushed.map_err(failed)?;
                },
            }
        }
        if let Handle::Transactional(db) = self.handle {
            let mut running = 1;
            while running > 0 {
                // A compaction requested by a flush begins a moment later, and there is no event to
                // wait for.
                std::thread::sleep(Duration::from_millis(50));
                let name = c"rocksdb.num-running-compactions";
                // SAFETY: the database is open, the number is written by the call only.
                let unknown = unsafe {
                    rocksdb_transactiondb_property_int(db, name.as_ptr(), &raw mut running)
                };
                if unknown != 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: no borrow of the database is left; families are destroyed before it.
        unsafe {
            for &family in &self.families {
                rocksdb_column_family_handle_destroy(family);
            }
            match self.handle {
                Handle::Plain(db) => rocksdb_close(db),
                Handle::Transactional(db) => rocksdb_transactiondb_close(db),
            }
            rocksdb_options_destroy(self.options);
        }
    }
}

/// Passes a value that a get returned, null for none, to `found`, and frees it.
pub(super) fn borrow_value(
    slice: *mut rocksdb_pinnableslice_t,
    found: &mut dyn FnMut(&[u8]),
) -> bool {
    struct Pinned(*mut rocksdb_pinnableslice_t);
    impl Drop for Pinned {
        fn drop(&mut self) {
            // SAFETY: the slice belongs to this value.
            unsafe { rocksdb_pinnableslice_destroy(self.0) }
        }
    }
    if slice.is_null() {
        return false;
    }
    let pinned = Pinned(slice);
    let mut len = 0;
    // SAFETY: the bytes live as long as the slice, which is dropped after the call of `found`.
    found(unsafe { bytes(rocksdb_pinnableslice_value(pinned.0, &raw mut len), len) });
    true
}

/// # Safety
/// `len` bytes at `start` must stay unchanged for `'a`.
unsafe fn bytes<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: this function's contract.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

pub(super) struct Iter(pub(super) *mut rocksdb_iterator_t);

impl Iter {
    pub(super) fn visit(
        &self,
        (from, to): (&[u8], &[u8]),
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        // SAFETY: the iterator is valid when a record is read, and the record is not used after the
        // iterator moves.
        unsafe {
            match order {
                Order::Ascending => rocksdb_iter_seek(self.0, from.as_ptr().cast(), from.len()),
                Order::Descending => {
                    rocksdb_iter_seek_for_prev(self.0, to.as_ptr().cast(), to.len());
                }
            }
            while rocksdb_iter_valid(self.0) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = bytes(rocksdb_iter_key(self.0, &raw mut key_len), key_len);
                // A descending scan begins at `to` itself if this key exists.
                let is_bound = order == Order::Descending && key == to;
                if !is_bound {
                    if key < from || key >= to {
                        break;
                    }
                    let value = bytes(rocksdb_iter_value(self.0, &raw mut value_len), value_len);
                    if !visit(key, value) {
                        break;
                    }
                }
                match order {
                    Order::Ascending => rocksdb_iter_next(self.0),
                    Order::Descending => rocksdb_iter_prev(self.0),
                }
            }
            checked(|error| rocksdb_iter_get_error(self.0, error)).map_err(stop)
        }
    }
}

impl Drop for Iter {
    fn drop(&mut self) {
        // SAFETY: the iterator belongs to this value.
        unsafe { rocksdb_iter_destroy(self.0) }
    }
}

pub(super) struct Batch(pub(super) *mut rocksdb_writebatch_t);

impl Batch {
    pub(super) fn new() -> Self {
        // SAFETY: needs nothing.
        Batch(unsafe { rocksdb_writebatch_create() })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: the batch belongs to this value.
        unsafe { rocksdb_writebatch_destroy(self.0) }
    }
}

/// Options of durable writes.
pub(super) struct WriteOptions(pub(super) *mut rocksdb_writeoptions_t);

impl WriteOptions {
    pub(super) fn sync() -> Self {
        // SAFETY: needs nothing.
        unsafe {
            let options = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(options, 1);
            WriteOptions(options)
        }
    }
}

impl Drop for WriteOptions {
    fn drop(&mut self) {
        // SAFETY: the options belong to this value.
        unsafe { rocksdb_writeoptions_destroy(self.0) }
    }
}

pub(super) struct ReadOptions(pub(super) *mut rocksdb_readoptions_t);

impl ReadOptions {
    pub(super) fn new() -> Self {
        // SAFETY: needs nothing.
        ReadOptions(unsafe { rocksdb_readoptions_create() })
    }
}

impl Drop for ReadOptions {
    fn drop(&mut self) {
        // SAFETY: the options belong to this value.
        unsafe { rocksdb_readoptions_destroy(self.0) }
    }
}

/// Makes reads with some options see one state, until it is dropped.
pub(super) struct Snapshot<'a> {
    db: &'a Db,
    options: &'a ReadOptions,
    snapshot: *const rocksdb_snapshot_t,
}

impl<'a> Snapshot<'a> {
    pub(super) fn new(db: &'a Db, options: &'a ReadOptions) -> Self {
        // SAFETY: the database and the options are open.
        unsafe {
            let snapshot = match db.handle {
                Handle::Plain(db) => rocksdb_create_snapshot(db),
                Handle::Transactional(db) => rocksdb_transactiondb_create_snapshot(db),
            };
            rocksdb_readoptions_set_snapshot(options.0, snapshot);
            Snapshot {
                db,
                options,
                snapshot,
            }
        }
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // SAFETY: the options release the snapshot before it is destroyed.
        unsafe {
            rocksdb_readoptions_set_snapshot(self.options.0, null());
            match self.db.handle {
                Handle::Plain(db) => rocksdb_release_snapshot(db, self.snapshot),
                Handle::Transactional(db) => {
                    rocksdb_transactiondb_release_snapshot(db, self.snapshot);
                }
            }
        }
    }
}
