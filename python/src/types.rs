//! What the keys and values of a table are in Python, and their bytes.
//!
//! The names are those that the Rust types have in the catalog, so both languages open each other's tables.

use std::ops::{Deref, Range};

use braid::{AsKey, AsValue, Bytes, Key, Value};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyFloat, PyInt, PyMemoryView, PyString};

use crate::errors::{IntoPyResult, TableTypeError};

/// The type of a table's keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Bytes,
    String,
    U8,
    U16,
    U32,
    U64,
    U128,
    I8,
    I16,
    I32,
    I64,
    I128,
    F32,
    F64,
}

/// Calls a macro with all integer types.
macro_rules! for_integers {
    ($with:ident) => {
        $with! { U8 u8, U16 u16, U32 u32, U64 u64, U128 u128, I8 i8, I16 i16, I32 i32, I64 i64, I128 i128 }
    };
}

impl ColumnType {
    pub(crate) const NUMBERS: [Self; 12] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::U128,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::I128,
        Self::F32,
        Self::F64,
    ];

    /// The type's name in the catalog.
    pub(crate) fn name(self) -> &'static str {
        macro_rules! names {
            ($($variant:ident $type:ident),*) => {
                match self {
                    Self::Bytes => <Bytes as Key>::TYPE_NAME,
                    Self::String => <String as Key>::TYPE_NAME,
                    Self::F32 => <f32 as Value>::TYPE_NAME,
                    Self::F64 => <f64 as Value>::TYPE_NAME,
                    $(Self::$variant => <$type as Key>::TYPE_NAME,)*
                }
            };
        }
        for_integers!(names)
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// What a caller named: `bytes`, `str`, `int`, `float`, or a [`Type`].
    pub(crate) fn of_argument(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = argument.py();
        if let Ok(named) = argument.cast::<Type>() {
            return Ok(named.get().0);
        }
        for (class, column) in [
            (py.get_type::<PyBytes>(), Self::Bytes),
            (py.get_type::<PyString>(), Self::String),
            (py.get_type::<PyInt>(), Self::I64),
            (py.get_type::<PyFloat>(), Self::F64),
        ] {
            if argument.is(&class) {
                return Ok(column);
            }
        }
        Err(PyTypeError::new_err(format!(
            "{} is no type of a table: take bytes, str, int, float, or one of braid.u8 … braid.f64",
            argument.repr()?
        )))
    }

    /// As [`ColumnType::of_argument`], for keys.
    pub(crate) fn of_key_argument(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        let column = Self::of_argument(argument)?;
        if column.is_float() {
            return Err(PyTypeError::new_err(format!(
                "{} can't be the type of keys, only of values",
                column.name()
            )));
        }
        Ok(column)
    }
}

/// A number type of a fixed width, for tables: `braid.u64`.
#[pyclass(frozen, eq, hash, generic, module = "braid")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type(pub(crate) ColumnType);

impl std::hash::Hash for ColumnType {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (*self as u8).hash(state);
    }
}

#[pymethods]
impl Type {
    /// The name that the catalog has for it.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("braid.{}", self.0.name())
    }

    fn __reduce__(&self) -> String {
        self.0.name().to_owned()
    }
}

/// An encoded key or value.
pub(crate) enum Encoded<'a> {
    /// Of an immutable Python object.
    Borrowed(&'a [u8]),
    Short([u8; 16], u8),
    Owned(Vec<u8>),
}

impl Encoded<'_> {
    fn short(bytes: &[u8]) -> Self {
        let mut short = [0; 16];
        short[..bytes.len()].copy_from_slice(bytes);
        Self::Short(short, bytes.len() as u8)
    }
}

impl Deref for Encoded<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Short(bytes, len) => &bytes[..usize::from(*len)],
            Self::Owned(bytes) => bytes,
        }
    }
}

/// What a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    pub(crate) key: ColumnType,
    pub(crate) value: ColumnType,
}

#[derive(Clone, Copy)]
pub(crate) enum Role {
    Key,
    Value,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Key => "key",
            Role::Value => "value",
        }
    }
}

#[cold]
fn wrong_type(column: ColumnType, role: Role, given: &Bound<'_, PyAny>) -> PyErr {
    let wanted = match column {
        ColumnType::Bytes => "bytes",
        ColumnType::String => "str",
        ColumnType::F32 | ColumnType::F64 => "float",
        _ => "int",
    };
    let given = given.get_type();
    let given = given.name();
    let given = given
        .as_ref()
        .map_or(String::from("?"), |name| name.to_string());
    PyTypeError::new_err(format!(
        "a {} of this table is {wanted}, not {given}",
        role.name()
    ))
}

#[cold]
fn number_error(column: ColumnType, role: Role, given: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = given.py();
    if error.is_instance_of::<PyOverflowError>(py) {
        let (role, name) = (role.name(), column.name());
        return PyOverflowError::new_err(format!("the {role} is out of the range of {name}"));
    }
    if error.is_instance_of::<PyTypeError>(py) {
        return wrong_type(column, role, given);
    }
    error
}

