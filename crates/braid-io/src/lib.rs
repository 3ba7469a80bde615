//! Devices, aligned buffers and machine topology for the Braid storage engine.

mod aligned;
mod device;
mod memory;

pub use aligned::AlignedBuf;
pub use device::{Device, DeviceKind, Entry, File, OpenMode, ReadOp, WriteOp};
pub use memory::MemoryDevice;
