//! Removal of expired entries.

use super::Database;
use crate::error::Result;

impl Database {
    /// Removes all expired entries of all tables and returns their number; see
    /// [`TableOptions::time_to_live`](crate::TableOptions::time_to_live). A background thread
    /// does this gradually, for tables that were opened since the database was opened. Both skip
    /// keys that a transaction has locked.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// assert_eq!(db.remove_expired()?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of reading and of a commit.
    pub fn remove_expired(&self) -> Result<u64> {
        self.engine().check_writable()?;
        self.instance().sweeps.sweep_all(self.engine())
    }
}
