//! Helpers of the integration tests.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use braid_io::{Device, MemoryDevice, SimDevice};
use braid_log::{
    CheckpointPosition, DuringScan, FlushMode, Log, LogError, LogOptions, LogRecord, Recovered,
};

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

/// The least length of a payload that may not fit into a buffer.
const LARGE: usize = 7_000;

/// Bytes that tell their number, `len` of them.
///
/// The bytes of a large transaction do not depend on the number: it writes them before it has one.
pub fn payload(seqno: u64, len: usize) -> Vec<u8> {
    let seqno = if len < LARGE { seqno } else { len as u64 };
    (0..len)
        .map(|at| (seqno as u8).wrapping_mul(31).wrapping_add(at as u8))
        .collect()
}

/// How a recovery replays during its scan.
#[derive(Clone, Copy, Debug)]
pub struct OnePass {
    pub threads: usize,
    pub waiting_bytes: usize,
    /// Log records that are accepted during the scan.
    pub accepted: usize,
}

impl OnePass {
    pub const ALL: [OnePass; 4] = [
        OnePass::of(0, usize::MAX, usize::MAX),
        OnePass::of(2, usize::MAX, usize::MAX),
        OnePass::of(1, 0, usize::MAX),
        OnePass::of(0, usize::MAX, 5),
    ];

    pub const fn of(threads: usize, waiting_bytes: usize, accepted: usize) -> Self {
        Self {
            threads,
            waiting_bytes,
            accepted,
        }
    }

    /// Recovers a log. Returns it, and all log records by sequence number. Those that came before
    /// the replay stopped may come twice.
    pub fn recover(
        self,
        device: &Arc<dyn Device>,
        options: &LogOptions,
        start: &CheckpointPosition,
    ) -> Result<(Recovered, BTreeMap<u64, Vec<u8>>), LogError> {
        let found = Mutex::new(BTreeMap::new());
        let add = |log_record: LogRecord<'_>| {
            let (seqno, bytes) = (log_record.seqno.get(), log_record.payload.to_vec());
            found.lock().unwrap().insert(seqno, bytes)
        };
        let accept = |log_records: &[LogRecord<'_>]| {
            log_records.iter().all(|&log_record| {
                let has_room = found.lock().unwrap().len() < self.accepted;
                if has_room {
                    assert_eq!(add(log_record), None, "{self:?}");
                }
                has_room
            })
        };
        let during = DuringScan {
            accept: &accept,
            threads: self.threads,
            waiting_bytes: self.waiting_bytes,
        };
        let (device, options) = (Arc::clone(device), options.clone());
        let recovered = Log::recover_and_replay(device, options, start, None, &|_| {}, &during)?;
        let mut later = 0;
        recovered.for_each(|log_record| {
            later += 1;
            let before = add(log_record);
            assert!(before.is_none() || self.accepted < usize::MAX, "{self:?}");
        })?;
        let found = found.into_inner().unwrap();
        assert_eq!(recovered.replayed_records() + later, found.len() as u64);
        Ok((recovered, found))
    }
}

/// Checks that a recovery which replays during its scan finds the same log records.
pub fn check_one_pass(
    device: &Arc<dyn Device>,
    options: &LogOptions,
    start: &CheckpointPosition,
    expected: &BTreeMap<u64, Vec<u8>>,
) {
    for one_pass in OnePass::ALL {
        let (_, found) = one_pass.recover(device, options, start).unwrap();
        assert!(found == *expected, "{one_pass:?}");
    }
}
