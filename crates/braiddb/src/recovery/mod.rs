//! Opening: find the newest checkpoint, recover the log after it, replay it, and assemble the database.
//!
//! [`open_directory`] and [`open_device`] look at what is there ([`contents`]); [`create`] makes a
//! new database, and [`recover`] reads an existing one. [`open_source`] opens a state next to a
//! writer in another process.
//!
//! [`contents`]: self::contents
//! [`recover`]: self::recover::recover

mod assemble;
mod contents;
mod create;
mod directory;
mod meta;
mod open;
mod recover;
pub(crate) mod replay;
mod view;

pub(crate) use self::create::create;
pub(crate) use self::directory::{open_directory, open_directory_read_only, read_source};
pub(crate) use self::open::open_device;
pub(crate) use self::view::open_source;

const DATA_FILE: &str = "data.braid";
