//! Typical mistakes of programs: scans that are forgotten, and closures that panic.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use braid::{Bytes, Readable, Result, Table, Transaction};
use braid_rt::{Deliberate, panic_deliberately};

use super::Client;
use crate::keys::TableKey;
use crate::record::{Key, Op};
use crate::tables::decode;

impl Client {
    /// Reads the first entries of a range, and forgets the scan.
    pub(super) fn scan_and_forget(
        &mut self,
        reader: &impl Readable,
        table: &Table<TableKey, Bytes>,
        from: Key,
        to: Key,
    ) -> Result<Op> {
        let entries = self.rng.usize(1..4);
        let mut range = reader.range(table, from..to)?;
        let first = range.by_ref().take(entries);
        let seen = first.map(|entry| entry.map(|(key, bytes)| (key.0, decode(&bytes))));
        let seen = seen.collect::<Result<Vec<_>>>()?;
        std::mem::forget(range);
        braid_rt::coverage_point("a scan is forgotten");
        let to = match seen.last() {
            Some((last, _)) if seen.len() == entries => last + 1,
            _ => to,
        };
        Ok(Op::Scan(from, to, seen))
    }

    /// Calls the engine with a closure that panics, if it is called, and continues the transaction
    /// as if nothing had happened.
    pub(super) fn stumble(&mut self, tx: &mut Transaction) {
        let (key, which) = (self.key(), self.rng.u32(..4));
        let table = self.tables.of(key).clone();
        let call = AssertUnwindSafe(|| match which {
            0 => drop(tx.get_with(&table, &key, |_| panic_deliberately())),
            1 => drop(tx.fetch_update(&table, &key, |_| panic_deliberately())),
            2 => drop(tx.retain(&table, key.., |_, _| panic_deliberately())),
            _ => drop(self.db.get_with(&table, &key, |_| panic_deliberately())),
        });
        match catch_unwind(call) {
            // The call failed, or found nothing to show.
            Ok(()) => {}
            Err(panic) if panic.is::<Deliberate>() => braid_rt::coverage_point("a closure panics"),
            Err(panic) => resume_unwind(panic),
        }
    }
}
