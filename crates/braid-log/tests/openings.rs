//! Openings of the log write nothing until a transaction is logged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{payload, sim, small, try_recover};
use braid_io::{Device, File, Layer, LayeredDevice, OpenMode, SimDevice};
use braid_log::{CheckpointPosition, FlushMode, Log, LogError, LogOptions, ProtocolKind};

fn options(protocol: ProtocolKind, lanes: usize) -> LogOptions {
    LogOptions {
        protocol,
        lanes,
        strands: lanes,
        segment_bytes: 132 << 10,
        ..small(FlushMode::Callers)
    }
}

/// A log with some records, and the position before them.
fn written(medium: &SimDevice, options: &LogOptions) -> (CheckpointPosition, Vec<u64>) {
    written_with(medium, options, 100)
}

/// As [`written`], with records of a length.
fn written_with(
    medium: &SimDevice,
    options: &LogOptions,
    len: usize,
) -> (CheckpointPosition, Vec<u64>) {
    let log = Log::create(sim(medium), options.clone()).unwrap();
    let first = log.quiesce(|start| start);
    let numbers = (1..20).map(|at| {
        let ticket = log.append(&[&payload(at, len)]).unwrap();
        ticket.wait().unwrap();
        ticket.seqno().get()
    });
    let numbers = numbers.collect();
    log.close().unwrap();
    (first, numbers)
}

fn read(log: &Log, from: &CheckpointPosition) -> Result<Vec<u64>, LogError> {
    let mut found = Vec::new();
    let mut tail = log.tail(from)?;
    tail.read(usize::MAX, &mut |log_record| {
        found.push(log_record.seqno.get())
    })?;
    Ok(found)
}

/// All files with their bytes.
fn files(medium: &SimDevice) -> Vec<(String, Vec<u8>)> {
    let device = sim(medium);
    let entries = device.list().unwrap().into_iter();
    let files = entries.map(|entry| {
        let file = device.open(&entry.name, OpenMode::Existing).unwrap();
        let mut bytes = device.allocate(entry.len as usize);
        file.read_at(&mut bytes, 0).unwrap();
        (entry.name, bytes.to_vec())
    });
    files.collect()
}

fn each(mut test: impl FnMut(ProtocolKind, LogOptions)) {
    for &protocol in ProtocolKind::ALL {
        for lanes in 1..=3 {
            test(protocol, options(protocol, lanes));
        }
    }
}

#[test]
fn an_opening_without_a_record_writes_nothing() {
    each(|protocol, options| {
        let medium = SimDevice::new(1);
        let (first, numbers) = written(&medium, &options);
        let before = files(&medium);
        for _ in 0..3 {
            let device: Arc<dyn Device> = sim(&medium);
            let log = try_recover(&device, &options, &first).unwrap();
            let log = log.into_idle_log().unwrap();
            assert_eq!(read(&log, &first).unwrap(), numbers, "{protocol}");
            log.sync().unwrap();
            log.close().unwrap();
            assert!(files(&medium) == before, "{protocol}");
        }
    });
}

/// Counts syncs of files; one of them fails.
#[derive(Clone, Debug)]
struct Syncs {
    count: Arc<AtomicU64>,
    fails: u64,
}

impl Layer for Syncs {
    fn sync(&self, file: &dyn File) -> io::Result<()> {
        if self.count.fetch_add(1, Ordering::Relaxed) == self.fails {
            return Err(io::Error::other("the device failed"));
        }
        file.sync()
    }
}

