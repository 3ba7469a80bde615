//! TPC-C: the transactions and data of the standard (revision 5.11), without its terminals, think
//! times and rules for publication. The figures are therefore not tpmC.

mod check;
mod client;
mod delivery;
mod load;
mod new_order;
mod payment;
mod queries;
mod random;
mod rows;
mod schema;

use fastrand::Rng;

use self::client::{Home, KINDS, TpccClient};
use self::schema::Sizes;
use crate::driver::{Check, Client, Driver};
use crate::engines::{Abilities, KvEngine};
use crate::ledger::Ledger;
use crate::load::{CATALOGUE, Origins, once};
use crate::{BenchError, LoadProgress, Spec, Workload};

/// Approximate size of a warehouse of the standard's size.
pub(crate) const WAREHOUSE_BYTES: u64 = 90 << 20;

/// Default number of items.
pub(crate) const DEFAULT_ITEMS: u64 = Sizes::ITEMS as u64;

/// Draws a warehouse other than `w`, of at least two.
fn other_warehouse(rng: &mut Rng, sizes: Sizes, w: u16) -> u16 {
    let other = rng.u16(1..sizes.warehouses);
    other + u16::from(other >= w)
}

/// The standard mix, or New-Order alone.
pub(crate) struct Tpcc {
    workload: Workload,
    sizes: Sizes,
    threads: usize,
    roams: bool,
    seed: u64,
    origins: Origins,
    ledger: Ledger,
}

impl Tpcc {
    pub(crate) fn new(spec: &Spec) -> Self {
        Tpcc {
            workload: spec.workload,
            sizes: Sizes::new(
                spec.scale.try_into().unwrap_or(u16::MAX),
                spec.records.try_into().unwrap_or(u32::MAX),
            ),
            threads: spec.threads,
            roams: spec.roams,
            seed: spec.seed,
            origins: Origins::default(),
            ledger: Ledger::new(spec.threads),
        }
    }

    /// The name of the data contains its shape, so that different shapes do not mix.
    fn data(&self) -> String {
        format!("tpcc-{}-{}", self.sizes.warehouses, self.sizes.items)
    }
}

impl Driver for Tpcc {
    fn name(&self) -> &str {
        self.workload.name()
    }

    fn describe(&self) -> String {
        let Sizes {
            warehouses, items, ..
        } = self.sizes;
        format!("{warehouses} warehouses, {items} items")
    }

    fn tables(&self) -> Vec<String> {
        let data = self.data();
        let own = schema::NAMES.iter().map(|name| format!("{data}-{name}"));
        own.chain([CATALOGUE.to_owned()]).collect()
    }

    fn needs(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn kinds(&self) -> &'static [&'static str] {
        if self.workload == Workload::TpccNo {
            &KINDS[..1]
        } else {
            &KINDS
        }
    }

    fn load(
        &self,
        engine: &dyn KvEngine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<u64, BenchError> {
        let (data, rows) = (self.data(), load::rows(self.sizes));
        let loaded = once(engine, schema::CATALOGUE, &data, rows, progress, |loader| {
            load::load(self.sizes, self.seed, loader)
        })?;
        self.origins.begin(engine, schema::CATALOGUE, &data)?;
        Ok(loaded)
    }

    fn client(&self, thread: usize, seed: u64) -> Box<dyn Client + '_> {
        let (driver, client) = self.origins.client();
        Box::new(TpccClient::new(
            Rng::with_seed(seed),
            self.sizes,
            Home::new(self.sizes, thread, self.threads, self.roams),
            self.workload == Workload::TpccNo,
            (driver, client as u16, 0),
            self.ledger.entry(thread),
        ))
    }

    fn check(&self, engine: &dyn KvEngine) -> Result<Vec<Check>, BenchError> {
        check::conditions(engine, self.sizes)
    }

    fn acknowledged(&self) -> u64 {
        self.ledger.acknowledged()
    }

    fn present(&self, engine: &dyn KvEngine) -> Result<Option<u64>, BenchError> {
        check::new_orders(engine, self.sizes).map(Some)
    }
}

#[cfg(test)]
mod tests;
