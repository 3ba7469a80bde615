//! Chunks are padded to the unit of the device that wrote them, and any device reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{OnePass, log_records, payload, recover, small};
use braid_io::{Device, MemoryDevice, SimDevice};
use braid_log::{CheckpointPosition, FlushMode, Log, LogOptions, ProtocolKind};

fn options(protocol: ProtocolKind, lanes: usize) -> LogOptions {
    LogOptions {
        protocol,
        lanes,
        strands: 2 * lanes,
        segment_bytes: 132 << 10,
        ..small(FlushMode::Callers)
    }
}

fn append(log: &Log, numbers: std::ops::Range<u64>, written: &mut BTreeMap<u64, Vec<u8>>) {
    for number in numbers {
        let bytes = payload(number, (number as usize * 37) % 500);
        let ticket = log.append(&[&bytes]).unwrap();
        ticket.wait().unwrap();
        written.insert(ticket.seqno().get(), bytes);
    }
}

fn tail(log: &Log, from: &CheckpointPosition) -> BTreeMap<u64, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut tail = log.tail(from).unwrap();
    tail.read(usize::MAX, &mut |record| {
        found.insert(record.seqno.get(), record.payload.to_vec());
    })
    .unwrap();
    found
}

/// The device's unit changes from opening to opening, as if the files had moved to another device,
/// which refuses reads and writes of another unit than its own.
#[test]
fn a_log_is_read_on_a_device_of_another_unit() {
    for &protocol in ProtocolKind::ALL {
        for lanes in [1, 3] {
            let options = options(protocol, lanes);
            let medium = SimDevice::new(7);
            medium.set_block_size(64);
            let device: Arc<dyn Device> = Arc::new(medium.clone());
            let mut written = BTreeMap::new();
            let log = Log::create(device.clone(), options.clone()).unwrap();
            let first = log.quiesce(|start| start);
            append(&log, 1..60, &mut written);
            // Positions lie between the blocks of the other device.
            let middle = log.quiesce(|start| start);
            let before = written.clone();
            append(&log, 60..90, &mut written);
            assert_eq!(tail(&log, &middle), after(&written, &before), "{protocol}");
            log.close().unwrap();
            for block in [4096, 64, 512, 64, 4096] {
                medium.set_block_size(block);
                for (from, known) in [(&first, None), (&middle, Some(&before))] {
                    let expected = known.map_or(written.clone(), |known| after(&written, known));
                    let found = log_records(&recover(&device, &options, from));
                    assert_eq!(found, expected, "{protocol}, blocks of {block}");
                    let one_pass = OnePass::of(1, usize::MAX, usize::MAX);
                    let (_, found) = one_pass.recover(&device, &options, from).unwrap();
                    assert_eq!(found, expected, "{protocol}, blocks of {block}");
                }
                let log = recover(&device, &options, &first).into_log().unwrap();
                let next = 100 + block as u64;
                append(&log, next..next + 20, &mut written);
                assert_eq!(tail(&log, &first), written, "{protocol}, blocks of {block}");
                log.close().unwrap();
            }
        }
    }
}

/// The records that came after others.
fn after(all: &BTreeMap<u64, Vec<u8>>, known: &BTreeMap<u64, Vec<u8>>) -> BTreeMap<u64, Vec<u8>> {
    let new = all.iter().filter(|(number, _)| !known.contains_key(number));
    new.map(|(number, bytes)| (*number, bytes.clone()))
        .collect()
}

/// A commit of 100 bytes that is flushed alone takes four cache lines where the device writes cache
/// lines, and a block where it writes blocks.
#[test]
fn a_small_commit_takes_few_bytes_where_the_unit_is_small() {
    for (unit, most) in [(64, 256), (512, 512), (4096, 4096)] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::with_block_size(unit));
        let log = Log::create(device, options(ProtocolKind::Glsn, 1)).unwrap();
        append(&log, 1..2, &mut BTreeMap::new());
        let before = log.stats();
        for _ in 0..50 {
            log.append(&[&[7; 120]]).unwrap().wait().unwrap();
        }
        let bytes = log.stats().written_bytes - before.written_bytes;
        // The lane may begin segments meanwhile.
        assert!(
            (50 * most..50 * most + 3 * 4096).contains(&bytes),
            "{unit}: {bytes}"
        );
    }
}
