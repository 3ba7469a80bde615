//! Moving a reader to the newest state of a writer in another process.

use super::Database;
use crate::error::{Error, Result};
use crate::recovery;

impl Database {
    /// Moves a database that was opened [read-only](crate::Builder::open_read_only) to the newest
    /// durable state, and returns whether that is newer than the previous one. Only this handle
    /// moves: earlier snapshots, and clones of this handle, keep their state and what they pin.
    /// Handles of tables are valid in every state in which the table exists, earlier and later ones, also
    /// if the table has moved to another tablespace in between. A table handle keeps the memory of the
    /// state in which it was opened, so a reader that refreshes often should reopen its tables from time
    /// to time.
    ///
    /// While another process writes, the newest durable state contains every transaction that was
    /// acknowledged before this call, and none that could still be lost. Moving replays the log
    /// after the newest checkpoint, which takes time in proportion to its size. If nothing was
    /// committed since, this takes microseconds.
    ///
    /// Has no effect on a database that is open for writing.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::{Database, Readable, Table};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// let writer = Database::open(path)?;
    /// let stock = writer.open_table::<String, u32>("stock")?;
    ///
    /// let mut reader = Database::open_read_only(path)?; // mostly in another process
    /// let read: Table<String, u32> = reader.open_table("stock")?;
    /// let before = reader.snapshot();
    /// writer.transact(|tx| tx.insert(&stock, "cups", &12))?;
    /// # if cfg!(target_os = "linux") {
    /// assert!(reader.refresh()?);
    /// assert_eq!(reader.get(&read, "cups")?, Some(12));
    /// assert_eq!(before.get(&read, "cups")?, None);
    /// assert!(before.seqno() < reader.snapshot().seqno());
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open_read_only`](crate::Builder::open_read_only); the handle keeps its state
    /// then.
    pub fn refresh(&mut self) -> Result<bool> {
        let Some(view) = self.instance().view.get() else {
            return Ok(false);
        };
        if self.engine().is_closed() {
            return Err(Error::Closed);
        }
        if !view.may_be_old()? {
            return Ok(false);
        }
        let (source, options) = (view.source().clone(), view.options().clone());
        let newer = recovery::open_source(source, options, Some(self.instance()))?;
        let newer = Self::from_instance(newer);
        let (before, now) = (self.engine().opened_at, newer.engine().opened_at);
        if now >= before {
            *self = newer;
        }
        Ok(now > before)
    }
}
