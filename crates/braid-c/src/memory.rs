//! Access to C's memory: arguments and results.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::path::Path;

use crate::boundary::{Failure, Outcome};

/// Bytes in memory that belongs to the program or to the library.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_slice {
    /// First byte. It may be NULL if `len` is 0.
    pub data: *const c_void,
    /// Number of bytes.
    pub len: usize,
}

impl braid_slice {
    /// Returns the address and length of bytes in Rust's memory, which must outlive their use.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            len: bytes.len(),
        }
    }
}

/// Destination of a result. Its memory need not be initialized.
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// # Safety
    ///
    /// The pointer is NULL, or points to memory that is writable and not shared during this call.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T, name: &'static str) -> Outcome<Self> {
        if pointer.is_null() {
            return Err(Failure::null(name));
        }
        Ok(Self(pointer))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0
    }

    #[inline]
    pub(crate) fn set(&mut self, value: T) {
        // SAFETY: the contract of `new`.
        unsafe { self.0.write(value) }
    }
}

impl<H> Out<*mut H> {
    /// As [`Out::new`]; also sets the handle to NULL.
    ///
    /// # Safety
    ///
    /// As for [`Out::new`].
    #[inline]
    pub(crate) unsafe fn handle(pointer: *mut *mut H, name: &'static str) -> Outcome<Self> {
        // SAFETY: this function's contract.
        let mut out = unsafe { Self::new(pointer, name) }?;
        out.set(std::ptr::null_mut());
        Ok(out)
    }
}

/// Destination of an optional result; NULL if the caller does not want it.
pub(crate) struct Optional<T>(Out<T>);

impl<T> Clone for Optional<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Optional<T> {}

impl<T> Optional<T> {
    /// # Safety
    ///
    /// As for [`Out::new`].
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T) -> Self {
        Self(Out(pointer))
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        !self.0.0.is_null()
    }

    #[inline]
    pub(crate) fn set(&mut self, value: T) {
        if self.is_wanted() {
            self.0.set(value);
        }
    }
}

impl<H> Optional<*mut H> {
    /// As [`Optional::new`]; also sets the handle to NULL.
    ///
    /// # Safety
    ///
    /// As for [`Out::new`].
    #[inline]
    pub(crate) unsafe fn handle(pointer: *mut *mut H) -> Self {
        // SAFETY: this function's contract.
        let mut out = unsafe { Self::new(pointer) };
        out.set(std::ptr::null_mut());
        out
    }
}

/// Returns the destination of several results.
///
/// # Safety
///
/// The pointer is NULL, or points to memory for `len` elements that is writable and not shared
/// during `'a`.
pub(crate) unsafe fn array<'a, T>(
    pointer: *mut T,
    len: usize,
    name: &'static str,
) -> Outcome<&'a mut [MaybeUninit<T>]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    if len > isize::MAX as usize / size_of::<T>() {
        return Err(too_many(len, name));
    }
    // SAFETY: this function's contract; `MaybeUninit` makes no claim about the content.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

#[cold]
fn too_long(len: usize, name: &'static str) -> Failure {
    Failure::argument(format!(
        "invalid length of {name}: {len} bytes are more than memory can hold"
    ))
}

#[cold]
fn too_many(len: usize, name: &'static str) -> Failure {
    Failure::argument(format!(
        "invalid length of {name}: {len} elements are more than memory can hold"
    ))
}

/// Returns the bytes of an argument.
///
/// # Safety
///
/// `data` is NULL, or points to `len` bytes that do not change during `'a`.
#[inline]
pub(crate) unsafe fn bytes<'a>(
    data: *const c_void,
    len: usize,
    name: &'static str,
) -> Outcome<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Failure::null(name));
    }
    if len > isize::MAX as usize {
        return Err(too_long(len, name));
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Returns the key and the value of an argument.
///
/// # Safety
///
/// As for [`bytes`] for both.
#[inline]
pub(crate) unsafe fn entry<'a>(
    key: (*const c_void, usize),
    value: (*const c_void, usize),
) -> Outcome<(&'a [u8], &'a [u8])> {
    // SAFETY: this function's contract.
    Ok(unsafe {
        (
            bytes(key.0, key.1, "key")?,
            bytes(value.0, value.1, "value")?,
        )
    })
}

