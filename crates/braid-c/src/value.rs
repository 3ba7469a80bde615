//! Values that the library returns, which belong to C until C frees them.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

use braid::{Bytes, ValueRef};

use crate::boundary::Outcome;
use crate::memory::Out;
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};

/// A value that was read. Its bytes belong to the caller until it calls `braid_value_free`, even
/// after the transaction, the snapshot or the database has ended. It may be moved and copied like
/// any struct, but only one of the copies may be freed.
#[repr(C)]
#[derive(Debug)]
pub struct braid_value {
    /// First byte; NULL only if there is no value, so not for an empty value.
    pub data: *const c_void,
    /// Number of bytes.
    pub len: usize,
    /// Reserved for the library.
    pub reserved: *mut c_void,
}

/// Values above this length that have other references are not copied.
const COPIED_MAX: usize = 4096;

/// Set in `reserved` if the other bits are the capacity of a vector; otherwise `reserved` points to
/// [`Bytes`].
const VECTOR: usize = 1;

/// A value that has not been returned to the caller yet.
pub(crate) struct Value(braid_value);

impl Value {
    /// Copies a value of the engine, or adds a reference to it.
    #[inline(always)]
    pub(crate) fn of_stored(value: ValueRef<'_>) -> Self {
        match value.shared() {
            None => Self::of_vec(value.to_vec()),
            Some(bytes) => Self::of_bytes(bytes.clone()),
        }
    }

    pub(crate) fn of_bytes(bytes: Bytes) -> Self {
        if bytes.len() <= COPIED_MAX {
            return Self::of_vec(bytes.into());
        }
        let bytes = Box::new(bytes);
        Self(braid_value {
            data: bytes.as_ptr().cast(),
            len: bytes.len(),
            reserved: Box::into_raw(bytes).cast(),
        })
    }

    #[inline(always)]
    fn of_vec(vec: Vec<u8>) -> Self {
        let mut vec = ManuallyDrop::new(vec);
        Self(braid_value {
            data: vec.as_mut_ptr().cast_const().cast(),
            len: vec.len(),
            reserved: ptr::without_provenance_mut(vec.capacity() << 1 | VECTOR),
        })
    }
}

impl Drop for Value {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: they belong to the value, which was not returned to the caller.
        unsafe { free(self.0.data, self.0.reserved) }
    }
}

/// Frees the memory of a [`Value`].
///
/// # Safety
///
/// They are the fields of a value, which is not used or freed afterwards.
#[inline(always)]
unsafe fn free(data: *const c_void, reserved: *mut c_void) {
    if reserved.addr() & VECTOR != 0 {
        let capacity = reserved.addr() >> 1;
        // SAFETY: `of_vec` forgot a vector with this buffer and capacity. Bytes need no drop.
        drop(unsafe { Vec::<u8>::from_raw_parts(data.cast_mut().cast(), 0, capacity) });
    } else {
        // SAFETY: this function's contract.
        unsafe { release(reserved) };
    }
}

/// # Safety
///
/// `bytes` came from `of_bytes`, and is not used afterwards.
#[cold]
#[inline(never)]
unsafe fn release(bytes: *mut c_void) {
    // SAFETY: this function's contract.
    drop(unsafe { Box::<Bytes>::from_raw(bytes.cast()) });
}

impl Out<braid_value> {
    /// As [`Out::new`]; also sets the value to none, so that freeing it after a failed call is
    /// safe.
    ///
    /// # Safety
    ///
    /// As for [`Out::new`].
    #[inline]
    pub(crate) unsafe fn value(pointer: *mut braid_value) -> Outcome<Self> {
        // SAFETY: this function's contract.
        unsafe { Self::named(pointer, "value") }
    }

    /// As [`Out::value`], for an argument with another name.
    ///
    /// # Safety
    ///
    /// As for [`Out::new`].
    #[inline]
    pub(crate) unsafe fn named(pointer: *mut braid_value, name: &'static str) -> Outcome<Self> {
        // SAFETY: this function's contract.
        let out = unsafe { Self::new(pointer, name) }?;
        // Data and length alone mark the absence of a value.
        // SAFETY: as above; no reference is created to memory that may be uninitialized.
        unsafe {
            (&raw mut (*pointer).data).write(std::ptr::null());
            (&raw mut (*pointer).len).write(0);
        }
        Ok(out)
    }

