//! Bytes that the database stores in the data file, the log and small files of its own.

pub(crate) mod meta;
pub(crate) mod note;
pub(crate) mod redo;
