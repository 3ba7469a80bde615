//! The part of RocksDB's C API (`rocksdb/c.h`, 7.8 and later) that the benchmark calls.
//!
//! Pointers are never null unless the comment of a function in the header says so. Strings end with
//! a zero byte; keys and values have a length. A function with an `errptr` leaves it unchanged, or
//! sets it to a string that the caller frees with [`rocksdb_free`].

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uchar, c_void};

macro_rules! opaque {
    ($($name:ident)*) => {
        $(#[repr(C)]
        pub(super) struct $name {
            _private: [u8; 0],
        })*
    };
}

opaque! {
    rocksdb_backup_engine_t
    rocksdb_block_based_table_options_t
    rocksdb_cache_t
    rocksdb_column_family_handle_t
    rocksdb_envoptions_t
    rocksdb_filterpolicy_t
    rocksdb_flushoptions_t
    rocksdb_ingestexternalfileoptions_t
    rocksdb_iterator_t
    rocksdb_options_t
    rocksdb_pinnableslice_t
    rocksdb_readoptions_t
    rocksdb_snapshot_t
    rocksdb_sstfilewriter_t
    rocksdb_t
    rocksdb_transaction_options_t
    rocksdb_transaction_t
    rocksdb_transactiondb_options_t
    rocksdb_transactiondb_t
    rocksdb_writebatch_t
    rocksdb_writeoptions_t
}

type Bytes = *const c_char;
type Error = *mut *mut c_char;
type Family = *mut rocksdb_column_family_handle_t;

pub(super) const LZ4: c_int = 4;
pub(super) const ZSTD: c_int = 7;

