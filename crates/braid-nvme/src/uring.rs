//! A block device, or an ordinary file, through io_uring with direct I/O.
//!
//! FUA is `RWF_DSYNC`, a flush is `fdatasync`, deallocation is `fallocate`. Where the kernel has poll
//! queues for the device (`nvme.poll_queues`), it polls for the completions of reads and writes
//! (IOPOLL); flushes and deallocations are then calls that [`Queue::kick`] waits
//! for, since such a ring does not support them.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_rt::{free_blocks, to_usize};
use io_uring::{cqueue, opcode, squeue, types};

use crate::ring::{Encoding, Outcome, RingQueue};
use crate::{
    Command, CommandKind, DmaBuffer, Drive, DriveError, DriveInfo, DrivePath, Queue, Target,
    check_command,
};

/// Options of [`UringDrive`].
#[derive(Clone, Copy, Debug)]
pub struct UringOptions {
    /// Largest number of commands in flight in one queue.
    pub queue_depth: usize,
    /// Whether the kernel polls for completions where it can.
    pub poll: bool,
    /// Block size of an ordinary file; a device has its own.
    pub file_block_size: usize,
    /// Whether a block device is opened for exclusive use, so that nobody mounts it meanwhile.
    pub exclusive: bool,
}

impl Default for UringOptions {
    /// 64 commands, polling, blocks of 4 KiB in files, exclusive use.
    fn default() -> Self {
        Self {
            queue_depth: 64,
            poll: true,
            file_block_size: 4096,
            exclusive: true,
        }
    }
}

/// A drive through io_uring; see the module's documentation.
#[derive(Debug)]
pub struct UringDrive {
    file: Arc<File>,
    info: DriveInfo,
    polled: bool,
}

/// Files of a block device under `/sys`.
struct Attributes(PathBuf);

