//! Opening databases, and the class Database.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::tablespace::TablespaceOptions;
use braid::{Durability, TableOptions, TransactionOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::backup::{self, Place};
use crate::bulk::BulkLoader;
use crate::changes::{Changes, Feed, Position};
use crate::errors::{ClosedError, ConflictError, IntoPyResult, OptionError, TableNotFoundError};
use crate::fork::{Active, Own};
use crate::options::{OpenOptions, table_options, transaction_options};
use crate::reading::Extent;
use crate::reports;
use crate::residency::Residency;
use crate::snapshot::Snapshot;
use crate::table::Table;
use crate::transaction::Transaction;
use crate::types::Schema;
use crate::writers::Writers;

/// `Database.transact` gives up after this many consecutive conflicts.
const RETRIES_MAX: u32 = 1_000;

/// State shared by all objects of an open database.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Set until the drop.
    database: Option<Own<OpenDatabase>>,
    /// Default durability of transactions.
    pub(crate) durability: Durability,
    pub(crate) writers: Writers,
    residency: Residency,
    next_transaction: AtomicU64,
    closed: AtomicBool,
    active: Active,
    path: Option<PathBuf>,
}

/// The database of a handle.
#[derive(Debug)]
enum OpenDatabase {
    /// For writing.
    Writer(braid::Database),
    /// Opened read-only: the newest state that the program requested.
    Reader(RwLock<braid::Database>),
}

/// A database in the state that new reads see.
pub(crate) enum Current<'a> {
    Writer(&'a braid::Database),
    State(braid::Database),
}

impl Deref for Current<'_> {
    type Target = braid::Database;

    #[inline]
    fn deref(&self) -> &braid::Database {
        match self {
            Current::Writer(database) => database,
            Current::State(database) => database,
        }
    }
}

/// The lock is held only to clone a handle, never while waiting for the interpreter's lock.
fn state(newest: &RwLock<braid::Database>) -> braid::Database {
    newest
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

impl Handle {
    fn new(
        database: braid::Database,
        options: &OpenOptions,
        active: Active,
        path: Option<PathBuf>,
    ) -> Self {
        let database = match options.read_only {
            true => OpenDatabase::Reader(RwLock::new(database)),
            false => OpenDatabase::Writer(database),
        };
        Self {
            database: Some(Own::new(database)),
            durability: options.durability,
            writers: Writers::default(),
            residency: Residency::new(),
            next_transaction: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            active,
            path,
        }
    }

    fn own(&self) -> &Own<OpenDatabase> {
        self.database.as_ref().expect("only the drop takes it")
    }

    /// Fails in a child of the process that opened the database. Call it before waiting for a mutex
    /// of any of its objects.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.own().check()
    }

    /// Returns the database, if this process opened it.
    #[inline]
    pub(crate) fn any(&self) -> PyResult<Current<'_>> {
        Ok(match self.own().get()? {
            OpenDatabase::Writer(database) => Current::Writer(database),
            OpenDatabase::Reader(newest) => Current::State(state(newest)),
        })
    }

    /// Fails if the database was closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        // Relaxed: a use concurrent with a close may come before or after it.
        match self.closed.load(Ordering::Relaxed) {
            true => Err(ClosedError::new_err(
                "the database is closed; open it again",
            )),
            false => Ok(()),
        }
    }

    /// Returns the database, if it is open.
    pub(crate) fn open(&self) -> PyResult<Current<'_>> {
        self.check_open()?;
        self.any()
    }

    /// Moves to the newest durable state; returns whether it is newer.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_open()?;
        let OpenDatabase::Reader(newest) = self.own().get()? else {
            return Ok(false);
        };
        let refresh = || -> braid::Result<bool> {
            // Meanwhile, readers continue with the previous state.
            let mut database = state(newest);
            if !database.refresh()? {
                return Ok(false);
            }
            let mut newest = newest.write().unwrap_or_else(PoisonError::into_inner);
            // Another thread may have refreshed to a newer state.
            if database.durable_seqno() <= newest.durable_seqno() {
                return Ok(false);
            }
            let before = std::mem::replace(&mut *newest, database);
            drop(newest);
            drop(before);
            Ok(true)
        };
        py.detach(refresh).py()
    }

    /// Reads one key, with or without releasing the interpreter's lock.
    #[inline]
    pub(crate) fn read_key<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce() -> T + Send,
    ) -> PyResult<T> {
        if self.residency.is_likely(&*self.any()?) {
            Ok(read())
        } else {
            Ok(py.detach(read))
        }
    }

    /// Runs a read of a snapshot or a transaction, if the database is open.
    pub(crate) fn read<T: Send>(
        &self,
        py: Python<'_>,
        extent: Extent,
        read: impl FnOnce() -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        self.check_open()?;
        match extent {
            Extent::Key => self.read_key(py, read)?.py(),
            Extent::Range => py.detach(read).py(),
        }
    }

    pub(crate) fn begin(self: &Arc<Self>, options: TransactionOptions) -> PyResult<Transaction> {
        let number = self.next_transaction.fetch_add(1, Ordering::Relaxed);
        let transaction = self.open()?.begin_with(options);
        Ok(Transaction::new(self.clone(), number, transaction))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Dropping the last handle closes the database, which may write a checkpoint.
        let database = self.database.take();
        Python::try_attach(|py| py.detach(move || drop(database)));
    }
}

