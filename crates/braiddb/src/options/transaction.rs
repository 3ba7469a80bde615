//! Options of a transaction.

use std::time::Duration;

/// Point at which a commit survives a crash of the system.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// use std::time::Duration;
/// use braid::Durability;
/// let mut tx = db.begin();
/// tx.set_durability(Durability::Buffered(Duration::from_millis(10)));
/// tx.insert(&t, &1, "one")?;
/// tx.commit()?; // visible now, durable in ten milliseconds
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Before `commit` returns or the ticket resolves.
    #[default]
    Immediate,
    /// Within this time after `commit` returns. A crash may lose the whole transaction, but never a
    /// part of it, and never one that a durable transaction depends on.
    Buffered(Duration),
    /// With the next durable transaction or checkpoint, without a bound on the time; otherwise like
    /// `Buffered`. (Soon, with a protocol that holds locks until the flush.)
    None,
}

/// Isolation of concurrent transactions.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// use braid::{Isolation, TransactionOptions};
/// let tx = db.begin_with(TransactionOptions {
///     isolation: Isolation::Snapshot,
///     ..TransactionOptions::default()
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// As if the transactions ran one after the other. Reads see the newest state and are validated
    /// at commit; until then two reads may be inconsistent, and then the commit fails with a
    /// conflict.
    #[default]
    Serializable,
    /// Reads see the state at the begin of the transaction; of two concurrent writers of a key, the
    /// first wins. Allows write skew.
    Snapshot,
}

/// Options of a transaction; see [`Database::begin_with`](crate::Database::begin_with).
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// use braid::{Durability, TransactionOptions};
/// let tx = db.begin_with(TransactionOptions {
///     durability: Durability::None,
///     ..TransactionOptions::default()
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionOptions {
    /// Isolation from concurrent transactions.
    pub isolation: Isolation,
    /// Durability of the commit.
    pub durability: Durability,
    /// Longest wait for the lock of a key; `None` for that of the database, see
    /// [`Builder::lock_timeout`](crate::Builder::lock_timeout).
    pub lock_timeout: Option<Duration>,
}