impl Attributes {
    /// Those of a disk, or of the disk of a partition.
    fn of_device(device: u64) -> Self {
        let (major, minor) = (libc::major(device), libc::minor(device));
        let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let is_partition = own.join("partition").exists();
        Self(if is_partition { own.join("..") } else { own })
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(
            fs::read_to_string(self.0.join(name))
                .ok()?
                .trim()
                .to_owned(),
        )
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

impl UringDrive {
    /// Opens a block device, such as `/dev/nvme0n1`, or an ordinary file of fixed length.
    ///
    /// # Errors
    ///
    /// The system's error, also if the device is in use by someone else; `Unsupported` for other
    /// kinds of files.
    pub fn open(path: &Path, options: UringOptions) -> Result<Self, DriveError> {
        let name = path.display();
        let error = || DriveError::system(format!("open drive {name}"));
        let is_device = fs::metadata(path)
            .map_err(error())?
            .file_type()
            .is_block_device();
        let exclusive = if is_device && options.exclusive {
            libc::O_EXCL
        } else {
            0
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT | exclusive)
            .open(path)
            .map_err(error())?;
        let len = file.seek(SeekFrom::End(0)).map_err(error())?;
        let metadata = file.metadata().map_err(error())?;
        if !is_device && !metadata.file_type().is_file() {
            return Err(DriveError::Unsupported {
                what: format!("open drive {name}"),
                reason: "it is neither a block device nor a file".into(),
            });
        }
        let queue_depth = options.queue_depth.clamp(1, 4096);
        let mut info = DriveInfo {
            path: DrivePath::Uring,
            model: String::new(),
            serial: String::new(),
            namespace: 0,
            blocks: 0,
            block_size: options.file_block_size,
            volatile_cache: true,
            atomic_write_blocks: 1,
            max_transfer: 1 << 20,
            queue_depth,
            queues: usize::MAX,
            alignment: options.file_block_size,
            deallocates: true,
        };
        let mut polled = false;
        if is_device {
            let attributes = Attributes::of_device(metadata.rdev());
            let block_size = attributes.number("queue/logical_block_size").unwrap_or(512);
            info.block_size = to_usize(block_size);
            info.alignment = info.block_size;
            info.model = attributes.text("device/model").unwrap_or_default();
            info.serial = attributes.text("device/serial").unwrap_or_default();
            info.namespace = attributes
                .number("nsid")
                .and_then(|id| u32::try_from(id).ok())
                .unwrap_or(0);
            info.volatile_cache = attributes
                .text("queue/write_cache")
                .is_none_or(|kind| kind != "write through");
            if let Some(kib) = attributes.number("queue/max_sectors_kb") {
                info.max_transfer = to_usize(kib << 10).max(info.block_size);
            }
            let discard = attributes.number("queue/discard_max_bytes");
            info.deallocates = discard.unwrap_or(0) > 0;
            polled = options.poll && attributes.number("queue/io_poll") == Some(1);
        }
        if !info.block_size.is_power_of_two() || info.block_size < 512 {
            return Err(DriveError::Unsupported {
                what: format!("open drive {name}"),
                reason: format!("its block size, {}, is not supported", info.block_size),
            });
        }
        info.max_transfer -= info.max_transfer % info.block_size;
        info.blocks = len / info.block_size as u64;
        let file = Arc::new(file);
        Ok(Self { file, info, polled })
    }

    /// Returns whether the kernel polls for completions.
    pub fn is_polled(&self) -> bool {
        self.polled
    }
}

impl Drive for UringDrive {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        let plain = Plain {
            file: self.file.clone(),
            info: self.info.clone(),
            polled: self.polled,
        };
        let queue = RingQueue::new(plain, self.info.queue_depth, self.polled)
            .map_err(DriveError::system("create a queue with io_uring"))?;
        Ok(Box::new(queue))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        Ok(DmaBuffer::on_heap(len, self.info.alignment.max(4096)))
    }

    fn accepts(&self, address: *const u8, _len: usize) -> bool {
        address.addr().is_multiple_of(self.info.alignment)
    }
}

/// Commands as reads, writes, `fdatasync` and `fallocate`.
struct Plain {
    file: Arc<File>,
    info: DriveInfo,
    polled: bool,
}

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

impl Plain {
    /// The error of a command that failed. Of a drive that is gone, the kernel reports an I/O error as
    /// for a medium that failed, but it also sets the size to 0.
    fn failure(&self, target: Target, error: DriveError) -> DriveError {
        match rustix::fs::seek(&*self.file, rustix::fs::SeekFrom::End(0)) {
            Ok(0) => DriveError::Removed { target },
            _ => error,
        }
    }

    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn bytes(&self, command: &Command) -> (u64, u64) {
        let size = self.info.block_size as u64;
        (command.lba * size, u64::from(command.blocks) * size)
    }
}

impl Encoding for Plain {
    type Submission = squeue::Entry;
    type Completion = cqueue::Entry;

    fn check(&self, command: &Command) -> Result<(), DriveError> {
        check_command(&self.info, command)
    }

