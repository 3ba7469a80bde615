//! An open table of byte strings.

use braid::Bytes;

use super::OpenDatabase;

pub(crate) type BytesTable = braid::Table<Bytes, Bytes>;

/// Object of a table's handle.
pub(crate) struct OpenTable {
    pub(crate) table: BytesTable,
    database: OpenDatabase,
}

impl OpenTable {
    pub(crate) fn new(table: BytesTable, database: OpenDatabase) -> Self {
        Self { table, database }
    }

    #[inline]
    pub(crate) fn database(&self) -> &OpenDatabase {
        &self.database
    }
}
