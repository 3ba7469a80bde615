//! Large commits: their bytes are in the log before they have a number.

use std::sync::{Arc, Mutex};

use braid_io::SimDevice;
use braid_log::{FlushMode, Log, LogError, ProtocolKind};

use crate::common::{log_records, memory, payload, recover, sim, small};

const LARGE: usize = 60_000;

/// Runs `f` on a thread of its own, which has its own commit slot.
fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}

/// A small commit is acknowledged although a large one has begun to write its bytes.
#[test]
fn a_small_commit_is_acknowledged_while_a_large_one_writes_its_bytes() {
    // (With epochs, it waits for the end of its epoch.)
    let protocols = ProtocolKind::ALL.iter().copied();
    for protocol in protocols.filter(|&protocol| protocol != ProtocolKind::Epoch) {
        let options = braid_log::LogOptions {
            protocol,
            ..small(FlushMode::Callers)
        };
        let log = Log::create(memory(), options).unwrap();
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let (of_callback, seen) = (log.clone(), Arc::clone(&acknowledged));
        // Flushed together with the first parts of the large commit.
        let before = log.append(&[b"before"]).unwrap();
        before.on_durable(move |outcome| {
            outcome.unwrap();
            let append = || of_callback.append(&[b"small"]).unwrap();
            let ticket = elsewhere(|| {
                let ticket = append();
                ticket.wait().unwrap();
                ticket
            });
            seen.lock().unwrap().push(ticket.seqno().get());
        });
        let mut large = log.enter(&[&payload(0, LARGE)]).unwrap();
        let numbers = std::mem::take(&mut *acknowledged.lock().unwrap());
        assert_eq!(numbers.len(), 1, "{protocol}");
        assert!(large.assign(1).get() > numbers[0], "{protocol}");
        large.append(&[&payload(0, LARGE)]);
        large.finish().wait().unwrap();
    }
}

/// Parts without a commit record are ignored, whether the commit was aborted or the process ended.
#[test]
fn parts_without_a_commit_record_count_for_nothing() {
    for lanes in [1, 2] {
        let (device, options) = (memory(), small(FlushMode::Callers));
        let options = braid_log::LogOptions { lanes, ..options };
        let log = Log::create(Arc::clone(&device), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        let mut tail = log.tail(&start).unwrap();
        let aborted = |ends: bool| {
            let mut large = log.enter(&[&payload(0, LARGE)]).unwrap();
            if ends {
                let seqno = large.assign(1).get();
                large.abort();
                assert_eq!(large.finish().seqno().get(), seqno);
            }
        };
        for round in 0..4 {
            aborted(round % 2 == 0);
            log.append(&[&payload(7, 100)]).unwrap().wait().unwrap();
            log.append(&[&payload(0, LARGE)]).unwrap().wait().unwrap();
        }
        let mut read = Vec::new();
        let mut keep = |log_record: braid_log::LogRecord<'_>| {
            read.push((log_record.seqno.get(), log_record.payload.to_vec()));
        };
        while tail.read(1 << 20, &mut keep).unwrap() < log.durable_seqno() {}
        drop(tail);
        // The process ends with a stream that is complete and has no commit record.
        aborted(false);
        log.append(&[&payload(8, 100)]).unwrap().wait().unwrap();
        drop(log);
        let found = log_records(&recover(&device, &options, &start));
        assert_eq!(read.len(), 8);
        assert!(read.iter().all(|(seqno, bytes)| &found[seqno] == bytes));
        let large = found.values().filter(|bytes| **bytes == payload(0, LARGE));
        assert_eq!((found.len(), large.count()), (9, 4));
    }
}

/// A failure while the bytes are written fails the commit before it has a number.
#[test]
fn a_large_commit_whose_bytes_cannot_be_written_has_no_number() {
    let mut poisoned = 0;
    for steps in 1..40 {
        let medium = SimDevice::new(3);
        let log = Log::create(sim(&medium), small(FlushMode::Callers)).unwrap();
        log.append(&[b"good"]).unwrap().wait().unwrap();
        medium.crash_after(steps);
        let Err(error) = log.enter(&[&payload(0, LARGE)]) else {
            continue;
        };
        assert_eq!(log.last_seqno().get(), 1);
        assert_eq!(log.durable_seqno().get(), 1);
        // Nothing is acknowledged any more, although everything that has a number is durable.
        // Otherwise, the log files could not be prepared.
        let is_poisoned = matches!(error, LogError::Poisoned { .. });
        assert_eq!(log.sync().is_err(), is_poisoned, "{error}");
        poisoned += u32::from(is_poisoned);
    }
    assert!(poisoned > 0);
}

/// Closing the log ends large commits before they write a byte.
#[test]
fn a_sealed_log_takes_no_parts() {
    let device = memory();
    let log = Log::create(Arc::clone(&device), small(FlushMode::Callers)).unwrap();
    log.append(&[b"good"]).unwrap().wait().unwrap();
    log.seal();
    let before = log.stats().written_bytes;
    assert!(matches!(
        log.enter(&[&payload(0, LARGE)]),
        Err(LogError::Closed)
    ));
    log.request_flush();
    assert_eq!(log.stats().written_bytes, before);
}

/// The first commit of a log that was opened again prepares the segments that it needs, no more.
#[test]
fn a_large_commit_begins_an_opened_log() {
    let (device, mut options) = (memory(), small(FlushMode::Callers));
    options.max_log_bytes = 16 << 20;
    let log = Log::create(Arc::clone(&device), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    log.append(&[b"small"]).unwrap().wait().unwrap();
    drop(log);
    let log = recover(&device, &options, &start).into_idle_log().unwrap();
    log.append(&[&payload(0, LARGE)]).unwrap().wait().unwrap();
    let files = device.list().unwrap();
    let bytes: u64 = files
        .iter()
        .map(|file| {
            device
                .open(&file.name, braid_io::OpenMode::Existing)
                .unwrap()
                .len()
                .unwrap()
        })
        .sum();
    assert!(bytes < 4 << 20, "{bytes} bytes of files");
    drop(log);
    let found = log_records(&recover(&device, &options, &start));
    assert_eq!(found.len(), 2);
}
