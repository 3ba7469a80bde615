//! Values on their way out, which are C's until it frees them.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

use braid::{Bytes, ValueRef};

use crate::boundary::Outcome;
use crate::memory::Out;
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};

/// A value that was read. Its bytes are the caller's until it calls `braid_value_free`, whatever happens to
/// the transaction, the snapshot or the database. It may be moved and copied like any struct; one of the
/// copies is to be freed.
#[repr(C)]
#[derive(Debug)]
pub struct braid_value {
    /// The first byte; never NULL if there is a value, also if that is empty; NULL if there is none.
    pub data: *const c_void,
    /// The number of bytes.
    pub len: usize,
    /// The library's.
    pub reserved: *mut c_void,
}

/// A value above this length that others refer to, too, is not copied.
const COPIED_MAX: usize = 4096;

/// The lowest bit of `reserved`, if what is above it is the capacity of a vector; if not, it points to [`Bytes`].
const VECTOR: usize = 1;

/// A value that nobody has taken yet.
pub(crate) struct Value(braid_value);

impl Value {
    /// A copy of a value of the engine's, or one more reference to it.
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
        // SAFETY: they are those of the value, and nobody has taken it.
        unsafe { free(self.0.data, self.0.reserved) }
    }
}

/// Frees what a [`Value`] has.
///
/// # Safety
/// They are the members of one, which nobody uses or frees afterwards.
#[inline(always)]
unsafe fn free(data: *const c_void, reserved: *mut c_void) {
    if reserved.addr() & VECTOR != 0 {
        let capacity = reserved.addr() >> 1;
        // SAFETY: `of_vec` let go of a vector with this buffer and capacity. Its bytes need no dropping.
        drop(unsafe { Vec::<u8>::from_raw_parts(data.cast_mut().cast(), 0, capacity) });
    } else {
        // SAFETY: this function's contract.
        unsafe { release(reserved) };
    }
}

/// # Safety
/// `bytes` came from `of_bytes`, and nobody uses them afterwards.
#[cold]
#[inline(never)]
unsafe fn release(bytes: *mut c_void) {
    // SAFETY: this function's contract.
    drop(unsafe { Box::<Bytes>::from_raw(bytes.cast()) });
}

impl Out<braid_value> {
    /// Puts a copy of a value of the engine's there, in the place of one that was put there before.
    #[inline(always)]
    pub(crate) fn put(&mut self, value: ValueRef<'_>) {
        self.clear();
        self.set_value(Value::of_stored(value));
    }

    /// Takes back what was put there.
    #[inline(always)]
    fn clear(&mut self) {
        // SAFETY: this is what `Out::value` and `set_value` left there.
        unsafe {
            if !(&raw const (*self.as_ptr()).data).read().is_null() {
                braid_value_free(self.as_ptr());
            }
        }
    }

    #[inline(always)]
    pub(crate) fn set_value(&mut self, value: Value) {
        let value = ManuallyDrop::new(value);
        // SAFETY: it is read once, and then the caller's.
        self.set(unsafe { ptr::read(&value.0) });
    }
}

/// Puts a value that was found where the caller wants it.
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

/// Whether a value was found. It is as large as a pointer, so that a function returns it, or a failure, in
/// registers.
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

/// What becomes of a read that put what it found where the caller wants it, maybe before it was sure.
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

/// Frees a value and sets it to no value, so that freeing it again does nothing; nor does freeing NULL.
///
/// # Safety
///
/// `value` is NULL, or points to a value that a function of this library has set or that is all zeros, and
/// of which no copy was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_value_free(value: *mut braid_value) {
    if value.is_null() {
        return;
    }
    // SAFETY: this function's contract. No reference is made: where there is no value the rest may not be initialized.
    let data = unsafe { (&raw const (*value).data).read() };
    if data.is_null() {
        return;
    }
    // SAFETY: this function's contract: a value that is not none was made here, and not freed before.
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
    fn a_value_that_nobody_takes_is_freed() {
        let bytes = Bytes::from(vec![7; COPIED_MAX + 1]);
        let value = Value::of_bytes(bytes.clone());
        assert!(!bytes.is_unique());
        drop(value);
        assert!(bytes.is_unique());
        drop(Value::of_bytes(Bytes::new()));
    }
}
