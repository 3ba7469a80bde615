//! The workloads of one table of records: uniform blind updates, random inserts, YCSB, and a bulk
//! load.

mod bulk;
mod inserts;
mod plan;
mod uniform;
mod ycsb;

use std::sync::Arc;

use fastrand::Rng;

use self::bulk::BulkClient;
use self::inserts::InsertClient;
use self::uniform::UniformClient;
use self::ycsb::YcsbClient;
use crate::driver::{Check, Client, Driver};
use crate::engines::{Abilities, KvEngine, Stop, TableId, Transaction};
use crate::load::{self, CATALOGUE};
use crate::sum::fold;
use crate::zipf::scatter;
use crate::{BenchError, LoadProgress, Spec, Workload};

pub use self::plan::MAX_SCAN;
#[cfg(feature = "connect")]
pub(crate) use self::plan::Op;
pub(crate) use self::plan::{Generator, Plan};

/// Table of the records.
const RECORDS: TableId = 0;

/// U-1, U-10, random inserts, large values, YCSB, scans, and the bulk load.
pub(crate) struct Records {
    workload: Workload,
    records: u64,
    value_size: usize,
    seed: u64,
    threads: usize,
    /// Draws of YCSB; `None` if they are uniform.
    plan: Option<Arc<Plan>>,
}

/// Returns a generator for the values that clients write. The seed decides only the keys: a later
/// run with the same seed would write the values that exist, and an engine that compares them
/// (SQLite) would then write and sync nothing.
fn unseeded() -> Rng {
    Rng::new()
}

/// Writes one value to several records.
fn put_each(tx: &mut dyn Transaction, keys: &[[u8; 8]], value: &[u8]) -> Result<(), Stop> {
    for key in keys {
        tx.put(RECORDS, key, value)?;
    }
    Ok(())
}

impl Records {
    pub(crate) fn new(spec: &Spec) -> Self {
        Records {
            workload: spec.workload,
            records: spec.records,
            value_size: spec.value_size,
            seed: spec.seed,
            threads: spec.threads,
            plan: (spec.workload.is_ycsb()).then(|| Plan::new(spec)),
        }
    }

    /// The table's name contains its shape, so that different shapes do not mix.
    fn table(&self) -> String {
        let family = match self.workload {
            Workload::Load => "load",
            Workload::Inserts => "inserts",
            _ if self.workload.is_ycsb() => "ycsb",
            _ => "uniform",
        };
        format!("{family}-{}-{}", self.records, self.value_size)
    }
}

impl Records {
    fn present_records(&self, engine: &dyn KvEngine) -> Result<u64, BenchError> {
        fold(engine, RECORDS, "records", 0, |n, row| {
            (row.len() == self.value_size).then_some(n + 1)
        })
    }
}

impl Driver for Records {
    fn name(&self) -> &str {
        self.workload.name()
    }

    fn describe(&self) -> String {
        format!("{} records of {} bytes", self.records, self.value_size)
    }

    fn is_finite(&self) -> bool {
        self.workload.is_finite()
    }

    fn tables(&self) -> Vec<String> {
        vec![self.table(), CATALOGUE.into()]
    }

    fn needs(&self) -> Abilities {
        Abilities {
            transactions: !matches!(
                self.workload,
                Workload::U1
                    | Workload::Large
                    | Workload::YcsbC
                    | Workload::YcsbInsert
                    | Workload::Scan
            ),
            updates: matches!(
                self.workload,
                Workload::YcsbA | Workload::YcsbB | Workload::YcsbF | Workload::YcsbUpdate
            ),
            reads: !matches!(
                self.workload,
                Workload::U1
                    | Workload::U10
                    | Workload::Inserts
                    | Workload::Large
                    | Workload::YcsbInsert
            ),
            scans: matches!(
                self.workload,
                Workload::YcsbE | Workload::Scan | Workload::Load
            ),
            ..Abilities::NONE
        }
    }

    fn load(
        &self,
        engine: &dyn KvEngine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<u64, BenchError> {
        if self.workload == Workload::Load {
            // The load itself is measured.
            return match self.present_records(engine)? {
                0 => Ok(0),
                _ => Err(BenchError::NotEmpty {
                    table: self.table(),
                }),
            };
        }
        load::once(engine, 1, &self.table(), self.records, progress, |loader| {
            let mut rng = Rng::with_seed(self.seed);
            let mut value = vec![0; self.value_size];
            // In key order, so that a tree fills its pages from left to right, whatever the
            // scattering.
            let mut keys: Vec<u64> = match &self.plan {
                Some(plan) => (0..self.records).map(|n| plan.key(n)).collect(),
                None if self.workload == Workload::Inserts => {
                    (0..self.records).map(scatter).collect()
                }
                None => (0..self.records).collect(),
            };
            keys.sort_unstable();
            for keys in keys.chunks(load::batch(self.value_size + 8)) {
                loader.batch(keys.len() as u64, &mut |tx| {
                    for key in keys {
                        rng.fill(&mut value);
                        tx.put(RECORDS, &key.to_be_bytes(), &value)?;
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    fn client(&self, thread: usize, seed: u64) -> Box<dyn Client + '_> {
        if self.workload == Workload::Load {
            let part = |thread: usize| self.records * thread as u64 / self.threads as u64;
            let mine = part(thread)..part(thread + 1);
            return Box::new(BulkClient::new(seed, mine, self.value_size));
        }
        match &self.plan {
            None if self.workload == Workload::Inserts => {
                Box::new(InsertClient::new(self.workload.writes(), self.value_size))
            }
            Some(plan) => {
                let generator = Generator::new(Arc::clone(plan), seed);
                Box::new(YcsbClient::new(generator, self.value_size))
            }
            None => Box::new(UniformClient::new(
                seed,
                self.records,
                self.workload.writes(),
                self.value_size,
            )),
        }
    }

    fn check(&self, engine: &dyn KvEngine) -> Result<Vec<Check>, BenchError> {
        if self.workload != Workload::Load {
            return Ok(Vec::new());
        }
        let found = self.present_records(engine)?;
        Ok(vec![Check::equal(
            "every record is there",
            found,
            self.records,
        )])
    }
}
