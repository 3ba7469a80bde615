//! A client of blind updates.

use fastrand::Rng;

use crate::driver::{Client, Step};
use crate::engines::{Stop, Transaction};

/// Overwrites uniformly drawn records. This is the cheapest client possible; its cost is part of
/// the measurement.
pub(super) struct UniformClient {
    rng: Rng,
    records: u64,
    keys: Vec<[u8; 8]>,
    value: Vec<u8>,
    writes: u64,
    step: Step,
}

impl UniformClient {
    pub(super) fn new(seed: u64, records: u64, updates: usize, value_size: usize) -> Self {
        let mut value = vec![0; value_size];
        super::unseeded().fill(&mut value);
        UniformClient {
            rng: Rng::with_seed(seed),
            records,
            keys: vec![[0; 8]; updates],
            value,
            writes: 0,
            step: Step::write(updates * (value_size + 8)),
        }
    }
}

impl Client for UniformClient {
    fn draw(&mut self) -> Option<Step> {
        for key in &mut self.keys {
            *key = self.rng.u64(0..self.records).to_be_bytes();
        }
        // Each value that this thread writes is different.
        self.writes += 1;
        self.value[..8].copy_from_slice(&self.writes.to_le_bytes());
        Some(self.step)
    }

    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        super::put_each(tx, &self.keys, &self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_seed_write_other_values_to_the_same_keys() {
        let of = || {
            let mut client = UniformClient::new(1, 64, 10, 100);
            client.draw();
            (client.keys, client.value)
        };
        let ((keys, value), (again, other)) = (of(), of());
        assert_eq!(keys, again);
        assert_ne!(value, other);
    }

    #[test]
    fn keys_are_those_of_loaded_records() {
        let mut client = UniformClient::new(1, 64, 10, 100);
        for _ in 0..1_000 {
            assert_eq!(client.draw().map(|step| step.bytes), Some(1_080));
            assert!(client.keys.iter().all(|key| u64::from_be_bytes(*key) < 64));
        }
    }
}
