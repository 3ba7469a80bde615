//! Limits, as declared in the header.

/// Maximum length of a key, in bytes. Each KiB after the first takes one more descent of the tree.
pub const BRAID_MAX_KEY_LEN: usize = 8192;
/// Maximum length of a value, in bytes.
pub const BRAID_MAX_VALUE_LEN: usize = 134217728;
/// Maximum length of a table's name, in bytes.
pub const BRAID_MAX_TABLE_NAME_LEN: usize = 255;

const _: () = assert!(BRAID_MAX_KEY_LEN == braid::MAX_KEY_LEN);
const _: () = assert!(BRAID_MAX_VALUE_LEN == braid::MAX_VALUE_LEN);
const _: () = assert!(BRAID_MAX_TABLE_NAME_LEN == braid::MAX_TABLE_NAME_LEN);
