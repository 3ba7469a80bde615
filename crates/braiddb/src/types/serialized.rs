//! Values that serde serializes, in the format of the crate `postcard`.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::types::{AsValue, Value};

/// Value of any type that serde serializes, stored in the format of
/// [postcard](https://docs.rs/postcard): compact, without names of fields.
///
/// The table's value type is called `postcard`, whatever `T` is, so opening the table with another
/// `T` is an [`Error::Decode`] at best. `derive(Value)` (feature `derive`) stores a name of the
/// type and refuses another one.
///
/// The format does not support later changes of `T`: adding, removing or moving a field changes the
/// encoding. To be able to change a type, store an enum with a variant for each version.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// use braid::{Database, Serde};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
/// struct Book {
///     title: String,
///     pages: Option<u32>,
/// }
///
/// # let db = Database::in_memory()?;
/// let books = db.open_table::<u64, Serde<Book>>("books")?;
/// let emma = Book { title: "Emma".into(), pages: Some(474) };
/// db.transact(|tx| tx.insert(&books, &1, &Serde(&emma)))?;
/// assert_eq!(db.get(&books, &1)?, Some(Serde(emma)));
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// Writing panics if `T`'s implementation of `Serialize` returns an error, as `to_string` does for
/// `Display`. Derived implementations return errors only for a sequence or map whose length serde
/// does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serde<T>(pub T);

impl<T: Serialize + DeserializeOwned + 'static> Value for Serde<T> {
    const TYPE_NAME: &'static str = "postcard";

    fn from_value_bytes(bytes: Bytes) -> Result<Self> {
        decode(Self::TYPE_NAME, &bytes).map(Self)
    }
}

impl<T: Serialize + DeserializeOwned + 'static> AsValue<Serde<T>> for Serde<T> {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        encode(&self.0, f)
    }
}

impl<T: Serialize + DeserializeOwned + 'static> AsValue<Serde<T>> for Serde<&T> {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        encode(self.0, f)
    }
}

/// Calls `f` with the encoded value.
///
/// # Panics
/// As [`Serde`].
pub fn encode<T: Serialize, R>(value: &T, f: impl FnOnce(&[u8]) -> R) -> R {
    let bytes = postcard::to_allocvec(value)
        .unwrap_or_else(|error| panic!("cannot serialize a value: {error}"));
    f(&bytes)
}

/// Decodes a value from all of `bytes`.
///
/// # Errors
/// [`Error::Decode`].
pub fn decode<T: DeserializeOwned>(type_name: &'static str, bytes: &[u8]) -> Result<T> {
    let failed = |reason: String| Error::Decode { type_name, reason };
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(failed(format!(
            "{} extra bytes follow the value",
            rest.len()
        ))),
        Err(error) => Err(failed(error.to_string())),
    }
}
