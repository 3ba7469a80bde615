//! How typed keys and values become bytes.
//!
//! A table `Table<K, V>` stores bytes. `K` and `V` say how they are read back ([`Key`], [`Value`]), and
//! everything that can stand for a `K` or a `V` in a call, borrowed forms included, implements [`AsKey`]
//! or [`AsValue`]: a `Table<String, Bytes>` takes `"abc"` and `b"..."`, a `Table<u64, u64>` takes `&7`.
//!
//! Key encodings keep order: comparing the encoded bytes compares the keys.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use bytes::Bytes;

use crate::error::{Error, Result};

/// A type that a table can be keyed by.
pub trait Key: Sized + 'static {
    /// The name that is stored with the table and compared when it is opened.
    const TYPE_NAME: &'static str;

    /// The key that `bytes` encode.
    ///
    /// # Errors
    /// [`Error::Decode`] if they encode none.
    fn from_key_bytes(bytes: Bytes) -> Result<Self>;
}

/// Something that stands for a key of type `K` in a call.
pub trait AsKey<K: Key> {
    /// Calls `f` with the encoded key.
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;
}

/// A type that a table can hold.
pub trait Value: Sized + 'static {
    /// The name that is stored with the table and compared when it is opened.
    const TYPE_NAME: &'static str;

    /// The value that `bytes` encode.
    ///
    /// # Errors
    /// [`Error::Decode`] if they encode none.
    fn from_value_bytes(bytes: Bytes) -> Result<Self>;
}

/// Something that stands for a value of type `V` in a call.
pub trait AsValue<V: Value> {
    /// Calls `f` with the encoded value.
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;
}

impl<K: Key, T: AsKey<K> + ?Sized> AsKey<K> for &T {
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_key_bytes(f)
    }
}

impl<V: Value, T: AsValue<V> + ?Sized> AsValue<V> for &T {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_value_bytes(f)
    }
}

fn wrong_length(type_name: &'static str, expected: usize, found: usize) -> Error {
    Error::Decode {
        type_name,
        reason: format!("{found} bytes instead of {expected}"),
    }
}

macro_rules! unsigned {
    ($($type:ident)*) => {$(
        impl Key for $type {
            const TYPE_NAME: &'static str = stringify!($type);

            fn from_key_bytes(bytes: Bytes) -> Result<Self> {
                let array = bytes[..].try_into();
                let array = array.map_err(|_| wrong_length(<Self as Key>::TYPE_NAME, size_of::<Self>(), bytes.len()))?;
                Ok(<$type>::from_be_bytes(array))
            }
        }

        impl AsKey<$type> for $type {
            #[inline]
            fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                f(&self.to_be_bytes())
            }
        }
    )*};
}
unsigned!(u8 u16 u32 u64 u128);

macro_rules! signed {
    ($($type:ident)*) => {$(
        impl Key for $type {
            const TYPE_NAME: &'static str = stringify!($type);

            fn from_key_bytes(bytes: Bytes) -> Result<Self> {
                let array = bytes[..].try_into();
                let array = array.map_err(|_| wrong_length(<Self as Key>::TYPE_NAME, size_of::<Self>(), bytes.len()))?;
                // The flipped sign bit puts negative numbers before the others in byte order.
                Ok(<$type>::from_be_bytes(array) ^ <$type>::MIN)
            }
        }

        impl AsKey<$type> for $type {
            #[inline]
            fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                f(&(*self ^ <$type>::MIN).to_be_bytes())
            }
        }
    )*};
}
signed!(i8 i16 i32 i64 i128);

macro_rules! integer_value {
    ($($type:ident)*) => {$(
        impl Value for $type {
            const TYPE_NAME: &'static str = stringify!($type);

            fn from_value_bytes(bytes: Bytes) -> Result<Self> {
                let array = bytes[..].try_into();
                let array = array.map_err(|_| wrong_length(<Self as Value>::TYPE_NAME, size_of::<Self>(), bytes.len()))?;
                Ok(<$type>::from_le_bytes(array))
            }
        }

        impl AsValue<$type> for $type {
            #[inline]
            fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                f(&self.to_le_bytes())
            }
        }
    )*};
}
integer_value!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

macro_rules! byte_strings {
    ($(($owned:ty, $name:literal): $($form:ty),*;)*) => {$(
        impl Key for $owned {
            const TYPE_NAME: &'static str = $name;

            fn from_key_bytes(bytes: Bytes) -> Result<Self> {
                <$owned as FromStored>::from_stored(bytes)
            }
        }

        impl Value for $owned {
            const TYPE_NAME: &'static str = $name;

            fn from_value_bytes(bytes: Bytes) -> Result<Self> {
                <$owned as FromStored>::from_stored(bytes)
            }
        }

        $(
            impl AsKey<$owned> for $form {
                #[inline]
                fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                    f(self.as_ref())
                }
            }

            impl AsValue<$owned> for $form {
                #[inline]
                fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                    f(self.as_ref())
                }
            }
        )*
    )*};
}
byte_strings! {
    (Bytes, "bytes"): Bytes, Vec<u8>, [u8], str, String;
    (Vec<u8>, "bytes"): Bytes, Vec<u8>, [u8];
    (String, "string"): String, str;
}

impl<const N: usize> AsKey<Bytes> for [u8; N] {
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(self)
    }
}

impl<const N: usize> AsValue<Bytes> for [u8; N] {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(self)
    }
}

impl<const N: usize> Key for [u8; N] {
    const TYPE_NAME: &'static str = "array";

