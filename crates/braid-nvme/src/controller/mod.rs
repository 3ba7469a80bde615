//! The driver: a controller's registers, its admin queue and its I/O queues, over a [`Host`].
//!
//! Each queue pair belongs to one [`Queue`] and is used by one thread at a time,
//! without locks, system calls or interrupts. Only the admin queue is shared, behind a lock; it is
//! used to open and close queues, and after errors.
//!
//! # After an error
//!
//! A command that takes longer than [`ControllerOptions::timeout`] is aborted. If that does not end
//! it either, or the controller reports a fatal error, the controller is reset: every queue then
//! ends its commands with an error and is created again. A controller that cannot be reset, or whose
//! registers read as ones since it was pulled out, is *quiesced* (it can no longer access memory),
//! and fails every command.
//!
//! Two rules hold, which the model of a controller ([`crate::model`]) checks:
//!
//! - **N1, memory:** the memory of a command is given back only after the controller completed the
//!   command, was disabled, or was quiesced.
//! - **N2, no flush across a reset:** a reset may lose completed writes from a volatile cache. After
//!   it, a drive with such a cache performs reads only; writes and flushes fail until the drive is
//!   opened again, so that no flush covers writes that are lost (invariant I8).

mod admin;
mod barrier;
#[cfg(all(test, loom))]
mod loom_tests;
mod prp;
mod queue;
mod rings;
mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use braid_rt::{Mutex, narrow, to_usize};

use crate::identify::{CNS_CONTROLLER, CNS_NAMESPACE, IDENTIFY_LEN};
use crate::{
    CommandKind, Controller, DmaBuffer, Drive, DriveError, DriveInfo, DrivePath, Namespace, Queue,
    Target,
};
use admin::{Admin, Failure};
use queue::IoQueue;

/// What the driver needs from its surroundings: registers, memory and time.
pub trait Host: Send + Sync + 'static {
    /// Reads a register of 32 bits. Registers of a controller that is gone read as ones.
    fn read(&self, offset: usize) -> u32;

    /// Writes a register of 32 bits.
    fn write(&self, offset: usize, value: u32);

    /// Returns the length of the registers in bytes.
    fn registers(&self) -> usize;

    /// Allocates zeroed memory that the controller can access at the process's own address, at an
    /// address that is a multiple of the page size of the controller.
    ///
    /// # Errors
    ///
    /// If it is used up.
    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError>;

    /// Returns whether the controller can access this memory.
    fn contains(&self, address: usize, len: usize) -> bool;

    /// Returns the time since some moment.
    fn now(&self) -> Duration;

    /// Waits for a moment, longer the higher `round` is, or lets the model of a controller work.
    fn pause(&self, round: u32);

    /// Returns the number of first rounds in which [`Host::pause`] only spins. They are so short
    /// that a waiting queue does not read the clock.
    fn spins(&self) -> u32 {
        0
    }

    /// Called by every poll; lets the model of a controller work.
    #[inline]
    fn step(&self) {}

    /// Makes any access of the controller to memory impossible.
    fn quiesce(&self);

    /// Returns the path for [`DriveInfo::path`].
    fn path(&self) -> DrivePath;
}

/// Options of [`NvmeDrive`].
#[derive(Clone, Copy, Debug)]
pub struct ControllerOptions {
    /// Namespace.
    pub namespace: u32,
    /// Time after which a command is aborted; half of it later, the controller is reset.
    pub timeout: Duration,
    /// Largest number of commands in flight in one queue; at most 255.
    pub queue_depth: usize,
    /// Largest number of queues.
    pub queues: usize,
}

impl Default for ControllerOptions {
    /// Namespace 1, 10 seconds, 127 commands, 16 queues.
    fn default() -> Self {
        Self {
            namespace: 1,
            timeout: Duration::from_secs(10),
            queue_depth: 127,
            queues: 16,
        }
    }
}

mod register {
    //! Offsets of registers.

