//! Handles to tables.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_rt::RwLock;
use bytes::Bytes;

use braid_store::{LeafHint, TOGETHER, Tree, ValueRef};

use crate::MAX_VALUE_LEN;
use crate::base::table_options::TableOptions;
use crate::error::{Error, Result};
use crate::schema::value_format::ValueFormat;
use crate::types::{AsKey, Key, Value};

/// A thread's buffer for values that are only looked at is kept up to this size.
const BUFFER_KEPT_MAX: usize = 64 << 10;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

const ARROW: &str = " -> ";

/// How the types of a table are stored.
pub(crate) fn type_names(key: &str, value: &str) -> String {
    [key, value].join(ARROW)
}

/// What an opened database has in common with handles of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The number of the opened database: of one state, if the database is only read.
    pub(crate) state: u64,
    /// The number of what the states are read from: the same for all that [refreshes](crate::Database::refresh)
    /// lead to.
    pub(crate) source: u64,
}

impl Identity {
    /// A number that nothing else in this process has.
    pub(crate) fn number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// The identity of a database that is about to be opened, from a source if it is only read.
    pub(crate) fn new(source: Option<u64>) -> Self {
        let state = Self::number();
        let source = source.unwrap_or(state);
        Self { state, source }
    }
}

/// A table without its types; shared by all handles.
#[derive(Debug)]
pub(crate) struct TableCore {
    /// Names the table in the log and its tree in the store; never used again after a drop.
    pub(crate) id: u32,
    /// The opened database that the handle belongs to.
    pub(crate) database: Identity,
    pub(crate) tree: Tree,
    /// `key type -> value type`, as stored.
    pub(crate) types: String,
    pub(crate) name: RwLock<String>,
    /// The commit before which the table, which was loaded, is empty: its records are older.
    pub(crate) since: u64,
    pub(crate) options: TableOptions,
    /// What the options make of a value; none where it is stored as it is.
    pub(crate) value_format: Option<ValueFormat>,
    dropped: AtomicBool,
}

impl TableCore {
    pub(crate) fn new(id: u32, database: Identity, tree: Tree, name: &str, types: String) -> Self {
        let name = RwLock::new(name.to_owned());
        Self {
            id,
            database,
            tree,
            types,
            name,
            since: 0,
            options: TableOptions::default(),
            value_format: None,
            dropped: AtomicBool::new(false),
        }
    }

    /// The same with options.
    pub(crate) fn with_options(self, options: TableOptions) -> Self {
        Self {
            options,
            value_format: options.value_format(),
            ..self
        }
    }

    /// The value of its stored form; `None` also if its time was over `now`.
    #[inline]
    pub(crate) fn open(
        &self,
        stored: Option<Bytes>,
        now: impl FnOnce() -> u64,
    ) -> Result<Option<Bytes>> {
        match (&self.value_format, stored) {
            (Some(value_format), Some(stored)) => value_format.open(&stored, now),
            (_, stored) => Ok(stored),
        }
    }

    /// [`Self::open`] out of the way of reads from plain tables.
    #[cold]
    #[inline(never)]
    pub(crate) fn open_stored(
        &self,
        stored: Option<Bytes>,
        now: impl FnOnce() -> u64,
    ) -> Result<Option<Bytes>> {
        self.open(stored, now)
    }

