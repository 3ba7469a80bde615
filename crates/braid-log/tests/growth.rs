//! A log begins small and grows with use, and every admitted commit finds room at every size.

use std::sync::Arc;

use crate::common::{bounded, log_records, memory, payload, recover, sim};
use braid_io::{Device, SimDevice};
use braid_log::{FlushMode, Log, LogError, LogOptions, ProtocolKind};

fn options(protocol: ProtocolKind, flush_mode: FlushMode) -> LogOptions {
    LogOptions {
        protocol,
        strands: 2,
        segment_bytes: 4 << 20,
        slot_bytes: 128 << 10,
        flush_mode,
        ..LogOptions::default()
    }
}

fn lengths(device: &dyn Device) -> Vec<u64> {
    let entries = device.list().unwrap().into_iter();
    entries.map(|entry| entry.len).collect()
}

#[test]
fn a_new_log_is_small_whatever_its_buffers() {
    for &protocol in ProtocolKind::ALL {
        for (strands, lanes) in [(1, 1), (2, 1), (2, 2), (3, 3), (16, 1), (16, 3), (16, 16)] {
            if protocol
                .forced_strands()
                .is_some_and(|forced| strands > forced)
            {
                continue;
            }
            let options = LogOptions {
                protocol,
                strands,
                lanes,
                ..LogOptions::default()
            };
            let device = memory();
            let log = Log::create(device.clone(), options).unwrap();
            log.append(&[b"x"]).unwrap().wait().unwrap();
            log.close().unwrap();
            let bytes: u64 = lengths(&*device).iter().sum();
            // Whether the next segment of the written lane is ready by then depends on the threads.
            let most = 512 << 10;
            assert!(
                bytes <= most,
                "{protocol}, {strands} strands, {lanes} lanes: {bytes} bytes"
            );
        }
    }
}

/// An unused lane keeps its small files, and slows no other lane.
#[test]
fn each_lane_grows_by_itself() {
    for &protocol in ProtocolKind::ALL {
        if protocol.forced_strands().is_some() {
            continue;
        }
        for flush_mode in [FlushMode::Callers, FlushMode::Background] {
            let options = LogOptions {
                lanes: 2,
                ..options(protocol, flush_mode)
            };
            let device = memory();
            let log = Log::create(device.clone(), options.clone()).unwrap();
            let first = log.quiesce(|start| start);
            let numbers: Vec<u64> = (0..2_000)
                .map(|_| {
                    let mut entry = log.enter(&[&[0; 9_000]]).unwrap();
                    let seqno = entry.assign(1).get();
                    entry.append(&[&payload(seqno, 9_000)]);
                    drop(entry.finish());
                    seqno
                })
                .collect();
            log.close().unwrap();
            let mut lanes = [Vec::new(), Vec::new()];
            for entry in device.list().unwrap() {
                lanes[usize::from(entry.name.starts_with("log-01"))].push(entry.len);
            }
            lanes.sort_by_key(Vec::len);
            let [idle, used] = lanes;
            assert!(
                matches!(idle[..], [len] if len <= 40 << 10),
                "{protocol}: {idle:?}"
            );
            assert_eq!(used.iter().max(), Some(&options.segment_bytes));
            let found = log_records(&recover(&device, &options, &first));
            assert_eq!(found.len(), numbers.len(), "{protocol}");
        }
    }
}

#[test]
fn several_lanes_with_a_limit_begin_with_whole_segments() {
    let options = LogOptions {
        lanes: 2,
        max_log_bytes: 64 << 20,
        ..options(ProtocolKind::Glsn, FlushMode::Callers)
    };
    let device = memory();
    let log = Log::create(device.clone(), options.clone()).unwrap();
    log.append(&[b"x"]).unwrap().wait().unwrap();
    log.close().unwrap();
    let all = lengths(&*device);
    assert!(all.len() >= 2, "{all:?}");
    assert!(
        all.iter().all(|len| *len == options.segment_bytes),
        "{all:?}"
    );
}

