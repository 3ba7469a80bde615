//! The longest keys and values.

/// The longest key, in bytes.
pub const MAX_KEY_LEN: usize = 8192;

/// The longest key, in bytes, that is stored whole in one page. A longer key takes a descent for
/// each kilobyte.
pub const SHORT_KEY_MAX: usize = 1024;

/// The longest value, in bytes.
pub const MAX_VALUE_LEN: usize = 128 << 20;
