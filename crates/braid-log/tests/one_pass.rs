//! Replay during the scan: the log is read once, memory is bounded, and errors stay the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{OnePass, log_records, memory, payload, sim, small, try_recover};
use braid_io::{Device, Layer, LayeredDevice, OpenMode, SimDevice};
use braid_log::{CheckpointPosition, FlushMode, Log, LogError, LogOptions, ProtocolKind};

const BLOCK: u64 = 4096;

/// How often each block of each file was read, and the bytes of all buffers.
#[derive(Clone, Debug, Default)]
struct Counts {
    reads: Arc<Mutex<BTreeMap<(String, u64), u32>>>,
    allocated: Arc<AtomicUsize>,
}

impl Layer for Counts {
    fn before_read(&self, name: &str, range: Range<u64>) {
        let mut reads = self.reads.lock().unwrap();
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            *reads.entry((name.to_owned(), block)).or_default() += 1;
        }
    }

    fn before_allocate(&self, len: usize) {
        self.allocated.fetch_add(len, Ordering::Relaxed);
    }
}

/// Recovers a log; returns the log records, how often a block of its segments was read at most, and
/// the bytes of all buffers. Headers are small, and read more often; so is the beginning of the next
/// segment, in which recovery looks for chunks after the end.
fn recover(
    device: &Arc<dyn Device>,
    one_pass: OnePass,
    options: &LogOptions,
    start: &CheckpointPosition,
) -> (BTreeMap<u64, Vec<u8>>, u32, usize) {
    let counts = Counts::default();
    let counting = LayeredDevice::over(Arc::clone(device), counts.clone());
    let counting: Arc<dyn Device> = Arc::new(counting);
    let (_, found) = one_pass.recover(&counting, options, start).unwrap();
    let reads = counts.reads.lock().unwrap();
    let has_log = |name: &str| {
        let mut header = device.allocate(BLOCK as usize);
        let file = device.open(name, OpenMode::Existing).unwrap();
        file.read_at(&mut header, 0).unwrap();
        header[..8] != [0; 8]
    };
    let names: BTreeSet<&str> = reads.keys().map(|(name, _)| &name[..]).collect();
    let begun: BTreeSet<&str> = names.into_iter().filter(|name| has_log(name)).collect();
    let chunks = reads
        .iter()
        .filter(|((name, block), _)| *block > 0 && begun.contains(&name[..]));
    let most = chunks.map(|(_, &count)| count).max().unwrap_or(0);
    (found, most, counts.allocated.load(Ordering::Relaxed))
}

/// Writes log records. Every 17th has `large` times the length, which may be larger than a buffer.
fn write(
    device: &Arc<dyn Device>,
    options: &LogOptions,
    count: u64,
    len: usize,
    large: usize,
) -> (CheckpointPosition, BTreeMap<u64, Vec<u8>>) {
    let log = Log::create(Arc::clone(device), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    let mut written = BTreeMap::new();
    for i in 1..=count {
        let bytes = payload(i, if i % 17 == 0 { large * len } else { len });
        let ticket = log.append(&[&bytes]).unwrap();
        written.insert(ticket.seqno().get(), bytes);
        if i % 4 == 0 {
            ticket.wait().unwrap();
        }
    }
    log.sync().unwrap();
    drop(log);
    (start, written)
}

#[test]
fn each_block_is_read_once_if_memory_suffices() {
    for &protocol in ProtocolKind::ALL {
        for mode in [FlushMode::Callers, FlushMode::Background] {
            let options = LogOptions {
                protocol,
                lanes: if protocol == ProtocolKind::Gsn { 2 } else { 1 },
                ..small(mode)
            };
            let options = match protocol {
                ProtocolKind::Serial | ProtocolKind::Aether => LogOptions {
                    strands: 1,
                    ..options
                },
                _ => options,
            };
            for large in [1, 3] {
                check_reads(&options, large);
            }
        }
    }
}

fn check_reads(options: &LogOptions, large: usize) {
    let (protocol, mode) = (options.protocol, options.flush_mode);
    let device = memory();
    let (start, written) = write(&device, options, 300, 3_000, large);
    for threads in [0, 2] {
        let all = OnePass::of(threads, usize::MAX, usize::MAX);
        let (found, most, _) = recover(&device, all, options, &start);
        assert!(found == written, "{protocol} {mode:?}");
        assert_eq!(most, 1, "{protocol} {mode:?}");
    }
    for little in [
        OnePass::of(0, 0, usize::MAX),
        OnePass::of(2, 0, usize::MAX),
        OnePass::of(0, usize::MAX, 0),
        OnePass::of(0, 0, 0),
        OnePass::of(0, usize::MAX, 100),
    ] {
        let (found, most, _) = recover(&device, little, options, &start);
        assert!(found == written, "{protocol} {mode:?} {little:?}");
        // A block with a part of a large log record and with others is read again for both.
        let expected = if large > 1 { 3 } else { 2 };
        assert!(most <= expected, "{protocol} {mode:?} {little:?}: {most}");
    }
}

/// The memory for windows does not depend on the length of the log, and what waits in memory for
/// the cut is bounded.
#[test]
fn the_memory_of_a_recovery_is_bounded() {
    // A thread that prepares segments ahead would make their lengths depend on its speed, and so the
    // number of windows that are allocated.
    let options = LogOptions {
        strands: 1,
        flush_mode: FlushMode::Callers,
        ..LogOptions::default()
    };
    let device = memory();
    let (start, written) = write(&device, &options, 4_500, 20 << 10, 1);
    let log_bytes: usize = written.values().map(Vec::len).sum();
    assert!(log_bytes > 80 << 20);
    for one_pass in [
        OnePass::of(0, 16 << 20, usize::MAX),
        OnePass::of(2, 16 << 20, usize::MAX),
        OnePass::of(0, 16 << 20, 10),
        OnePass::of(0, 0, 0),
    ] {
        let (found, most, allocated) = recover(&device, one_pass, &options, &start);
        assert!(found == written);
        let accepts = one_pass.accepted == usize::MAX;
        assert_eq!(most, if accepts { 1 } else { 2 }, "{one_pass:?}");
        assert!(allocated < 56 << 20, "{one_pass:?}: {allocated} bytes");
    }
}

/// Whichever read fails, the error is that of the device, and the next recovery succeeds.
#[test]
fn a_failed_read_is_an_error_of_the_device() {
    let options = small(FlushMode::Callers);
    let device = memory();
    let (start, written) = write(&device, &options, 100, 3_000, 3);
    let medium = SimDevice::new(1);
    for entry in device.list().unwrap() {
        let mut bytes = device.allocate(entry.len as usize);
        let file = device.open(&entry.name, OpenMode::Existing).unwrap();
        file.read_at(&mut bytes, 0).unwrap();
        let copy = medium.open(&entry.name, OpenMode::CreateNew).unwrap();
        copy.write_at(&[&bytes], 0).unwrap();
        copy.sync().unwrap();
    }
    let (mut failed, mut succeeded) = (0, 0);
    for round in 0..200 {
        medium.fail_reads_at_random(10 + round);
        let one_pass = OnePass::ALL[round as usize % OnePass::ALL.len()];
        match one_pass.recover(&sim(&medium), &options, &start) {
            Err(LogError::Io { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
            Ok((_, found)) => {
                assert!(found == written);
                succeeded += 1;
            }
        }
    }
    assert!(failed > 20 && succeeded > 20, "{failed} {succeeded}");
    medium.repair();
    let recovered = try_recover(&sim(&medium), &options, &start).unwrap();
    assert!(log_records(&recovered) == written);
}
