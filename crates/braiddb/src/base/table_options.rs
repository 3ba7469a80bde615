//! Options of a table.

use std::time::Duration;

/// Compression of a table's values.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::{Compression, TableOptions};
/// let options = TableOptions {
///     compression: Compression::Lz4,
///     ..TableOptions::default()
/// };
/// let pages = db.open_table_with::<u32, String>("pages", options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// Each value separately as an LZ4 block, if that is smaller: fast, and best for values of a
    /// hundred bytes and more.
    Lz4,
}

/// Options of a table, given when it is created and stored with it; see
/// [`Database::open_table_with`](crate::Database::open_table_with).
///
/// ```
/// use std::time::Duration;
/// use braid::{Compression, Database, Readable, TableOptions};
///
/// # fn main() -> braid::Result<()> {
/// # let db = Database::in_memory()?;
/// let options = TableOptions {
///     compression: Compression::Lz4,
///     time_to_live: Some(Duration::from_secs(30 * 60)),
/// };
/// let sessions = db.open_table_with::<u64, String>("sessions", options)?;
/// db.transact(|tx| tx.insert(&sessions, &7, "Ada"))?;
/// assert_eq!(db.get(&sessions, &7)?.as_deref(), Some("Ada")); // for half an hour
/// assert_eq!(db.open_table::<u64, String>("sessions")?.options(), options);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// Compression of values. Keys are not compressed.
    pub compression: Compression,
    /// Time to live of an entry after its last write, in whole milliseconds; `None` to keep entries
    /// forever. Reads and scans do not see an expired entry; a background thread or
    /// [`Database::remove_expired`](crate::Database::remove_expired) removes it later.
    ///
    /// The reference is the system's clock, or [`Builder::clock`](crate::Builder::clock), when the
    /// transaction or snapshot first accesses a table with a time to live, so entries do not vanish
    /// between two reads of the same transaction. If the clock is set back, entries live longer.
    pub time_to_live: Option<Duration>,
}
