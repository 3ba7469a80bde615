//! Streams of the caller's: functions that take or give bytes.

use std::ffi::c_void;
use std::{fmt, io};

use crate::boundary::{Failure, Outcome};
use crate::memory::UserData;

/// Takes bytes, which last for the call; says whether it took all of them. If not, the call that gave them fails with
/// `BRAID_IO`.
pub type braid_write_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, bytes: *const c_void, len: usize) -> bool>;

/// Gives up to `capacity` bytes; returns how many, 0 at the end, and -1 if it can't, which makes the call that asked
/// fail with `BRAID_IO`.
pub type braid_read_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, bytes: *mut c_void, capacity: usize) -> i64>;

/// Where a stream of bytes comes from.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_source {
    /// Gives the bytes; NULL: this is no stream.
    pub read: braid_read_callback,
    /// Goes to `read`.
    pub data: *mut c_void,
}

/// Writes to a function of the caller's.
pub(crate) struct Sink {
    write: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> bool,
    data: UserData,
}

impl Sink {
    /// # Safety
    /// `write` may be called with `data` on this thread as long as the sink is there.
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
        match self.put(bytes) {
            true => Ok(bytes.len()),
            false => Err(io::Error::other("the write callback returned false")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match self.put(text.as_bytes()) {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

/// Reads from a function of the caller's.
pub(crate) struct Source {
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> i64,
    data: UserData,
}

impl braid_source {
    /// # Safety
    /// `read` may be called with `data` on this thread as long as what this returns is there, and writes no more than
    /// it is asked for.
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
