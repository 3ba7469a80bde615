//! Chunks are padded to the unit of the device that wrote them, and any device reads them.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

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

/// Appends each payload to another strand, and flushes them together. Returns the bytes that the flush
/// takes.
fn flush_together(log: &Log, payloads: &[Vec<u8>], written: &mut BTreeMap<u64, Vec<u8>>) -> u64 {
    std::thread::scope(|scope| {
        // A thread has one strand as long as it lives, and perhaps that of a thread of another test.
        let mut all_threads = Vec::new();
        let mut of_strands = BTreeMap::new();
        let mut first_tickets = Vec::new();
        while of_strands.len() < payloads.len() {
            let (work, to_append) = mpsc::channel::<&[u8]>();
            let (answer, tickets) = mpsc::channel();
            scope.spawn(move || {
                for bytes in to_append {
                    answer.send(log.append(&[bytes]).unwrap()).unwrap();
                }
            });
            let append = move |bytes| {
                work.send(bytes).unwrap();
                tickets.recv().unwrap()
            };
            let ticket = append(b"which strand?");
            written.insert(ticket.seqno().get(), b"which strand?".to_vec());
            let strand = ticket.unlock_point().strand().get();
            of_strands.entry(strand).or_insert(all_threads.len());
            all_threads.push(append);
            first_tickets.push(ticket);
        }
        for ticket in first_tickets {
            ticket.wait().unwrap();
        }
        let before = log.stats();
        let tickets = of_strands.values().zip(payloads).map(|(&thread, bytes)| {
            let ticket = all_threads[thread](bytes);
            written.insert(ticket.seqno().get(), bytes.clone());
            ticket
        });
        let tickets: Vec<_> = tickets.collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        let stats = log.stats();
        assert_eq!(stats.flushes, before.flushes + 1);
        assert_eq!(stats.chunks, before.chunks + payloads.len() as u64);
        stats.written_bytes - before.written_bytes
    })
}

/// The chunks of eight strands take a block or two instead of eight, and begin within it, so that the log is
/// also read from a position there.
#[test]
fn small_chunks_of_a_flush_share_a_unit() {
    // These have one strand.
    let one = [ProtocolKind::Serial, ProtocolKind::Aether];
    for &protocol in ProtocolKind::ALL.iter().filter(|kind| !one.contains(kind)) {
        // Eight chunks of 192 or 256 bytes, of which one is replaced by a longer one, or some are.
        let longer = [100, 900, 2000, 900, 900, 900, 900, 2000];
        for (unit, lens, expected) in [
            (64, [100; 8], 8 * 192..=8 * 256),
            (512, [100; 8], 8 * 192..=8 * 256),
            (4096, [100; 8], 4096..=4096),
            (
                4096,
                [3000, 100, 100, 100, 100, 100, 100, 100],
                8192..=12288,
            ),
            (4096, longer, 12288..=16384),
        ] {
            let options = LogOptions {
                strands: 8,
                segment_bytes: 1 << 20,
                ..options(protocol, 1)
            };
            let medium = SimDevice::new(7);
            medium.set_block_size(unit);
            let device: Arc<dyn Device> = Arc::new(medium.clone());
            let log = Log::create(device.clone(), options.clone()).unwrap();
            let first = log.quiesce(|start| start);
            let mut written = BTreeMap::new();
            append(&log, 1..2, &mut written);
            // Few enough for one segment.
            for round in 0..2 {
                let payloads = (0..8).map(|at| payload(round * 8 + at, lens[at as usize]));
                let payloads: Vec<_> = payloads.collect();
                let bytes = flush_together(&log, &payloads, &mut written);
                assert!(
                    expected.contains(&bytes),
                    "{protocol}, {unit}, {lens:?}: {bytes}"
                );
            }
            assert_eq!(tail(&log, &first), written, "{protocol}, {unit}, {lens:?}");
            log.close().unwrap();
            for block in [unit, 64, 4096] {
                medium.set_block_size(block);
                let found = log_records(&recover(&device, &options, &first));
                assert_eq!(found, written, "{protocol}, {unit}, {lens:?}");
                let one_pass = OnePass::of(1, usize::MAX, usize::MAX);
                let (_, found) = one_pass.recover(&device, &options, &first).unwrap();
                assert_eq!(found, written, "{protocol}, {unit}, {lens:?}");
            }
        }
    }
}
