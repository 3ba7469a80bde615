//! A client of inserts at random places.

use fastrand::Rng;

use crate::driver::{Client, Step};
use crate::engines::{Stop, Transaction};

/// Inserts new records with uniformly drawn keys: each is likely in a page of its own. The keys are
/// unseeded, because a later run with the same seed would update the records of this one.
pub(super) struct InsertClient {
    rng: Rng,
    keys: Vec<[u8; 8]>,
    value: Vec<u8>,
    step: Step,
}

impl InsertClient {
    pub(super) fn new(inserts: usize, value_size: usize) -> Self {
        let mut rng = super::unseeded();
        let mut value = vec![0; value_size];
        rng.fill(&mut value);
        InsertClient {
            rng,
            keys: vec![[0; 8]; inserts],
            value,
            step: Step::write(inserts * (value_size + 8)),
        }
    }
}

impl Client for InsertClient {
    fn draw(&mut self) -> Option<Step> {
        for key in &mut self.keys {
            *key = self.rng.u64(..).to_be_bytes();
        }
        Some(self.step)
    }

    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        super::put_each(tx, &self.keys, &self.value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_insert_has_a_new_key_in_every_run() {
        let mut keys = HashSet::new();
        for _ in 0..2 {
            let mut client = InsertClient::new(100, 100);
            for _ in 0..100 {
                assert_eq!(client.draw().map(|step| step.bytes), Some(10_800));
                keys.extend(client.keys.iter().copied());
            }
        }
        assert_eq!(keys.len(), 2 * 100 * 100);
        let high = keys.iter().filter(|key| key[0] >= 0x80).count();
        assert!(
            high.abs_diff(keys.len() / 2) < 500,
            "{high} in the upper half"
        );
    }
}
