//! Points in a transaction that it can return to.

use pyo3::prelude::*;

use crate::transaction::Transaction;

/// A point in a transaction; see Transaction.savepoint.
///
/// In a with statement an exception takes back what the transaction wrote in the block, and goes on; the
/// transaction stays open.
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
    /// Takes back all that the transaction wrote since; the savepoint stands, those made since are gone. What was read
    /// since stays read, and locks stay held.
    ///
    /// Raises SavepointError if the transaction returned to a point before it, TransactionEndedError.
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
        // In a transaction that was ended in the block there is nothing to take back.
        if kind.is_some() && self.transaction.get().is_open(py)? {
            self.rollback(py)?;
        }
        Ok(())
    }
}
