//! Encodings of typed keys and values.
//!
//! A table `Table<K, V>` stores bytes. `K` and `V` define how the bytes are decoded ([`Key`],
//! [`Value`]). Every type that a call accepts in place of a `K` or a `V`, including borrowed forms,
//! implements [`AsKey`] or [`AsValue`]: a `Table<String, Bytes>` takes `"abc"` and `b"..."`, a
//! `Table<u64, u64>` takes `&7`.
//!
//! Key encodings preserve order: comparing the encoded bytes compares the keys.

#[cfg(feature = "serde")]
pub(crate) mod serialized;
pub(crate) mod tuples;

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use bytes::Bytes;

use crate::error::{Error, Result};

/// Type of a table's keys.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::{AsKey, AsValue, Bytes, Error, Key, Result, Value};
///
/// /// Kept in the order of the fields.
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct Place {
///     floor: u8,
///     room: u16,
/// }
///
/// impl Key for Place {
///     const TYPE_NAME: &'static str = "place";
///     const FIXED_LEN: Option<usize> = Some(3);
///
///     fn from_key_bytes(bytes: Bytes) -> Result<Self> {
///         match bytes[..] {
///             [floor, high, low] => Ok(Place { floor, room: u16::from_be_bytes([high, low]) }),
///             _ => Err(Error::Decode { type_name: "place", reason: "not three bytes".into() }),
///         }
///     }
/// }
///
/// impl AsKey<Place> for Place {
///     fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
///         let [high, low] = self.room.to_be_bytes();
///         f(&[self.floor, high, low])
///     }
/// }
///
/// let people = db.open_table::<Place, String>("people")?;
/// db.transact(|tx| tx.insert(&people, &Place { floor: 1, room: 7 }, "Ada"))?;
/// assert_eq!(db.get(&people, &Place { floor: 1, room: 7 })?.as_deref(), Some("Ada"));
/// assert_eq!(<(Place, u64)>::type_name(), "(place, u64)"); // of a tuple with it
/// # Ok(())
/// # }
/// ```
pub trait Key: Sized + 'static {
    /// The name that is stored with the table and compared when it is opened.
    const TYPE_NAME: &'static str;

    /// The length of every encoded key, if all keys have the same length: a tuple then needs no
    /// terminator after the key.
    const FIXED_LEN: Option<usize> = None;

    /// Returns the full name, for types composed of others, where a constant is not enough.
    fn type_name() -> String {
        Self::TYPE_NAME.to_owned()
    }

    /// Decodes a key.
    ///
    /// # Errors
    /// [`Error::Decode`] if the bytes are not a valid encoding.
    fn from_key_bytes(bytes: Bytes) -> Result<Self>;
}

/// Argument that can be passed as a key of type `K`.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// // A table keyed by strings takes whatever holds one.
/// let ages = db.open_table::<String, u8>("ages")?;
/// db.transact(|tx| tx.insert(&ages, "Ada", &36))?;
/// assert_eq!(db.get(&ages, &String::from("Ada"))?, Some(36));
/// # Ok(())
/// # }
/// ```
pub trait AsKey<K: Key> {
    /// Calls `f` with the encoded key.
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;
}

/// Type of a table's values. The name of the type, [`Value::type_name`], is stored with the table.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::{AsValue, Bytes, Error, Result, Value};
///
/// #[derive(Debug, PartialEq)]
/// struct Colour([u8; 3]);
///
/// impl Value for Colour {
///     const TYPE_NAME: &'static str = "colour";
///
///     fn from_value_bytes(bytes: Bytes) -> Result<Self> {
///         let reason = || format!("{} bytes", bytes.len());
///         let rgb = bytes[..].try_into();
///         rgb.map(Colour).map_err(|_| Error::Decode { type_name: "colour", reason: reason() })
///     }
/// }
///
/// impl AsValue<Colour> for Colour {
///     fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
///         f(&self.0)
///     }
/// }
///
/// let colours = db.open_table::<String, Colour>("colours")?;
/// db.transact(|tx| tx.insert(&colours, "red", &Colour([255, 0, 0])))?;
/// assert_eq!(db.get(&colours, "red")?, Some(Colour([255, 0, 0])));
/// # Ok(())
/// # }
/// ```
pub trait Value: Sized + 'static {
    /// The name that is stored with the table and compared when it is opened.
    const TYPE_NAME: &'static str;

    /// Returns the full name, for types composed of others, where a constant is not enough.
    fn type_name() -> String {
        Self::TYPE_NAME.to_owned()
    }

    /// Decodes a value.
    ///
    /// # Errors
    /// [`Error::Decode`] if the bytes are not a valid encoding.
    fn from_value_bytes(bytes: Bytes) -> Result<Self>;
}

