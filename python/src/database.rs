//! Opening a database, and the object that stands for it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use braid::{Durability, MemoryDevice, TableOptions, TransactionOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::backup::{self, Place};
use crate::bulk::BulkLoader;
use crate::changes::{Changes, Feed, Position};
use crate::errors::{ClosedError, ConflictError, IntoPyResult, OptionError, TableMissingError};
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

/// After this many conflicts in a row `Database.transact` gives up.
const RETRIES_MAX: u32 = 1_000;

/// What all objects of an open database share.
#[derive(Debug)]
pub(crate) struct Handle {
    /// There until the drop.
    database: Option<Own<OpenDatabase>>,
    /// Of the transactions that name none.
    pub(crate) durability: Durability,
    pub(crate) writers: Writers,
    residency: Residency,
    next_transaction: AtomicU64,
    closed: AtomicBool,
    active: Active,
    path: Option<PathBuf>,
}

/// What a handle opened.
#[derive(Debug)]
enum OpenDatabase {
    /// For writing.
    Writer(braid::Database),
    /// Only to be read: the newest state that was asked for.
    Reader(RwLock<braid::Database>),
}

/// The database of a handle, in the state that new reads show.
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

/// The lock is held for the copy of a handle only, never while Python's lock is waited for.
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

    /// Fails in a child of the process that opened the database: to be asked before a mutex of any object of it is
    /// waited for.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.own().check()
    }

    /// The database, if this process opened it.
    #[inline]
    pub(crate) fn any(&self) -> PyResult<Current<'_>> {
        Ok(match self.own().get()? {
            OpenDatabase::Writer(database) => Current::Writer(database),
            OpenDatabase::Reader(newest) => Current::State(state(newest)),
        })
    }

    /// Fails after the database was closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        // Relaxed: a use while another thread closes the database may come before or after.
        match self.closed.load(Ordering::Relaxed) {
            true => Err(ClosedError::new_err(
                "the database is closed; open it again",
            )),
            false => Ok(()),
        }
    }

    /// The database, if it is open.
    pub(crate) fn open(&self) -> PyResult<Current<'_>> {
        self.check_open()?;
        self.any()
    }

    /// Moves to the newest durable state, and returns whether that is newer.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_open()?;
        let OpenDatabase::Reader(newest) = self.own().get()? else {
            return Ok(false);
        };
        let refresh = || -> braid::Result<bool> {
            // Readers go on with the state before meanwhile.
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

    /// Reads one key, with or without the interpreter's lock.
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

    /// Reads in a snapshot or a transaction, while the database is open.
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
        // The last one closes the database, which may take a checkpoint.
        let database = self.database.take();
        Python::try_attach(|py| py.detach(move || drop(database)));
    }
}

/// Keeps transactions that collided apart, for longer each time.
fn back_off(py: Python<'_>, tries: u32) {
    let random = RandomState::new().hash_one(tries);
    let pause = Duration::from_micros(random % (2 << tries.min(12)));
    py.detach(|| std::thread::sleep(pause));
}

/// An open database; made by `braid.open` and `braid.in_memory`.
#[pyclass(frozen, weakref, module = "braid")]
#[derive(Debug)]
pub(crate) struct Database {
    handle: Arc<Handle>,
}

/// Opens the database in a directory, which is created if it is missing, and recovers what a crash left.
///
/// The options are keyword arguments: create_if_missing, durability, pool_bytes, device, protocol, strands, lanes,
/// epoch, file_mode, segment_bytes, checkpoint_log_bytes, max_log_bytes, preallocated_log_bytes, transaction_bytes_max,
/// flushes_in_flight, group_size, discard, read_only, archive, archive_interval, feed_log_bytes, stats_file,
/// on_health_change. Sizes are in bytes, times are datetime.timedelta; docs/python.md says what each of them means.
///
/// Raises LockedError if the database is open, NotADatabaseError, IncompatibleError, CorruptError, ReadOnlyError,
/// OutOfSpaceError, IoError; TypeError or OptionError for an option.
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

