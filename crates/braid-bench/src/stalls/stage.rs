//! The database of one scenario, and what its disturbances share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use braid::{Bytes, Database, Durability, Table, TableOptions, Transaction};
use fastrand::Rng;

use super::report::HotKey;
use super::scenario::{Scenario, Sizes};
use super::{disturb_data, disturb_readers, disturb_versions, disturb_writes};
use crate::engines::BraidEngine;
use crate::{BenchError, Engine};

/// Largest transaction that a scenario commits.
const TRANSACTION_BYTES: usize = 1 << 30;

/// Amount of log after which the maintenance thread writes a checkpoint, where it shall write many.
const SMALL_LOG_BYTES: u64 = 1 << 20;

/// Number of writes in one of the transactions that prepare or change much data.
pub(super) const BATCH: usize = 1_000;

/// A table of a disturbance.
pub(super) type Entries = Table<u64, Bytes>;

/// A part of a disturbance.
pub(super) type Step<'a> = Box<dyn FnMut() -> Result<(), BenchError> + 'a>;

/// What a scenario does next to the load.
pub(super) struct Disturbance<'a> {
    /// Runs under the load before anything is measured.
    pub(super) before: Option<Step<'a>>,
    /// Runs under the load, measured.
    pub(super) run: Step<'a>,
    /// Whether it runs again and again during the measurement. Otherwise it runs once, and the load
    /// continues after it, because its consequences may last longer.
    pub(super) repeats: bool,
    /// Figures of its own; called after the load.
    pub(super) hot_key: Option<Box<dyn Fn() -> HotKey>>,
}

impl<'a> Disturbance<'a> {
    pub(super) fn once(run: impl FnMut() -> Result<(), BenchError> + 'a) -> Self {
        Disturbance {
            before: None,
            run: Box::new(run),
            repeats: false,
            hot_key: None,
        }
    }

    pub(super) fn repeated(run: impl FnMut() -> Result<(), BenchError> + 'a) -> Self {
        Disturbance {
            repeats: true,
            ..Self::once(run)
        }
    }
}

/// The open database of a scenario.
pub(super) struct Stage {
    pub(super) engine: BraidEngine,
    pub(super) sizes: Sizes,
    /// Duration of what is measured for a time.
    pub(super) seconds: Duration,
    dir: PathBuf,
    /// Milliseconds that the database's clock is ahead of the system's.
    ahead: Arc<AtomicU64>,
}

impl Stage {
    /// Creates the database in `dir`, which has no other files.
    pub(super) fn open(
        scenario: Scenario,
        dir: &Path,
        engine: &Engine,
        tables: &[String],
        sizes: Sizes,
        seconds: Duration,
    ) -> Result<Self, BenchError> {
        let ahead = Arc::new(AtomicU64::new(0));
        let mut engine = Engine {
            dir: dir.join("database"),
            pool_bytes: sizes.pool_bytes,
            ..engine.clone()
        };
        if scenario == Scenario::BufferedCheckpoints {
            engine.checkpoint_log_bytes = Some(SMALL_LOG_BYTES);
        }
        let clock = Arc::clone(&ahead);
        let builder = engine
            .builder()
            .transaction_bytes_max(TRANSACTION_BYTES)
            // Relaxed: the clock orders nothing.
            .clock(move || {
                SystemTime::now() + Duration::from_millis(clock.load(Ordering::Relaxed))
            });
        let db = builder.open(&engine.dir)?;
        Ok(Stage {
            engine: BraidEngine::new(db, tables)?,
            sizes,
            seconds,
            dir: dir.to_owned(),
            ahead,
        })
    }

    pub(super) fn db(&self) -> Database {
        self.engine.database().clone()
    }

    /// Returns the directory of the database.
    pub(super) fn database_dir(&self) -> PathBuf {
        self.dir.join("database")
    }

