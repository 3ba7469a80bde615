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

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod aligned;
mod bandwidth;
mod catching;
mod device;
mod directory;
mod gate;
mod latency;
mod layer;
mod memory;
mod open;
mod overlay;
mod per_process;
#[cfg(unix)]
mod pmem;
#[cfg(windows)]
mod positioned;
mod posix;
mod readers;
mod routed;
mod sim;
mod split;
mod torn;
#[cfg(uring)]
mod uring;
#[cfg(not(uring))]
#[path = "no_uring.rs"]
mod uring;
mod volume;
mod volume_name;

pub use aligned::AlignedBuf;
pub use bandwidth::{Bandwidth, BandwidthDevice};
pub use braid_rt::{Cpu, Node, Topology};
pub use catching::CatchingDevice;
pub use device::{Device, DeviceKind, Entry, File, OpenMode, ReadOp, WriteOp};
pub use directory::{
    DEFAULT_FILE_MODE, create_file, finish_write_back, open_input, start_write_back,
};
pub use gate::{Gate, Held, Refused};
pub use latency::{Latency, LatencyDevice};
pub use layer::{Layer, LayeredDevice};
pub use memory::MemoryDevice;
pub use open::{
    DeviceChoice, DirectoryLock, LOCK_FILE_NAME, LockError, create_directory,
    create_directory_with_mode, lock_holder, open_directory, open_directory_on_node,
    open_directory_read_only, open_directory_with_mode,
};
pub use overlay::OverlayDevice;
#[cfg(unix)]
pub use pmem::PmemDevice;
pub use posix::FileDevice;
pub use readers::{Announcement, READERS_FILE_NAME, ReaderGuard, ReaderNeeds, ReaderTable};
pub use routed::RoutedDevice;
pub use sim::{Claim, FileCopies, FileFaults, MediaFaults, SimDevice};
pub use split::SplitDevice;
pub use torn::{identity_words, may_be_torn};
#[cfg(uring)]
pub use uring::UringDevice;
pub use volume::VolumeDevice;
pub use volume_name::{
    VolumeFault, VolumeUse, has_file, is_volume_name, keep_volume_open, list_directory, resolve,
    set_volume_idle_us, volume_fault, volume_idle_us,
};
