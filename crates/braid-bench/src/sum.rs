//! Sums over tables, for checks.

use crate::BenchError;
use crate::engines::{KvEngine, Mode, Order, TableId, Wait};
use crate::load::failure;

/// Returns the balance at the start of a row.
pub(crate) fn balance(row: &[u8]) -> Option<i64> {
    row.first_chunk().map(|bytes| i64::from_le_bytes(*bytes))
}

/// Visits all rows of a table, whose keys are shorter than 16 bytes. `step` returns `None` for a
/// row that the workload did not write.
pub(crate) fn fold<A: Copy>(
    engine: &dyn KvEngine,
    table: TableId,
    name: &'static str,
    begin: A,
    mut step: impl FnMut(A, &[u8]) -> Option<A>,
) -> Result<A, BenchError> {
    let mut so_far = Some(begin);
    engine
        .session()?
        .transact(Mode::ReadOnly, Wait::Durable, &mut |tx| {
            tx.scan(table, &[], &[0xff; 16], Order::Ascending, &mut |_, row| {
                so_far = so_far.and_then(|so_far| step(so_far, row));
                so_far.is_some()
            })
        })
        .map_err(failure)?;
    so_far.ok_or(BenchError::Row { table: name })
}
