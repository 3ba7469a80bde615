use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::{Blocking, Completion, WriteAt};

fn block(byte: u8) -> Vec<u8> {
    vec![byte; 512]
}

fn blocking(drive: &MemoryDrive) -> Blocking {
    Blocking::new(Arc::new(drive.clone()))
}

#[test]
fn what_was_written_is_read_also_in_parts_and_unaligned() {
    let drive = MemoryDrive::with_options(MemoryOptions {
        max_transfer: 1024,
        queue_depth: 2,
        ..MemoryOptions::default()
    });
    let blocks = blocking(&drive);
    let bytes: Vec<u8> = (0..512 * 9 + 1).map(|i| (i % 251) as u8).collect();
    // One of the two addresses is not a multiple of four.
    for shift in 0..2 {
        let data = &bytes[shift..shift + 512 * 9];
        blocks.write(100, data).unwrap();
        let mut read = vec![0; 512 * 9 + 1];
        blocks.read(100, &mut read[1 - shift..][..512 * 9]).unwrap();
        assert!(read[1 - shift..][..512 * 9] == *data);
    }
    assert!(matches!(
        blocks.write(0, &bytes[..511]),
        Err(DriveError::Invalid { .. })
    ));
    assert!(matches!(
        blocks.write((1 << 15) - 1, &bytes[..1024]),
        Err(DriveError::OutOfRange {
            capacity: 32_768,
            ..
        })
    ));
}

#[test]
fn a_crash_keeps_what_was_flushed_and_any_part_of_the_rest() {
    let drive = MemoryDrive::new(64);
    let blocks = blocking(&drive);
    blocks.write(0, &block(1).repeat(4)).unwrap();
    blocks.flush().unwrap();
    blocks.write(0, &block(2).repeat(4)).unwrap();
    blocks.write_durable(10, &block(3)).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let after = drive.crash(seed);
        assert_eq!(after.block(10), block(3), "FUA is durable");
        let kept: Vec<u8> = (0..4).map(|lba| after.block(lba)[0]).collect();
        assert!(kept.iter().all(|byte| [1, 2].contains(byte)), "{kept:?}");
        seen.insert(kept);
    }
    assert_eq!(
        seen.len(),
        16,
        "every subset of the blocks survives at some seed"
    );
}

#[test]
fn a_write_within_the_atomic_unit_is_not_torn() {
    let drive = MemoryDrive::with_options(MemoryOptions {
        atomic_write_blocks: 4,
        ..MemoryOptions::default()
    });
    let blocks = blocking(&drive);
    blocks.write(8, &block(7).repeat(4)).unwrap();
    blocks.write(16, &block(7).repeat(5)).unwrap();
    let whole = |kept: &[u8]| kept.iter().all(|byte| *byte == kept[0]);
    let mut torn = false;
    for seed in 0..100 {
        let after = drive.crash(seed);
        let kept: Vec<u8> = (8..12).map(|lba| after.block(lba)[0]).collect();
        assert!(whole(&kept), "{kept:?}");
        let kept: Vec<u8> = (16..21).map(|lba| after.block(lba)[0]).collect();
        torn |= !whole(&kept);
    }
    assert!(torn);
}

/// Submits a command and starts it.
fn start(queue: &mut dyn Queue, kind: CommandKind, lba: u64, data: &[u8]) {
    let command = Command {
        kind,
        lba,
        blocks: (data.len() / 512) as u32,
        address: data.as_ptr().cast_mut(),
        user_data: lba,
    };
    // SAFETY: the tests keep the data until the command has completed.
    unsafe { queue.submit(command) }.unwrap();
    queue.kick();
}

