//! Savepoints: points to which a transaction can be rolled back.

use std::fmt;

use crate::error::{Error, Result};
use crate::txn::transaction::Transaction;

/// Point in a transaction to which it can be rolled back; see [`Transaction::savepoint`].
///
/// A savepoint needs no release: a transaction can end whether or not its savepoints were used.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// let mut tx = db.begin();
/// let start: braid::Savepoint = tx.savepoint();
/// tx.insert(&t, &1, "one")?;
/// tx.rollback_to(&start)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a savepoint is there to be returned to"]
pub struct Savepoint(u64);

impl Savepoint {
    /// Converts the savepoint to a number, for bindings to other languages.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Converts a number from [`Savepoint::to_bits`] to a savepoint. Rolling back to an invalid one
    /// fails with [`Error::InvalidSavepoint`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::Savepoint;
    /// # let db = braid::Database::in_memory()?;
    /// let mut tx = db.begin();
    /// let number = tx.savepoint().to_bits();
    /// tx.rollback_to(&Savepoint::from_bits(number))?;
    /// assert!(tx.rollback_to(&Savepoint::from_bits(u64::MAX)).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Savepoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Savepoint").finish_non_exhaustive()
    }
}

impl Transaction {
    /// Sets a savepoint, to which [`Transaction::rollback_to`] can return. Savepoints nest, and
    /// cost nothing when unused.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::{Readable, Table};
    /// # let db = braid::Database::in_memory()?;
    /// let stock: Table<String, u32> = db.open_table("stock")?;
    /// let mut tx = db.begin();
    /// tx.insert(&stock, "apples", &3)?;
    /// let before_pears = tx.savepoint();
    /// tx.insert(&stock, "apples", &2)?;
    /// tx.insert(&stock, "pears", &7)?;
    /// tx.rollback_to(&before_pears)?;
    /// assert_eq!(tx.get(&stock, "apples")?, Some(3));
    /// assert_eq!(tx.get(&stock, "pears")?, None);
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint(self.state().borrow_mut().writes.savepoint())
    }

    /// Rolls back all writes since a savepoint, and removes later savepoints. The savepoint itself
    /// stays valid.
    ///
    /// *Reads* since the savepoint are still validated: the commit fails with a conflict if they
    /// were overwritten, because the decision to roll back may depend on them. Locks of keys that
    /// were written, or read for update, are held until the transaction ends.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// use braid::Error;
    /// let mut tx = db.begin();
    /// let outer = tx.savepoint();
    /// tx.insert(&t, &1, "one")?;
    /// let inner = tx.savepoint();
    /// tx.rollback_to(&outer)?;
    /// assert!(matches!(tx.rollback_to(&inner), Err(Error::InvalidSavepoint)));
    /// tx.rollback_to(&outer)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidSavepoint`] if the savepoint belongs to another transaction, or the
    /// transaction was rolled back to an earlier point. Nothing changes then.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        if self.state().borrow_mut().writes.rollback_to(savepoint.0) {
            Ok(())
        } else {
            Err(Error::InvalidSavepoint)
        }
    }
}
