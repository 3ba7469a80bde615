//! Crash images of a drive with a database: a drive in memory is recorded.

use std::sync::Arc;

use braid_nvme::MemoryDrive;
use braid_nvme::crash::{AnnotatedDrive, Recorder};
use braid_sim::images::{self, Checked};
use fastrand::Rng;

const BYTES: u64 = 64 << 20;

fn check(seed: u64, transactions: u64, images: u64) -> Result<Checked, String> {
    let recorded = Recorder::wrap(Arc::new(MemoryDrive::new(BYTES / 512)));
    let drive = AnnotatedDrive::new(Arc::new(recorded.clone()));
    images::run(&drive, seed, transactions).map_err(|error| error.to_string())?;
    let record = recorded.observer().record();
    images::check(
        || Ok(&record[..]),
        BYTES,
        seed,
        images,
        Rng::with_seed(seed),
    )
}

/// Every protocol. `BRAID_HISTORIES` limits the number of seeds.
#[test]
fn no_image_loses_an_acknowledged_transaction() {
    let seeds = std::env::var("BRAID_HISTORIES").map_or(7, |count| count.parse().unwrap());
    let mut sum = Checked::default();
    for seed in 0..seeds.min(7) {
        match check(seed, 36, 24) {
            Ok(checked) => {
                assert_eq!(checked.images, 24);
                sum.images += checked.images;
                sum.twice += checked.twice;
                sum.verified += checked.verified;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!("{sum:?}");
    assert!(sum.twice > 0);
}
