//! `braid._braid`, the compiled part of the Python package `braid`; see docs/python.md.
//!
//! Three rules prevent deadlocks:
//!
//! - calls that may wait for another thread release the interpreter's lock (`Python::detach`);
//! - waiting for a mutex releases that lock, too (`MutexExt::lock_py_attached`);
//! - the engine's threads never acquire that lock: they report through [`notifier`].

mod backup;
mod batch;
mod bulk;
mod changes;
mod database;
mod errors;
mod fork;
mod notifier;
mod offline;
mod options;
mod reading;
mod reports;
mod residency;
mod savepoint;
mod scan;
mod snapshot;
mod table;
mod ticket;
mod transaction;
mod types;
mod writers;

use pyo3::prelude::*;

#[pymodule]
mod _braid {
    use super::*;

    #[pymodule_export]
    use super::backup::{backup_info, restore};
    #[pymodule_export]
    use super::bulk::BulkLoader;
    #[pymodule_export]
    use super::changes::{Change, ChangeSet, Changes, Feed, Position};
    #[pymodule_export]
    use super::database::{Database, in_memory, open};
    #[pymodule_export]
    use super::offline::{dump, salvage, upgrade, verify};
    #[pymodule_export]
    use super::savepoint::Savepoint;
    #[pymodule_export]
    use super::scan::Entries;
    #[pymodule_export]
    use super::snapshot::Snapshot;
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::ticket::Ticket;
    #[pymodule_export]
    use super::transaction::Transaction;
    #[pymodule_export]
    use super::types::{Type, tuple_of};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        for column in types::ColumnType::NUMBERS {
            module.add(&*column.name(), Type(column))?;
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("MAX_KEY_LEN", braid::MAX_KEY_LEN)?;
        module.add("MAX_VALUE_LEN", braid::MAX_VALUE_LEN)?;
        module.add("MAX_TABLE_NAME_LEN", braid::MAX_TABLE_NAME_LEN)?;
        fork::watch(py)?;
        notifier::stop_at_exit(py)
    }
}