    /// What `take` makes of the value of a stored form.
    #[cold]
    pub(crate) fn take_opened<R>(
        &self,
        stored: Option<Bytes>,
        now: impl FnOnce() -> u64,
        mut take: impl FnMut(ValueRef<'_>) -> R,
    ) -> Result<Option<R>> {
        let value = self.open(stored, now)?;
        Ok(value.map(|value| take(ValueRef::from(&value))))
    }

    /// Calls `f` with the value of a stored form that `read` puts into the buffer it is given, or says that
    /// there is none.
    pub(crate) fn with_value<R>(
        &self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<bool>,
        now: impl FnOnce() -> u64,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        // Taken out meanwhile, since `f` may read, too.
        let mut buffer = BUFFER.take();
        let outcome = (|| {
            if !read(&mut buffer)? {
                return Ok(f(None));
            }
            let Some(value_format) = &self.value_format else {
                return Ok(f(Some(&buffer)));
            };
            let value = value_format.open(&Bytes::copy_from_slice(&buffer), now)?;
            Ok(f(value.as_deref()))
        })();
        if buffer.capacity() <= BUFFER_KEPT_MAX {
            BUFFER.set(buffer);
        }
        outcome
    }

    /// See [`crate::Readable::prefetch`]. Tells where the keys are.
    pub(crate) fn prefetch<'q, K: Key, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        keys: impl IntoIterator<Item = &'q Q>,
        mut found: impl FnMut(&[u8], LeafHint),
    ) {
        let mut keys = keys.into_iter();
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let mut ends = [0; TOGETHER];
            let mut count = 0;
            for (end, key) in ends.iter_mut().zip(&mut keys) {
                key.with_key_bytes(|key| bytes.extend_from_slice(key));
                *end = bytes.len();
                count += 1;
            }
            if count == 0 {
                return;
            }
            let start = |i: usize| i.checked_sub(1).map_or(0, |before| ends[before]);
            let keys: [&[u8]; TOGETHER] =
                std::array::from_fn(|i| bytes.get(start(i)..ends[i]).unwrap_or_default());
            self.tree.prefetch(&keys[..count], &mut found);
        }
    }

    /// The longest value that the table takes.
    pub(crate) fn value_len_max(&self) -> usize {
        match self.value_format {
            Some(_) => ValueFormat::VALUE_LEN_MAX,
            None => MAX_VALUE_LEN,
        }
    }

    pub(crate) fn check_value_len(&self, len: usize) -> Result<()> {
        let max = self.value_len_max();
        if len > max {
            Err(Error::ValueTooLong { len, max })
        } else {
            Ok(())
        }
    }

    /// The same for a table that commit `number` made, with older records.
    pub(crate) fn loaded_at(self, seqno: u64) -> Self {
        if braid_rt::mutant!("loaded_for_ever") {
            return self;
        }
        Self {
            since: seqno,
            ..self
        }
    }

    /// Sets whether the table is dropped. A drop sets it before it assigns its sequence number, and
    /// a commit looks after it got its own: so a commit that does not see it comes before the drop.
    pub(crate) fn set_dropped(&self, dropped: bool) {
        // SeqCst: in one order with both assignments.
        self.dropped.store(dropped, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_dropped() {
            return Err(self.not_alive());
        }
        Ok(())
    }

    /// The error of a use with a state in which the table does not exist.
    #[cold]
    pub(crate) fn not_alive(&self) -> Error {
        Error::TableDropped {
            name: self.name.read().clone(),
        }
    }

    /// The error of a use with another database.
    #[cold]
    pub(crate) fn foreign(&self) -> Error {
        Error::ForeignTable {
            name: self.name.read().clone(),
        }
    }
}

/// Handle to a table of ordered keys `K` with values `V`.
///
/// Handles come from [`crate::Database::open_table`], are cheap to clone, and can be used in any
/// transaction or snapshot of the same database, from any thread. A handle of a read-only database
/// stays valid after [`crate::Database::refresh`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// let ages: braid::Table<String, u32> = db.open_table("ages")?;
/// db.transact(|tx| tx.insert(&ages, "Ada", &36))?;
/// assert_eq!(db.get(&ages, "Ada")?, Some(36));
/// # Ok(())
/// # }
/// ```
pub struct Table<K: Key = Bytes, V: Value = Bytes> {
    pub(crate) core: Arc<TableCore>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value> Table<K, V> {
    pub(crate) fn new(core: Arc<TableCore>) -> Self {
        Self {
            core,
            types: PhantomData,
        }
    }

    /// The types as they are stored with the table.
    pub(crate) fn types() -> String {
        type_names(&K::type_name(), &V::type_name())
    }

    /// Returns the names of the key type and the value type that the table was created with: those
    /// of `K` and `V`, unless the handle is from [`crate::Database::untyped_table`].
    pub fn type_names(&self) -> (&str, &str) {
        let types = &self.core.types;
        types.split_once(ARROW).unwrap_or((types, ""))
    }

    /// Returns the options that the table was created with.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// assert_eq!(t.options(), braid::TableOptions::default());
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(&self) -> TableOptions {
        self.core.options
    }

    /// Returns the table's current name.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// assert_eq!(t.name(), "t");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> String {
        self.core.name.read().clone()
    }
}

impl<K: Key, V: Value> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.core.clone())
    }
}

impl<K: Key, V: Value> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({:?}: {})", self.name(), self.core.types)
    }
}
