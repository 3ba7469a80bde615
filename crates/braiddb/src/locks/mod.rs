//! Write locks of keys.

pub(crate) mod deferred;
pub(crate) mod table;
