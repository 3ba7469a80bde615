//! Streams: functions of the caller that accept or supply bytes.

use std::ffi::c_void;
use std::{fmt, io};

use crate::boundary::{Failure, Outcome};
use crate::memory::UserData;

/// Receives bytes, which are valid during the call. Returns whether it accepted all of them;
/// otherwise the call that passed them fails with `BRAID_IO`.
pub type braid_write_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, bytes: *const c_void, len: usize) -> bool>;

/// Supplies up to `capacity` bytes. Returns their number, 0 at the end, or -1 on an error, which
/// makes the calling function fail with `BRAID_IO`.
pub type braid_read_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, bytes: *mut c_void, capacity: usize) -> i64>;

/// Source of a stream of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_source {
    /// Supplies the bytes; NULL if this element is not a stream.
    pub read: braid_read_callback,
    /// Passed to `read`.
    pub data: *mut c_void,
}

/// Writer that passes bytes to the caller's function.
pub(crate) struct Sink {
    write: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> bool,
    data: UserData,
}

impl Sink {
    /// # Safety
    ///
    /// `write` may be called with `data` on this thread for the life of the sink.
    pub(crate) unsafe fn new(write: braid_write_callback, data: *mut c_void) -> Outcome<Self> {
        let write = write.ok_or(Failure::null("write"))?;
        let data = UserData::new(data);
        Ok(Self { write, data })
    }

    fn put(&self, bytes: &[u8]) -> bool {
        // SAFETY: the contract of `new`.
        unsafe { (self.write)(self.data.get(), bytes.as_ptr().cast(), bytes.len()) }
    }
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.put(bytes) {
            Ok(bytes.len())
        } else {
            Err(io::Error::other("the write callback returned false"))
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.put(text.as_bytes()) {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// Reader that gets bytes from the caller's function.
pub(crate) struct Source {
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> i64,
    data: UserData,
}

impl braid_source {
    /// # Safety
    ///
    /// `read` may be called with `data` on this thread for the life of the returned reader, and
    /// writes no more than the requested number of bytes.
    pub(crate) unsafe fn open(&self) -> Option<Source> {
        let (read, data) = (self.read?, UserData::new(self.data));
        Some(Source { read, data })
    }
}

impl io::Read for Source {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the contract of `open`.
        let given = unsafe { (self.read)(self.data.get(), room.as_mut_ptr().cast(), room.len()) };
        match usize::try_from(given) {
            Ok(given) if given <= room.len() => Ok(given),
            Ok(_) => Err(io::Error::other(
                "the read callback returned more bytes than were requested",
            )),
            Err(_) => Err(io::Error::other("the read callback failed")),
        }
    }
}
