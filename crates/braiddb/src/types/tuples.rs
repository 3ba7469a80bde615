//! Keys of several parts.
//!
//! A tuple's encoding concatenates its parts' encodings, so tuples are ordered by their parts. A
//! part that is not the last and has no [`Key::FIXED_LEN`] ends with two zero bytes, and `0xff`
//! follows each zero byte inside it. So `"a"` comes before `"ab"` whatever follows, and before
//! `"a\0"`.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::types::{AsKey, Key};

/// Prefix of encoded keys of type `K`: any argument for a key, taken as its encoded bytes, or the
/// first parts of a tuple. Its encoded bytes are those of [`KeyPrefix::with_prefix_bytes`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::{Readable, Table};
///
/// let people: Table<(String, u32), String> = db.open_table("people by city")?;
/// db.transact(|tx| {
///     tx.insert(&people, &("London", 1), "Ada")?;
///     tx.insert(&people, &("London", 3), "Alan")?;
///     tx.insert(&people, &("Londonderry", 2), "Amy")
/// })?;
/// let snapshot = db.snapshot();
/// assert_eq!(snapshot.prefix(&people, &("London",))?.count(), 2); // of this city
/// assert_eq!(snapshot.get(&people, &("Londonderry", 2))?.as_deref(), Some("Amy"));
/// # Ok(())
/// # }
/// ```
pub trait KeyPrefix<K: Key> {
    /// Calls `f` with the encoded prefix.
    fn with_prefix_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;
}

impl<K: Key, Q: AsKey<K> + ?Sized> KeyPrefix<K> for Q {
    fn with_prefix_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        self.with_key_bytes(f)
    }
}

const ESCAPE: u8 = 0xff;

/// Appends a part that is not the last.
pub fn put_part<K: Key>(part: &(impl AsKey<K> + ?Sized), out: &mut Vec<u8>) {
    part.with_key_bytes(|bytes| {
        if K::FIXED_LEN.is_some() {
            return out.extend_from_slice(bytes);
        }
        for &byte in bytes {
            out.push(byte);
            if byte == 0 {
                out.push(ESCAPE);
            }
        }
        out.extend([0, 0]);
    });
}

/// Appends the last part.
pub fn put_last<K: Key>(part: &(impl AsKey<K> + ?Sized), out: &mut Vec<u8>) {
    part.with_key_bytes(|bytes| out.extend_from_slice(bytes));
}

fn broken() -> Error {
    Error::Decode {
        type_name: "tuple",
        reason: "a part has no end".into(),
    }
}

/// Removes a part that is not the last from the front of a tuple.
///
/// # Errors
/// [`Error::Decode`].
pub fn take_part<K: Key>(bytes: &mut Bytes) -> Result<K> {
    if let Some(len) = K::FIXED_LEN {
        if bytes.len() < len {
            return Err(broken());
        }
        return K::from_key_bytes(bytes.split_to(len));
    }
    let mut part = Vec::new();
    let mut at = 0;
    loop {
        let zero = bytes[at..].iter().position(|byte| *byte == 0);
        let zero = at + zero.ok_or_else(broken)?;
        part.extend_from_slice(&bytes[at..zero]);
        match bytes.get(zero + 1) {
            Some(&ESCAPE) => part.push(0),
            Some(0) => {
                let _ = bytes.split_to(zero + 2);
                return K::from_key_bytes(part.into());
            }
            _ => return Err(broken()),
        }
        at = zero + 2;
    }
}

/// Returns the length of a tuple whose parts have these lengths, if every part has one.
pub const fn sum(parts: &[Option<usize>]) -> Option<usize> {
    let mut sum = 0;
    let mut i = 0;
    while i < parts.len() {
        match parts[i] {
            Some(len) => sum += len,
            None => return None,
        }
        i += 1;
    }
    Some(sum)
}

/// Returns the type name of a tuple from those of its parts; a single part is not a tuple.
pub fn tuple_name(parts: &[String]) -> String {
    match parts {
        [part] => part.clone(),
        parts => format!("({})", parts.join(", ")),
    }
}

