//! The workloads of one table of records: uniform blind updates, and YCSB.

mod client;
mod plan;

use std::sync::Arc;

use fastrand::Rng;

use self::client::RecordsClient;
use self::plan::{Generator, Plan};
use crate::driver::{Client, Driver};
use crate::engines::{Abilities, KvEngine, TableId};
use crate::load::{self, CATALOGUE};
use crate::{BenchError, LoadProgress, Spec, Workload};

pub use self::plan::MAX_SCAN;

/// Where the records are.
const RECORDS: TableId = 0;

/// U-1, U-10 and YCSB.
pub(crate) struct Records {
    workload: Workload,
    records: u64,
    value_size: usize,
    seed: u64,
    plan: Arc<Plan>,
}

impl Records {
    pub(crate) fn new(spec: &Spec) -> Self {
        Records {
            workload: spec.workload,
            records: spec.records,
            value_size: spec.value_size,
            seed: spec.seed,
            plan: Plan::new(spec.workload, spec.records, spec.zipf),
        }
    }

    /// The table's name says its shape, so that different shapes do not mix.
    fn table(&self) -> String {
        let family = if self.workload.is_ycsb() {
            "ycsb"
        } else {
            "uniform"
        };
        format!("{family}-{}-{}", self.records, self.value_size)
    }
}

impl Driver for Records {
    fn name(&self) -> &str {
        self.workload.name()
    }

    fn tables(&self) -> Vec<String> {
        vec![self.table(), CATALOGUE.into()]
    }

    fn needs(&self) -> Abilities {
        Abilities {
            transactions: !matches!(
                self.workload,
                Workload::U1 | Workload::YcsbC | Workload::YcsbInsert
            ),
            reads: !matches!(
                self.workload,
                Workload::U1 | Workload::U10 | Workload::YcsbInsert
            ),
            scans: self.workload == Workload::YcsbE,
            ..Abilities::NONE
        }
    }

    fn load(
        &self,
        engine: &dyn KvEngine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<u64, BenchError> {
        load::once(engine, 1, &self.table(), self.records, progress, |loader| {
            let mut rng = Rng::with_seed(self.seed);
            let mut value = vec![0; self.value_size];
            // In key order: a tree then fills its pages from left to right, whatever the scattering.
            let mut keys: Vec<u64> = (0..self.records).map(|n| self.plan.key(n)).collect();
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

    fn client(&self, _: usize, seed: u64) -> Box<dyn Client + '_> {
        let generator = Generator::new(Arc::clone(&self.plan), seed);
        Box::new(RecordsClient::new(generator, self.value_size))
    }
}