    pub(super) const CAPABILITIES: usize = 0x00;
    pub(super) const CONFIGURATION: usize = 0x14;
    pub(super) const STATUS: usize = 0x1c;
    pub(super) const ADMIN_SIZES: usize = 0x24;
    pub(super) const ADMIN_SUBMISSION: usize = 0x28;
    pub(super) const ADMIN_COMPLETION: usize = 0x30;
    pub(super) const DOORBELLS: usize = 0x1000;
}

/// Bits of the status register.
const READY: u32 = 1;
const FATAL: u32 = 2;
const SHUT_DOWN: u32 = 8;

/// What a register reads as after the controller was pulled out.
const GONE: u32 = u32::MAX;

/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 16;

/// States of a controller.
const ALIVE: u32 = 0;
const FAILED: u32 = 1;
const REMOVED: u32 = 2;

/// Why a controller is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Removed,
    Fatal,
    TimedOut,
}

struct Shared<H: Host> {
    host: H,
    options: ControllerOptions,
    /// Bytes between two doorbells.
    stride: usize,
    /// Page size of the controller.
    page: usize,
    /// Largest number of entries of a queue.
    entries_max: usize,
    /// Time that the controller may take to become ready.
    ready_timeout: Duration,
    volatile_cache: bool,
    admin: Mutex<Admin>,
    /// Number of resets, successful or not. Stored (`Release`) after the controller was disabled or
    /// quiesced; a queue loads it (`Acquire`) before it gives back memory.
    epoch: AtomicU32,
    /// One of the states; stored before `epoch`.
    state: AtomicU32,
}

/// A drive through the driver of this crate; see the module's documentation.
pub struct NvmeDrive<H: Host> {
    shared: Arc<Shared<H>>,
    info: DriveInfo,
}

impl<H: Host> std::fmt::Debug for NvmeDrive<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeDrive")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// The target of errors that belong to no command.
const OPENING: Target = Target {
    kind: CommandKind::Read,
    lba: 0,
    blocks: 0,
};

fn unsupported(reason: impl Into<String>) -> DriveError {
    DriveError::Unsupported {
        what: "open the NVMe controller".into(),
        reason: reason.into(),
    }
}

impl<H: Host> NvmeDrive<H> {
    /// Resets a controller and opens one of its namespaces.
    ///
    /// # Errors
    ///
    /// If the controller does not respond, or is one that Braid does not support.
    pub fn open(host: H, options: ControllerOptions) -> Result<Self, DriveError> {
        let low = host.read(register::CAPABILITIES);
        let high = host.read(register::CAPABILITIES + 4);
        if low == GONE && high == GONE {
            return Err(DriveError::Removed { target: OPENING });
        }
        let stride = 4usize << (high & 0xf);
        let page_shift = 12 + (high >> 16 & 0xf);
        if page_shift > 16 {
            return Err(unsupported("its pages have more than 64 KiB"));
        }
        if host.registers() < register::DOORBELLS + 4 * stride {
            return Err(unsupported("its registers are too few for one queue"));
        }
        let admin = Admin::new(&host, ADMIN_ENTRIES)?;
        let mut shared = Shared {
            stride,
            page: 1 << page_shift,
            entries_max: to_usize(u64::from(low & 0xffff)) + 1,
            ready_timeout: Duration::from_millis(500 * u64::from((low >> 24).max(1))),
            volatile_cache: true,
            admin: Mutex::new(admin),
            epoch: AtomicU32::new(0),
            state: AtomicU32::new(ALIVE),
            options,
            host,
        };
        let info = match shared.start() {
            Ok(info) => info,
            Err(error) => {
                shared.host.quiesce();
                return Err(error);
            }
        };
        shared.volatile_cache = info.volatile_cache;
        let shared = Arc::new(shared);
        Ok(Self { shared, info })
    }

    /// Returns the number of resets since the drive was opened.
    pub fn resets(&self) -> u32 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Returns the surroundings of the driver.
    pub fn host(&self) -> &H {
        &self.shared.host
    }
}

impl<H: Host> Drive for NvmeDrive<H> {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        let queue = IoQueue::open(self.shared.clone(), self.info.clone())?;
        Ok(Box::new(queue))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        self.shared.host.allocate(len)
    }

    fn accepts(&self, address: *const u8, len: usize) -> bool {
        address.addr().is_multiple_of(self.info.alignment)
            && self.shared.host.contains(address.addr(), len)
    }
}

