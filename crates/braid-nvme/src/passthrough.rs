//! NVMe commands through io_uring to the character device of a namespace, such as `/dev/ng0n1`.
//!
//! The kernel's driver passes each command to the drive without its block layer and without a file
//! system in between: FUA and flush are flags and commands of their own. A batch takes one system
//! call, and none if it has completed when it is polled for.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use braid_rt::{narrow, to_usize};
use io_uring::{cqueue, opcode, squeue, types};

use crate::identify::{CNS_CONTROLLER, CNS_NAMESPACE, IDENTIFY_LEN};
use crate::ring::{Encoding, Outcome, RingQueue};
use crate::{
    Command, CommandKind, Controller, DmaBuffer, Drive, DriveError, DriveInfo, DrivePath,
    Namespace, Queue, check_command,
};

/// `NVME_URING_CMD_IO` of the kernel: `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
const URING_COMMAND: u32 = 0xc048_4e80;

/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN_COMMAND: u32 = 0xc048_4e41;

/// `NVME_IOCTL_ID`: `_IO('N', 0x40)`, whose direction has a bit on some processors.
const NAMESPACE_ID: u32 = if cfg!(any(target_arch = "powerpc64", target_arch = "powerpc")) {
    0x2000_4e40
} else {
    0x4e40
};

/// Largest number of commands in flight in one queue.
const DEPTH: usize = 64;

/// `struct nvme_uring_cmd` of the kernel, whose beginning is `struct nvme_passthru_cmd`, too.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KernelCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    /// Reserved; the result of an admin command.
    result: u32,
}

const _: () = assert!(size_of::<KernelCommand>() == 72);

impl KernelCommand {
    fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        // SAFETY: the structure has no padding, so each of its 72 bytes is initialised.
        let own = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), 72) };
        bytes[..72].copy_from_slice(own);
        bytes
    }
}

/// A namespace through io_uring passthrough; see the module's documentation.
#[derive(Debug)]
pub struct PassthroughDrive {
    file: Arc<File>,
    info: DriveInfo,
}

impl PassthroughDrive {
    /// Opens a namespace's character device, such as `/dev/ng0n1`.
    ///
    /// # Errors
    ///
    /// The system's error; `Unsupported` if the file is not a namespace's device, or the kernel
    /// does not support passthrough (Linux 5.19).
    pub fn open(path: &Path) -> Result<Self, DriveError> {
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(DriveError::system(format!("open drive {name}")))?;
        let unsupported = |reason: &str| DriveError::Unsupported {
            what: format!("open drive {name}"),
            reason: reason.into(),
        };
        // SAFETY: the call takes no argument.
        let id = unsafe { libc::ioctl(file.as_raw_fd(), NAMESPACE_ID as _) };
        let namespace = u32::try_from(id)
            .map_err(|_| unsupported("it is not the device of an NVMe namespace (/dev/ngXnY)"))?;
        let identify = |cns, of| -> Result<Box<[u8]>, DriveError> {
            admin_identify(file.as_raw_fd(), cns, of)
                .map_err(DriveError::system(format!("identify drive {name}")))
        };
        let controller = Controller::parse(&identify(CNS_CONTROLLER, 0)?).map_err(unsupported)?;
        let described =
            Namespace::parse(&identify(CNS_NAMESPACE, namespace)?).map_err(unsupported)?;
        if described.metadata != 0 {
            return Err(unsupported(
                "its blocks have metadata; format it without (nvme format --lbaf)",
            ));
        }
        let block_size = 1 << described.block_shift;
        let info = DriveInfo {
            path: DrivePath::Passthrough,
            blocks: described.blocks,
            block_size,
            volatile_cache: controller.volatile_cache,
            atomic_write_blocks: described
                .atomic_write_blocks
                .unwrap_or(controller.atomic_write_blocks),
            // The kernel's own limits are at least 128 KiB.
            max_transfer: controller.max_transfer(4096).min(128 << 10).max(block_size),
            queue_depth: DEPTH,
            queues: usize::MAX,
            alignment: 4,
            deallocates: controller.deallocates,
            namespace,
            model: controller.model,
            serial: controller.serial,
        };
        let file = Arc::new(file);
        let drive = Self { file, info };
        // The kernel says now whether it supports the command.
        drop(drive.open_queue()?);
        Ok(drive)
    }
}

