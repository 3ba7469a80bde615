//! A volume on a drive whose blocks are one file of a simulated device.
//!
//! So the drive loses power, tears writes between sectors, fails and lies as that device does. A
//! write with forced unit access is a durable write, a flush is a sync of the file.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use braid_io::{Device, File, OpenMode, ReadOp, SimDevice, VolumeDevice, WriteOp};
use braid_nvme::volume::FormatOptions;
use braid_nvme::{
    Blocking, Command, CommandKind, Completion, DmaBuffer, Drive, DriveError, DriveInfo,
    MemoryDrive, MemoryOptions, Queue, Volume, check_command,
};
use braid_rt::to_usize;
use fastrand::Rng;

/// The file with the blocks.
const FILE: &str = "drive";

/// Bytes of the drive: more than a history fills.
const BYTES: u64 = 64 << 20;

/// Name of the database on the volume.
const NAME: &str = "db";

#[derive(Clone)]
struct SimDrive {
    info: Arc<DriveInfo>,
    file: Arc<dyn File>,
    seed: u64,
}

impl fmt::Debug for SimDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDrive({:?})", self.file)
    }
}

impl SimDrive {
    fn new(device: &SimDevice, mode: OpenMode, seed: u64) -> io::Result<Self> {
        let file = device.open(FILE, mode)?;
        if mode == OpenMode::CreateNew {
            file.set_len(BYTES)?;
            file.sync()?;
            device.sync_directory()?;
        }
        let block_size = device.block_size();
        let options = MemoryOptions {
            blocks: BYTES / block_size as u64,
            block_size,
            // Small, so that large writes consist of several commands.
            max_transfer: 32 << 10,
            queue_depth: 8,
            ..MemoryOptions::default()
        };
        let mut info = MemoryDrive::with_options(options).info().clone();
        info.alignment = block_size;
        Ok(Self {
            info: Arc::new(info),
            file,
            seed,
        })
    }
}

impl Drive for SimDrive {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        Ok(Box::new(SimQueue {
            rng: Rng::with_seed(self.seed),
            drive: self.clone(),
            submitted: Vec::new(),
            completed: Vec::new(),
        }))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        Ok(DmaBuffer::on_heap(len, self.info.alignment))
    }

    fn accepts(&self, address: *const u8, _len: usize) -> bool {
        address.addr().is_multiple_of(self.info.alignment)
    }
}

struct SimQueue {
    drive: SimDrive,
    rng: Rng,
    submitted: Vec<Command>,
    completed: Vec<Completion>,
}

impl SimQueue {
    fn len(&self, command: &Command) -> usize {
        to_usize(u64::from(command.blocks)) * self.drive.info.block_size
    }

    fn offset(&self, command: &Command) -> u64 {
        command.lba * self.drive.info.block_size as u64
    }

    fn perform(&self, command: &Command) -> io::Result<()> {
        let (file, offset, len) = (&self.drive.file, self.offset(command), self.len(command));
        match command.kind {
            CommandKind::Read => {
                // SAFETY: the submitter keeps `blocks` blocks valid, and accesses them only after
                // the completion.
                let buf = unsafe { std::slice::from_raw_parts_mut(command.address, len) };
                file.read_batch(&mut [ReadOp { buf, offset }])
            }
            CommandKind::Write { fua } => {
                // SAFETY: the submitter keeps the blocks valid and unchanged until the completion.
                let buf = unsafe { std::slice::from_raw_parts(command.address, len) };
                if fua {
                    file.write_durable_at(&[buf], offset)
                } else {
                    file.write_batch(&[WriteOp { buf, offset }])
                }
            }
            CommandKind::Flush => file.sync(),
            CommandKind::Deallocate => file.punch_hole(offset..offset + len as u64),
        }
    }
}

impl Queue for SimQueue {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        check_command(&self.drive.info, &command)?;
        self.submitted.push(command);
        Ok(())
    }

    fn kick(&mut self) {
        let mut commands = std::mem::take(&mut self.submitted);
        self.rng.shuffle(&mut commands);
        for command in commands {
            let status = if command.kind == CommandKind::Read {
                0x281
            } else {
                0x280
            };
            let target = command.target();
            let result = self.perform(&command);
            self.completed.push(Completion {
                user_data: command.user_data,
                result: result.map_err(|_| DriveError::Media { target, status }),
            });
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let count = self.completed.len();
        completions.append(&mut self.completed);
        count
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, _patience: Duration) -> usize {
        self.poll(completions)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.completed.len()
    }
}

/// Makes a device a drive with an empty volume.
pub(crate) fn format(device: &SimDevice, seed: u64) {
    let (unit, journal) = [(4096, 256), (16 << 10, 64), (64 << 10, 16)][(seed % 3) as usize];
    let options = FormatOptions::default().unit(unit).journal(journal << 10);
    let drive = SimDrive::new(device, OpenMode::CreateNew, seed).expect("a new device works");
    Volume::format(Blocking::new(Arc::new(drive)), options).expect("a new drive works");
}

/// Opens the volume of a drive, and returns the device of its database.
pub(crate) fn open(device: &SimDevice, seed: u64) -> io::Result<Arc<dyn Device>> {
    let drive = SimDrive::new(device, OpenMode::Existing, seed)?;
    let volume = Volume::open(Blocking::new(Arc::new(drive)))?;
    Ok(Arc::new(VolumeDevice::new(volume, NAME)?))
}
