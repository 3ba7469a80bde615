//! Results of a commit: the sequence number, or a ticket for its durability.

use std::future::Future;
use std::pin::Pin;
use std::task;

use braid_log::SeqNo;

use crate::error::{Error, Result};
use crate::observe::trace::call_user;

/// Result of a commit.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// let mut tx = db.begin();
/// tx.insert(&t, &1, "one")?;
/// let first = tx.commit()?;
/// let mut tx = db.begin();
/// tx.insert(&t, &2, "two")?;
/// assert!(tx.commit()?.seqno() > first.seqno());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    pub(super) seqno: SeqNo,
}

impl Commit {
    /// Returns the transaction's sequence number, its position in the serial order; for a
    /// transaction without writes, that of the newest transaction that it read.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let commit = tx.commit()?;
    /// assert!(db.snapshot().seqno() >= commit.seqno());
    /// # Ok(())
    /// # }
    /// ```
    pub fn seqno(&self) -> u64 {
        self.seqno.get()
    }
}

/// Handle for the durability of a committed transaction: poll it, block on it, await it, or set a
/// callback.
///
/// Dropping the ticket has no effect: the transaction becomes durable anyway.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// let mut tickets = Vec::new();
/// for i in 0..100 {
///     let mut tx = db.begin();
///     tx.insert(&t, &i, "x")?;
///     tickets.push(tx.commit_async()?); // many transactions, few flushes
/// }
/// for ticket in tickets {
///     ticket.wait()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the transaction is durable only once the ticket says so"]
pub struct Ticket {
    pub(super) seqno: SeqNo,
    pub(super) log: braid_log::Ticket,
}

impl Ticket {
    pub(crate) fn new(seqno: SeqNo, log: braid_log::Ticket) -> Self {
        Ticket { seqno, log }
    }

    /// Returns the transaction's sequence number, its position in the serial order.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// assert_eq!(ticket.wait()?.seqno(), ticket.seqno());
    /// # Ok(())
    /// # }
    /// ```
    pub fn seqno(&self) -> u64 {
        self.seqno.get()
    }

    /// Converts the ticket to the transaction's sequence number, for
    /// [`Database::wait_durable`](crate::Database::wait_durable): eight bytes that can be stored or
    /// sent.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let seqno = tx.commit_async()?.into_seqno();
    /// db.wait_durable(seqno)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_seqno(self) -> u64 {
        // The commit has already requested the flush.
        self.log.detach();
        self.seqno.get()
    }

    /// Returns whether the transaction is durable.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// db.sync()?;
    /// assert!(ticket.is_durable());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_durable(&self) -> bool {
        self.log.is_durable()
    }

    /// Returns the outcome if it is known, without blocking.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// match ticket.try_wait() {
    ///     Some(outcome) => println!("durable: {:?}", outcome?),
    ///     None => println!("not yet"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_wait(&self) -> Option<Result<Commit>> {
        let seqno = self.seqno;
        self.log
            .try_wait()
            .map(|r| r.map(|()| Commit { seqno }).map_err(Error::from))
    }

    /// Blocks until the transaction is durable.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// ticket.wait()?;
    /// assert!(ticket.is_durable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the log failed.
    pub fn wait(&self) -> Result<Commit> {
        self.log.wait()?;
        Ok(Commit { seqno: self.seqno })
    }

    /// Calls `callback` once the outcome is known: at once on this thread if it is known, otherwise
    /// on the thread that completes the flush, which the callback must not block. If it panics, the
    /// process's panic hook reports the panic, and the database continues with the other callbacks.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let (sender, done) = std::sync::mpsc::channel();
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// tx.commit_async()?.on_durable(move |outcome| {
    ///     let _ = sender.send(outcome.is_ok());
    /// });
    /// assert_eq!(done.recv(), Ok(true));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_durable(self, callback: impl FnOnce(Result<Commit>) + Send + 'static) {
        let seqno = self.seqno;
        self.log.on_durable(move |r| {
            let outcome = r.map(|()| Commit { seqno }).map_err(Error::from);
            call_user("an on_durable callback", || callback(outcome));
        });
    }
}

impl Future for Ticket {
    type Output = Result<Commit>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        let seqno = self.seqno;
        Pin::new(&mut self.log)
            .poll(cx)
            .map(|r| r.map(|()| Commit { seqno }).map_err(Error::from))
    }
}