/// Performs an Identify command.
fn admin_identify(fd: RawFd, cns: u32, namespace: u32) -> std::io::Result<Box<[u8]>> {
    let mut data = vec![0u8; IDENTIFY_LEN].into_boxed_slice();
    let mut command = KernelCommand {
        opcode: 6,
        namespace,
        address: data.as_mut_ptr().addr() as u64,
        data_len: 4096,
        cdw10: cns,
        ..KernelCommand::default()
    };
    // SAFETY: the kernel reads and writes the structure, which lives during the call, and writes
    // `data_len` bytes at `address`.
    let status = unsafe { libc::ioctl(fd, ADMIN_COMMAND as _, &raw mut command) };
    match status {
        0 => Ok(data),
        status if status > 0 => Err(std::io::Error::other(format!(
            "the drive answered with status {status:#05x}"
        ))),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Drive for PassthroughDrive {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        let encoding = Nvme {
            file: self.file.clone(),
            info: self.info.clone(),
            ranges: (0..DEPTH).map(|_| DsmRange::default()).collect(),
        };
        let queue = RingQueue::new(encoding, DEPTH, false).map_err(DriveError::system(
            "create a queue with io_uring for NVMe commands",
        ))?;
        Ok(Box::new(queue))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        Ok(DmaBuffer::on_heap(len, self.info.block_size.max(4096)))
    }

    fn accepts(&self, address: *const u8, _len: usize) -> bool {
        // Less would make the kernel copy.
        address.addr().is_multiple_of(self.info.alignment)
    }
}

/// Range of blocks of a Dataset Management command, as the drive reads it.
#[repr(C)]
#[derive(Default)]
struct DsmRange {
    attributes: std::sync::atomic::AtomicU32,
    blocks: std::sync::atomic::AtomicU32,
    lba: std::sync::atomic::AtomicU64,
}

/// Commands as NVMe commands.
struct Nvme {
    file: Arc<File>,
    info: DriveInfo,
    /// One for each slot of the queue.
    ranges: Box<[DsmRange]>,
}

impl Nvme {
    /// Encodes a command for the kernel.
    fn encode(&self, command: &Command, slot: u64) -> KernelCommand {
        use std::sync::atomic::Ordering::Relaxed;
        let len = to_usize(u64::from(command.blocks)) * self.info.block_size;
        let mut kernel = KernelCommand {
            namespace: self.info.namespace,
            ..KernelCommand::default()
        };
        let lba: [u32; 2] = [narrow(command.lba & 0xffff_ffff), narrow(command.lba >> 32)];
        match command.kind {
            CommandKind::Read | CommandKind::Write { .. } => {
                kernel.opcode = if command.kind == CommandKind::Read {
                    2
                } else {
                    1
                };
                kernel.address = command.address.addr() as u64;
                kernel.data_len = narrow(len);
                [kernel.cdw10, kernel.cdw11] = lba;
                kernel.cdw12 = command.blocks - 1;
                if command.kind == (CommandKind::Write { fua: true })
                    && !braid_rt::mutant!("nvme_passthrough_without_fua")
                {
                    kernel.cdw12 |= 1 << 30;
                }
            }
            CommandKind::Flush => {}
            CommandKind::Deallocate => {
                kernel.opcode = 9;
                let range = &self.ranges[to_usize(slot)];
                // Nothing changes the range until the command has completed and the slot is free.
                range.blocks.store(command.blocks.to_le(), Relaxed);
                range.lba.store(command.lba.to_le(), Relaxed);
                kernel.address = std::ptr::from_ref(range).addr() as u64;
                kernel.data_len = 16;
                kernel.cdw11 = 4;
            }
        }
        kernel
    }
}

impl Encoding for Nvme {
    type Submission = squeue::Entry128;
    type Completion = cqueue::Entry32;

    fn check(&self, command: &Command) -> Result<(), DriveError> {
        check_command(&self.info, command)
    }

    fn entry(&self, command: &Command, _done: u64, slot: u64) -> squeue::Entry128 {
        opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), URING_COMMAND)
            .cmd(self.encode(command, slot).bytes())
            .build()
            .user_data(slot)
    }

    fn outcome(&self, command: &Command, _done: u64, result: i32) -> Outcome {
        let target = command.target();
        match u16::try_from(result) {
            Ok(0) => Outcome::Done(Ok(())),
            // Without the bits "more" and "do not retry".
            Ok(status) => Outcome::Done(Err(DriveError::of_status(
                target,
                status & 0x7ff,
                self.info.blocks,
            ))),
            Err(_) => match -result {
                errno @ (libc::EAGAIN | libc::EINTR) => Outcome::Refused(errno),
                errno => Outcome::Done(Err(DriveError::of_errno(target, errno))),
            },
        }
    }

    fn call(&self, _command: &Command) -> Option<Result<(), DriveError>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDrive, MemoryOptions};

    /// QEMU's drive ignores forced unit access, so no test in a virtual machine would miss it.
    #[test]
    fn commands_are_encoded_as_the_specification_says() {
        let drive = MemoryDrive::with_options(MemoryOptions {
            block_size: 4096,
            blocks: 1 << 40,
            ..MemoryOptions::default()
        });
        let nvme = Nvme {
            file: Arc::new(File::open("/dev/null").unwrap()),
            info: drive.info().clone(),
            ranges: (0..DEPTH).map(|_| DsmRange::default()).collect(),
        };
        let encode = |kind| {
            let command = Command {
                kind,
                lba: 0x12_3456_789a,
                blocks: 3,
                address: std::ptr::without_provenance_mut(0x7000),
                user_data: 9,
            };
            nvme.encode(&command, 5)
        };
        let words = |kernel: KernelCommand| {
            let KernelCommand {
                opcode,
                cdw10,
                cdw11,
                cdw12,
                ..
            } = kernel;
            (
                opcode,
                kernel.address,
                kernel.data_len,
                [cdw10, cdw11, cdw12],
            )
        };
        let lba = [0x3456_789a, 0x12];
        let transfer = |opcode, fua: u32| (opcode, 0x7000, 12288, [lba[0], lba[1], 2 | fua << 30]);
        assert_eq!(words(encode(CommandKind::Read)), transfer(2, 0));
        assert_eq!(
            words(encode(CommandKind::Write { fua: false })),
            transfer(1, 0)
        );
        assert_eq!(
            words(encode(CommandKind::Write { fua: true })),
            transfer(1, 1)
        );
        assert_eq!(words(encode(CommandKind::Flush)), (0, 0, 0, [0; 3]));
        let range = std::ptr::from_ref(&nvme.ranges[5]);
        let deallocation = (9, range.addr() as u64, 16, [0, 4, 0]);
        assert_eq!(words(encode(CommandKind::Deallocate)), deallocation);
        // SAFETY: the range is three initialised words.
        let bytes = unsafe { std::slice::from_raw_parts(range.cast::<u8>(), 16) };
        assert_eq!(bytes[4..8], 3u32.to_le_bytes());
        assert_eq!(bytes[8..], 0x12_3456_789au64.to_le_bytes());
        assert_eq!(encode(CommandKind::Read).bytes()[72..], [0; 8]);
    }
}
