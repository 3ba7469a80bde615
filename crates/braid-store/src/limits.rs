//! The largest pool and data file, the longest keys and values.

/// The largest buffer pool, in bytes: 4 TiB.
pub const POOL_BYTES_MAX: u64 = 4 << 40;

/// The longest data file, in bytes: 2 PiB less one block.
pub const DATA_FILE_BYTES_MAX: u64 = (2 << 50) - 8192;

/// The longest key, in bytes.
pub const MAX_KEY_LEN: usize = 8192;

/// The longest key, in bytes, that is stored whole in one page. A longer key takes a descent for
/// each kilobyte.
pub const SHORT_KEY_MAX: usize = 1024;

/// The longest value, in bytes.
pub const MAX_VALUE_LEN: usize = 128 << 20;