#[test]
fn a_flush_does_not_cover_writes_in_flight() {
    let drive = MemoryDrive::new(64);
    let (mut first, mut second) = (drive.open_queue().unwrap(), drive.open_queue().unwrap());
    let data = block(9);
    start(&mut *first, CommandKind::Write { fua: false }, 5, &data);
    let mut done: Vec<Completion> = Vec::new();
    start(&mut *second, CommandKind::Flush, 0, &[]);
    while second.in_flight() > 0 {
        second.poll(&mut done);
    }
    let lost = |drive: &MemoryDrive| (0..100).any(|seed| drive.crash(seed).block(5)[0] == 0);
    assert!(lost(&drive));
    while first.in_flight() > 0 {
        first.poll(&mut done);
    }
    assert!(lost(&drive));
    start(&mut *second, CommandKind::Flush, 0, &[]);
    assert!(lost(&drive), "the flush has not completed");
    while second.in_flight() > 0 {
        second.poll(&mut done);
    }
    assert!(!lost(&drive));
    assert!(done.iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn a_full_queue_refuses_commands() {
    let drive = MemoryDrive::with_options(MemoryOptions {
        queue_depth: 1,
        ..MemoryOptions::default()
    });
    let mut queue = drive.open_queue().unwrap();
    start(&mut *queue, CommandKind::Flush, 0, &[]);
    // SAFETY: a flush has no memory.
    let refused = unsafe { queue.submit(Command::flush(1)) };
    assert!(matches!(refused, Err(DriveError::QueueFull { .. })));
}

#[test]
fn faults_are_typed_and_a_batch_reports_the_first() {
    let drive = MemoryDrive::new(64);
    let blocks = blocking(&drive);
    blocks.write(3, &block(1)).unwrap();
    drive.damage(3);
    let mut buffer = block(0);
    let error = blocks.read(3, &mut buffer).unwrap_err();
    assert!(matches!(error, DriveError::Media { status: 0x281, .. }));
    blocks.write(3, &block(2)).unwrap();
    blocks.read(3, &mut buffer).unwrap();
    drive.fail_after(2);
    let data = block(4);
    let writes = [0, 1, 2, 3].map(|lba| WriteAt { lba, buffer: &data });
    let error = blocks.write_batch(&writes).unwrap_err();
    assert!(matches!(error, DriveError::Media { target, .. } if target.lba == 2));
    drive.set_faults(MemoryFaults {
        time_out: 65_535,
        ..MemoryFaults::default()
    });
    assert!(matches!(blocks.flush(), Err(DriveError::TimedOut { .. })));
    drive.remove();
    assert!(matches!(blocks.flush(), Err(DriveError::Removed { .. })));
}

#[test]
fn a_smaller_drive_keeps_its_first_blocks() {
    let drive = MemoryDrive::new(64);
    blocking(&drive).write(10, &block(1)).unwrap();
    let smaller = drive.reopen(MemoryOptions {
        blocks: 20,
        ..MemoryOptions::default()
    });
    assert_eq!(smaller.crash(0).block(10), block(1));
    assert_eq!(smaller.info().blocks, 20);
}

/// A drive that can access only memory of its own, of which there is little.
#[derive(Debug)]
struct Confined {
    drive: MemoryDrive,
    memory: Arc<Little>,
}

#[derive(Debug)]
struct Little(std::sync::atomic::AtomicUsize);

impl crate::DmaMemory for Little {
    fn free(&self, address: std::ptr::NonNull<u8>, len: usize) {
        // SAFETY: `Confined::allocate` made the buffer of a boxed slice of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(address.as_ptr(), len)) });
        self.0.fetch_add(len, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Drive for Confined {
    fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        self.drive.open_queue()
    }

    fn allocate(&self, len: usize) -> Result<crate::DmaBuffer, DriveError> {
        let order = std::sync::atomic::Ordering::SeqCst;
        let taken = self
            .memory
            .0
            .fetch_update(order, order, |left| left.checked_sub(len));
        if taken.is_err() {
            return Err(DriveError::Unsupported {
                what: "allocate".into(),
                reason: "none left".into(),
            });
        }
        let bytes = Box::leak(vec![0; len].into_boxed_slice());
        let address = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the bytes were leaked, and nothing else has their address.
        Ok(unsafe { crate::DmaBuffer::of_memory(address, len, self.memory.clone()) })
    }

    fn accepts(&self, _address: *const u8, _len: usize) -> bool {
        false
    }
}

/// A batch that needs more memory than the drive can access waits for its own copies.
#[test]
fn a_batch_larger_than_the_drives_memory_is_performed() {
    let drive = MemoryDrive::new(1 << 14);
    let memory = Arc::new(Little((256 << 10).into()));
    let blocks = Blocking::new(Arc::new(Confined {
        drive,
        memory: memory.clone(),
    }));
    let data: Vec<u8> = (0..5 << 20).map(|i: u32| (i / 512) as u8).collect();
    blocks.write(0, &data).unwrap();
    let mut read = vec![0; data.len()];
    blocks.read(0, &mut read).unwrap();
    assert!(read == data);
    assert_eq!(
        memory.0.load(std::sync::atomic::Ordering::SeqCst),
        256 << 10
    );
}

/// A drive whose commands complete after some polls, or when the queue waits.
#[derive(Debug)]
struct Sluggish {
    drive: MemoryDrive,
    polls: u32,
    waits: Arc<AtomicUsize>,
}

struct SluggishQueue {
    queue: Box<dyn Queue>,
    polls: u32,
    left: u32,
    waits: Arc<AtomicUsize>,
}

impl Drive for Sluggish {
    fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        Ok(Box::new(SluggishQueue {
            queue: self.drive.open_queue()?,
            polls: self.polls,
            left: self.polls,
            waits: self.waits.clone(),
        }))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        self.drive.allocate(len)
    }

    fn accepts(&self, address: *const u8, len: usize) -> bool {
        self.drive.accepts(address, len)
    }
}

impl Queue for SluggishQueue {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        self.left = self.polls;
        // SAFETY: the caller's promise.
        unsafe { self.queue.submit(command) }
    }

    fn kick(&mut self) {
        self.queue.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.left > 0 {
            self.left -= 1;
            return 0;
        }
        self.queue.poll(completions)
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, patience: Duration) -> usize {
        self.waits.fetch_add(1, Ordering::SeqCst);
        self.queue.wait(completions, patience)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}

#[test]
fn a_thread_polls_as_long_as_the_option_says() {
    let waits = Arc::new(AtomicUsize::new(0));
    let drive = Sluggish {
        drive: MemoryDrive::new(64),
        polls: 20_000,
        waits: waits.clone(),
    };
    let blocks = Blocking::new(Arc::new(drive));
    assert_eq!(blocks.idle_us(), 20);
    // For more than an hour: the completion comes sooner, and no thread sleeps.
    blocks.set_idle_us(u32::MAX);
    blocks.write(0, &block(1)).unwrap();
    assert_eq!(waits.load(Ordering::SeqCst), 0);
    blocks.set_idle_us(0);
    blocks.write(0, &block(2)).unwrap();
    assert_eq!(waits.load(Ordering::SeqCst), 1);
    assert_eq!(blocks.idle_us(), 0);
}
