//! Opening: find the newest checkpoint, recover and replay the log after it, assemble the database.
//!
//! [`open_directory`] and [`open_device`] examine the existing files ([`contents`]); [`create`]
//! makes a new database, and [`recover`] reads an existing one. [`open_source`] opens a state while
//! another process may write.
//!
//! [`contents`]: self::contents
//! [`recover`]: self::recover::recover

mod assemble;
mod contents;
mod create;
mod directory;
mod gathered;
pub(crate) mod log_directory;
mod meta;
mod open;
mod recover;
pub(crate) mod replay;
pub(crate) mod tablespaces;
mod view;

pub(crate) use self::contents::{CREATING_FILE, Contents, UNFINISHED, inspect};
pub(crate) use self::create::create;
pub(crate) use self::directory::{
    locking, open_directory, open_directory_read_only, opening, read_source,
};
pub(crate) use self::open::open_device;
pub(crate) use self::view::open_source;

pub(crate) const DATA_FILE: &str = "data.braid";
