//! Helpers of the integration tests.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_io::{Device, MemoryDevice, SimDevice};
use braid_log::{CheckpointPosition, FlushMode, Log, LogError, LogOptions, Recovered};

/// A simulated device in the form that the log accepts.
pub fn sim(device: &SimDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

/// Options that make every structure small, so that its limits are reached.
pub fn small(flush_mode: FlushMode) -> LogOptions {
    LogOptions {
        strands: 2,
        segment_bytes: 68 << 10,
        slot_bytes: 8 << 10,
        flush_mode,
        epoch: std::time::Duration::from_millis(1),
        ..LogOptions::default()
    }
}

/// The number of seeds that a test tries; `BRAID_HISTORIES` limits it on a slow machine, such as an
/// emulated one.
pub fn bounded(count: u64) -> u64 {
    let most = std::env::var("BRAID_HISTORIES").ok();
    most.map_or(count, |most| count.min(most.parse().expect("a number")))
}

pub fn memory() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new())
}

pub fn recover(
    device: &Arc<dyn Device>,
    options: &LogOptions,
    start: &CheckpointPosition,
) -> Recovered {
    try_recover(device, options, start).unwrap()
}

pub fn try_recover(
    device: &Arc<dyn Device>,
    options: &LogOptions,
    start: &CheckpointPosition,
) -> Result<Recovered, LogError> {
    Log::recover(Arc::clone(device), options.clone(), start, &|_| {})
}

/// All log records by sequence number; a number that occurs twice fails the test.
pub fn log_records(recovered: &Recovered) -> BTreeMap<u64, Vec<u8>> {
    let mut log_records = BTreeMap::new();
    recovered
        .for_each(|log_record| {
            let twice = log_records.insert(log_record.seqno.get(), log_record.payload.to_vec());
            assert!(
                twice.is_none(),
                "number {} came twice",
                log_record.seqno.get()
            );
        })
        .unwrap();
    log_records
}

/// Bytes that tell their number, `len` of them.
pub fn payload(seqno: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (seqno as u8).wrapping_mul(31).wrapping_add(at as u8))
        .collect()
}