/// I1: an opening makes each segment that it kept durable once, and fails if it cannot.
#[test]
fn each_recovered_segment_is_made_durable() {
    for mode in [FlushMode::Callers, FlushMode::Background] {
        each(|protocol, options| {
            let options = LogOptions {
                flush_mode: mode,
                segment_bytes: 36 << 10,
                slot_bytes: 8 << 10,
                ..options
            };
            let medium = SimDevice::new(1);
            let (first, _) = written_with(&medium, &options, 7_000);
            let open = |fails: u64| {
                let count = Arc::default();
                let layer = Syncs {
                    count: Arc::clone(&count),
                    fails,
                };
                let device: Arc<dyn Device> = Arc::new(LayeredDevice::over(sim(&medium), layer));
                let log = try_recover(&device, &options, &first).unwrap();
                let opened = log.into_idle_log().map(drop);
                (opened, count.load(Ordering::Relaxed))
            };
            let (opened, syncs) = open(u64::MAX);
            opened.unwrap();
            let begun = |bytes: &[u8]| bytes[..8] != [0; 8];
            let all = files(&medium);
            let segments = all.iter().filter(|(_, bytes)| begun(bytes)).count() as u64;
            assert_eq!(syncs, segments, "{protocol} {mode:?}");
            assert!(
                segments > options.lanes as u64,
                "{protocol}: several in a lane"
            );
            for fails in 0..segments {
                let (opened, _) = open(fails);
                let is_refused = matches!(opened, Err(LogError::Io { .. }));
                assert!(is_refused, "{protocol} {mode:?}, sync {fails}");
            }
        });
    }
}

/// Each write and sync of the beginning fails in turn: the recovered records can still be read, in
/// that opening and in the next.
#[test]
fn a_log_that_can_not_begin_is_read_to_its_end() {
    each(|protocol, options| {
        let medium = SimDevice::new(1);
        let (first, numbers) = written(&medium, &options);
        let mut failed = 0;
        for step in 0.. {
            let medium = medium.after_kill();
            let device: Arc<dyn Device> = sim(&medium);
            let log = try_recover(&device, &options, &first).unwrap();
            let log = log.into_idle_log().unwrap();
            medium.break_after(step);
            let appended = log.append(&[b"x"]);
            medium.repair();
            if appended.is_ok() {
                break;
            }
            failed += 1;
            assert_eq!(
                read(&log, &first).unwrap(),
                numbers,
                "{protocol}, step {step}"
            );
            drop(log);
            let log = try_recover(&device, &options, &first).unwrap();
            let log = log.into_log().unwrap();
            let ticket = log.append(&[b"x"]).unwrap();
            ticket.wait().unwrap();
            let mut all = numbers.clone();
            all.push(ticket.seqno().get());
            assert_eq!(read(&log, &first).unwrap(), all, "{protocol}, step {step}");
        }
        assert!(failed > 2, "{protocol}: {failed} steps failed");
    });
}

/// Everything that must be durable before files are recycled is made durable before the log begins;
/// if that fails, no file changes.
#[test]
fn nothing_is_written_before_the_checkpoint_is_settled() {
    each(|protocol, options| {
        let medium = SimDevice::new(1);
        let (first, numbers) = written(&medium, &options);
        let before = files(&medium);
        let device: Arc<dyn Device> = sim(&medium);
        let log = try_recover(&device, &options, &first).unwrap();
        let log = log.into_idle_log().unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        log.before_begin({
            let (medium, calls) = (medium.clone(), calls.clone());
            let before = before.clone();
            move || {
                assert!(files(&medium) == before, "{protocol}");
                match calls.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(LogError::Io {
                        what: "cannot settle".to_owned(),
                        source: Arc::new(std::io::Error::other("the device failed")),
                    }),
                    _ => Ok(()),
                }
            }
        });
        let refused = log.append(&[b"refused"]).map(drop);
        assert!(matches!(refused, Err(LogError::Io { .. })), "{refused:?}");
        assert!(files(&medium) == before, "{protocol}");
        for _ in 0..2 {
            log.append(&[b"later"]).unwrap().wait().unwrap();
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2, "{protocol}");
        log.close().unwrap();
        let log = try_recover(&device, &options, &first).unwrap();
        let log = log.into_idle_log().unwrap();
        assert_eq!(read(&log, &first).unwrap().len(), numbers.len() + 2);
    });
}