/// A database in memory, gone with its last object; the options are those of open.
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
    /// A handle to a table, which is created, durably, if there is none of this name and create is true.
    ///
    /// key and value are bytes, str, int (which is i64), float (f64, for values only), or one of the types braid.u8 to
    /// braid.f64. Values are compressed with compression="lz4", and with time_to_live, a datetime.timedelta, entries are
    /// gone so long after they were written. A table that is there must have been created with the same, if either is
    /// given. Raises TableTypeError if the table holds other types, TableOptionsError, TableMissingError, TableNameError.
    #[pyo3(signature = (name, *, key = None, value = None, create = true, compression = None, time_to_live = None))]
    #[expect(clippy::too_many_arguments, reason = "all but one are named")]
    fn table(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        create: bool,
        compression: Option<&str>,
        time_to_live: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Table> {
        let schema = Schema::of_arguments(key, value)?;
        let options = table_options(compression, time_to_live)?;
        let database = self.handle.open()?;
        let existing = py.detach(|| database.untyped_table(name)).py()?;
        if existing.is_none() {
            if !create {
                return Err(TableMissingError::new_err(format!(
                    "there is no table {name:?}; check the name, or leave out create=False"
                )));
            }
            self.handle.writers.check_none()?;
        }
        // Compares the types, too.
        let (key, value) = (&*schema.key.name(), &*schema.value.name());
        let table = py.detach(|| match options == TableOptions::default() {
            true => database.create_untyped_table(name, key, value),
            false => database.create_untyped_table_with(name, key, value, options),
        });
        Ok(Table::new(self.handle.clone(), table.py()?, schema))
    }

    /// Builds a table from entries in ascending order of their keys, past the log: for much data at once. Nobody sees
    /// anything of it before it is finished. The arguments are those of table.
    ///
    /// Raises TableExistsError, TableNameError.
    #[pyo3(signature = (name, *, key = None, value = None, compression = None, time_to_live = None))]
    fn bulk_load(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        compression: Option<&str>,
        time_to_live: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BulkLoader> {
        let schema = Schema::of_arguments(key, value)?;
        let options = table_options(compression, time_to_live)?;
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let (key, value) = (&*schema.key.name(), &*schema.value.name());
        let loader = py.detach(|| database.bulk_load_untyped(name, key, value, options));
        Ok(BulkLoader::new(self.handle.clone(), schema, loader.py()?))
    }

    /// A handle to a table of whatever types, or None if there is none of this name.
    fn existing_table(&self, py: Python<'_>, name: &str) -> PyResult<Option<Table>> {
        let database = self.handle.open()?;
        let Some(table) = py.detach(|| database.untyped_table(name)).py()? else {
            return Ok(None);
        };
        let (key, value) = table.type_names();
        let schema = Schema::of_names(key, value)?;
        Ok(Some(Table::new(self.handle.clone(), table, schema)))
    }

    /// The names of all tables, sorted.
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let database = self.handle.open()?;
        py.detach(|| database.table_names()).py()
    }

    /// Removes a table with all it holds; says whether there was one of this name.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.drop_table(name)).py()
    }

    /// Gives a table another name.
    fn rename_table(&self, py: Python<'_>, name: &str, to: &str) -> PyResult<()> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.rename_table(name, to)).py()
    }

    /// Begins a transaction, to be used in a with statement: its end commits, an exception aborts.
    ///
    /// isolation is "serializable" or "snapshot"; durability is "immediate", "none", or a datetime.timedelta within
    /// which a commit is on the disk. Raises OptionError.
    #[pyo3(signature = (*, isolation = None, durability = None))]
    fn begin(
        &self,
        isolation: Option<&str>,
        durability: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Transaction> {
        let options = transaction_options(isolation, durability, self.handle.durability)?;
        self.handle.begin(options)
    }

    /// Calls a function with a transaction and commits it, again and again while that fails with a ConflictError, and
    /// returns what the function returned.
    ///
    /// Any other exception aborts and is raised, and so is the last conflict after 1,000 tries.
    #[pyo3(signature = (body, *, isolation = None, durability = None))]
    fn transact<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        isolation: Option<&str>,
        durability: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = transaction_options(isolation, durability, self.handle.durability)?;
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

    /// Moves a database that was opened with read_only=True to the newest durable state, and returns whether that is
    /// newer than the one before. Tables and later snapshots and transactions show the new state; open ones keep theirs.
    ///
    /// While another process writes, the new state has every transaction that was acknowledged before the call, and
    /// nothing that a crash could take back. For a database that is open for writing, this does nothing. Raises what
    /// open raises; the state stays the same then.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.refresh(py)
    }

    /// A read-only view of what is durable now, which blocks nobody. While it is open, old values are kept for it.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        Snapshot::take(py, &self.handle)
    }

    /// Takes a snapshot and keeps it under a name until drop_snapshot, so that other threads find it. It does not outlive
    /// the open database. Raises SnapshotExistsError.
    fn create_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<Snapshot> {
        let database = self.handle.open()?;
        let snapshot = py.detach(|| database.create_snapshot(name)).py()?;
        Ok(Snapshot::new(self.handle.clone(), snapshot))
    }

    /// The snapshot of a name, as it was when it was created. Raises SnapshotMissingError.
    fn open_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<Snapshot> {
        let database = self.handle.open()?;
        let snapshot = py.detach(|| database.open_snapshot(name)).py()?;
        Ok(Snapshot::new(self.handle.clone(), snapshot))
    }

    /// The names of all named snapshots, sorted.
    fn snapshot_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let database = self.handle.open()?;
        Ok(py.detach(|| database.snapshot_names()))
    }

    /// Takes a snapshot's name away; says whether there was one. Those that have it open keep it.
    fn drop_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let database = self.handle.open()?;
        Ok(py.detach(|| database.drop_snapshot(name)))
    }

    /// A reader of the committed, durable transactions behind a position, in their order; without one, of those from now
    /// on. Raises PositionLostError if they are not kept any more, ForeignPositionError.
    #[pyo3(signature = (position = None))]
    fn changes(&self, py: Python<'_>, position: Option<&Bound<'_, Position>>) -> PyResult<Changes> {
        let database = self.handle.open()?;
        let from = position.map(|position| position.get().0);
        let open = || database.changes(from.unwrap_or_else(|| database.position()));
        let changes = py.detach(open).py()?;
        Ok(Changes::new(self.handle.clone(), changes))
    }

    /// The position behind all that is durable now, or behind the transaction of a number.
    #[pyo3(signature = (seqno = None))]
    fn position(&self, seqno: Option<u64>) -> PyResult<Position> {
        let database = self.handle.open()?;
        Ok(Position(match seqno {
            Some(seqno) => database.position_behind(seqno),
            None => database.position(),
        }))
    }

    /// The oldest position from which changes can be read.
    fn oldest_position(&self, py: Python<'_>) -> PyResult<Position> {
        let database = self.handle.open()?;
        Ok(Position(py.detach(|| database.oldest_position())))
    }

    /// A feed by name, which is created, durably, if there is none: it then begins behind what is durable now. The
    /// database remembers how far it has come, and keeps the log behind that, up to feed_log_bytes.
    fn feed(&self, py: Python<'_>, name: &str) -> PyResult<Feed> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let feed = py.detach(|| database.feed(name)).py()?;
        Ok(Feed::new(self.handle.clone(), feed))
    }

    /// All feeds by their names, with the positions up to which they were acknowledged.
    fn feeds(&self, py: Python<'_>) -> PyResult<BTreeMap<String, Position>> {
        let database = self.handle.open()?;
        let feeds = py.detach(|| database.feeds()).into_iter();
        Ok(feeds
            .map(|(name, position)| (name, Position(position)))
            .collect())
    }

    /// Removes a feed; says whether there was one of this name.
    fn drop_feed(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.drop_feed(name)).py()
    }

    /// Makes a backup while the database is in use: of everything, or with parent, the path of an earlier backup, of what
    /// changed since that. path is a file that does not exist, or a directory; or a binary stream that is open for
    /// writing.
    ///
    /// progress is called with the pages so far and in all; what it raises is raised when the backup is made. Raises
    /// BackupError, CorruptError, OutOfSpaceError, IoError.
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

    /// Brings the archive up to all that is durable now; returns the number up to which it goes, or None if the database
    /// was opened without one.
    fn archive_now(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let database = self.handle.open()?;
        py.detach(|| database.archive_now()).py()
    }

    /// Removes all entries whose time to live is over, and says how many.
    fn remove_expired(&self, py: Python<'_>) -> PyResult<u64> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        py.detach(|| database.remove_expired()).py()
    }

    /// Makes the data file as short as what is in it allows.
    fn compact<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.open()?;
        let report = py.detach(|| database.compact()).py()?;
        reports::compact(py, &report)
    }

    /// Blocks until everything committed so far is durable, whatever its durability. Raises PoisonedError.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let database = self.handle.open()?;
        py.detach(|| database.sync()).py()
    }

    /// Writes a checkpoint now: the log before it is no longer needed, and its space is used again.
    ///
    /// Raises OutOfSpaceError, IoError or PoisonedError; the checkpoint before stays good.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        let database = self.handle.open()?;
        py.detach(|| database.checkpoint()).py()
    }

    /// Counters and sizes.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.any()?;
        reports::stats(py, &py.detach(|| database.stats()))
    }

    /// Whether the database can be written to, and why not.
    fn health<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.any()?;
        reports::health(py, &py.detach(|| database.health()))
    }

    /// What opening the database had to recover.
    fn recovery<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        reports::recovery(py, self.handle.any()?.recovery())
    }

    /// The number up to which all transactions are durable.
    #[getter]
    fn durable_seqno(&self) -> PyResult<u64> {
        Ok(self.handle.any()?.durable_seqno())
    }

    /// The database's directory; None in memory.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.handle.path.clone()
    }

    /// Whether the database was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.handle.closed.load(Ordering::Relaxed)
    }

    /// Closes the database: waits for what is committed and writes a last checkpoint. Everything that came of it fails
    /// with ClosedError from then on. Closing again does nothing.
    ///
    /// Raises PoisonedError, or what a checkpoint can fail with; what was acknowledged is safe even so.
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
