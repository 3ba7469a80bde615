//! Removal of expired entries.
//!
//! Reads already skip expired entries (see [`crate::schema::value_format`]); the sweep frees their
//! space. There is no index by time: a table is swept from its first leaf to its last, a few leaves
//! at a time, and then left alone for an eighth of its time to live. Transactions remove the
//! entries as usual; older snapshots still see them.

use std::collections::HashMap;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::time::Duration;

use braid_rt::Mutex;
use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use bytes::Bytes;

use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::engine::leaves::Leaves;
use crate::error::Result;
use crate::observe::trace::call_user;
use crate::options::{Durability, TransactionOptions};
use crate::schema::entry::space_of;
use crate::schema::table::TableCore;
use crate::txn::transaction::Transaction;

/// Maximum number of leaves of each table that the sweeper thread examines in one turn.
const LEAVES_MAX: usize = 64;

/// A removal that a crash loses is repeated.
const DURABILITY: Durability = Durability::Buffered(Duration::from_secs(1));

/// Progress of the sweeps, by table number.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    tables: Mutex<HashMap<u32, Sweep>>,
    removed: AtomicU64,
    /// Whether the user's clock panicked on the sweeper thread, which then no longer calls it.
    clock_failed: AtomicBool,
}

#[derive(Debug)]
enum Sweep {
    /// Continues at this bound.
    At(Bound<Bytes>),
    /// Ended at the first time, and restarts at the second. A clock that was set back in between
    /// does not tell how much time has passed.
    Done(Range<u64>),
}

impl Sweeps {
    /// Returns the number of expired entries removed.
    pub(crate) fn removed(&self) -> u64 {
        // Relaxed: the counter orders nothing.
        self.removed.load(Ordering::Relaxed)
    }
}

impl Sweeps {
    /// Removes all expired entries of all tables. Returns their number.
    pub(crate) fn sweep_all(&self, engine: &Arc<Engine>) -> Result<u64> {
        let now = engine.clock.now();
        let catalog = Catalog::of(engine);
        let mut removed = 0;
        for name in catalog.names()? {
            if let Some(core) = catalog.find(&name)? {
                removed += self
                    .sweep(engine, &core, Bound::Unbounded, now, usize::MAX)?
                    .0;
            }
        }
        Ok(removed)
    }

    /// Advances the sweep of each open table by one step. Returns the number of entries removed.
    pub(crate) fn sweep_some(&self, engine: &Arc<Engine>) -> Result<u64> {
        let timed = |core: &&Arc<TableCore>| {
            core.value_format
                .is_some_and(|value_format| value_format.is_timed())
        };
        let mut cores: Vec<Arc<TableCore>> = engine
            .tables
            .by_name
            .read()
            .values()
            .filter(timed)
            .cloned()
            .collect();
        // In a deterministic order, not that of hashed names, so that a simulation can be repeated.
        cores.sort_unstable_by_key(|core| core.id);
        if cores.is_empty() || engine.is_read_only() {
            return Ok(0);
        }
        // Relaxed, both: only the sweeper thread executes this.
        if self.clock_failed.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let Some(now) = call_user("the clock", || engine.clock.now()) else {
            self.clock_failed.store(true, Ordering::Relaxed);
            return Ok(0);
        };
        let mut removed = 0;
        for core in cores {
            let space = engine.spaces.get(space_of(core.id));
            if space.is_some_and(|space| space.refusal().is_some()) {
                continue;
            }
            let from = match self.tables.lock().get(&core.id) {
                None => Bound::Unbounded,
                Some(Sweep::At(from)) => from.clone(),
                Some(Sweep::Done(pause)) if pause.contains(&now) => continue,
                Some(Sweep::Done(_)) => Bound::Unbounded,
            };
            let (removed_here, next) = self.sweep(engine, &core, from, now, LEAVES_MAX)?;
            removed += removed_here;
            let pause = core
                .value_format
                .map_or(0, |value_format| value_format.sweep_pause());
            let sweep = match next {
                Some(next) => Sweep::At(next),
                None => Sweep::Done(now..now.saturating_add(pause)),
            };
            self.tables.lock().insert(core.id, sweep);
        }
        Ok(removed)
    }

    /// Removes expired entries from some leaves. Returns their number, and where to continue.
    fn sweep(
        &self,
        engine: &Arc<Engine>,
        core: &Arc<TableCore>,
        from: Bound<Bytes>,
        now: u64,
        leaves: usize,
    ) -> Result<(u64, Option<Bound<Bytes>>)> {
        let Some(value_format) = core.value_format else {
            return Ok((0, None));
        };
        let mut removed = 0;
        let lower = from.as_ref().map(|key| &key[..]);
        let mut all = Leaves::new(&core.tree, lower, Bound::Unbounded);
        for leaf in all.by_ref().take(leaves) {
            let leaf = leaf?;
            let is_over = |stored: &[u8]| {
                value_format.is_expired(stored, now) || braid_rt::mutant!("expire_the_living")
            };
            let mut over = leaf
                .records()
                .filter(|r| !r.meta.tombstone && is_over(r.value));
            if let Some(first) = over.next() {
                let keys = std::iter::once(first).chain(over).map(|record| record.key);
                removed += self.remove_expired(engine, core, keys, is_over)?;
            }
        }
        Ok((removed, all.position()))
    }

    fn remove_expired<'k>(
        &self,
        engine: &Arc<Engine>,
        core: &Arc<TableCore>,
        keys: impl Iterator<Item = &'k [u8]>,
        is_over: impl Fn(&[u8]) -> bool,
    ) -> Result<u64> {
        let options = TransactionOptions {
            durability: DURABILITY,
            ..TransactionOptions::default()
        };
        let mut tx = Transaction::begin(engine, options);
        let mut removed = 0;
        let outcome = (|| {
            for key in keys {
                // Unless the entry was written meanwhile, or another transaction holds its lock.
                removed += u64::from(tx.remove_stored_if(core, key, &is_over)?);
            }
            tx.commit().map(drop)
        })();
        match outcome {
            Ok(()) => {}
            // The next sweep retries.
            Err(error) if error.is_retryable() => return Ok(0),
            Err(crate::Error::TableDropped { .. }) => return Ok(0),
            Err(error) => return Err(error),
        }
        self.removed.fetch_add(removed, Ordering::Relaxed);
        Ok(removed)
    }
}