fn encode<'a>(
    column: ColumnType,
    role: Role,
    object: &'a Bound<'_, PyAny>,
) -> PyResult<Encoded<'a>> {
    macro_rules! numbers {
        ($($variant:ident $type:ident),*) => {
            match column {
                ColumnType::Bytes => encode_bytes(role, object),
                ColumnType::String => match object.cast::<PyString>() {
                    Ok(string) => Ok(Encoded::Borrowed(string.to_str()?.as_bytes())),
                    Err(_) => Err(wrong_type(column, role, object)),
                },
                ColumnType::F32 => match object.extract::<f32>() {
                    Ok(number) => Ok(number.with_value_bytes(Encoded::short)),
                    Err(error) => Err(number_error(column, role, object, error)),
                },
                ColumnType::F64 => match object.extract::<f64>() {
                    Ok(number) => Ok(number.with_value_bytes(Encoded::short)),
                    Err(error) => Err(number_error(column, role, object, error)),
                },
                $(ColumnType::$variant => match (object.extract::<$type>(), role) {
                    (Ok(number), Role::Key) => Ok(AsKey::<$type>::with_key_bytes(&number, Encoded::short)),
                    (Ok(number), Role::Value) => Ok(number.with_value_bytes(Encoded::short)),
                    (Err(error), _) => Err(number_error(column, role, object, error)),
                },)*
            }
        };
    }
    for_integers!(numbers)
}

fn encode_bytes<'a>(role: Role, object: &'a Bound<'_, PyAny>) -> PyResult<Encoded<'a>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Encoded::Borrowed(bytes.as_bytes()));
    }
    // These can change while the interpreter's lock is not held.
    if let Ok(bytes) = object.cast::<PyByteArray>() {
        return Ok(Encoded::Owned(bytes.to_vec()));
    }
    if object.is_instance_of::<PyMemoryView>() {
        let bytes = object.call_method0("tobytes")?;
        return Ok(Encoded::Owned(bytes.cast::<PyBytes>()?.as_bytes().to_vec()));
    }
    Err(wrong_type(ColumnType::Bytes, role, object))
}

fn decode<'py>(
    py: Python<'py>,
    column: ColumnType,
    role: Role,
    bytes: Bytes,
) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! numbers {
        ($($variant:ident $type:ident),*) => {
            match column {
                ColumnType::Bytes => Ok(PyBytes::new(py, &bytes).into_any()),
                ColumnType::String => match std::str::from_utf8(&bytes) {
                    Ok(text) => Ok(PyString::new(py, text).into_any()),
                    // Fails, too, with the engine's words.
                    Err(_) => Ok(PyString::new(py, &<String as Value>::from_value_bytes(bytes).py()?).into_any()),
                },
                ColumnType::F32 => f32::from_value_bytes(bytes).py()?.into_bound_py_any(py),
                ColumnType::F64 => f64::from_value_bytes(bytes).py()?.into_bound_py_any(py),
                $(ColumnType::$variant => match role {
                    Role::Key => <$type as Key>::from_key_bytes(bytes).py()?.into_bound_py_any(py),
                    Role::Value => <$type as Value>::from_value_bytes(bytes).py()?.into_bound_py_any(py),
                },)*
            }
        };
    }
    use pyo3::IntoPyObjectExt;
    for_integers!(numbers)
}

impl Schema {
    /// What the catalog says, if there are Python types for it.
    pub(crate) fn of_names(key: &str, value: &str) -> PyResult<Self> {
        let find = |name: &str| {
            let strings = [ColumnType::Bytes, ColumnType::String];
            let mut all = strings.into_iter().chain(ColumnType::NUMBERS);
            all.find(|column| column.name() == name).ok_or_else(|| {
                TableTypeError::new_err(format!("there is nothing in Python for the type {name}"))
            })
        };
        Ok(Self {
            key: find(key)?,
            value: find(value)?,
        })
    }

    /// What a caller named, for bytes where nothing is named.
    pub(crate) fn of_arguments(
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            key: key.map_or(Ok(ColumnType::Bytes), ColumnType::of_key_argument)?,
            value: value.map_or(Ok(ColumnType::Bytes), ColumnType::of_argument)?,
        })
    }

    pub(crate) fn encode_key<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<Encoded<'a>> {
        encode(self.key, Role::Key, key)
    }

    pub(crate) fn encode_value<'a>(&self, value: &'a Bound<'_, PyAny>) -> PyResult<Encoded<'a>> {
        encode(self.value, Role::Value, value)
    }

    pub(crate) fn decode_key<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
    ) -> PyResult<Bound<'py, PyAny>> {
        decode(py, self.key, Role::Key, key)
    }

    /// A key or value that is a part of `bytes`: what Python copies anyway is not cut off before.
    pub(crate) fn decode_part<'py>(
        &self,
        py: Python<'py>,
        role: Role,
        bytes: &Bytes,
        part: Range<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let column = match role {
            Role::Key => self.key,
            Role::Value => self.value,
        };
        match column {
            ColumnType::Bytes => Ok(PyBytes::new(py, &bytes[part]).into_any()),
            _ => decode(py, column, role, bytes.slice(part)),
        }
    }

    pub(crate) fn decode_value<'py>(
        &self,
        py: Python<'py>,
        value: Bytes,
    ) -> PyResult<Bound<'py, PyAny>> {
        decode(py, self.value, Role::Value, value)
    }
}