#[test]
fn segments_grow_with_use_to_their_size() {
    for &protocol in ProtocolKind::ALL {
        for flush_mode in [FlushMode::Callers, FlushMode::Background] {
            let options = options(protocol, flush_mode);
            let device = memory();
            let log = Log::create(device.clone(), options.clone()).unwrap();
            let first = log.quiesce(|start| start);
            let mut expected = Vec::new();
            let mut written = 0;
            while written < 16 << 20 {
                // Some records are split, and a strand's buffers hold more than the first segments.
                let len = [100, 3_000, 20_000, 90_000][expected.len() % 4];
                let mut entry = log.enter(&[&payload(0, len)]).unwrap();
                let seqno = entry.assign(1).get();
                entry.append(&[&payload(seqno, len)]);
                drop(entry.finish());
                expected.push((seqno, len));
                written += len as u64;
                // The room ahead is what the buffers need, plus one segment.
                let ahead = 4 * options.segment_bytes;
                let bytes: u64 = lengths(&*device).iter().sum();
                assert!(
                    bytes <= 3 * written + ahead,
                    "{protocol}: {bytes} bytes of files for {written} bytes"
                );
            }
            log.close().unwrap();
            let found = lengths(&*device);
            assert_eq!(
                found.iter().max(),
                Some(&options.segment_bytes),
                "{protocol}"
            );
            assert!(found[0] <= 128 << 10, "{protocol}: {found:?}");
            let found = log_records(&recover(&device, &options, &first));
            assert_eq!(found.len(), expected.len(), "{protocol}");
            for (seqno, len) in expected {
                assert!(found[&seqno] == payload(seqno, len), "{protocol}: {seqno}");
            }
        }
    }
}

/// On a device that fills up at any size of the log: a pending commit is admitted, and then becomes
/// durable, or is refused.
#[test]
fn admitted_commits_fit_into_a_small_log() {
    let (mut refused, mut finished) = (0, 0);
    for seed in 0..bounded(200) {
        for &protocol in ProtocolKind::ALL {
            let mut rng = fastrand::Rng::with_seed(seed);
            let medium = SimDevice::new(seed);
            let strands = rng.usize(1..4);
            let lanes = match protocol.forced_strands() {
                Some(_) => 1,
                None => rng.usize(1..=strands),
            };
            let options = LogOptions {
                strands,
                lanes,
                ..options(protocol, FlushMode::Callers)
            };
            let log = Log::create(sim(&medium), options.clone()).unwrap();
            let first = log.quiesce(|start| start);
            medium.set_capacity(Some(medium.used() + rng.u64(..1 << (10 + seed % 12))));
            let mut numbers = Vec::new();
            let mut append = |count: usize, rng: &mut fastrand::Rng| {
                let mut entries = Vec::new();
                for _ in 0..count {
                    let len = match rng.u8(..20) {
                        0 => rng.usize(4_000..60_000),
                        1..5 => rng.usize(1_000..4_097),
                        _ => rng.usize(..500),
                    };
                    match log.enter(&[&payload(0, len)]) {
                        Ok(entry) => entries.push((entry, len)),
                        Err(LogError::OutOfSpace { .. }) => refused += 1,
                        Err(error) => panic!("{protocol}, seed {seed}: {error}"),
                    }
                }
                for (mut entry, len) in entries {
                    let seqno = entry.assign(1).get();
                    entry.append(&[&payload(seqno, len)]);
                    drop(entry.finish());
                    numbers.push((seqno, len));
                }
            };
            for _ in 0..200 {
                let count = rng.usize(1..6);
                append(count, &mut rng);
                if rng.u8(..8) == 0 {
                    log.sync().unwrap();
                }
            }
            log.sync()
                .unwrap_or_else(|error| panic!("{protocol}, seed {seed}: {error}"));
            medium.set_capacity(None);
            append(1, &mut rng);
            log.close().unwrap();
            finished += numbers.len();
            let device: Arc<dyn Device> = sim(&medium);
            let found = log_records(&recover(&device, &options, &first));
            assert_eq!(found.len(), numbers.len(), "{protocol}, seed {seed}");
            for (seqno, len) in numbers {
                assert!(
                    found[&seqno] == payload(seqno, len),
                    "{protocol}, seed {seed}"
                );
            }
        }
    }
    assert!(
        refused > 1_000 && finished > 10_000,
        "{refused} refused, {finished} not"
    );
}