    fn entry(&self, command: &Command, done: u64, slot: u64) -> squeue::Entry {
        let fd = types::Fd(self.fd());
        let (offset, len) = self.bytes(command);
        let address = command.address.wrapping_add(to_usize(done));
        let rest = u32::try_from(len - done).unwrap_or(1 << 30);
        let entry = match command.kind {
            CommandKind::Read => opcode::Read::new(fd, address, rest)
                .offset(offset + done)
                .build(),
            CommandKind::Write { fua } => opcode::Write::new(fd, address, rest)
                .offset(offset + done)
                .rw_flags(if fua { libc::RWF_DSYNC } else { 0 })
                .build(),
            CommandKind::Flush => opcode::Fsync::new(fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            CommandKind::Deallocate => opcode::Fallocate::new(fd, len)
                .offset(offset)
                .mode(PUNCH_HOLE)
                .build(),
        };
        entry.user_data(slot)
    }

    fn outcome(&self, command: &Command, done: u64, result: i32) -> Outcome {
        let target = command.target();
        let transfers = matches!(command.kind, CommandKind::Read | CommandKind::Write { .. });
        match u64::try_from(result) {
            Ok(_) if !transfers => Outcome::Done(Ok(())),
            // The device, or the file, has become shorter.
            Ok(0) => Outcome::Done(Err(self.failure(
                target,
                DriveError::OutOfRange {
                    target,
                    capacity: self.info.blocks,
                },
            ))),
            Ok(part) if done + part >= self.bytes(command).1 => Outcome::Done(Ok(())),
            Ok(part) => Outcome::Partly(done + part),
            Err(_) => match -result {
                errno @ (libc::EAGAIN | libc::EINTR) => Outcome::Refused(errno),
                libc::EOPNOTSUPP if command.kind == CommandKind::Deallocate => {
                    Outcome::Done(Ok(()))
                }
                errno => Outcome::Done(Err(
                    self.failure(target, DriveError::of_errno(target, errno))
                )),
            },
        }
    }

    fn call(&self, command: &Command) -> Option<Result<(), DriveError>> {
        if !self.polled {
            return None;
        }
        let (offset, len) = self.bytes(command);
        let result = match command.kind {
            CommandKind::Flush => self.file.sync_data(),
            // A drive that cannot free blocks keeps them.
            CommandKind::Deallocate => free_blocks(&self.file, offset..offset + len).map(drop),
            CommandKind::Read | CommandKind::Write { .. } => return None,
        };
        let target = command.target();
        Some(result.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            self.failure(target, DriveError::of_errno(target, errno))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, WriteAt};

    fn drive(name: &str) -> Option<(tempfile::NamedTempFile, UringDrive)> {
        let folder = std::env::var_os("BRAID_DIRECT_DIR").unwrap_or_else(|| ".".into());
        let file = tempfile::Builder::new()
            .prefix(name)
            .tempfile_in(folder)
            .unwrap();
        file.as_file().set_len(4 << 20).unwrap();
        match UringDrive::open(file.path(), UringOptions::default()) {
            Ok(drive) => match drive.open_queue() {
                Ok(_) => Some((file, drive)),
                Err(error) => {
                    println!("SKIPPED: {error}");
                    None
                }
            },
            Err(error) => {
                println!("SKIPPED: {error}");
                None
            }
        }
    }

    #[test]
    fn a_file_reads_what_was_written() {
        let Some((file, drive)) = drive("plain") else {
            return;
        };
        assert_eq!(drive.info().blocks, 1024);
        let blocks = Blocking::new(Arc::new(drive));
        let data: Vec<Vec<u8>> = (0..200u8).map(|i| vec![i; 8192]).collect();
        let writes: Vec<WriteAt<'_>> = data
            .iter()
            .enumerate()
            .map(|(i, buffer)| WriteAt {
                lba: 2 * i as u64,
                buffer,
            })
            .collect();
        blocks.write_batch(&writes).unwrap();
        blocks.flush().unwrap();
        let mut last = blocks.allocate(4096);
        last.fill(77);
        blocks.write_durable(1023, &last).unwrap();
        let mut whole = vec![0; 4 << 20];
        blocks.read(0, &mut whole).unwrap();
        for (i, data) in data.iter().enumerate() {
            assert!(whole[i * 8192..][..8192] == data[..], "block {i}");
        }
        assert!(whole[1023 * 4096..].iter().all(|byte| *byte == 77));
        blocks.deallocate(0..2).unwrap();
        file.as_file().set_len(8192).unwrap();
        assert!(matches!(
            blocks.read(512, &mut whole[..4096]),
            Err(DriveError::OutOfRange { .. })
        ));
        // As the kernel does with a drive that is gone.
        file.as_file().set_len(0).unwrap();
        assert!(matches!(
            blocks.read(0, &mut whole[..4096]),
            Err(DriveError::Removed { .. })
        ));
    }

    #[test]
    fn a_full_queue_refuses_and_a_dropped_queue_waits() {
        let Some((_file, drive)) = drive("full") else {
            return;
        };
        let mut queue = drive.open_queue().unwrap();
        let buffer = drive.allocate(4096).unwrap();
        let command = Command {
            kind: CommandKind::Write { fua: false },
            lba: 0,
            blocks: 1,
            address: buffer.as_non_null().as_ptr(),
            user_data: 5,
        };
        for _ in 0..drive.info().queue_depth {
            // SAFETY: the buffer is dropped after the queue.
            unsafe { queue.submit(command) }.unwrap();
        }
        // SAFETY: as above.
        let refused = unsafe { queue.submit(command) };
        assert!(matches!(refused, Err(DriveError::QueueFull { .. })));
        queue.kick();
        drop(queue);
    }
}