/// Dereferences a pointer; returns `None` if it is NULL.
///
/// # Safety
///
/// The pointer is NULL, or points to a `T` that does not change during `'a`.
#[inline]
pub(crate) unsafe fn optional<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: this function's contract.
    unsafe { pointer.as_ref() }
}

/// Dereferences a pointer; NULL is an error.
///
/// # Safety
///
/// As for [`optional`].
pub(crate) unsafe fn required<'a, T>(pointer: *const T, name: &'static str) -> Outcome<&'a T> {
    // SAFETY: this function's contract.
    unsafe { optional(pointer) }.ok_or(Failure::null(name))
}

/// Returns the elements of an array.
///
/// # Safety
///
/// The pointer is NULL, or points to `len` elements that do not change during `'a`.
#[inline]
pub(crate) unsafe fn elements<'a, T>(
    pointer: *const T,
    len: usize,
    name: &'static str,
) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    if len > isize::MAX as usize / size_of::<T>() {
        return Err(too_many(len, name));
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// Returns the bytes of a slice, or `None` if the pointer to it is NULL.
///
/// # Safety
///
/// The pointer meets the contract of [`optional`], and the slice that of [`bytes`].
pub(crate) unsafe fn optional_bytes<'a>(
    slice: *const braid_slice,
    name: &'static str,
) -> Outcome<Option<&'a [u8]>> {
    // SAFETY: this function's contract.
    let slice = unsafe { optional(slice) };
    slice
        // SAFETY: this function's contract.
        .map(|slice| unsafe { bytes(slice.data, slice.len, name) })
        .transpose()
}

/// # Safety
///
/// The pointer is NULL, or points to a NUL-terminated string that does not change during `'a`.
unsafe fn c_str<'a>(string: *const c_char, name: &'static str) -> Outcome<&'a CStr> {
    if string.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: this function's contract.
    Ok(unsafe { CStr::from_ptr(string) })
}

/// Returns a name, which must be UTF-8.
///
/// # Safety
///
/// As for [`c_str`].
pub(crate) unsafe fn text<'a>(string: *const c_char, name: &'static str) -> Outcome<&'a str> {
    // SAFETY: this function's contract.
    let string = unsafe { c_str(string, name) }?;
    let not_utf8 = |_| Failure::argument(format!("invalid argument {name}: must be UTF-8"));
    string.to_str().map_err(not_utf8)
}

/// Returns a name, or `None` if the pointer is NULL.
///
/// # Safety
///
/// As for [`c_str`].
pub(crate) unsafe fn optional_text<'a>(
    string: *const c_char,
    name: &'static str,
) -> Outcome<Option<&'a str>> {
    if string.is_null() {
        return Ok(None);
    }
    // SAFETY: this function's contract.
    unsafe { text(string, name) }.map(Some)
}

/// Returns a path: arbitrary bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
///
/// As for [`c_str`].
pub(crate) unsafe fn path<'a>(string: *const c_char) -> Outcome<&'a Path> {
    // SAFETY: this function's contract.
    let string = unsafe { c_str(string, "path") }?;
    #[cfg(unix)]
    let name = {
        use std::os::unix::ffi::OsStrExt;
        OsStr::from_bytes(string.to_bytes())
    };
    #[cfg(not(unix))]
    let name = {
        let not_utf8 = |_| Failure::argument("invalid argument path: must be UTF-8".into());
        OsStr::new(string.to_str().map_err(not_utf8)?)
    };
    Ok(Path::new(name))
}

/// The caller's pointer, which is passed to its callback and never dereferenced.
#[derive(Clone, Copy)]
pub(crate) struct UserData(*mut c_void);

// SAFETY: only the caller's callback uses the pointer. The contract of every function that takes
// one permits calls on other threads.
unsafe impl Send for UserData {}
// SAFETY: the same.
unsafe impl Sync for UserData {}

impl UserData {
    pub(crate) fn new(data: *mut c_void) -> Self {
        Self(data)
    }

    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}
