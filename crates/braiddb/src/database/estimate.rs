//! Sizes of tables and approximate sizes of ranges.

use std::sync::Arc;

pub use braid_store::{Estimate, TreeStats as TableStats};
use braid_store::{StoreError, Tree};

use crate::database::Database;
use crate::error::Result;
use crate::schema::table::{Table, TableCore};
use crate::types::{Key, KeyRange, Value};

impl Database {
    /// Estimates the number of entries in a range of a table, and the bytes of their keys and
    /// values, from about ten descents of the table's tree: enough to choose a plan or to divide
    /// work, whatever the table's size.
    ///
    /// Exact for a range of a few hundred small entries while nothing changes; otherwise usually
    /// within about ten percent if the sizes of entries do not vary much. Counts committed entries,
    /// durable or not, including those whose [time to live](crate::TableOptions) has ended until
    /// they are removed. The bytes of the [`Estimate`] are those stored, after compression.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let squares = db.open_table::<u64, u64>("squares")?;
    /// db.transact(|tx| (0..1_000).try_for_each(|n| tx.insert(&squares, &n, &(n * n))))?;
    /// let estimate = db.estimate(&squares, 100..900)?;
    /// assert!((600..1_000).contains(&estimate.entries));
    /// assert_eq!(db.estimate(&squares, 10..20)?.bytes, 10 * 16);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TableDropped`](crate::Error::TableDropped),
    /// [`Error::ForeignTable`](crate::Error::ForeignTable), or what reading a page can fail with.
    pub fn estimate<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<Estimate> {
        let (lower, upper) = range.into_key_bounds();
        let lower = lower.as_ref().map(|key| &key[..]);
        let upper = upper.as_ref().map(|key| &key[..]);
        self.measured(&table.core, |tree| tree.estimate(lower, upper))
    }

    /// Measures a table, as [`TableStats`]: its entries and their bytes, the height of its tree,
    /// and how full its pages are. Reads 64 pages of a table of more than a few hundred and
    /// estimates everything but the height from them; counts smaller tables, or with `exact` all,
    /// by reading every leaf page ([`TableStats::exact`] says which). Entries and bytes are those
    /// of [`Database::estimate`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let squares = db.open_table::<u64, u64>("squares")?;
    /// db.transact(|tx| (0..1_000).try_for_each(|n| tx.insert(&squares, &n, &(n * n))))?;
    /// let stats = db.table_stats(&squares, false)?;
    /// assert!(stats.exact);
    /// assert_eq!((stats.entries, stats.bytes, stats.height), (1_000, 16_000, 2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::estimate`].
    pub fn table_stats<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        exact: bool,
    ) -> Result<TableStats> {
        self.measured(&table.core, |tree| tree.stats(exact))
    }

    /// Measures a tree; another time if the table moved meanwhile, and the tree may be empty.
    fn measured<R>(
        &self,
        core: &Arc<TableCore>,
        measure: impl Fn(&Tree) -> std::result::Result<R, StoreError>,
    ) -> Result<R> {
        loop {
            let core = self.engine().table_here(core)?;
            let measured = measure(&core.tree);
            if !core.is_moved() {
                return Ok(measured?);
            }
        }
    }
}
