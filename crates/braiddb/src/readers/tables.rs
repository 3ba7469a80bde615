//! Handles of tables, used in another state of their database than the one in which they were opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::Inner;
use crate::error::Result;
use crate::schema::table::TableCore;

impl Inner {
    /// The table of a handle that belongs to another state, as it is in this one.
    ///
    /// # Errors
    /// [`ForeignTable`](crate::Error::ForeignTable) if the handle belongs to another database,
    /// [`TableDropped`](crate::Error::TableDropped) if the table does not exist in this state.
    #[cold]
    #[inline(never)]
    pub(crate) fn table_of_state(self: &Arc<Self>, table: &TableCore) -> Result<&Arc<TableCore>> {
        let is_foreign = table.database.source != self.identity.source;
        if is_foreign && !braid_rt::mutant!("read_foreign_tables") {
            return Err(table.foreign());
        }
        self.check_open()?;
        braid_rt::coverage_point("readers: a table's handle is used in another state");
        let tables = match self.tables_of_state.get() {
            Some(tables) => tables,
            None => self.find_tables_of_state()?,
        };
        let found = match braid_rt::mutant!("find_tables_by_name") {
            true => tables
                .values()
                .find(|found| *found.name.read() == *table.name.read()),
            false => tables.get(&table.id),
        };
        found.ok_or_else(|| table.not_alive())
    }

    /// Opens all tables, by their numbers: a name may be another table's in another state.
    fn find_tables_of_state(self: &Arc<Self>) -> Result<&BTreeMap<u32, Arc<TableCore>>> {
        let mut found = BTreeMap::new();
        for (id, name, _) in self.tables_by_id()? {
            if let Some(core) = self.find_table(&name)? {
                found.insert(id, core);
            }
        }
        Ok(self.tables_of_state.get_or_init(|| found))
    }
}
