//! The file of the VFS underneath, to which most calls are passed on.

use std::ffi::{c_int, c_void};

use crate::abi::{File, IoMethods, OK};

/// Our part of SQLite's file object. The object of the VFS underneath follows it in memory.
#[repr(C)]
pub(crate) struct Wrapped<S> {
    pub(crate) file: File,
    /// From `Box::into_raw`; null before and after the file is open.
    pub(crate) state: *mut S,
}

/// Bytes before the object of the VFS underneath: the same for every state.
pub(crate) const PREFIX: usize = size_of::<Wrapped<u8>>();

/// The file object of the VFS underneath, while it is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner(*mut File);

// SAFETY: SQLite's own rules say which thread uses a file object; this is only its address.
unsafe impl Send for Inner {}

impl Inner {
    /// The object underneath ours.
    ///
    /// # Safety
    ///
    /// The object has the size that our VFS asks for. It stays where it is while the value is used,
    /// and the methods of the value are called only while the file underneath is open.
    pub(crate) unsafe fn of(outer: *mut File) -> Self {
        // SAFETY: our VFS asks for `PREFIX` bytes and those of the VFS underneath.
        Self(unsafe { outer.cast::<u8>().add(PREFIX) }.cast())
    }

    pub(crate) fn file(self) -> *mut File {
        self.0
    }

    pub(crate) fn methods(self) -> &'static IoMethods {
        // SAFETY: an open file has methods, which SQLite expects to last. A table of an older version
        // is shorter; only `optional` looks at the rest.
        unsafe { &*(*self.0).methods }
    }

    /// Whether opening the file underneath has set its methods.
    pub(crate) fn is_open(self) -> bool {
        // SAFETY: our VFS clears the word before it opens the file.
        unsafe { !(*self.0).methods.is_null() }
    }

    pub(crate) fn clear(self) {
        // SAFETY: the object is memory of SQLite's for us to fill.
        unsafe { (*self.0).methods = std::ptr::null() }
    }

    pub(crate) fn close(self) -> c_int {
        // SAFETY: the file is open, and the caller forgets it.
        unsafe { (self.methods().close)(self.0) }
    }

    /// Reads bytes. Returns SQLite's code.
    pub(crate) fn read(self, offset: i64, bytes: &mut [u8]) -> c_int {
        let len = c_int::try_from(bytes.len()).expect("a page");
        // SAFETY: the buffer has so many bytes.
        unsafe { (self.methods().read)(self.0, bytes.as_mut_ptr().cast::<c_void>(), len, offset) }
    }

    /// Writes bytes and makes them durable. Returns SQLite's code.
    pub(crate) fn write_durably(self, offset: i64, bytes: &[u8]) -> c_int {
        let len = c_int::try_from(bytes.len()).expect("a page");
        // SAFETY: the buffer has so many bytes.
        let code =
            unsafe { (self.methods().write)(self.0, bytes.as_ptr().cast::<c_void>(), len, offset) };
        if code != OK {
            return code;
        }
        // SAFETY: the file is open.
        unsafe { (self.methods().sync)(self.0, crate::abi::SYNC_NORMAL) }
    }

    pub(crate) fn lock(self, level: c_int) -> c_int {
        // SAFETY: the file is open.
        unsafe { (self.methods().lock)(self.0, level) }
    }

    pub(crate) fn unlock(self, level: c_int) -> c_int {
        // SAFETY: the file is open.
        unsafe { (self.methods().unlock)(self.0, level) }
    }
}
