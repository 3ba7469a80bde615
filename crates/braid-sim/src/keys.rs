//! The keys of a history's table: numbers, some of which are long keys.

use braid::{AsKey, Bytes, Error};

use crate::record::Key;

/// The first long key. Smaller keys are stored as `u8`.
pub(crate) const LONG: Key = 128;

/// First bytes that all long keys share: more than a node stores of a key.
const SHARED: usize = 3_000;

/// Further bytes of every third long key, after the byte that distinguishes it.
const REST: usize = 2_500;

/// A key in the table's form, ordered by its number.
pub(crate) struct TableKey(pub(crate) Key);

impl braid::Key for TableKey {
    // A table of only short keys is unchanged.
    const TYPE_NAME: &'static str = "u8";

    fn from_key_bytes(bytes: Bytes) -> braid::Result<Self> {
        let key = match bytes.first() {
            Some(&key) if key < LONG => Some(key),
            _ => bytes.get(SHARED).copied(),
        };
        let is_one =
            |key: &Key| AsKey::<Self>::with_key_bytes(key, |expected| *expected == bytes[..]);
        let key = key.filter(is_one).ok_or_else(|| Error::Decode {
            type_name: "key of a history",
            reason: format!("{} bytes", bytes.len()),
        });
        key.map(Self)
    }
}

impl AsKey<TableKey> for Key {
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        if *self < LONG {
            return f(&[*self]);
        }
        let mut bytes = vec![LONG; SHARED];
        bytes.push(*self);
        if self.is_multiple_of(3) {
            bytes.resize(SHARED + 1 + REST, 7);
        }
        f(&bytes)
    }
}
