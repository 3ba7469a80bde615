//! Handles to tables.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use braid_log::SeqNo;
use braid_rt::RwLock;
use braid_rt::atomic::{AtomicU64, Ordering};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use braid_store::{LeafHint, TOGETHER, Tree, ValueRef, collect_missing};

use crate::MAX_VALUE_LEN;
use crate::base::table_options::TableOptions;
use crate::error::{Error, Result};
use crate::schema::moving::TableState;
use crate::schema::value_format::ValueFormat;
use crate::types::{AsKey, Key, Value};

/// Maximum size of a thread's buffer for borrowed values to keep.
const BUFFER_KEPT_MAX: usize = 64 << 10;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

const ARROW: &str = " -> ";

/// Returns the stored form of a table's types.
pub(crate) fn type_names(key: &str, value: &str) -> String {
    [key, value].join(ARROW)
}

/// Identity that an open database shares with the handles of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Number of the open database; a read-only database has one for each state.
    pub(crate) state: u64,
    /// Number of the source of the states: the same after every
    /// [refresh](crate::Database::refresh).
    pub(crate) source: u64,
    /// Random, so that nobody can choose keys whose hashes are equal.
    hash_seed: u64,
}

impl Identity {
    /// Returns a number that is unique in this process.
    pub(crate) fn number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Creates the identity of a database that is being opened, for a read-only one from its
    /// source.
    pub(crate) fn new(source: Option<u64>) -> Self {
        let state = Self::number();
        let source = source.unwrap_or(state);
        let hash_seed = braid_rt::entropy();
        Self {
            state,
            source,
            hash_seed,
        }
    }
}

/// A table without its types, shared by all handles.
#[derive(Debug)]
pub(crate) struct TableCore {
    /// Number of the table in the log and of its tree in the store; never reused after a drop.
    pub(crate) id: u32,
    /// The open database that the handle belongs to.
    pub(crate) database: Identity,
    pub(crate) tree: Tree,
    /// `key type -> value type`, as stored.
    pub(crate) types: String,
    pub(crate) name: RwLock<String>,
    /// Sequence number of the commit that published a bulk-loaded table, which is empty for older
    /// snapshots although its records have older versions, or a table that moved.
    since: AtomicU64,
    pub(crate) options: TableOptions,
    /// Stored form of values, if the options require one.
    pub(crate) value_format: Option<ValueFormat>,
    /// Seed of the hashes of keys: random, and different for each table.
    hash_seed: u64,
    /// Numbers that the table had before it moved to other tablespaces: known to readers of states
    /// only, whose earlier states have the table under such a number.
    former: Vec<u32>,
    pub(super) state: TableState,
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
            since: AtomicU64::new(SeqNo::NONE.get()),
            options: TableOptions::default(),
            value_format: None,
            hash_seed: xxh3_64_with_seed(&id.to_le_bytes(), database.hash_seed),
            former: Vec::new(),
            state: TableState::default(),
        }
    }

    /// Returns the hash of a key, by which the lock table and the leaf hints find it.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.hash_seed)
    }

    /// Returns the table with these options.
    pub(crate) fn with_options(self, options: TableOptions) -> Self {
        Self {
            options,
            value_format: options.value_format(),
            ..self
        }
    }

    /// Returns the table with the numbers that it had before it moved.
    pub(crate) fn with_former(self, former: Vec<u32>) -> Self {
        Self { former, ..self }
    }

    /// Returns the numbers under which states of the database may have the table.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(self.id).chain(self.former.iter().copied())
    }

    /// Decodes a stored value. Returns `None` if there is none, or if it had expired by `now`.
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

    /// [`Self::open`] out of line, to keep reads from plain tables small.
    #[cold]
    #[inline(never)]
    pub(crate) fn open_stored(
        &self,
        stored: Option<Bytes>,
        now: impl FnOnce() -> u64,
    ) -> Result<Option<Bytes>> {
        self.open(stored, now)
    }

    /// Decodes a stored value and calls `take` with it.
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

    /// Calls `f` with a value. `read` appends the stored form to a buffer and returns whether the
    /// key exists.
    pub(crate) fn with_value<R>(
        &self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<bool>,
        now: impl FnOnce() -> u64,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        // The thread's buffer is taken for the duration of the call, because `f` may read, too.
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

    /// Prefetches the pages of keys, see [`crate::Readable::prefetch`]. Calls `found` with each
    /// key's leaf hint.
    pub(crate) fn prefetch<'q, K: Key, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        keys: impl IntoIterator<Item = &'q Q>,
        mut found: impl FnMut(&[u8], LeafHint),
    ) -> Result<()> {
        let mut keys = keys.into_iter();
        let mut bytes = Vec::new();
        let together = std::iter::from_fn(|| {
            bytes.clear();
            let mut ends = [0; TOGETHER];
            let mut count = 0;
            for (end, key) in ends.iter_mut().zip(&mut keys) {
                key.with_key_bytes(|key| bytes.extend_from_slice(key));
                *end = bytes.len();
                count += 1;
            }
            if count == 0 {
                return None;
            }
            let start = |i: usize| i.checked_sub(1).map_or(0, |before| ends[before]);
            let keys: [&[u8]; TOGETHER] =
                std::array::from_fn(|i| bytes.get(start(i)..ends[i]).unwrap_or_default());
            Some(self.tree.prefetch(&keys[..count], &mut found))
        });
        Ok(collect_missing(together)?)
    }

    /// Returns the maximum length of a value.
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

    /// Returns the table as published by commit `seqno`, with older records.
    pub(crate) fn loaded_at(self, seqno: SeqNo) -> Self {
        if !braid_rt::mutant!("loaded_forever") {
            self.set_since(seqno);
        }
        self
    }

    /// Returns the sequence number of the commit that published the table's tree.
    #[inline]
    pub(crate) fn since(&self) -> SeqNo {
        // Relaxed: it is set before the table can be found.
        SeqNo::new(self.since.load(Ordering::Relaxed))
    }

    pub(super) fn set_since(&self, seqno: SeqNo) {
        self.since.store(seqno.get(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_dropped() {
            return Err(self.not_alive());
        }
        Ok(())
    }

    /// Returns the error of using the table in a state in which it does not exist.
    #[cold]
    pub(crate) fn not_alive(&self) -> Error {
        Error::TableDropped {
            name: self.name.read().clone(),
        }
    }

    /// Returns the error of using the table with another database.
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

    /// Returns the stored form of the types.
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
        self.core.newest().name.read().clone()
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
