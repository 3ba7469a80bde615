//! Limits of the interface, in addition to those of the store.

/// Maximum length of a table's name, in bytes.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::{Error, MAX_TABLE_NAME_LEN};
/// let long = db.open_table::<u32, u32>(&"t".repeat(MAX_TABLE_NAME_LEN + 1));
/// assert!(matches!(long, Err(Error::InvalidTableName { .. })));
/// # Ok(())
/// # }
/// ```
pub const MAX_TABLE_NAME_LEN: usize = 255;
