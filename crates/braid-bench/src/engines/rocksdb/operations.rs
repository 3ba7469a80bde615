//! What RocksDB can do next to a load. Its C API can only check the copies of a backup.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::{Mutex, PoisonError};

use super::db::{Db, ReadOptions, checked, failed};
use super::ffi::*;
use crate::BenchError;
use crate::engines::{OldState, Operations, Rows, Stop, TableId};

/// A database without transactions, and its tables that no session uses.
pub(super) struct Plain {
    /// Declared before the database: families are destroyed first.
    more: Mutex<HashMap<String, Family>>,
    pub(super) db: Db,
    /// Where files are written before the database takes them.
    prepared: PathBuf,
}

impl Plain {
    pub(super) fn new(db: Db, dir: &Path) -> Self {
        Plain {
            more: Mutex::default(),
            db,
            prepared: dir.join("prepared.file"),
        }
    }
}

/// A handle of a column family.
struct Family(*mut rocksdb_column_family_handle_t);

// SAFETY: a column family may be used by any number of threads at once, as the database may.
unsafe impl Send for Family {}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: the handle belongs to this value.
        unsafe { rocksdb_column_family_handle_destroy(self.0) }
    }
}

fn path(path: &Path) -> Result<CString, BenchError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| BenchError::peer("rocksdb", error))
}

/// Frees an object of the C API with its function.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object belongs to this value, and the function is the one that frees it.
        unsafe { self.1(self.0) }
    }
}

impl Operations for Plain {
    /// Flushes the memtables of all tables.
    fn checkpoint(&self) -> Result<(), BenchError> {
        // SAFETY: needs nothing.
        let options = unsafe { rocksdb_flushoptions_create() };
        let options = Owned(options, rocksdb_flushoptions_destroy);
        for &family in self.db.families() {
            // SAFETY: all three are open.
            checked(|error| unsafe { rocksdb_flush_cf(self.db.plain(), options.0, family, error) })
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Writes a sorted file, which the database then takes without copying it.
    fn bulk_load(&self, name: &str, rows: Rows) -> Result<(), BenchError> {
        self.write_file(&self.prepared, rows)?;
        let (db, file) = (self.db.plain(), path(&self.prepared)?);
        let name_of_family = CString::new(name).map_err(|e| BenchError::peer("rocksdb", e))?;
        // SAFETY: database and options are open, the name outlives the call.
        let family = checked(|error| unsafe {
            rocksdb_create_column_family(db, self.db.options(), name_of_family.as_ptr(), error)
        });
        let family = Family(family.map_err(failed)?);
        // SAFETY: needs nothing.
        let options = unsafe { rocksdb_ingestexternalfileoptions_create() };
        let options = Owned(options, rocksdb_ingestexternalfileoptions_destroy);
        let files = [file.as_ptr()];
        // SAFETY: database, family and options are open; the array and its string outlive the call.
        checked(|error| unsafe {
            rocksdb_ingestexternalfileoptions_set_move_files(options.0, 1);
            rocksdb_ingest_external_file_cf(db, family.0, files.as_ptr(), 1, options.0, error);
        })
        .map_err(failed)?;
        self.tables().insert(name.to_owned(), family);
        Ok(())
    }

    fn drop_table(&self, name: &str) -> Result<(), BenchError> {
        let Some(family) = self.tables().remove(name) else {
            return Ok(());
        };
        // SAFETY: database and family are open.
        checked(|error| unsafe { rocksdb_drop_column_family(self.db.plain(), family.0, error) })
            .map_err(failed)
    }

    fn snapshot(&self, table: TableId) -> Result<Box<dyn OldState + '_>, BenchError> {
        let options = ReadOptions::new();
        // SAFETY: database and options are open; the snapshot is released after its last use.
        let snapshot = unsafe {
            let snapshot = rocksdb_create_snapshot(self.db.plain());
            rocksdb_readoptions_set_snapshot(options.0, snapshot);
            snapshot
        };
        Ok(Box::new(Old {
            db: &self.db,
            options,
            snapshot,
            table,
        }))
    }

    fn backup(&self, to: &Path) -> Result<(), BenchError> {
        let to = path(to)?;
        // SAFETY: options and database are open, the path outlives the call.
        let engine = checked(|error| unsafe {
            rocksdb_backup_engine_open(self.db.options(), to.as_ptr(), error)
        });
        let engine = Owned(engine.map_err(failed)?, rocksdb_backup_engine_close);
        // SAFETY: both are open.
        checked(|error| unsafe {
            rocksdb_backup_engine_create_new_backup(engine.0, self.db.plain(), error);
        })
        .map_err(failed)
    }

    fn compact(&self, table: TableId, _into: &Path) -> Result<(), BenchError> {
        let family = self.db.family(table);
        // SAFETY: database and family are open; null bounds mean all.
        unsafe { rocksdb_compact_range_cf(self.db.plain(), family, null(), 0, null(), 0) };
        Ok(())
    }

    fn stats(&self) -> Result<(), BenchError> {
        let name = c"rocksdb.stats";
        // SAFETY: the database is open, the name outlives the call; the text belongs to the caller.
        unsafe {
            let text = rocksdb_property_value(self.db.plain(), name.as_ptr());
            rocksdb_free(text.cast());
        }
        Ok(())
    }
}

impl Plain {
    fn tables(&self) -> std::sync::MutexGuard<'_, HashMap<String, Family>> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_file(&self, to: &Path, rows: Rows) -> Result<(), BenchError> {
        let to = path(to)?;
        // SAFETY: the writer copies both options; all pointers are open or outlive their calls.
        let writer = unsafe {
            let environment = Owned(rocksdb_envoptions_create(), rocksdb_envoptions_destroy);
            let writer = rocksdb_sstfilewriter_create(environment.0, self.db.options());
            Owned(writer, rocksdb_sstfilewriter_destroy)
        };
        // SAFETY: the writer is open, the path outlives the call.
        checked(|error| unsafe { rocksdb_sstfilewriter_open(writer.0, to.as_ptr(), error) })
            .map_err(failed)?;
        rows.try_each(|key, value| {
            let (data, len) = (value.as_ptr().cast(), value.len());
            // SAFETY: the writer is open, the bytes are copied.
            checked(|error| unsafe {
                rocksdb_sstfilewriter_put(
                    writer.0,
                    key.as_ptr().cast(),
                    key.len(),
                    data,
                    len,
                    error,
                );
            })
        })
        .map_err(failed)?;
        // SAFETY: the writer is open.
        checked(|error| unsafe { rocksdb_sstfilewriter_finish(writer.0, error) }).map_err(failed)
    }
}

/// A snapshot that stays open.
struct Old<'a> {
    db: &'a Db,
    options: ReadOptions,
    snapshot: *const rocksdb_snapshot_t,
    table: TableId,
}

impl OldState for Old<'_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        self.db.get(&self.options, self.table, key, found)
    }
}

impl Drop for Old<'_> {
    fn drop(&mut self) {
        // SAFETY: the options release the snapshot before it is destroyed.
        unsafe {
            rocksdb_readoptions_set_snapshot(self.options.0, null());
            rocksdb_release_snapshot(self.db.plain(), self.snapshot);
        }
    }
}