// The library is linked by the build script, which found it.
unsafe extern "C" {
    pub(super) fn rocksdb_free(ptr: *mut c_void);

    pub(super) fn rocksdb_options_create() -> *mut rocksdb_options_t;
    pub(super) fn rocksdb_options_destroy(options: *mut rocksdb_options_t);
    pub(super) fn rocksdb_options_set_create_if_missing(o: *mut rocksdb_options_t, on: c_uchar);
    pub(super) fn rocksdb_options_set_create_missing_column_families(
        o: *mut rocksdb_options_t,
        on: c_uchar,
    );
    pub(super) fn rocksdb_options_set_level_compaction_dynamic_level_bytes(
        o: *mut rocksdb_options_t,
        on: c_uchar,
    );
    pub(super) fn rocksdb_options_set_max_background_jobs(o: *mut rocksdb_options_t, jobs: c_int);
    pub(super) fn rocksdb_options_set_bytes_per_sync(o: *mut rocksdb_options_t, bytes: u64);
    pub(super) fn rocksdb_options_set_compression(o: *mut rocksdb_options_t, kind: c_int);
    pub(super) fn rocksdb_options_set_bottommost_compression(
        o: *mut rocksdb_options_t,
        kind: c_int,
    );
    pub(super) fn rocksdb_options_set_block_based_table_factory(
        o: *mut rocksdb_options_t,
        table: *mut rocksdb_block_based_table_options_t,
    );

    pub(super) fn rocksdb_block_based_options_create() -> *mut rocksdb_block_based_table_options_t;
    pub(super) fn rocksdb_block_based_options_destroy(o: *mut rocksdb_block_based_table_options_t);
    pub(super) fn rocksdb_block_based_options_set_block_size(
        o: *mut rocksdb_block_based_table_options_t,
        bytes: usize,
    );
    /// Takes ownership of the policy.
    pub(super) fn rocksdb_block_based_options_set_filter_policy(
        o: *mut rocksdb_block_based_table_options_t,
        policy: *mut rocksdb_filterpolicy_t,
    );
    /// Shares the cache; the caller still destroys it.
    pub(super) fn rocksdb_block_based_options_set_block_cache(
        o: *mut rocksdb_block_based_table_options_t,
        cache: *mut rocksdb_cache_t,
    );
    pub(super) fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(
        o: *mut rocksdb_block_based_table_options_t,
        on: c_uchar,
    );
    pub(super) fn rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(
        o: *mut rocksdb_block_based_table_options_t,
        on: c_uchar,
    );
    pub(super) fn rocksdb_filterpolicy_create_bloom_full(bits: f64) -> *mut rocksdb_filterpolicy_t;
    pub(super) fn rocksdb_cache_create_lru(bytes: usize) -> *mut rocksdb_cache_t;
    pub(super) fn rocksdb_cache_destroy(cache: *mut rocksdb_cache_t);

    /// Null with an error.
    pub(super) fn rocksdb_open_column_families(
        options: *const rocksdb_options_t,
        path: *const c_char,
        families: c_int,
        names: *const *const c_char,
        family_options: *const *const rocksdb_options_t,
        handles: *mut Family,
        error: Error,
    ) -> *mut rocksdb_t;
    pub(super) fn rocksdb_close(db: *mut rocksdb_t);
    pub(super) fn rocksdb_column_family_handle_destroy(family: Family);
    pub(super) fn rocksdb_create_snapshot(db: *mut rocksdb_t) -> *const rocksdb_snapshot_t;
    pub(super) fn rocksdb_release_snapshot(db: *mut rocksdb_t, s: *const rocksdb_snapshot_t);
    /// Null if the key does not exist.
    pub(super) fn rocksdb_get_pinned_cf(
        db: *mut rocksdb_t,
        options: *const rocksdb_readoptions_t,
        family: Family,
        key: Bytes,
        key_len: usize,
        error: Error,
    ) -> *mut rocksdb_pinnableslice_t;
    pub(super) fn rocksdb_create_iterator_cf(
        db: *mut rocksdb_t,
        options: *const rocksdb_readoptions_t,
        family: Family,
    ) -> *mut rocksdb_iterator_t;
    pub(super) fn rocksdb_write(
        db: *mut rocksdb_t,
        options: *const rocksdb_writeoptions_t,
        batch: *mut rocksdb_writebatch_t,
        error: Error,
    );
    /// A null bound means no bound.
    pub(super) fn rocksdb_compact_range_cf(
        db: *mut rocksdb_t,
        family: Family,
        from: Bytes,
        from_len: usize,
        to: Bytes,
        to_len: usize,
    );

    pub(super) fn rocksdb_flush_cf(
        db: *mut rocksdb_t,
        options: *const rocksdb_flushoptions_t,
        family: Family,
        error: Error,
    );
    /// Null with an error.
    pub(super) fn rocksdb_create_column_family(
        db: *mut rocksdb_t,
        options: *const rocksdb_options_t,
        name: *const c_char,
        error: Error,
    ) -> Family;
    /// The handle is destroyed separately.
    pub(super) fn rocksdb_drop_column_family(db: *mut rocksdb_t, family: Family, error: Error);
    /// Null if the property is unknown; the caller frees it.
    pub(super) fn rocksdb_property_value(db: *mut rocksdb_t, name: *const c_char) -> *mut c_char;
    pub(super) fn rocksdb_ingest_external_file_cf(
        db: *mut rocksdb_t,
        family: Family,
        files: *const *const c_char,
        count: usize,
        options: *const rocksdb_ingestexternalfileoptions_t,
        error: Error,
    );
    pub(super) fn rocksdb_ingestexternalfileoptions_create()
    -> *mut rocksdb_ingestexternalfileoptions_t;
    pub(super) fn rocksdb_ingestexternalfileoptions_set_move_files(
        o: *mut rocksdb_ingestexternalfileoptions_t,
        on: c_uchar,
    );
    pub(super) fn rocksdb_ingestexternalfileoptions_destroy(
        o: *mut rocksdb_ingestexternalfileoptions_t,
    );

    pub(super) fn rocksdb_envoptions_create() -> *mut rocksdb_envoptions_t;
    pub(super) fn rocksdb_envoptions_destroy(o: *mut rocksdb_envoptions_t);
    /// Keeps neither of the options.
    pub(super) fn rocksdb_sstfilewriter_create(
        environment: *const rocksdb_envoptions_t,
        options: *const rocksdb_options_t,
    ) -> *mut rocksdb_sstfilewriter_t;
    pub(super) fn rocksdb_sstfilewriter_open(
        writer: *mut rocksdb_sstfilewriter_t,
        path: *const c_char,
        error: Error,
    );
    pub(super) fn rocksdb_sstfilewriter_put(
        writer: *mut rocksdb_sstfilewriter_t,
        key: Bytes,
        key_len: usize,
        value: Bytes,
        value_len: usize,
        error: Error,
    );
    pub(super) fn rocksdb_sstfilewriter_finish(writer: *mut rocksdb_sstfilewriter_t, error: Error);
    pub(super) fn rocksdb_sstfilewriter_destroy(writer: *mut rocksdb_sstfilewriter_t);

    /// Null with an error.
    pub(super) fn rocksdb_backup_engine_open(
        options: *const rocksdb_options_t,
        path: *const c_char,
        error: Error,
    ) -> *mut rocksdb_backup_engine_t;
    pub(super) fn rocksdb_backup_engine_create_new_backup(
        engine: *mut rocksdb_backup_engine_t,
        db: *mut rocksdb_t,
        error: Error,
    );
    pub(super) fn rocksdb_backup_engine_close(engine: *mut rocksdb_backup_engine_t);

    /// Null with an error.
    pub(super) fn rocksdb_transactiondb_open_column_families(
        options: *const rocksdb_options_t,
        transactions: *const rocksdb_transactiondb_options_t,
        path: *const c_char,
        families: c_int,
        names: *const *const c_char,
        family_options: *const *const rocksdb_options_t,
        handles: *mut Family,
        error: Error,
    ) -> *mut rocksdb_transactiondb_t;
    pub(super) fn rocksdb_transactiondb_close(db: *mut rocksdb_transactiondb_t);
    pub(super) fn rocksdb_transactiondb_create_snapshot(
        db: *mut rocksdb_transactiondb_t,
    ) -> *const rocksdb_snapshot_t;
    pub(super) fn rocksdb_transactiondb_release_snapshot(
        db: *mut rocksdb_transactiondb_t,
        snapshot: *const rocksdb_snapshot_t,
    );
    /// Null if the key does not exist.
    pub(super) fn rocksdb_transactiondb_get_pinned_cf(
        db: *mut rocksdb_transactiondb_t,
        options: *const rocksdb_readoptions_t,
        family: Family,
        key: Bytes,
        key_len: usize,
        error: Error,
    ) -> *mut rocksdb_pinnableslice_t;
    pub(super) fn rocksdb_transactiondb_create_iterator_cf(
        db: *mut rocksdb_transactiondb_t,
        options: *const rocksdb_readoptions_t,
        family: Family,
    ) -> *mut rocksdb_iterator_t;
    pub(super) fn rocksdb_transactiondb_flush_cf(
        db: *mut rocksdb_transactiondb_t,
        options: *const rocksdb_flushoptions_t,
        family: Family,
        error: Error,
    );
    /// 0 if the property is known.
    pub(super) fn rocksdb_transactiondb_property_int(
        db: *mut rocksdb_transactiondb_t,
        name: *const c_char,
        value: *mut u64,
    ) -> c_int;
    pub(super) fn rocksdb_transactiondb_options_create() -> *mut rocksdb_transactiondb_options_t;
    pub(super) fn rocksdb_transactiondb_options_destroy(o: *mut rocksdb_transactiondb_options_t);
    pub(super) fn rocksdb_transaction_options_create() -> *mut rocksdb_transaction_options_t;
    pub(super) fn rocksdb_transaction_options_destroy(o: *mut rocksdb_transaction_options_t);
    pub(super) fn rocksdb_transaction_options_set_deadlock_detect(
        o: *mut rocksdb_transaction_options_t,
        on: c_uchar,
    );

    /// Reuses `old` for the new transaction if it is not null.
    pub(super) fn rocksdb_transaction_begin(
        db: *mut rocksdb_transactiondb_t,
        write: *const rocksdb_writeoptions_t,
        options: *const rocksdb_transaction_options_t,
        old: *mut rocksdb_transaction_t,
    ) -> *mut rocksdb_transaction_t;
    pub(super) fn rocksdb_transaction_commit(tx: *mut rocksdb_transaction_t, error: Error);
    pub(super) fn rocksdb_transaction_rollback(tx: *mut rocksdb_transaction_t, error: Error);
    pub(super) fn rocksdb_transaction_destroy(tx: *mut rocksdb_transaction_t);
    /// Null if the key does not exist.
    pub(super) fn rocksdb_transaction_get_pinned_cf(
        tx: *mut rocksdb_transaction_t,
        options: *const rocksdb_readoptions_t,
        family: Family,
        key: Bytes,
        key_len: usize,
        error: Error,
    ) -> *mut rocksdb_pinnableslice_t;
    /// Null if the key does not exist.
    pub(super) fn rocksdb_transaction_get_pinned_for_update_cf(
        tx: *mut rocksdb_transaction_t,
        options: *const rocksdb_readoptions_t,
        family: Family,
        key: Bytes,
        key_len: usize,
        exclusive: c_uchar,
        error: Error,
    ) -> *mut rocksdb_pinnableslice_t;
    pub(super) fn rocksdb_transaction_put_cf(
        tx: *mut rocksdb_transaction_t,
        family: Family,
        key: Bytes,
        key_len: usize,
        value: Bytes,
        value_len: usize,
        error: Error,
    );
    pub(super) fn rocksdb_transaction_delete_cf(
        tx: *mut rocksdb_transaction_t,
        family: Family,
        key: Bytes,
        key_len: usize,
        error: Error,
    );
    pub(super) fn rocksdb_transaction_create_iterator_cf(
        tx: *mut rocksdb_transaction_t,
        options: *const rocksdb_readoptions_t,
        family: Family,
    ) -> *mut rocksdb_iterator_t;

    pub(super) fn rocksdb_writebatch_create() -> *mut rocksdb_writebatch_t;
    pub(super) fn rocksdb_writebatch_destroy(batch: *mut rocksdb_writebatch_t);
    pub(super) fn rocksdb_writebatch_clear(batch: *mut rocksdb_writebatch_t);
    pub(super) fn rocksdb_writebatch_put_cf(
        batch: *mut rocksdb_writebatch_t,
        family: Family,
        key: Bytes,
        key_len: usize,
        value: Bytes,
        value_len: usize,
    );
    pub(super) fn rocksdb_writebatch_delete_cf(
        batch: *mut rocksdb_writebatch_t,
        family: Family,
        key: Bytes,
        key_len: usize,
    );

    /// The bytes live as long as the slice.
    pub(super) fn rocksdb_pinnableslice_value(
        slice: *const rocksdb_pinnableslice_t,
        len: *mut usize,
    ) -> Bytes;
    pub(super) fn rocksdb_pinnableslice_destroy(slice: *mut rocksdb_pinnableslice_t);

    pub(super) fn rocksdb_iter_destroy(iter: *mut rocksdb_iterator_t);
    pub(super) fn rocksdb_iter_valid(iter: *const rocksdb_iterator_t) -> c_uchar;
    pub(super) fn rocksdb_iter_seek(iter: *mut rocksdb_iterator_t, key: Bytes, key_len: usize);
    pub(super) fn rocksdb_iter_seek_for_prev(
        iter: *mut rocksdb_iterator_t,
        key: Bytes,
        key_len: usize,
    );
    pub(super) fn rocksdb_iter_next(iter: *mut rocksdb_iterator_t);
    pub(super) fn rocksdb_iter_prev(iter: *mut rocksdb_iterator_t);
    /// The bytes of key and value live until the iterator moves.
    pub(super) fn rocksdb_iter_key(iter: *const rocksdb_iterator_t, len: *mut usize) -> Bytes;
    pub(super) fn rocksdb_iter_value(iter: *const rocksdb_iterator_t, len: *mut usize) -> Bytes;
    pub(super) fn rocksdb_iter_get_error(iter: *const rocksdb_iterator_t, error: Error);

    pub(super) fn rocksdb_readoptions_create() -> *mut rocksdb_readoptions_t;
    pub(super) fn rocksdb_readoptions_destroy(o: *mut rocksdb_readoptions_t);
    /// Null means the newest state.
    pub(super) fn rocksdb_readoptions_set_snapshot(
        o: *mut rocksdb_readoptions_t,
        snapshot: *const rocksdb_snapshot_t,
    );
    pub(super) fn rocksdb_writeoptions_create() -> *mut rocksdb_writeoptions_t;
    pub(super) fn rocksdb_writeoptions_destroy(o: *mut rocksdb_writeoptions_t);
    pub(super) fn rocksdb_writeoptions_set_sync(o: *mut rocksdb_writeoptions_t, on: c_uchar);
    pub(super) fn rocksdb_flushoptions_create() -> *mut rocksdb_flushoptions_t;
    pub(super) fn rocksdb_flushoptions_destroy(o: *mut rocksdb_flushoptions_t);
}
