//! Opening a database, and the object that stands for it.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use braid::{Durability, MemoryDevice, TransactionOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{ClosedError, ConflictError, IntoPyResult, TableMissingError};
use crate::fork::Own;
use crate::options::{OpenOptions, transaction_options};
use crate::reports;
use crate::residency::Residency;
use crate::snapshot::Snapshot;
use crate::table::Table;
use crate::transaction::Transaction;
use crate::types::{ColumnType, Schema};
use crate::writers::Writers;

/// After this many conflicts in a row `Database.transact` gives up.
const RETRIES_MAX: u32 = 1_000;

/// What all objects of an open database share.
#[derive(Debug)]
pub(crate) struct Handle {
    /// There until the drop.
    database: Option<Own<braid::Database>>,
    /// Of the transactions that name none.
    pub(crate) durability: Durability,
    pub(crate) writers: Writers,
    residency: Residency,
    next_transaction: AtomicU64,
    closed: AtomicBool,
    path: Option<PathBuf>,
}

impl Handle {
    fn new(database: braid::Database, durability: Durability, path: Option<PathBuf>) -> Self {
        Self {
            database: Some(Own::new(database)),
            durability,
            writers: Writers::default(),
            residency: Residency::new(),
            next_transaction: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            path,
        }
    }

    /// The database, if this process opened it.
    pub(crate) fn any(&self) -> PyResult<&braid::Database> {
        self.database
            .as_ref()
            .expect("only the drop takes it")
            .get()
    }

    /// The database, if it is open.
    pub(crate) fn open(&self) -> PyResult<&braid::Database> {
        // Relaxed: who uses it while another thread closes it may come before or after.
        if self.closed.load(Ordering::Relaxed) {
            return Err(ClosedError::new_err("the database is closed"));
        }
        self.any()
    }

    /// Reads one key, with or without the interpreter's lock.
    #[inline]
    pub(crate) fn read_key<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce() -> T + Send,
    ) -> PyResult<T> {
        if self.residency.is_likely(self.any()?) {
            Ok(read())
        } else {
            Ok(py.detach(read))
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
/// epoch, segment_bytes, checkpoint_log_bytes, max_log_bytes, transaction_bytes_max, flushes_in_flight, group_size,
/// discard. Sizes are in bytes, times are datetime.timedelta; docs/python.md says what each of them means.
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
    let database = py.detach(|| options.builder.open(&path)).py()?;
    let handle = Handle::new(database, options.durability, Some(path));
    Ok(Database {
        handle: Arc::new(handle),
    })
}

/// A database in memory, gone with its last object; the options are those of open.
#[pyfunction]
#[pyo3(signature = (**options))]
pub(crate) fn in_memory(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Database> {
    let options = OpenOptions::of(options)?;
    let device = Arc::new(MemoryDevice::new());
    let database = py.detach(|| options.builder.open_on(device)).py()?;
    let handle = Handle::new(database, options.durability, None);
    Ok(Database {
        handle: Arc::new(handle),
    })
}

#[pymethods]
impl Database {
    /// A handle to a table, which is created, durably, if there is none of this name and create is true.
    ///
    /// key and value are bytes, str, int (which is i64), float (f64, for values only), or one of the types braid.u8 to
    /// braid.f64. Raises TableTypeError if the table holds others, TableMissingError, TableNameError.
    #[pyo3(signature = (name, *, key = None, value = None, create = true))]
    fn table(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        create: bool,
    ) -> PyResult<Table> {
        let key = key.map_or(Ok(ColumnType::Bytes), ColumnType::of_key_argument)?;
        let value = value.map_or(Ok(ColumnType::Bytes), ColumnType::of_argument)?;
        let database = self.handle.open()?;
        let existing = py.detach(|| database.untyped_table(name)).py()?;
        if existing.is_none() {
            if !create {
                return Err(TableMissingError::new_err(format!(
                    "there is no table {name:?}"
                )));
            }
            self.handle.writers.check_none()?;
        }
        // Compares the types, too.
        let table = py
            .detach(|| database.create_untyped_table(name, key.name(), value.name()))
            .py()?;
        Ok(Table::new(
            self.handle.clone(),
            table,
            Schema { key, value },
        ))
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

    /// A read-only view of what is durable now, which blocks nobody. While it is open, old values are kept for it.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        Snapshot::take(py, &self.handle)
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
    fn durable_horizon(&self) -> PyResult<u64> {
        Ok(self.handle.any()?.durable_horizon())
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
        let database = self.handle.any()?.clone();
        self.handle.closed.store(true, Ordering::Relaxed);
        py.detach(|| database.close()).py()
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
