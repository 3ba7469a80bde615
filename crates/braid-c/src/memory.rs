//! C's memory: what is read from it and written to it.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::path::Path;

use crate::boundary::{Failure, Outcome};
use crate::value::braid_value;

/// Bytes in somebody else's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_slice {
    /// The first byte. It may be NULL if `len` is 0.
    pub data: *const c_void,
    /// The number of bytes.
    pub len: usize,
}

impl braid_slice {
    /// The bytes in Rust's memory, for as long as they are there.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            len: bytes.len(),
        }
    }
}

/// Where a result goes. The memory it is in need not be initialized.
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// # Safety
    /// The pointer is NULL, or for the length of this call nobody else's and fit for writing.
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

impl Out<braid_value> {
    /// As [`Out::new`], and there is no value to begin with: freeing what a failed call left does nothing.
    ///
    /// # Safety
    /// That of [`Out::new`].
    #[inline]
    pub(crate) unsafe fn value(pointer: *mut braid_value) -> Outcome<Self> {
        // SAFETY: this function's contract.
        unsafe { Self::named(pointer, "value") }
    }

    /// The same for a value of another name.
    ///
    /// # Safety
    /// That of [`Out::new`].
    #[inline]
    pub(crate) unsafe fn named(pointer: *mut braid_value, name: &'static str) -> Outcome<Self> {
        // SAFETY: this function's contract.
        let out = unsafe { Self::new(pointer, name) }?;
        // Data and length alone say that there is none.
        // SAFETY: the same; no reference is made to what may not be initialized.
        unsafe {
            (&raw mut (*pointer).data).write(std::ptr::null());
            (&raw mut (*pointer).len).write(0);
        }
        Ok(out)
    }
}

impl<H> Out<*mut H> {
    /// As [`Out::new`], and the handle is NULL to begin with.
    ///
    /// # Safety
    /// That of [`Out::new`].
    #[inline]
    pub(crate) unsafe fn handle(pointer: *mut *mut H, name: &'static str) -> Outcome<Self> {
        // SAFETY: this function's contract.
        let mut out = unsafe { Self::new(pointer, name) }?;
        out.set(std::ptr::null_mut());
        Ok(out)
    }
}

/// A result that the caller may do without: NULL if so.
pub(crate) struct Optional<T>(Out<T>);

impl<T> Clone for Optional<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Optional<T> {}

impl<T> Optional<T> {
    /// # Safety
    /// That of [`Out::new`].
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
    /// As [`Optional::new`], and the handle is NULL to begin with.
    ///
    /// # Safety
    /// That of [`Out::new`].
    #[inline]
    pub(crate) unsafe fn handle(pointer: *mut *mut H) -> Self {
        // SAFETY: this function's contract.
        let mut out = unsafe { Self::new(pointer) };
        out.set(std::ptr::null_mut());
        out
    }
}

/// Where several results go.
///
/// # Safety
/// The pointer is NULL, or for `'a` nobody else's and fit for writing `len` elements.
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
    // SAFETY: this function's contract; nothing is claimed about what is there.
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

/// Bytes that the caller gives.
///
/// # Safety
/// `data` is NULL, or points to `len` bytes that nobody writes to for `'a`.
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

/// A key and a value that the caller gives.
///
/// # Safety
/// That of [`bytes`] for both.
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

/// What a pointer points to, or nothing if it is NULL.
///
/// # Safety
/// The pointer is NULL, or points to a `T` that nobody writes to for `'a`.
#[inline]
pub(crate) unsafe fn optional<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: this function's contract.
    unsafe { pointer.as_ref() }
}

/// What a pointer points to.
///
/// # Safety
/// That of [`optional`].
pub(crate) unsafe fn required<'a, T>(pointer: *const T, name: &'static str) -> Outcome<&'a T> {
    // SAFETY: this function's contract.
    unsafe { optional(pointer) }.ok_or(Failure::null(name))
}

/// What a pointer to several things points to.
///
/// # Safety
/// The pointer is NULL, or points to `len` elements that nobody writes to for `'a`.
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

/// The bytes of a slice, or nothing if the pointer to it is NULL.
///
/// # Safety
/// The pointer is NULL, or that of [`optional`], and the slice's that of [`bytes`].
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
/// The pointer is NULL, or points to a string that ends with a NUL and that nobody writes to for `'a`.
unsafe fn c_str<'a>(string: *const c_char, name: &'static str) -> Outcome<&'a CStr> {
    if string.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: this function's contract.
    Ok(unsafe { CStr::from_ptr(string) })
}

/// A name, in UTF-8.
///
/// # Safety
/// That of [`c_str`].
pub(crate) unsafe fn text<'a>(string: *const c_char, name: &'static str) -> Outcome<&'a str> {
    // SAFETY: this function's contract.
    let string = unsafe { c_str(string, name) }?;
    let not_utf8 = |_| Failure::argument(format!("invalid argument {name}: must be UTF-8"));
    string.to_str().map_err(not_utf8)
}

/// A path: on Unix whatever bytes it has, elsewhere UTF-8.
///
/// # Safety
/// That of [`c_str`].
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

/// A pointer of the caller's, handed back to its callback and otherwise let alone.
#[derive(Clone, Copy)]
pub(crate) struct UserData(*mut c_void);

// SAFETY: only the caller's callback does anything with it; that this may be on another thread is in the
// contract of every function that takes one.
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
