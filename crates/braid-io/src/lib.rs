//! Devices, aligned buffers and directory locks for the Braid storage engine.
//!
//! ```
//! use braid_io::{AlignedBuf, Device, MemoryDevice, OpenMode};
//!
//! # fn main() -> std::io::Result<()> {
//! let device = MemoryDevice::new();
//! let file = device.open("log", OpenMode::CreateNew)?;
//! let mut block = device.allocate(4096);
//! block[..5].copy_from_slice(b"braid");
//! file.write_durable_at(&[&block], 0)?;
//! # Ok(())
//! # }
//! ```

mod aligned;
mod device;
mod latency;
mod memory;
mod open;
#[cfg(unix)]
mod posix;
mod sim;
mod topology;
// The processors are those that the crate `io-uring` knows; see Cargo.toml.
#[cfg(all(
    target_os = "linux",
    any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )
))]
mod uring;
#[cfg(not(all(
    target_os = "linux",
    any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )
)))]
#[path = "no_uring.rs"]
mod uring;

pub use aligned::AlignedBuf;
pub use device::{Device, DeviceKind, Entry, File, OpenMode, ReadOp, WriteOp};
pub use latency::LatencyDevice;
pub use memory::MemoryDevice;
pub use open::{
    DeviceChoice, DirectoryLock, LOCK_FILE_NAME, LockError, create_directory, open_directory,
};
#[cfg(unix)]
pub use posix::FileDevice;
pub use sim::{Decay, SimDevice};
pub use topology::{Cpu, Node, Topology};
#[cfg(all(
    target_os = "linux",
    any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )
))]
pub use uring::UringDevice;