impl<H: Host> Shared<H> {
    /// Enables the controller for the first time and asks for its properties.
    fn start(&self) -> Result<DriveInfo, DriveError> {
        let (page, options) = (self.page, self.options);
        let mut admin = self.admin.lock();
        self.disable()
            .and_then(|()| self.enable(&mut admin))
            .map_err(|loss| self.error_of(loss, OPENING))?;
        let failed = |failure| match failure {
            Failure::Status(status) => DriveError::Rejected {
                target: OPENING,
                status,
            },
            Failure::TimedOut => self.error_of(Loss::TimedOut, OPENING),
        };
        let data = self.host.allocate(IDENTIFY_LEN)?;
        let mut identify = |cns, namespace| {
            let address = data.as_non_null().as_ptr().addr() as u64;
            admin.identify(self, address, cns, namespace)?;
            // The controller has changed the bytes, which the compiler does not know.
            let bytes = data.as_non_null().as_ptr();
            Ok((0..IDENTIFY_LEN)
                // SAFETY: the buffer has this length, and the controller no longer uses it.
                .map(|i| unsafe { bytes.add(i).read_volatile() })
                .collect::<Vec<u8>>())
        };
        let controller = Controller::parse(&identify(CNS_CONTROLLER, 0).map_err(failed)?)
            .map_err(unsupported)?;
        let described = identify(CNS_NAMESPACE, options.namespace).map_err(failed)?;
        let namespace = Namespace::parse(&described)
            .map_err(|reason| unsupported(format!("namespace {}: {reason}", options.namespace)))?;
        if namespace.metadata != 0 {
            return Err(unsupported(
                "its blocks have metadata; format it without (nvme format --lbaf)",
            ));
        }
        let wanted = options.queues.clamp(1, 256);
        let queues = admin.set_queues(self, wanted).map_err(failed)?.min(wanted);
        let doorbells = (self.host.registers() - register::DOORBELLS) / (2 * self.stride);
        let queues = queues.min(doorbells.saturating_sub(1));
        if queues == 0 {
            return Err(unsupported("it has no queue for commands"));
        }
        admin.free_queues = (1..=u16::try_from(queues).unwrap_or(256)).rev().collect();
        let block_size = 1usize << namespace.block_shift;
        let max_transfer = controller
            .max_transfer(page)
            .min(prp::transfer_max(page))
            .min(1 << 20);
        Ok(DriveInfo {
            path: self.host.path(),
            model: controller.model,
            serial: controller.serial,
            namespace: options.namespace,
            blocks: namespace.blocks,
            block_size,
            volatile_cache: controller.volatile_cache,
            atomic_write_blocks: namespace
                .atomic_write_blocks
                .unwrap_or(controller.atomic_write_blocks),
            max_transfer: max_transfer.max(block_size),
            queue_depth: options.queue_depth.clamp(1, 255).min(self.entries_max - 1),
            queues,
            alignment: 4,
            deallocates: controller.deallocates,
        })
    }

    fn doorbell(&self, queue: u16, completion: bool) -> usize {
        register::DOORBELLS + (2 * usize::from(queue) + usize::from(completion)) * self.stride
    }

    /// Reads the status register.
    fn status(&self) -> Result<u32, Loss> {
        match self.host.read(register::STATUS) {
            GONE => Err(Loss::Removed),
            status => Ok(status),
        }
    }

    /// Waits until bits of the status register have a value.
    fn await_status(&self, mask: u32, value: u32) -> Result<(), Loss> {
        let end = self.host.now() + self.ready_timeout;
        let mut round = 0;
        loop {
            let status = self.status()?;
            if status & mask == value {
                return Ok(());
            }
            if value == READY && status & FATAL != 0 {
                return Err(Loss::Fatal);
            }
            if self.host.now() > end {
                return Err(Loss::TimedOut);
            }
            self.host.pause(round);
            round += 1;
        }
    }

