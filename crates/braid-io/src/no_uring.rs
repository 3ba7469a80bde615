//! Replaces `uring` on systems without io_uring.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::Device;

pub(crate) fn open(_: &Path, _: u32) -> io::Result<Arc<dyn Device>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "io_uring is not available on this system and processor",
    ))
}
