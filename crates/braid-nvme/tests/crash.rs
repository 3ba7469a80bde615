//! Crash images from a record of writes, without a virtual machine: a drive in memory is recorded.

#[path = "../examples/nvme_crash/workload.rs"]
mod workload;

use std::sync::Arc;

use braid_nvme::MemoryDrive;
use braid_nvme::crash::{AnnotatedDrive, LogEntry, Recorder, WriteLog};

const BYTES: u64 = 8 << 20;

/// The record of operations on a volume.
fn record(seed: u64, operations: u64) -> Vec<u8> {
    let recorded = Recorder::wrap(Arc::new(MemoryDrive::new(BYTES / 512)));
    let drive = AnnotatedDrive::new(Arc::new(recorded.clone()));
    workload::run(&drive, seed, operations).unwrap();
    recorded.observer().record()
}

fn check(seed: u64, operations: u64, images: u64) -> Result<u64, String> {
    let record = record(seed, operations);
    let random = fastrand::Rng::with_seed(seed);
    workload::check(|| Ok(&record[..]), BYTES, seed, images, random)
}

/// Also catches the mutants `volume_skip_flush`, `volume_skip_fua`, `volume_plain_durable_writes` and
/// `volume_superblock_before_journal`.
#[test]
fn no_image_loses_an_acknowledged_operation() {
    // An emulated processor takes minutes for all.
    let seeds = std::env::var("BRAID_HISTORIES").map_or(8, |count| count.parse().unwrap());
    for seed in 0..seeds.min(8) {
        assert_eq!(check(seed, 400, 250), Ok(250), "seed {seed}");
    }
}

#[test]
fn a_damaged_record_is_an_error_or_ends() {
    let record = record(1, 5);
    let entries = |record: &[u8]| WriteLog::new(record).unwrap().collect::<Vec<_>>();
    let all = entries(&record);
    assert!(all.iter().all(Result::is_ok));
    assert!(all.iter().any(|entry| matches!(entry, Ok(LogEntry::Flush))));
    // A recorder that was killed leaves a part of an entry.
    let cut = entries(&record[..record.len() - 300]);
    assert_eq!(cut.len(), all.len() - 1);
    for (at, what) in [(0, "magic"), (8, "version"), (24, "sector size")] {
        let mut other = record.clone();
        other[at] ^= 0x55;
        assert!(WriteLog::new(&other[..]).is_err(), "{what}");
    }
    assert!(WriteLog::new(&record[..20]).is_err());
    let mut other = record.clone();
    other[512 + 8..512 + 16].fill(0xff);
    assert!(entries(&other)[0].is_err(), "an absurd length");
}