/// Waits after a conflict, longer after each one.
fn back_off(py: Python<'_>, tries: u32) {
    let random = RandomState::new().hash_one(tries);
    let pause = Duration::from_micros(random % (2 << tries.min(12)));
    py.detach(|| std::thread::sleep(pause));
}

/// An open database, returned by braid.open and braid.in_memory.
#[pyclass(frozen, weakref, module = "braid")]
#[derive(Debug)]
pub(crate) struct Database {
    handle: Arc<Handle>,
}

/// Opens the database in a directory, creates it if it is missing, and recovers it after a crash.
///
/// The options are keyword arguments: create_if_missing, durability, pool_bytes, device, protocol,
/// strands, lanes, epoch, lock_timeout, file_mode, segment_bytes, checkpoint_log_bytes, max_log_bytes,
/// preallocated_log_bytes, transaction_bytes_max, max_version_bytes, flushes_in_flight, group_size,
/// discard, pmem_commit, log_directory, log_device, read_only, archive, archive_interval, feed_log_bytes, stats_file,
/// on_health_change. Sizes are in bytes, times are datetime.timedelta; docs/python.md describes each option.
///
/// Raises LockedError if the database is open, NotADatabaseError, IncompatibleError, CorruptError,
/// ReadOnlyError, OutOfSpaceError, IoError; TypeError or OptionError for an option.
#[pyfunction]
#[pyo3(signature = (path, **options))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Database> {
    let options = OpenOptions::of(options)?;
    let active = Active::begin()?;
    let builder = options.builder.clone();
    let database = py.detach(|| match options.read_only {
        true => builder.open_read_only(&path),
        false => builder.open(&path),
    });
    let handle = Handle::new(database.py()?, &options, active, Some(path));
    Ok(Database {
        handle: Arc::new(handle),
    })
}

