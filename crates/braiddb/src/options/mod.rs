//! How a database is opened and how a transaction behaves.

mod builder;
mod open;
mod transaction;

pub(crate) use self::builder::ArchivePlace;
pub use self::builder::Builder;
pub(crate) use self::open::check_file_mode;
pub use self::transaction::{Durability, Isolation, TransactionOptions};
