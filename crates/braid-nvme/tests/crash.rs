//! Crash images from a record of writes, without a virtual machine: a drive in memory is recorded.

#[path = "../examples/nvme_crash/workload.rs"]
mod workload;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_nvme::crash::{AnnotatedDrive, LogEntry, WriteLog};
use braid_nvme::{
    Command, CommandKind, Completion, DmaBuffer, Drive, DriveError, DriveInfo, MemoryDrive, Queue,
};

const BYTES: u64 = 8 << 20;

/// Records writes and flushes in the format of dm-log-writes when they are submitted, as QEMU does,
/// and without forced unit access.
#[derive(Clone, Debug)]
struct Recorder {
    drive: MemoryDrive,
    record: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    fn new() -> Self {
        let mut first = vec![0; 512];
        first[..8].copy_from_slice(&0x006a_7366_7773_6872u64.to_le_bytes());
        first[8] = 1;
        first[24..28].copy_from_slice(&512u32.to_le_bytes());
        Self {
            drive: MemoryDrive::new(BYTES / 512),
            record: Arc::new(Mutex::new(first)),
        }
    }

    fn record(&self) -> Vec<u8> {
        self.record.lock().unwrap().clone()
    }
}

impl Drive for Recorder {
    fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        let queue = self.drive.open_queue()?;
        let recorder = self.clone();
        Ok(Box::new(RecorderQueue { recorder, queue }))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        self.drive.allocate(len)
    }

    fn accepts(&self, address: *const u8, len: usize) -> bool {
        self.drive.accepts(address, len)
    }
}

struct RecorderQueue {
    recorder: Recorder,
    queue: Box<dyn Queue>,
}

impl Queue for RecorderQueue {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        let (blocks, flags) = match command.kind {
            CommandKind::Write { .. } => (command.blocks, 0),
            CommandKind::Flush => (0, 1),
            // SAFETY: the caller's promise.
            _ => return unsafe { self.queue.submit(command) },
        };
        let words = [command.lba, blocks.into(), flags, 0];
        let mut entry: Vec<u8> = words
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        entry.resize(512, 0);
        if blocks > 0 {
            // SAFETY: the caller promises that the command's memory is valid.
            let data =
                unsafe { std::slice::from_raw_parts(command.address, blocks as usize * 512) };
            entry.extend_from_slice(data);
        }
        self.recorder.record.lock().unwrap().extend(entry);
        // SAFETY: the caller's promise.
        unsafe { self.queue.submit(command) }
    }

    fn kick(&mut self) {
        self.queue.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.queue.poll(completions)
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, patience: Duration) -> usize {
        self.queue.wait(completions, patience)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}

fn check(seed: u64, operations: u64, images: u64) -> Result<u64, String> {
    let recorder = Recorder::new();
    let drive = AnnotatedDrive::new(Arc::new(recorder.clone()));
    workload::run(&drive, seed, operations).unwrap();
    let record = recorder.record();
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
    let recorder = Recorder::new();
    let drive = AnnotatedDrive::new(Arc::new(recorder.clone()));
    workload::run(&drive, 1, 5).unwrap();
    let record = recorder.record();
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