/// Creates a database in memory, which disappears with its last object. The options are those of
/// open.
#[pyfunction]
#[pyo3(signature = (**options))]
pub(crate) fn in_memory(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Database> {
    let options = OpenOptions::of(options)?;
    if options.read_only {
        return Err(OptionError::new_err(
            "invalid option read_only: a new database in memory is empty; leave it out",
        ));
    }
    let active = Active::begin()?;
    let device = Arc::new(MemoryDevice::new());
    let builder = options.builder.clone();
    let database = py.detach(|| builder.open_on(device)).py()?;
    let handle = Handle::new(database, &options, active, None);
    Ok(Database {
        handle: Arc::new(handle),
    })
}

#[pymethods]
impl Database {
    /// Opens a table. If there is none of this name and create is true, creates it, durably.
    ///
    /// key and value are bytes, str, int (the same as i64), float (f64, for values only), bool, or
    /// one of the types braid.u8 to braid.f64; keys can be tuples of these, and values type(None).
    /// compression="lz4" compresses values. With time_to_live, a datetime.timedelta, an entry
    /// expires this long after its last write. An existing table must have been created with the
    /// same options, if any are given. With tablespace, the name of one, the table is created there.
    /// Raises TableTypeError if the table has other types, TablespaceError if it is in another
    /// tablespace, TableOptionsError, TableNotFoundError, TableNameError.
    #[pyo3(signature = (name, *, key = None, value = None, create = true, compression = None, time_to_live = None, tablespace = None))]
    #[expect(clippy::too_many_arguments, reason = "all but one are named")]
    fn open_table(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        create: bool,
        compression: Option<&str>,
        time_to_live: Option<&Bound<'_, PyAny>>,
        tablespace: Option<&str>,
    ) -> PyResult<Table> {
        let schema = Schema::of_arguments(key, value)?;
        let options = table_options(compression, time_to_live)?;
        let database = self.handle.open()?;
        let existing = py.detach(|| database.untyped_table(name)).py()?;
        if existing.is_none() {
            if !create {
                return Err(TableNotFoundError::new_err(format!(
                    "there is no table {name:?}; check the name, or leave out create=False"
                )));
            }
            self.handle.writers.check_none()?;
        }
        // Compares the types as well.
        let (key, value) = (&*schema.key.name(), &*schema.value.name());
        let has_options = options != TableOptions::default();
        let table = py.detach(|| match tablespace {
            Some(space) => database.create_untyped_table_in(space, name, key, value, options),
            None if has_options => database.create_untyped_table_with(name, key, value, options),
            None => database.create_untyped_table(name, key, value),
        });
        Ok(Table::new(self.handle.clone(), table.py()?, schema))
    }

    /// Creates a tablespace, durably: a data file of its own in another directory, which must be
    /// empty or missing, with a page pool of pool_bytes bytes of its own (64 MiB by default). With
    /// own_log=True, it also has a log of its own, which begins with the next opening; log_directory puts
    /// that into a directory for the log alone, which must be empty or missing. memory_node binds it to a
    /// memory node (NUMA) of the machine, by the system's number.
    ///
    /// The database records the directory, and every later opening needs it. Raises
    /// TablespaceError, OptionError, LockedError.
    #[pyo3(signature = (name, directory, *, pool_bytes = None, own_log = false, memory_node = None, log_directory = None))]
    #[expect(clippy::too_many_arguments, reason = "all but two are named")]
    fn create_tablespace(
        &self,
        py: Python<'_>,
        name: &str,
        directory: PathBuf,
        pool_bytes: Option<usize>,
        own_log: bool,
        memory_node: Option<usize>,
        log_directory: Option<PathBuf>,
    ) -> PyResult<()> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let options = TablespaceOptions::in_directory(directory);
        let mut options = options.own_log(own_log);
        if let Some(bytes) = pool_bytes {
            options = options.pool_bytes(bytes);
        }
        if let Some(node) = memory_node {
            options = options.memory_node(node);
        }
        if let Some(directory) = log_directory {
            options = options.log_directory(directory);
        }
        py.detach(|| database.create_tablespace(name, options)).py()
    }

    /// Drops a tablespace without tables, durably, and removes its files. Raises TablespaceError.
    fn drop_tablespace(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.drop_tablespace(name)).py()
    }

    /// Returns the names of the tablespaces; of a database opened with read_only=True, those that
    /// could be opened.
    fn tablespace_names(&self) -> PyResult<Vec<String>> {
        Ok(self.handle.open()?.tablespace_names())
    }

    /// Moves a table to a tablespace, or to the main one with None, while transactions and snapshots
    /// use it. Returns a MoveReport.
    ///
    /// At the end, transactions that already used the table raise ConflictError, once; transact
    /// retries them. Snapshots from before the end read the old place. If the process ends during a
    /// move, the table stays where it was. Raises TableNotFoundError, TablespaceError,
    /// OutOfSpaceError.
    #[pyo3(signature = (name, tablespace))]
    fn move_table<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        tablespace: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let report = py.detach(|| database.move_table(name, tablespace)).py()?;
        reports::moved(py, &report)
    }

    /// Begins a bulk load: it builds a new table from entries in ascending key order, and bypasses
    /// the log. The table is invisible until the load is finished. The arguments are those of
    /// table.
    ///
    /// Raises TableExistsError, TableNameError.
    #[pyo3(signature = (name, *, key = None, value = None, compression = None, time_to_live = None, tablespace = None))]
    #[expect(clippy::too_many_arguments, reason = "all but one are named")]
    fn bulk_load(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        compression: Option<&str>,
        time_to_live: Option<&Bound<'_, PyAny>>,
        tablespace: Option<&str>,
    ) -> PyResult<BulkLoader> {
        let schema = Schema::of_arguments(key, value)?;
        let options = table_options(compression, time_to_live)?;
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let (key, value) = (&*schema.key.name(), &*schema.value.name());
        let loader = py.detach(|| match tablespace {
            Some(space) => database.bulk_load_untyped_in(space, name, key, value, options),
            None => database.bulk_load_untyped(name, key, value, options),
        });
        Ok(BulkLoader::new(self.handle.clone(), schema, loader.py()?))
    }

    /// Opens a table with its stored types; returns None if there is no table of this name.
    fn existing_table(&self, py: Python<'_>, name: &str) -> PyResult<Option<Table>> {
        let database = self.handle.open()?;
        let Some(table) = py.detach(|| database.untyped_table(name)).py()? else {
            return Ok(None);
        };
        let (key, value) = table.type_names();
        let schema = Schema::of_names(key, value)?;
        Ok(Some(Table::new(self.handle.clone(), table, schema)))
    }

    /// Returns the names of all tables, sorted.
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let database = self.handle.open()?;
        py.detach(|| database.table_names()).py()
    }

    /// Removes a table with all its entries; returns whether there was one of this name.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.drop_table(name)).py()
    }

    /// Renames a table.
    fn rename_table(&self, py: Python<'_>, name: &str, to: &str) -> PyResult<()> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.rename_table(name, to)).py()
    }

    /// Begins a transaction. In a with statement, the end of the block commits it, and an exception
    /// aborts it.
    ///
    /// isolation is "serializable" or "snapshot". durability is "immediate", "none", or a
    /// datetime.timedelta within which the transaction becomes durable after its commit.
    /// lock_timeout is a datetime.timedelta: a write that waits longer for a lock raises
    /// LockTimeoutError. Raises OptionError.
    #[pyo3(signature = (*, isolation = None, durability = None, lock_timeout = None))]
    fn begin(
        &self,
        isolation: Option<&str>,
        durability: Option<&Bound<'_, PyAny>>,
        lock_timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Transaction> {
        let default = self.handle.durability;
        let options = transaction_options(isolation, durability, lock_timeout, default)?;
        self.handle.begin(options)
    }

    /// Calls a function with a transaction, commits the transaction, and returns the result of the
    /// function. After a ConflictError it starts again, up to 1,000 times, and then raises the last
    /// one.
    ///
    /// Any other exception aborts the transaction and propagates.
    #[pyo3(signature = (body, *, isolation = None, durability = None, lock_timeout = None))]
    fn transact<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        isolation: Option<&str>,
        durability: Option<&Bound<'py, PyAny>>,
        lock_timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let default = self.handle.durability;
        let options = transaction_options(isolation, durability, lock_timeout, default)?;
        let mut tries = 0;
        loop {
            let transaction = Bound::new(py, self.handle.begin(options)?)?;
            let outcome = body.call1((&transaction,)).and_then(|result| {
                transaction.get().commit_if_open(py)?;
                Ok(result)
            });
            let Err(error) = outcome else { return outcome };
            transaction.get().abort_if_open(py)?;
            if !error.is_instance_of::<ConflictError>(py) || tries == RETRIES_MAX {
                return Err(error);
            }
            tries += 1;
            back_off(py, tries);
            py.check_signals()?;
        }
    }

    /// Moves a database that was opened with read_only=True to the newest durable state, and
    /// returns whether that state is newer than the previous one. Tables, and snapshots and
    /// transactions that begin later, show the new state; open ones keep theirs.
    ///
    /// While another process writes, the new state contains every transaction that was acknowledged
    /// before the call, and nothing that a crash could take back. For a database that is open for
    /// writing, this has no effect. Raises what open raises; the database then keeps the previous
    /// state.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.refresh(py)
    }

    /// Takes a read-only view of the durable state, which never blocks a writer. While it is open,
    /// overwritten values stay in memory for it.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        Snapshot::take(py, &self.handle)
    }

    /// Takes a snapshot and keeps it under a name until drop_snapshot, so that other threads can
    /// find it. It exists only while the database is open. Raises SnapshotExistsError.
    fn create_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<Snapshot> {
        let database = self.handle.open()?;
        let snapshot = py.detach(|| database.create_snapshot(name)).py()?;
        Ok(Snapshot::new(self.handle.clone(), snapshot))
    }

    /// Opens the snapshot of a name; it shows the state in which it was created. Raises
    /// SnapshotNotFoundError.
    fn open_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<Snapshot> {
        let database = self.handle.open()?;
        let snapshot = py.detach(|| database.open_snapshot(name)).py()?;
        Ok(Snapshot::new(self.handle.clone(), snapshot))
    }

    /// Returns the names of all named snapshots, sorted.
    fn snapshot_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let database = self.handle.open()?;
        Ok(py.detach(|| database.snapshot_names()))
    }

    /// Removes a snapshot's name; returns whether there was one. Open snapshots stay valid.
    fn drop_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let database = self.handle.open()?;
        Ok(py.detach(|| database.drop_snapshot(name)))
    }

    /// Opens a reader of the committed, durable transactions after a position, in the order of
    /// sequence numbers; without a position, of those from the present on. Raises PositionLostError
    /// if the log after the position is gone, ForeignPositionError.
    #[pyo3(signature = (position = None))]
    fn changes(&self, py: Python<'_>, position: Option<&Bound<'_, Position>>) -> PyResult<Changes> {
        let database = self.handle.open()?;
        let from = position.map(|position| position.get().0);
        let open = || database.changes(from.unwrap_or_else(|| database.position()));
        let changes = py.detach(open).py()?;
        Ok(Changes::new(self.handle.clone(), changes))
    }

    /// Returns the position after all transactions that are durable now, or after the transaction
    /// with a sequence number.
    #[pyo3(signature = (seqno = None))]
    fn position(&self, seqno: Option<u64>) -> PyResult<Position> {
        let database = self.handle.open()?;
        Ok(Position(match seqno {
            Some(seqno) => database.position_after(seqno),
            None => database.position(),
        }))
    }

    /// Returns the oldest position from which changes can be read.
    fn oldest_position(&self, py: Python<'_>) -> PyResult<Position> {
        let database = self.handle.open()?;
        Ok(Position(py.detach(|| database.oldest_position())))
    }

    /// Opens a feed by name. If there is none, creates it, durably, at the current durable
    /// position. The database remembers the position of a feed, and keeps the log after it, up to
    /// feed_log_bytes.
    fn feed(&self, py: Python<'_>, name: &str) -> PyResult<Feed> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let feed = py.detach(|| database.feed(name)).py()?;
        Ok(Feed::new(self.handle.clone(), feed))
    }

    /// Returns all feeds by name, with the positions up to which they were acknowledged.
    fn feeds(&self, py: Python<'_>) -> PyResult<BTreeMap<String, Position>> {
        let database = self.handle.open()?;
        let feeds = py.detach(|| database.feeds()).into_iter();
        Ok(feeds
            .map(|(name, position)| (name, Position(position)))
            .collect())
    }

    /// Removes a feed; returns whether there was one of this name.
    fn drop_feed(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.drop_feed(name)).py()
    }

    /// Makes a backup while the database is in use. With parent, the path of an earlier backup, it
    /// contains only the pages that changed since then. path is a file that does not exist, or a
    /// directory; or a binary stream that is open for writing.
    ///
    /// progress is called with the pages so far and the total; an exception that it raises is
    /// raised after the backup. Raises BackupError, CorruptError, OutOfSpaceError, IoError.
    #[pyo3(signature = (path, *, parent = None, progress = None))]
    fn backup<'py>(
        &self,
        py: Python<'py>,
        path: &Bound<'py, PyAny>,
        parent: Option<PathBuf>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Place::of(path, "write")?;
        let database = self.handle.open()?;
        backup::make(py, &database, place, parent, progress)
    }

    /// Archives everything that is durable now; returns the sequence number up to which the archive
    /// reaches, or None if the database was opened without an archive.
    fn archive_now(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let database = self.handle.open()?;
        py.detach(|| database.archive_now()).py()
    }

    /// Removes all expired entries, and returns their number.
    fn remove_expired(&self, py: Python<'_>) -> PyResult<u64> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.remove_expired()).py()
    }

    /// Moves pages into free space and truncates the data file.
    fn compact<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.open()?;
        let report = py.detach(|| database.compact()).py()?;
        reports::compact(py, &report)
    }

    /// Waits until all transactions committed so far are durable, whatever durability each has.
    /// Raises PoisonedError.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let database = self.handle.open()?;
        py.detach(|| database.sync()).py()
    }

    /// Writes a checkpoint now. Recovery then no longer needs the log before the checkpoint, and
    /// Braid reuses its space.
    ///
    /// Raises OutOfSpaceError, IoError or PoisonedError; the previous checkpoint stays valid.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        let database = self.handle.open()?;
        py.detach(|| database.checkpoint()).py()
    }

    /// Returns counters and sizes.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.any()?;
        reports::stats(py, &py.detach(|| database.stats()))
    }

    /// Returns whether the database can be written, and if not, why.
    fn health<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.any()?;
        reports::health(py, &py.detach(|| database.health()))
    }

    /// Returns what was recovered when the database was opened.
    fn recovery<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        reports::recovery(py, self.handle.any()?.recovery())
    }

    /// Durable sequence number: all transactions up to it are durable.
    #[getter]
    fn durable_seqno(&self) -> PyResult<u64> {
        Ok(self.handle.any()?.durable_seqno())
    }

    /// Directory of the database; None in memory.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.handle.path.clone()
    }

    /// Whether the database was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.handle.closed.load(Ordering::Relaxed)
    }

    /// Closes the database: waits for committed transactions and writes a last checkpoint.
    /// Afterwards, its objects raise ClosedError. Closing again has no effect.
    ///
    /// Raises PoisonedError, or any error of a checkpoint; no acknowledged transaction is lost.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let database = braid::Database::clone(&*self.handle.any()?);
        self.handle.closed.store(true, Ordering::Relaxed);
        let outcome = py.detach(|| database.close()).py();
        self.handle.active.end();
        outcome
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        match &self.handle.path {
            Some(path) => format!("<braid.Database {}{closed}>", path.display()),
            None => format!("<braid.Database in memory{closed}>"),
        }
    }
}