macro_rules! tuple {
    ($(($part:ident, $form:ident, $at:tt)),+; $last:ident, $last_form:ident, $last_at:tt) => {
        impl<$($part: Key,)+ $last: Key> Key for ($($part,)+ $last,) {
            const TYPE_NAME: &'static str = "tuple";
            const FIXED_LEN: Option<usize> = sum(&[$($part::FIXED_LEN,)+ $last::FIXED_LEN]);

            fn type_name() -> String {
                tuple_name(&[$($part::type_name(),)+ $last::type_name()])
            }

            fn from_key_bytes(mut bytes: Bytes) -> Result<Self> {
                Ok(($(take_part::<$part>(&mut bytes)?,)+ $last::from_key_bytes(bytes)?,))
            }
        }

        impl<$($part: Key,)+ $last: Key, $($form: AsKey<$part>,)+ $last_form: AsKey<$last>>
            AsKey<($($part,)+ $last,)> for ($($form,)+ $last_form,)
        {
            fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                let mut bytes = Vec::new();
                $(put_part::<$part>(&self.$at, &mut bytes);)+
                put_last::<$last>(&self.$last_at, &mut bytes);
                f(&bytes)
            }
        }
    };
}

tuple!((A, P, 0); B, Q, 1);
tuple!((A, P, 0), (B, Q, 1); C, S, 2);
tuple!((A, P, 0), (B, Q, 1), (C, S, 2); D, T, 3);

macro_rules! prefix {
    ($(($part:ident, $form:ident, $at:tt)),+; $($rest:ident),+) => {
        impl<$($part: Key,)+ $($rest: Key,)+ $($form: AsKey<$part>,)+>
            KeyPrefix<($($part,)+ $($rest,)+)> for ($($form,)+)
        {
            fn with_prefix_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                let mut bytes = Vec::new();
                $(put_part::<$part>(&self.$at, &mut bytes);)+
                f(&bytes)
            }
        }
    };
}

prefix!((A, P, 0); B);
prefix!((A, P, 0); B, C);
prefix!((A, P, 0), (B, Q, 1); C);
prefix!((A, P, 0); B, C, D);
prefix!((A, P, 0), (B, Q, 1); C, D);
prefix!((A, P, 0), (B, Q, 1), (C, S, 2); D);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded<K: Key>(key: &impl AsKey<K>) -> Bytes {
        key.with_key_bytes(Bytes::copy_from_slice)
    }

    type Parts = (Vec<u8>, i16, Vec<u8>, Vec<u8>);

    fn parts() -> impl Strategy<Value = Parts> {
        let bytes = || prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 0..5);
        (bytes(), -2i16..3, bytes(), bytes())
    }

    proptest! {
        #[test]
        fn tuples_keep_the_order_of_their_parts(a in parts(), b in parts()) {
            let (x, y) = (encoded::<Parts>(&a), encoded::<Parts>(&b));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(Parts::from_key_bytes(x).unwrap(), a.clone());
            // A tuple nested in another.
            type Nested = (Parts, u8);
            let (x, y) = (encoded::<Nested>(&(a.clone(), 1u8)), encoded::<Nested>(&(b.clone(), 0u8)));
            prop_assert_eq!(x.cmp(&y), (&a, 1).cmp(&(&b, 0)));
            prop_assert_eq!(Nested::from_key_bytes(x).unwrap(), (a, 1));
        }

        #[test]
        fn a_prefix_is_of_the_keys_with_these_parts(a in parts(), b in parts()) {
            let key = encoded::<Parts>(&a);
            let begins = |prefix: Vec<u8>| key.starts_with(&prefix);
            let one = KeyPrefix::<Parts>::with_prefix_bytes(&(&b.0,), <[u8]>::to_vec);
            prop_assert_eq!(begins(one), a.0 == b.0);
            let two = KeyPrefix::<Parts>::with_prefix_bytes(&(&b.0, b.1), <[u8]>::to_vec);
            prop_assert_eq!(begins(two), (&a.0, a.1) == (&b.0, b.1));
        }

        #[test]
        fn nonsense_is_an_error(bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..20)) {
            let _ = Parts::from_key_bytes(bytes.into());
        }
    }

    #[test]
    fn names_and_lengths_are_those_of_the_parts() {
        type Fixed = (u32, [u8; 3], bool);
        assert_eq!(Fixed::FIXED_LEN, Some(8));
        assert_eq!(Fixed::type_name(), "(u32, [u8; 3], bool)");
        assert_eq!(<(String, Fixed)>::FIXED_LEN, None);
        assert_eq!(
            encoded::<Fixed>(&(1u32, [2; 3], true))[..],
            [0, 0, 0, 1, 2, 2, 2, 1]
        );
    }
}