/// Argument that can be passed as a value of type `V`.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::Bytes;
/// let blobs = db.open_table::<u32, Bytes>("blobs")?;
/// db.transact(|tx| {
///     tx.insert(&blobs, &1, "a string")?;
///     tx.insert(&blobs, &2, b"a byte string")?;
///     tx.insert(&blobs, &3, &vec![1, 2, 3])
/// })?;
/// # Ok(())
/// # }
/// ```
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
            const FIXED_LEN: Option<usize> = Some(size_of::<Self>());

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
            const FIXED_LEN: Option<usize> = Some(size_of::<Self>());

            fn from_key_bytes(bytes: Bytes) -> Result<Self> {
                let array = bytes[..].try_into();
                let array = array.map_err(|_| wrong_length(<Self as Key>::TYPE_NAME, size_of::<Self>(), bytes.len()))?;
                // The flipped sign bit orders negative numbers before the others.
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
    const FIXED_LEN: Option<usize> = Some(N);

    fn type_name() -> String {
        format!("[u8; {N}]")
    }

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

    fn type_name() -> String {
        format!("[u8; {N}]")
    }

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

fn decode_bool(bytes: &[u8]) -> Result<bool> {
    match bytes {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(Error::Decode {
            type_name: "bool",
            reason: "the byte is neither 0 nor 1".into(),
        }),
    }
}

impl Key for bool {
    const TYPE_NAME: &'static str = "bool";
    const FIXED_LEN: Option<usize> = Some(1);

    fn from_key_bytes(bytes: Bytes) -> Result<Self> {
        decode_bool(&bytes)
    }
}

impl AsKey<bool> for bool {
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&[u8::from(*self)])
    }
}

impl Value for bool {
    const TYPE_NAME: &'static str = "bool";

    fn from_value_bytes(bytes: Bytes) -> Result<Self> {
        decode_bool(&bytes)
    }
}

impl AsValue<bool> for bool {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&[u8::from(*self)])
    }
}

/// For tables that are sets of keys.
impl Value for () {
    const TYPE_NAME: &'static str = "()";

    fn from_value_bytes(bytes: Bytes) -> Result<Self> {
        if bytes.is_empty() {
            Ok(())
        } else {
            Err(wrong_length("()", 0, bytes.len()))
        }
    }
}

impl AsValue<()> for () {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&[])
    }
}

/// Owned types whose encoding, as key and as value, is their bytes.
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

/// Range of keys: any standard range over [`AsKey<K>`], or `..`. Its encoded bounds are
/// [`KeyRange::into_key_bounds`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// use braid::Readable;
/// let snapshot = db.snapshot();
/// snapshot.range(&t, ..)?;
/// snapshot.range(&t, 3..)?;
/// snapshot.range(&t, 3..=7)?;
/// # Ok(())
/// # }
/// ```
pub trait KeyRange<K: Key> {
    /// Returns the encoded lower and upper bounds.
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

/// Returns the bounds of all keys that begin with `prefix`, to build a range over a part of them.
///
/// ```
/// # use std::ops::Bound;
/// # fn main() -> braid::Result<()> {
/// use braid::{Bytes, Readable, Table};
///
/// # let db = braid::Database::in_memory()?;
/// let files: Table<Bytes, Bytes> = db.open_table("files")?;
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
    // The first key after the prefix: the prefix with its last byte below 0xff incremented.
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
