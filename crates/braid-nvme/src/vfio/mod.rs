//! A controller through VFIO: its registers, its IOMMU and one arena of memory.
//!
//! The controller must be bound to the kernel's driver `vfio-pci`. All memory that it can access is
//! one arena, which the IOMMU maps at the process's own addresses, so no address is ever
//! translated. After the drive is opened, commands take no system call and no interrupt.

mod arena;
mod iommu;

use std::fs::{File, OpenOptions, read_link};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::controller::{ControllerOptions, Host, NvmeDrive};
use crate::{DmaBuffer, DriveError, DrivePath};
use arena::Arena;
use iommu::{Iommu, SystemCalls};

/// Rounds of waiting before a thread lets others run: a few microseconds.
const SPINS: u32 = 200;

/// Options of [`VfioHost`].
#[derive(Clone, Copy, Debug)]
pub struct VfioOptions {
    /// Bytes of the arena; locked in memory.
    pub arena: usize,
    /// The controller.
    pub controller: ControllerOptions,
}

impl Default for VfioOptions {
    /// 64 MiB.
    fn default() -> Self {
        Self {
            arena: 64 << 20,
            controller: ControllerOptions::default(),
        }
    }
}

/// Registers, memory and time of a controller that is bound to `vfio-pci`.
pub struct VfioHost {
    registers: NonNull<u8>,
    registers_len: usize,
    arena: Arc<Arena>,
    /// Offset of the configuration space in `device`.
    configuration: u64,
    device: File,
    /// Closed last: the IOMMU maps the arena until then.
    _iommu: Iommu,
    begun: Instant,
}

// SAFETY: the registers are accessed with single volatile loads and stores, which any thread may do.
unsafe impl Send for VfioHost {}
// SAFETY: as above.
unsafe impl Sync for VfioHost {}

/// Opens the namespace of a controller that is bound to `vfio-pci`, such as `0000:00:04.0`.
///
/// # Errors
///
/// `Unsupported` if the controller is not bound to `vfio-pci`, or there is no IOMMU; the system's
/// error, for example without permission to open the group under `/dev/vfio`.
pub fn open(address: &str, options: VfioOptions) -> Result<NvmeDrive<VfioHost>, DriveError> {
    NvmeDrive::open(VfioHost::open(address, options)?, options.controller)
}

impl VfioHost {
    /// Takes over the controller at a PCI address.
    ///
    /// # Errors
    ///
    /// As [`open`].
    pub fn open(address: &str, options: VfioOptions) -> Result<Self, DriveError> {
        let what = format!("open NVMe controller {address}");
        let unsupported = |reason: &str| DriveError::Unsupported {
            what: what.clone(),
            reason: reason.into(),
        };
        let system = || DriveError::system(what.clone());
        let is_address = address
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.');
        if !is_address || address.is_empty() {
            return Err(unsupported("its PCI address is not like 0000:00:04.0"));
        }
        let folder = format!("/sys/bus/pci/devices/{address}");
        let driver = read_link(format!("{folder}/driver")).unwrap_or_default();
        if !driver.ends_with("vfio-pci") {
            return Err(unsupported(
                "it is not bound to the driver vfio-pci; bind it (braid nvme bind)",
            ));
        }
        let group = read_link(format!("{folder}/iommu_group"))
            .map_err(|_| unsupported("it has no IOMMU; enable the IOMMU of the machine"))?;
        let group = group.file_name().unwrap_or_default().to_owned();
        let open = |path: &std::path::Path| OpenOptions::new().read(true).write(true).open(path);
        let container = open("/dev/vfio/vfio".as_ref()).map_err(system())?;
        let group = open(&std::path::Path::new("/dev/vfio").join(group)).map_err(system())?;
        let arena = Arc::new(Arena::new(options.arena).map_err(system())?);
        let calls = SystemCalls;
        let iommu = Iommu::attach(&calls, container, group, arena.address(), arena.len())
            .map_err(|(step, error)| DriveError::system(format!("{what}: {step}"))(error))?;
        let device = iommu.device(&calls, address).map_err(system())?;
        // SAFETY: the call returned a new descriptor.
        let device = unsafe { File::from_raw_fd(device) };
        let region = |index| iommu::region(&calls, device.as_raw_fd(), index).map_err(system());
        let (configuration, registers) = (region(iommu::CONFIGURATION)?, region(0)?);
        if !registers.is_mappable || registers.len < 0x1008 {
            return Err(unsupported("its registers cannot be mapped"));
        }
        // Memory space and bus master, in the command register.
        let mut command = [0; 2];
        let at = configuration.offset + 4;
        device.read_exact_at(&mut command, at).map_err(system())?;
        let enabled = u16::from_le_bytes(command) | 6;
        device
            .write_all_at(&enabled.to_le_bytes(), at)
            .map_err(system())?;
        let len = braid_rt::to_usize(registers.len);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &device,
                registers.offset,
            )
        };
        let mapped = mapped.map_err(|errno| system()(errno.into()))?;
        let host = Self {
            registers: NonNull::new(mapped.cast()).ok_or_else(|| unsupported("no mapping"))?,
            registers_len: len,
            arena,
            configuration: configuration.offset,
            device,
            _iommu: iommu,
            begun: Instant::now(),
        };
        let page_shift = host.read(4) >> 16 & 0xf;
        host.arena.set_unit(4096 << page_shift);
        Ok(host)
    }

    fn register(&self, offset: usize) -> *mut u32 {
        assert!(offset + 4 <= self.registers_len && offset.is_multiple_of(4));
        self.registers.as_ptr().wrapping_add(offset).cast()
    }
}

impl Host for VfioHost {
    #[inline]
    fn read(&self, offset: usize) -> u32 {
        // SAFETY: the register is inside the mapping, which lives as long as the host.
        u32::from_le(unsafe { self.register(offset).read_volatile() })
    }

    #[inline]
    fn write(&self, offset: usize, value: u32) {
        // SAFETY: as in `read`; what a store makes the controller do is the driver's concern.
        unsafe { self.register(offset).write_volatile(value.to_le()) }
    }

    fn registers(&self) -> usize {
        self.registers_len
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        self.arena.allocate(len)
    }

    fn contains(&self, address: usize, len: usize) -> bool {
        let start = self.arena.address();
        address >= start
            && address
                .checked_add(len)
                .is_some_and(|end| end <= start + self.arena.len())
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn pause(&self, round: u32) {
        match round {
            0..SPINS => std::hint::spin_loop(),
            SPINS..250 => std::thread::yield_now(),
            // An idle thread does not occupy a processor.
            _ => std::thread::sleep(Duration::from_micros(u64::from(round - 249).min(20) * 50)),
        }
    }

    fn spins(&self) -> u32 {
        SPINS
    }

    fn quiesce(&self) {
        // No bus master: no access to memory. A controller that is gone cannot access any.
        let at = self.configuration + 4;
        let mut command = [0; 2];
        if self.device.read_exact_at(&mut command, at).is_ok() {
            let disabled = u16::from_le_bytes(command) & !4;
            let _ = self.device.write_all_at(&disabled.to_le_bytes(), at);
        }
    }

    fn path(&self) -> DrivePath {
        DrivePath::Vfio
    }
}

impl Drop for VfioHost {
    fn drop(&mut self) {
        self.quiesce();
        // SAFETY: the mapping was created with this length, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.registers.as_ptr().cast(), self.registers_len) };
    }
}
