//! A client that loads records.

use std::ops::Range;

use fastrand::Rng;

use super::RECORDS;
use crate::driver::{Client, Step};
use crate::engines::{Stop, Transaction};
use crate::load;

/// Writes its part of the records in key order, one batch per transaction.
pub(super) struct BulkClient {
    rng: Rng,
    left: Range<u64>,
    batch: Range<u64>,
    value: Vec<u8>,
}

impl BulkClient {
    pub(super) fn new(seed: u64, records: Range<u64>, value_size: usize) -> Self {
        BulkClient {
            rng: Rng::with_seed(seed),
            left: records,
            batch: 0..0,
            value: vec![0; value_size],
        }
    }
}

impl Client for BulkClient {
    fn draw(&mut self) -> Option<Step> {
        let Range { start, end } = self.left;
        let record = self.value.len() + 8;
        let batch = start..end.min(start + load::batch(record) as u64);
        if batch.is_empty() {
            return None;
        }
        self.left = batch.end..end;
        let bytes = (batch.end - batch.start) as usize * record;
        self.batch = batch;
        Some(Step::write(bytes))
    }

    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        for key in self.batch.clone() {
            self.rng.fill(&mut self.value);
            tx.put(RECORDS, &key.to_be_bytes(), &self.value)?;
        }
        Ok(())
    }
}