    /// Returns the path of a file next to the database.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns a function that advances the database's clock.
    pub(super) fn clock(&self) -> impl Fn(Duration) + 'static {
        let ahead = Arc::clone(&self.ahead);
        move |by| {
            let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
            ahead.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Loads a table of `entries` keys from 0, with values of `value_size` random bytes. Its pages
    /// are not in memory afterwards.
    pub(super) fn load(
        &self,
        name: &str,
        entries: u64,
        value_size: usize,
        options: TableOptions,
    ) -> Result<Entries, BenchError> {
        bulk_load(self.engine.database(), name, entries, value_size, options)
    }

    /// Loads a table of large values, of 2 GiB at scale 1.
    pub(super) fn load_large(&self, name: &str) -> Result<Entries, BenchError> {
        let entries = self.sizes.table_entries();
        self.load(
            name,
            entries,
            super::scenario::LARGE,
            TableOptions::default(),
        )
    }

    /// Prepares the data of a scenario, and what will disturb the load.
    pub(super) fn prepare(&self, scenario: Scenario) -> Result<Disturbance<'static>, BenchError> {
        let disturbance = match scenario {
            Scenario::Quiet | Scenario::BufferedQuiet => {
                let seconds = self.seconds;
                Disturbance::repeated(move || {
                    std::thread::sleep(seconds);
                    Ok(())
                })
            }
            Scenario::Checkpoints => disturb_writes::checkpoints(self)?,
            Scenario::BufferedCheckpoints => disturb_writes::automatic_checkpoints(self)?,
            Scenario::LargeTransaction => disturb_writes::large_transaction(self)?,
            Scenario::ScatteredWrites => disturb_writes::scattered_writes(self)?,
            Scenario::ColdWrites => disturb_writes::cold_writes(self)?,
            Scenario::BulkLoad => disturb_data::bulk_load(self),
            Scenario::DropTable | Scenario::BufferedDrop => disturb_data::drop_table(self)?,
            Scenario::Compaction => disturb_data::compaction(self)?,
            Scenario::SnapshotVersions => disturb_versions::snapshot_over_versions(self)?,
            Scenario::SnapshotRemovals => disturb_versions::snapshot_over_removals(self)?,
            Scenario::ExpiredEntries => disturb_versions::expired_entries(self)?,
            Scenario::HotKey => disturb_versions::hot_key(self)?,
            Scenario::Backup => disturb_readers::backup(self)?,
            Scenario::SlowFeed => disturb_readers::slow_feed(self)?,
            Scenario::Stats => disturb_readers::stats(self),
            Scenario::Verify => disturb_readers::verify(self)?,
        };
        self.engine.database().checkpoint()?;
        Ok(disturbance)
    }
}

/// Loads a table; see [`Stage::load`].
pub(super) fn bulk_load(
    db: &Database,
    name: &str,
    entries: u64,
    value_size: usize,
    options: TableOptions,
) -> Result<Entries, BenchError> {
    let mut loader = db.bulk_load_with(name, options)?;
    let mut value = random_value(value_size);
    for key in 0..entries {
        value[..8].copy_from_slice(&key.to_le_bytes());
        loader.insert(&key, &value)?;
    }
    Ok(loader.finish()?)
}

pub(super) fn random_value(bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    Rng::with_seed(bytes as u64).fill(&mut value);
    value
}

/// Calls `write` for each key, in transactions of [`BATCH`] keys that nobody waits for.
pub(super) fn in_batches(
    db: &Database,
    keys: impl Iterator<Item = u64>,
    mut write: impl FnMut(&mut Transaction, u64) -> braid::Result<()>,
) -> Result<(), BenchError> {
    let mut keys = keys.peekable();
    while keys.peek().is_some() {
        let batch: Vec<u64> = keys.by_ref().take(BATCH).collect();
        db.transact(|tx| {
            tx.set_durability(Durability::None);
            batch.iter().try_for_each(|&key| write(tx, key))
        })?;
    }
    Ok(())
}
