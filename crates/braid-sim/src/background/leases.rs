//! Entries with a time to live, in a compressed table: each exists exactly for its time, if its
//! transaction survives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use braid::{Bytes, Readable, Result, Table, Transaction};

use super::{Checked, Shared};
use crate::record::TxId;
use crate::tables::Tables;

/// The times of each transaction's entry: written not before the first, not after the second.
#[derive(Clone, Default)]
pub(crate) struct Leases(Shared<BTreeMap<TxId, (Duration, Duration)>>);

/// The clock's unit: an entry may appear older or younger by that much.
const TICK: Duration = Duration::from_millis(1);

impl Leases {
    /// Writes a transaction's entry; it began at `begun`.
    pub(crate) fn write(
        &self,
        tx: &mut Transaction,
        table: &Table<u64, Bytes>,
        id: TxId,
        begun: Duration,
    ) -> Result<()> {
        // Recorded first: a task that sees the entry needs the times.
        self.0.lock().insert(id, (begun, Duration::MAX));
        tx.insert(table, &id, &[id as u8; 80][..])?;
        self.0.lock().insert(id, (begun, braid_rt::wall_clock()));
        Ok(())
    }

    /// Checks all entries and all transactions of one snapshot.
    pub(crate) fn check(
        &self,
        reader: &impl Readable,
        tables: &Tables,
        table: &Table<u64, Bytes>,
    ) -> Checked {
        let ttl = table.options().time_to_live.expect("it has one");
        let from = braid_rt::wall_clock();
        let mut there = BTreeSet::new();
        for entry in reader.iter(table)? {
            let (id, value) = entry?;
            ensure!(
                value[..] == [id as u8; 80],
                "a lease of {id} that nobody wrote"
            );
            there.insert(id);
        }
        let to = braid_rt::wall_clock();
        let marks = tables.marks(reader)?;
        if let Some(id) = there.iter().find(|id| !marks.contains(id)) {
            return Ok(Err(format!(
                "I2: the lease of {id} is there, and {id} is not"
            )));
        }
        let written = self.0.lock();
        for (id, &(first, last)) in written.iter().filter(|(id, _)| marks.contains(id)) {
            let is_there = there.contains(id);
            ensure!(
                is_there || to + TICK >= first + ttl,
                "the lease of {id}, written at {first:?} for {ttl:?}, is gone at {to:?}"
            );
            ensure!(
                !is_there || from <= last.saturating_add(ttl + TICK),
                "the lease of {id}, written by {last:?} for {ttl:?}, is there at {from:?}"
            );
        }
        Ok(Ok(()))
    }
}
