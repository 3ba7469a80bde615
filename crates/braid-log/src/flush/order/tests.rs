use std::sync::{Arc, Mutex};

use braid_io::{Layer, LayeredDevice, MemoryDevice, SimDevice};

use super::*;
use crate::{CheckpointPosition, FlushMode, Log, LogOptions, ProtocolKind};

/// The offset and the bytes of a durable write.
type Write = (u64, Vec<u8>);

/// Records the durable writes.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<Write>>>);

impl Layer for Recorder {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], at: u64) -> io::Result<()> {
        self.0.lock().unwrap().push((at, bufs.concat()));
        file.write_durable_at(bufs, at)
    }
}

fn options(pmem_commit: PmemCommit) -> LogOptions {
    LogOptions {
        strands: 2,
        flush_mode: FlushMode::Callers,
        segment_bytes: 132 << 10,
        slot_bytes: 32 << 10,
        pmem_commit,
        ..LogOptions::default()
    }
}

/// Returns the writes of a flush with three records of 200 bytes.
fn writes_of(unit: usize, mode: PmemCommit) -> Vec<Write> {
    let recorder = Recorder::default();
    let device = Arc::new(MemoryDevice::with_block_size(unit));
    let device = LayeredDevice::over(device, recorder.clone());
    let log = Log::create(Arc::new(device), options(mode)).unwrap();
    log.append(&[b"first"]).unwrap().wait().unwrap();
    recorder.0.lock().unwrap().clear();
    let tickets: Vec<_> = (0..3).map(|_| log.append(&[&[7; 200]]).unwrap()).collect();
    tickets.last().unwrap().wait().unwrap();
    let writes = std::mem::take(&mut *recorder.0.lock().unwrap());
    log.close().unwrap();
    writes
}

#[test]
fn the_mark_of_a_flush_is_written_after_its_records() {
    let whole = |mode| {
        let writes = writes_of(64, mode);
        let [write] = &writes[..] else {
            panic!("{} writes", writes.len())
        };
        write.clone()
    };
    let (begin, bytes) = whole(PmemCommit::Checksum);
    assert!(ChunkHeader::decode(&bytes).is_some());
    let end = begin + bytes.len() as u64;

    let lazy = writes_of(64, PmemCommit::Lazy);
    let [records, mark] = &lazy[..] else {
        panic!("{} writes", lazy.len())
    };
    assert_eq!((records.0, mark.0), (begin + 64, begin));
    assert_eq!(mark.1.len(), 64);
    assert_eq!(records.0 + records.1.len() as u64, end);

    // The threads' records may lie in two chunks.
    let eager = writes_of(64, PmemCommit::Eager);
    let (mark, records) = eager.split_last().unwrap();
    assert_eq!((mark.0, mark.1.len()), (begin, 64));
    assert_eq!(records.len(), 3);
    let mut reached = begin + 64;
    for (at, bytes) in records {
        assert!(*at <= reached && at + bytes.len() as u64 > reached, "{at}");
        reached = at + bytes.len() as u64;
    }
    assert_eq!(reached, end);
}

#[test]
fn a_flush_to_a_disk_is_one_write() {
    for unit in [512, 4096] {
        for &mode in PmemCommit::ALL {
            assert_eq!(writes_of(unit, mode).len(), 1, "{mode} with {unit}");
        }
    }
}

/// All modes keep exactly the acknowledged records, or one more, through a crash at any write.
#[test]
fn every_mode_survives_crashes() {
    for &mode in PmemCommit::ALL {
        for seed in 0..if cfg!(miri) { 2 } else { 60 } {
            let device = SimDevice::new(seed);
            device.set_block_size(64);
            let options = LogOptions {
                protocol: ProtocolKind::ALL[seed as usize % ProtocolKind::ALL.len()],
                ..options(mode)
            };
            let log = Log::create(Arc::new(device.clone()), options.clone()).unwrap();
            let start: CheckpointPosition = log.quiesce(|start| start);
            device.crash_after(1 + seed);
            let mut acknowledged = 0;
            while let Ok(ticket) = log.append(&[&[seed as u8; 100]])
                && ticket.wait().is_ok()
            {
                acknowledged += 1;
            }
            drop(log);
            let left = device.after_crash();
            left.set_block_size(64);
            let mut found = 0;
            let recovered = Log::recover(Arc::new(left), options, &start, &|_| {}).unwrap();
            recovered
                .for_each(|record| {
                    assert_eq!(record.payload, [seed as u8; 100]);
                    found += 1;
                })
                .unwrap();
            assert!(
                (acknowledged..=acknowledged + 1).contains(&found),
                "{mode}, seed {seed}: {found} of {acknowledged}"
            );
        }
    }
}