    fn from_key_bytes(bytes: Bytes) -> Result<Self> {
        bytes[..]
            .try_into()
            .map_err(|_| wrong_length("array", N, bytes.len()))
    }
}

impl<const N: usize> AsKey<[u8; N]> for [u8; N] {
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(self)
    }
}

impl<const N: usize> Value for [u8; N] {
    const TYPE_NAME: &'static str = "array";

    fn from_value_bytes(bytes: Bytes) -> Result<Self> {
        bytes[..]
            .try_into()
            .map_err(|_| wrong_length("array", N, bytes.len()))
    }
}

impl<const N: usize> AsValue<[u8; N]> for [u8; N] {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(self)
    }
}

/// Owned types whose stored form is their bytes, as keys and as values.
trait FromStored: Sized {
    fn from_stored(bytes: Bytes) -> Result<Self>;
}

impl FromStored for Bytes {
    fn from_stored(bytes: Bytes) -> Result<Self> {
        Ok(bytes)
    }
}

impl FromStored for Vec<u8> {
    fn from_stored(bytes: Bytes) -> Result<Self> {
        Ok(bytes.into())
    }
}

impl FromStored for String {
    fn from_stored(bytes: Bytes) -> Result<Self> {
        String::from_utf8(bytes.into()).map_err(|e| Error::Decode {
            type_name: "string",
            reason: e.to_string(),
        })
    }
}

/// A range of keys: any of the standard ranges over something that is [`AsKey<K>`], or `..`.
pub trait KeyRange<K: Key> {
    /// The encoded bounds, lower and upper.
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);
}

fn encoded<K: Key>(key: &impl AsKey<K>) -> Vec<u8> {
    key.with_key_bytes(<[u8]>::to_vec)
}

impl<K: Key> KeyRange<K> for RangeFull {
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: Key, Q: AsKey<K>> KeyRange<K> for Range<Q> {
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (
            Bound::Included(encoded(&self.start)),
            Bound::Excluded(encoded(&self.end)),
        )
    }
}

impl<K: Key, Q: AsKey<K>> KeyRange<K> for RangeInclusive<Q> {
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (
            Bound::Included(encoded(self.start())),
            Bound::Included(encoded(self.end())),
        )
    }
}

impl<K: Key, Q: AsKey<K>> KeyRange<K> for RangeFrom<Q> {
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Included(encoded(&self.start)), Bound::Unbounded)
    }
}

impl<K: Key, Q: AsKey<K>> KeyRange<K> for RangeTo<Q> {
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Excluded(encoded(&self.end)))
    }
}

impl<K: Key, Q: AsKey<K>> KeyRange<K> for RangeToInclusive<Q> {
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Included(encoded(&self.end)))
    }
}

impl<K: Key, Q: AsKey<K>> KeyRange<K> for (Bound<Q>, Bound<Q>) {
    fn into_key_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (
            self.0.map(|key| encoded(&key)),
            self.1.map(|key| encoded(&key)),
        )
    }
}

/// The bounds of all keys that begin with `prefix`, for a range over a part of them.
///
/// ```
/// # use std::ops::Bound;
/// # fn main() -> braid::Result<()> {
/// use braid::{Bytes, Readable, Table};
///
/// # let db = braid::Database::in_memory()?;
/// let files: Table<Bytes, Bytes> = db.table("files")?;
/// # db.transact(|tx| ["a", "usr/bin", "usr/lib", "var"].iter().try_for_each(|f| tx.insert(&files, *f, b"")))?;
/// let (_, end) = braid::prefix_bounds(b"usr/");
/// let from = Bound::Excluded(b"usr/bin".to_vec());
/// let rest: Vec<_> = db.snapshot().range(&files, (from, end))?.collect::<Result<_, _>>()?;
/// assert_eq!(rest, [(Bytes::from("usr/lib"), Bytes::new())]);
/// # Ok(())
/// # }
/// ```
pub fn prefix_bounds(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut end = prefix.to_vec();
    // The first key after all of them: the prefix with its last byte below 0xff increased.
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (Bound::Included(prefix.to_vec()), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix.to_vec()), Bound::Unbounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_keys_keep_their_order() {
        let numbers = [i64::MIN, -70_000, -1, 0, 1, 70_000, i64::MAX];
        let mut encoded: Vec<Vec<u8>> = numbers
            .iter()
            .map(|n| n.with_key_bytes(<[u8]>::to_vec))
            .collect();
        let sorted = encoded.clone();
        encoded.sort();
        assert_eq!(encoded, sorted);
        for (n, bytes) in numbers.iter().zip(encoded) {
            assert_eq!(i64::from_key_bytes(bytes.into()).unwrap(), *n);
        }
    }

    #[test]
    fn a_prefix_of_high_bytes_has_no_upper_bound() {
        assert_eq!(prefix_bounds(&[0xff, 0xff]).1, Bound::Unbounded);
        assert_eq!(prefix_bounds(&[1, 0xff]).1, Bound::Excluded(vec![2]));
        assert_eq!(prefix_bounds(&[]).1, Bound::Unbounded);
    }

    #[test]
    fn bytes_of_another_length_are_a_typed_error() {
        let error = <u64 as Key>::from_key_bytes(Bytes::from_static(b"abc")).unwrap_err();
        assert!(matches!(
            error,
            Error::Decode {
                type_name: "u64",
                ..
            }
        ));
        assert!(String::from_value_bytes(Bytes::from_static(&[0xff])).is_err());
    }
}
