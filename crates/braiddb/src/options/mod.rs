//! Options of databases and transactions.

mod builder;
mod clock;
mod tablespace;
mod transaction;
mod validate;

pub(crate) use self::builder::ArchivePlace;
pub use self::builder::Builder;
pub(crate) use self::builder::LogPlace;
pub(crate) use self::clock::{Clock, millis};
pub use self::tablespace::TablespaceOptions;
pub(crate) use self::tablespace::{SpacePlace, SpacePlaces};
pub use self::transaction::{Durability, Isolation, TransactionOptions};
pub(crate) use self::validate::check_file_mode;
