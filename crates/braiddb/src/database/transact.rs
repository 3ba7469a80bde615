//! Running transactions again after conflicts.

use super::Database;
use crate::error::Result;
use crate::options::TransactionOptions;
use crate::transaction::Transaction;

/// After this many conflicts in a row [`Database::transact`] gives up.
const RETRIES_MAX: u32 = 1_000;

impl Database {
    /// Runs `body` in a transaction and commits it, again and again while that fails with a conflict.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// # use braid::Readable;
    /// let is_new = db.transact(|tx| {
    ///     let is_new = !tx.contains_key(&t, &1)?;
    ///     tx.insert(&t, &1, "one")?;
    ///     Ok(is_new)
    /// })?;
    /// assert!(is_new);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first error that a repetition does not help against, or the last conflict after 1,000 tries.
    pub fn transact<R>(&self, body: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.transact_with(TransactionOptions::default(), body)
    }

    /// Runs `body` in a transaction with options, as [`Database::transact`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// use braid::{Durability, TransactionOptions};
    /// let in_memory_first = TransactionOptions {
    ///     durability: Durability::None,
    ///     ..TransactionOptions::default()
    /// };
    /// for i in 0..100 {
    ///     db.transact_with(in_memory_first, |tx| tx.insert(&t, &i, "x"))?;
    /// }
    /// db.sync()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::transact`].
    pub fn transact_with<R>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        self.retry_with(options, |mut tx| {
            let result = body(&mut tx)?;
            tx.commit()?;
            Ok(result)
        })
    }

    /// Runs `body` with a new transaction, which it commits itself, again and again while it fails with a
    /// conflict: for bodies that end their transaction in another way than [`Database::transact`] does.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let numbers: braid::Table<u64, u64> = db.table("numbers")?;
    /// let ticket = db.retry(|mut tx| {
    ///     tx.fetch_update(&numbers, &7, |n| Some(n.unwrap_or(0) + 1))?;
    ///     tx.commit_async()
    /// })?;
    /// ticket.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::transact`].
    pub fn retry<R>(&self, body: impl FnMut(Transaction) -> Result<R>) -> Result<R> {
        self.retry_with(TransactionOptions::default(), body)
    }

    fn retry_with<R>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(Transaction) -> Result<R>,
    ) -> Result<R> {
        let mut tries = 0;
        loop {
            match body(self.begin_with(options)) {
                Err(error) if error.is_retryable() && tries < RETRIES_MAX => {
                    tries += 1;
                    braid_rt::thread::back_off(tries);
                }
                outcome => return outcome,
            }
        }
    }
}