    /// Stores a copy of a value of the engine, in place of a previously stored value.
    #[inline(always)]
    pub(crate) fn put(&mut self, value: ValueRef<'_>) {
        self.clear();
        self.set_value(Value::of_stored(value));
    }

    /// Frees the stored value.
    #[inline(always)]
    fn clear(&mut self) {
        // SAFETY: `Out::value` and `set_value` initialized these fields.
        unsafe {
            if !(&raw const (*self.as_ptr()).data).read().is_null() {
                braid_value_free(self.as_ptr());
            }
        }
    }

    #[inline(always)]
    pub(crate) fn set_value(&mut self, value: Value) {
        let value = ManuallyDrop::new(value);
        // SAFETY: the value is read once, and then belongs to the caller.
        self.set(unsafe { ptr::read(&value.0) });
    }
}

/// Returns a value that was found to the caller.
#[inline]
pub(crate) fn give(mut out: Out<braid_value>, found: Option<Value>) -> braid_status {
    match found {
        Some(found) => {
            out.set_value(found);
            BRAID_OK
        }
        None => BRAID_NOT_FOUND,
    }
}

/// Whether a value was found. It has the size of a pointer, so that a function returns it, or a
/// failure, in registers.
#[derive(Clone, Copy)]
pub(crate) struct Found(usize);

impl Found {
    #[inline(always)]
    pub(crate) fn status(self) -> braid_status {
        match self.0 {
            0 => BRAID_NOT_FOUND,
            _ => BRAID_OK,
        }
    }
}

/// Result of a read that may have stored a value before it was known to be valid.
#[inline(always)]
pub(crate) fn found_in(
    mut out: Out<braid_value>,
    found: braid::Result<Option<()>>,
) -> Outcome<Found> {
    match found {
        Ok(Some(())) => Ok(Found(1)),
        Ok(None) => {
            out.clear();
            Ok(Found(0))
        }
        Err(error) => {
            out.clear();
            Err(error.into())
        }
    }
}

/// Frees a value and clears it, so that freeing it again has no effect. NULL is allowed and has no
/// effect.
///
/// # Safety
///
/// `value` is NULL, or points to a value that a function of this library has set or that is all
/// zeros, and of which no copy was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_value_free(value: *mut braid_value) {
    if value.is_null() {
        return;
    }
    // SAFETY: this function's contract. No reference is created, because without a value the other
    // fields may be uninitialized.
    let data = unsafe { (&raw const (*value).data).read() };
    if data.is_null() {
        return;
    }
    // SAFETY: this function's contract: an existing value was made here, and was not freed before.
    unsafe {
        let reserved = (&raw const (*value).reserved).read();
        (&raw mut (*value).data).write(ptr::null());
        (&raw mut (*value).len).write(0);
        free(data, reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(value: Value) -> braid_value {
        let mut place = std::mem::MaybeUninit::uninit();
        // SAFETY: there is room for a value, which is then set.
        unsafe {
            Out::value(place.as_mut_ptr()).unwrap().set_value(value);
            place.assume_init()
        }
    }

    #[test]
    fn a_value_is_freed_once_and_freeing_none_does_nothing() {
        for len in [0, 1, COPIED_MAX, COPIED_MAX + 1, 1 << 20] {
            let bytes = Bytes::from(vec![7; len]);
            let is_shared = len > COPIED_MAX;
            let mut value = given(Value::of_bytes(bytes.clone()));
            assert!(!value.data.is_null() && value.len == len);
            // SAFETY: it has so many bytes.
            let read = unsafe { std::slice::from_raw_parts(value.data.cast::<u8>(), value.len) };
            assert_eq!(read, bytes);
            let is_same = len > 0 && value.data == bytes.as_ptr().cast();
            assert_eq!(is_same, is_shared);
            for _ in 0..2 {
                // SAFETY: it is a value of `given`, then none.
                unsafe { braid_value_free(&mut value) };
                assert!(bytes.is_empty() || bytes.is_unique());
                assert!(value.data.is_null() && value.len == 0);
            }
        }
        // SAFETY: NULL is allowed.
        unsafe { braid_value_free(ptr::null_mut()) };
    }

    #[test]
    fn a_value_that_is_never_taken_is_freed() {
        let bytes = Bytes::from(vec![7; COPIED_MAX + 1]);
        let value = Value::of_bytes(bytes.clone());
        assert!(!bytes.is_unique());
        drop(value);
        assert!(bytes.is_unique());
        drop(Value::of_bytes(Bytes::new()));
    }
}