/// A log in a space in which it can't grow: the next commits use the space that a checkpoint
/// releases.
#[test]
fn a_log_continues_in_its_space() {
    let mut refused = 0;
    for seed in 0..bounded(20) {
        for &protocol in ProtocolKind::ALL {
            let mut rng = fastrand::Rng::with_seed(seed);
            let medium = SimDevice::new(seed);
            let strands = rng.usize(1..4);
            let options = LogOptions {
                strands,
                lanes: match protocol.forced_strands() {
                    Some(_) => 1,
                    None => rng.usize(1..=strands),
                },
                slot_bytes: 32 << 10,
                ..options(protocol, FlushMode::Callers)
            };
            let log = Log::create(sim(&medium), options.clone()).unwrap();
            // Less than a lane needs to grow.
            let room = rng.u64((200 << 10)..(1_200 << 10));
            medium.set_capacity(Some(medium.used() + room));
            let mut start = log.quiesce(|start| start);
            let mut numbers = Vec::new();
            let mut append = |len: usize, log: &Log| {
                let mut entry = log.enter(&[&payload(0, len)])?;
                let seqno = entry.assign(1).get();
                entry.append(&[&payload(seqno, len)]);
                drop(entry.finish());
                numbers.push((seqno, len));
                Ok(())
            };
            for _ in 0..1_500 {
                let len = rng.usize(..4_000);
                match append(len, &log) {
                    Ok(()) => continue,
                    Err(LogError::OutOfSpace { .. }) => refused += 1,
                    Err(error) => panic!("{protocol}, seed {seed}: {error}"),
                }
                log.sync().unwrap();
                start = log.quiesce(|start| start);
                log.release(&start).unwrap();
                append(len, &log).unwrap_or_else(|error| {
                    panic!("{protocol}, seed {seed}, {room} bytes: {error}")
                });
            }
            log.close().unwrap();
            let found = log_records(&recover(&sim(&medium), &options, &start));
            for (seqno, len) in numbers
                .iter()
                .filter(|(seqno, _)| *seqno > start.seqno.get())
            {
                assert!(
                    found[seqno] == payload(*seqno, *len),
                    "{protocol}, seed {seed}"
                );
            }
        }
    }
    assert!(refused > 300, "{refused} refused");
}

/// A segment that can't be prepared, at any step: no pending commit is lost, and the log continues.
#[test]
fn a_segment_that_is_not_made_ready_costs_nothing() {
    let mut failed = 0;
    for &protocol in ProtocolKind::ALL {
        for step in 0..8 {
            let medium = SimDevice::new(step);
            let options = options(protocol, FlushMode::Callers);
            let log = Log::create(sim(&medium), options.clone()).unwrap();
            let mut start = log.quiesce(|start| start);
            let mut numbers = Vec::new();
            for i in 0..300 {
                if i == 150 {
                    // From here on, files are recycled.
                    start = log.quiesce(|start| start);
                    log.release(&start).unwrap();
                }
                medium.fail_sync_after(step);
                let entered = log.enter(&[&[0; 3_000]]);
                medium.repair();
                match entered {
                    Ok(mut entry) => {
                        let seqno = entry.assign(1).get();
                        entry.append(&[&payload(seqno, 3_000)]);
                        drop(entry.finish());
                        numbers.push(seqno);
                    }
                    Err(LogError::Io { .. }) => failed += 1,
                    Err(error) => panic!("{protocol}, step {step}: {error}"),
                }
            }
            log.close().unwrap();
            let found = log_records(&recover(&sim(&medium), &options, &start));
            let expected = numbers.iter().filter(|seqno| **seqno > start.seqno.get());
            assert_eq!(found.len(), expected.count(), "{protocol}, step {step}");
        }
    }
    assert!(failed > 50, "{failed} failed");
}
