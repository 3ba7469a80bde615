//! Formats that the database stores in the data file, the log and small separate files.

pub(crate) mod meta;
pub(crate) mod note;
pub(crate) mod redo;
pub(crate) mod space;
