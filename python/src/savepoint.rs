//! Savepoints of transactions.

use pyo3::prelude::*;

use crate::transaction::Transaction;

/// A savepoint of a transaction; see Transaction.savepoint.
///
/// In a with statement, an exception undoes the writes of the block; the transaction stays open.
#[pyclass(frozen, module = "braid")]
pub(crate) struct Savepoint {
    transaction: Py<Transaction>,
    savepoint: braid::Savepoint,
}

impl Savepoint {
    pub(crate) fn new(transaction: Py<Transaction>, savepoint: braid::Savepoint) -> Self {
        Self {
            transaction,
            savepoint,
        }
    }
}

#[pymethods]
impl Savepoint {
    /// Undoes all writes made since the savepoint, and discards the savepoints set since then; this
    /// one stays valid. Reads made since then are still validated, and locks stay held.
    ///
    /// Raises SavepointError if the transaction rolled back to an earlier point,
    /// TransactionEndedError.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.transaction.get().rollback_to(py, self.savepoint)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, _exception, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _exception: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        // If the transaction ended in the block, there is nothing to undo.
        if kind.is_some() && self.transaction.get().is_open(py)? {
            self.rollback(py)?;
        }
        Ok(())
    }
}