    /// Disables the controller, which then accesses no memory.
    fn disable(&self) -> Result<(), Loss> {
        self.status()?;
        self.host.write(register::CONFIGURATION, 0);
        self.await_status(READY, 0)
    }

    /// Enables the disabled controller with an empty admin queue.
    fn enable(&self, admin: &mut Admin) -> Result<(), Loss> {
        admin.rings.clear();
        let (submission, completion) = admin.rings.addresses();
        let last = u32::from(ADMIN_ENTRIES - 1);
        let write = |at, value: u64| {
            self.host.write(at, narrow(value & 0xffff_ffff));
            self.host.write(at + 4, narrow(value >> 32));
        };
        self.host.write(register::ADMIN_SIZES, last << 16 | last);
        write(register::ADMIN_SUBMISSION, submission);
        write(register::ADMIN_COMPLETION, completion);
        let page_shift = self.page.trailing_zeros() - 12;
        // Entries of 64 and 16 bytes; round robin; NVM commands.
        let configuration = 4 << 20 | 6 << 16 | page_shift << 7 | 1;
        self.host.write(register::CONFIGURATION, configuration);
        self.await_status(READY, READY)
    }

    /// Resets the controller, unless another queue has since `epoch`.
    fn reset(&self, epoch: u32, loss: Loss) {
        let mut admin = self.admin.lock();
        if self.epoch.load(Ordering::Relaxed) != epoch {
            return;
        }
        let result = match loss {
            Loss::Removed => Err(Loss::Removed),
            Loss::Fatal | Loss::TimedOut => self.disable(),
        };
        let result = result.and_then(|()| {
            self.enable(&mut admin)?;
            let queues = admin.free_queues.len() + admin.used_queues;
            match admin.set_queues(self, queues) {
                Ok(count) if count >= queues => Ok(()),
                _ => Err(Loss::TimedOut),
            }
        });
        if let Err(loss) = result {
            self.give_up(loss);
        }
        // Pairs with the `Acquire` loads of the queues: the controller was disabled or quiesced.
        self.epoch.store(epoch + 1, Ordering::Release);
    }

    fn give_up(&self, loss: Loss) {
        self.host.quiesce();
        let state = if loss == Loss::Removed {
            REMOVED
        } else {
            FAILED
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// The error of a command that ended by a reset.
    fn error_of(&self, loss: Loss, target: Target) -> DriveError {
        match (self.state.load(Ordering::Relaxed), loss) {
            (REMOVED, _) | (_, Loss::Removed) => DriveError::Removed { target },
            (_, Loss::TimedOut) => DriveError::TimedOut {
                target,
                millis: u64::try_from(self.options.timeout.as_millis()).unwrap_or(u64::MAX),
            },
            (_, Loss::Fatal) => DriveError::Controller {
                target,
                reason: "it reported a fatal error and was reset",
            },
        }
    }

    /// Returns why a command is not accepted any more.
    fn refusal(&self, target: Target) -> Option<DriveError> {
        let epoch = self.epoch.load(Ordering::Acquire);
        match self.state.load(Ordering::Relaxed) {
            REMOVED => Some(DriveError::Removed { target }),
            FAILED => Some(DriveError::Controller {
                target,
                reason: "it could not be reset",
            }),
            // Rule N2.
            _ if epoch > 0
                && self.volatile_cache
                && target.kind != CommandKind::Read
                && !braid_rt::mutant!("nvme_flush_across_reset") =>
            {
                Some(DriveError::Controller {
                    target,
                    reason: "it was reset, and its cache may have lost writes",
                })
            }
            _ => None,
        }
    }
}

impl<H: Host> Drop for Shared<H> {
    fn drop(&mut self) {
        if self.state.load(Ordering::Relaxed) == ALIVE && self.status().is_ok() {
            // A normal shutdown lets the drive write its cache.
            let configuration = self.host.read(register::CONFIGURATION);
            self.host.write(
                register::CONFIGURATION,
                configuration & !(3 << 14) | 1 << 14,
            );
            let _ = self.await_status(0xc, SHUT_DOWN);
            let _ = self.disable();
        }
        self.host.quiesce();
    }
}
