//! Running transactions with retries after conflicts.

use std::future::Future;

use super::Database;
use crate::error::{Error, Result};
use crate::options::{Durability, TransactionOptions};
use crate::txn::commit::Ticket;
use crate::txn::transaction::Transaction;

/// Maximum number of consecutive conflicts before [`Database::transact`] gives up.
const RETRIES_MAX: u32 = 1_000;

impl Database {
    /// Runs `body` in a transaction and commits it; retries after conflicts.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
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
    /// The first error other than [`Error::Conflict`], or the last conflict after 1,000 attempts.
    pub fn transact<R>(&self, body: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.transact_with(TransactionOptions::default(), body)
    }

    /// Runs `body` in a transaction with options, as [`Database::transact`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
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

    /// Runs `body` with a new transaction, which `body` itself commits; retries after conflicts.
    /// For bodies that end their transaction in another way than [`Database::transact`] does.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let numbers: braid::Table<u64, u64> = db.open_table("numbers")?;
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

    /// Runs `body` in a transaction, as [`Database::transact`], in a future that waits for
    /// durability without blocking a thread: any executor can keep many of these in flight, and one
    /// flush makes them durable together.
    ///
    /// `body` runs while the future is polled, and the transaction ends before the future waits, so
    /// no lock of this transaction is held meanwhile unless the [protocol](crate::Protocol) holds
    /// locks until the flush. A lock that another transaction holds blocks the polling thread, as
    /// in `transact`. After a conflict the future lets the executor's other tasks run first. With
    /// [`Durability::Buffered`] or [`Durability::None`] the future completes once the writes are
    /// visible.
    ///
    /// The future owns a handle of the database and can be spawned. Dropping the future before it
    /// is polled has no effect; dropping it later lets the transaction commit as if its ticket had
    /// been dropped.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use futures_lite::future;
    /// # let db = braid::Database::in_memory()?;
    /// let hits = db.open_table::<String, u64>("hits")?;
    /// let hit = |page: &'static str| {
    ///     let hits = hits.clone();
    ///     db.transact_async(move |tx| tx.fetch_update(&hits, page, |n| Some(n.unwrap_or(0) + 1)))
    /// };
    /// let both = future::zip(hit("/"), hit("/"));
    /// let (first, second) = future::block_on(both);
    /// assert_eq!((first?, second?), (None, Some(1)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::transact`], and [`Error::Poisoned`](crate::Error::Poisoned) if the log fails
    /// before the transaction is durable.
    pub fn transact_async<R, F>(&self, body: F) -> impl Future<Output = Result<R>> + use<R, F>
    where
        F: FnMut(&mut Transaction) -> Result<R>,
    {
        self.transact_async_with(TransactionOptions::default(), body)
    }

    /// Runs `body` in a transaction with options, as [`Database::transact_async`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// use braid::{Isolation, TransactionOptions};
    /// let options = TransactionOptions {
    ///     isolation: Isolation::Snapshot,
    ///     ..TransactionOptions::default()
    /// };
    /// let insert = db.transact_async_with(options, |tx| tx.insert(&t, &1, "one"));
    /// futures_lite::future::block_on(insert)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::transact_async`].
    pub fn transact_async_with<R, F>(
        &self,
        options: TransactionOptions,
        mut body: F,
    ) -> impl Future<Output = Result<R>> + use<R, F>
    where
        F: FnMut(&mut Transaction) -> Result<R>,
    {
        let db = self.clone();
        async move {
            let mut tries = 0;
            loop {
                match db.try_transact(options, &mut body) {
                    Ok((result, None)) => return Ok(result),
                    Ok((result, Some(ticket))) => {
                        if !braid_rt::mutant!("answer_before_the_flush") {
                            ticket.await?;
                        }
                        return Ok(result);
                    }
                    Err(Error::Conflict(_)) if tries < RETRIES_MAX => {
                        tries += 1;
                        let_others_run().await;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Runs `body` in a transaction and commits it once. Returns a ticket if the caller must await
    /// the transaction's durability.
    fn try_transact<R>(
        &self,
        options: TransactionOptions,
        body: &mut impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<(R, Option<Ticket>)> {
        let mut tx = self.begin_with(options);
        let result = body(&mut tx)?;
        if tx.options.durability == Durability::Immediate {
            return Ok((result, Some(tx.commit_async()?)));
        }
        tx.commit()?;
        Ok((result, None))
    }

    fn retry_with<R>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(Transaction) -> Result<R>,
    ) -> Result<R> {
        let mut tries = 0;
        loop {
            match body(self.begin_with(options)) {
                Err(Error::Conflict(_)) if tries < RETRIES_MAX => {
                    tries += 1;
                    braid_rt::thread::back_off(tries);
                }
                outcome => return outcome,
            }
        }
    }
}

/// Yields to the executor once.
async fn let_others_run() {
    let mut is_polled = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut is_polled, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
