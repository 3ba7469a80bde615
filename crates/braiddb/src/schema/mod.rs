//! Tables: their handles, the catalog that lists them, and the format of their values.

pub(crate) mod entry;
pub(crate) mod moving;
pub(crate) mod table;
pub(crate) mod value_format;
