//! NVMe drives for the Braid storage engine.
//!
//! A [`Drive`] is one namespace of blocks, and a [`Queue`] passes commands to it: read, write, write
//! with forced unit access (FUA), flush, deallocate. Several paths implement the two traits, so the
//! layers above do not depend on the path. [`Blocking`] offers calls that wait, over any drive, and
//! [`MemoryDrive`] is a drive in memory that loses power and fails as a seed determines.
//!
//! ```
//! use std::sync::Arc;
//! use braid_nvme::{Blocking, MemoryDrive};
//!
//! # fn main() -> Result<(), braid_nvme::DriveError> {
//! let drive = MemoryDrive::new(1024);
//! let blocks = Blocking::new(Arc::new(drive));
//! let mut block = blocks.allocate(512);
//! block[..5].copy_from_slice(b"braid");
//! blocks.write(7, &block)?;
//! blocks.flush()?; // durable from here on
//! blocks.read(7, &mut block)?;
//! assert_eq!(&block[..5], b"braid");
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
// Only drives use every part.
#![cfg_attr(not(uring), allow(dead_code))]

mod blocking;
mod buffer;
pub mod controller;
pub mod crash;
pub mod drive;
mod error;
mod identify;
mod machine;
pub mod memory;
pub mod model;
mod name;
#[cfg(uring)]
pub mod passthrough;
#[cfg(uring)]
mod ring;
#[cfg(uring)]
pub mod uring;
#[cfg(uring)]
mod usage;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod vfio;
pub mod volume;

pub use blocking::{Blocking, BlockingOptions, ReadAt, WriteAt};
pub use buffer::{DmaBuffer, DmaMemory};
pub use controller::{ControllerOptions, NvmeDrive};
pub use drive::{
    Command, CommandKind, Completion, Drive, DriveInfo, DrivePath, Queue, check_command,
};
pub use error::{DriveError, Target};
pub use identify::{Controller, Namespace};
pub use machine::{FoundController, FoundNamespace, Machine};
pub use memory::{MemoryDrive, MemoryFaults, MemoryOptions};
pub use name::{ClaimedDrive, DriveClaim, DriveName};
#[cfg(uring)]
pub use passthrough::PassthroughDrive;
#[cfg(uring)]
pub use uring::{UringDrive, UringOptions};
pub use volume::{Volume, VolumeError};
