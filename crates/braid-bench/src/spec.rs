//! Parameters of a run.

use std::time::Duration;

use crate::driver::Driver;
use crate::zipf::Zipf;
use crate::{BenchError, Workload, tpcc};

/// Parameters of a load and a run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Workload: its operations and its data.
    pub workload: Workload,
    /// Number of threads that issue transactions.
    pub threads: usize,
    /// Commits that each thread keeps in flight; with 1 it waits for each.
    pub in_flight: usize,
    /// Time that runs before anything is counted.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub measure: Duration,
    /// Number of records to load.
    pub records: u64,
    /// Size of each value, in bytes.
    pub value_size: usize,
    /// Number of warehouses of TPC-C, or of branches of TPC-B.
    pub scale: u32,
    /// Whether each client of TPC-C uses all warehouses instead of its own.
    pub roams: bool,
    /// Number of accounts of the bank that take part in transfers; `None` for all.
    pub hot: Option<u64>,
    /// Number of records of a scan of [`Workload::Scan`].
    pub scan_length: u64,
    /// Skew of the Zipfian draws of YCSB and the bank, strictly between 0 and 1.
    pub zipf: f64,
    /// Seed of all draws; each thread derives its own seed.
    pub seed: u64,
}

impl Spec {
    /// Maximum number of threads.
    pub const MAX_THREADS: usize = 4_096;

    /// Returns the defaults: one waiting thread, one second of warm-up, ten seconds measured, the
    /// workload's default data.
    #[must_use]
    pub fn new(workload: Workload) -> Self {
        Spec {
            workload,
            threads: 1,
            in_flight: 1,
            warm_up: Duration::from_secs(1),
            measure: Duration::from_secs(10),
            records: workload.default_records(),
            value_size: workload.default_value_size(),
            scale: 1,
            roams: false,
            hot: None,
            scan_length: 100,
            zipf: Zipf::YCSB_THETA,
            seed: 42,
        }
    }

    /// Returns the size of all loaded keys and values, in bytes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let scale = u64::from(self.scale);
        if self.workload.is_tpcc() {
            let warehouse =
                self.records.saturating_mul(tpcc::WAREHOUSE_BYTES) / tpcc::DEFAULT_ITEMS;
            return warehouse.saturating_mul(scale);
        }
        let records = match self.workload {
            Workload::Tpcb => self.records.saturating_mul(scale),
            _ => self.records,
        };
        records.saturating_mul(self.value_size as u64 + 8)
    }

    /// Returns the approximate log size of a writing transaction: the record size of a bare log to
    /// compare with.
    #[must_use]
    pub fn log_record_bytes(&self) -> usize {
        // Key, lengths, and the header of the transaction.
        self.workload
            .writes()
            .saturating_mul(self.value_size.saturating_add(20))
    }

    /// Returns the driver with these parameters, ready to be loaded and run.
    ///
    /// # Errors
    ///
    /// [`BenchError::Option`] names the first invalid parameter.
    pub fn driver(&self) -> Result<Box<dyn Driver>, BenchError> {
        self.check()?;
        Ok(self.workload.driver(self))
    }

    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// [`BenchError::Option`] names the first invalid one.
    pub fn check(&self) -> Result<(), BenchError> {
        let range = |option, given: usize, from: usize, to: usize| {
            if (from..=to).contains(&given) {
                Ok(())
            } else {
                Err(BenchError::Option {
                    option,
                    wanted: format!("from {from} to {to}"),
                    given: given.to_string(),
                })
            }
        };
        range("threads", self.threads, 1, Self::MAX_THREADS)?;
        range("in-flight", self.in_flight, 1, 1 << 20)?;
        // Eight bytes of each value are a counter, so that all writes differ.
        range("value-size", self.value_size, 8, 16 << 20)?;
        let records = usize::try_from(self.records).unwrap_or(usize::MAX);
        range("records", records, 1, 1 << 40)?;
        range("scale", self.scale as usize, 1, 6_500)?;
        let scan = usize::try_from(self.scan_length).unwrap_or(usize::MAX);
        range("scan-length", scan, 1, 1 << 40)?;
        if let Some(hot) = self.hot {
            let hot = usize::try_from(hot).unwrap_or(usize::MAX);
            range("hot", hot, 2, records.max(2))?;
        }
        match self.workload {
            Workload::Bank => range("records", records, 2, 1 << 40)?,
            Workload::Tpcb => {
                let most = u32::MAX as usize / self.scale as usize;
                range("records", records, 1, most)?;
            }
            Workload::Tpcc | Workload::TpccNo => {
                range("records", records, 100, tpcc::DEFAULT_ITEMS as usize)?;
            }
            _ => {}
        }
        if !(self.zipf > 0.0 && self.zipf < 1.0) {
            return Err(BenchError::Option {
                option: "zipf",
                wanted: "between 0 and 1".into(),
                given: self.zipf.to_string(),
            });
        }
        if self.measure.is_zero() {
            return Err(BenchError::Option {
                option: "seconds",
                wanted: "positive".into(),
                given: "0".into(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named() {
        let good = Spec::new(Workload::U1);
        good.check().unwrap();
        for (spec, name) in [
            (
                Spec {
                    threads: 0,
                    ..good.clone()
                },
                "threads",
            ),
            (
                Spec {
                    in_flight: 0,
                    ..good.clone()
                },
                "in-flight",
            ),
            (
                Spec {
                    value_size: 7,
                    ..good.clone()
                },
                "value-size",
            ),
            (
                Spec {
                    records: 0,
                    ..good.clone()
                },
                "records",
            ),
            (
                Spec {
                    measure: Duration::ZERO,
                    ..good.clone()
                },
                "seconds",
            ),
            (
                Spec {
                    zipf: 1.0,
                    ..good.clone()
                },
                "zipf",
            ),
        ] {
            let error = spec.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
