//! How a database is opened and how a transaction behaves.

mod builder;
mod transaction;

pub(crate) use self::builder::ArchivePlace;
pub use self::builder::Builder;
pub use self::transaction::{Durability, Isolation, TransactionOptions};
