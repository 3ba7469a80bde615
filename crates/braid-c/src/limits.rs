//! The limits, as the header has them.

/// The most bytes that a key can have. Each KiB above the first takes another descent.
pub const BRAID_MAX_KEY_LEN: usize = 8192;
/// The most bytes that a value can have.
pub const BRAID_MAX_VALUE_LEN: usize = 134217728;
/// The most bytes that a table's name can have.
pub const BRAID_MAX_TABLE_NAME_LEN: usize = 255;

const _: () = assert!(BRAID_MAX_KEY_LEN == braid::MAX_KEY_LEN);
const _: () = assert!(BRAID_MAX_VALUE_LEN == braid::MAX_VALUE_LEN);
const _: () = assert!(BRAID_MAX_TABLE_NAME_LEN == braid::MAX_TABLE_NAME_LEN);
