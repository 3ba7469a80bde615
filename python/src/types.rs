//! Types of keys and values in Python, and their encoding.
//!
//! Their names are those of the Rust types in the catalog, so each language can open the other's
//! tables.

use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::{Mutex, PoisonError};

use braid::derive::{put_part, sum, take_part, tuple_name};
use braid::{AsKey, AsValue, Bytes, Key, Value};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyMemoryView, PyNone, PyString, PyTuple,
};

use crate::errors::{IntoPyResult, TableTypeError};

/// The type of a table's keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ColumnType {
    Bytes,
    String,
    Bool,
    /// For values only.
    Unit,
    /// For keys only.
    Tuple(Parts),
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

/// Types of a tuple's parts; at least two.
pub(crate) type Parts = &'static [ColumnType];

/// Returns the list of these parts, which is allocated once and lives forever: a program has few.
fn interned(parts: Vec<ColumnType>) -> Parts {
    static ALL: Mutex<Vec<Parts>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.iter().find(|known| known[..] == parts[..]) {
        return known;
    }
    let parts: Parts = Vec::leak(parts);
    all.push(parts);
    parts
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

    /// Returns the type's name in the catalog.
    pub(crate) fn name(self) -> Cow<'static, str> {
        macro_rules! names {
            ($($variant:ident $type:ident),*) => {
                match self {
                    Self::Bytes => <Bytes as Key>::TYPE_NAME,
                    Self::String => <String as Key>::TYPE_NAME,
                    Self::Bool => <bool as Key>::TYPE_NAME,
                    Self::Unit => <() as Value>::TYPE_NAME,
                    Self::Tuple(parts) => {
                        let names = parts.iter().map(|part| part.name().into_owned());
                        return tuple_name(&names.collect::<Vec<_>>()).into();
                    }
                    Self::F32 => <f32 as Value>::TYPE_NAME,
                    Self::F64 => <f64 as Value>::TYPE_NAME,
                    $(Self::$variant => <$type as Key>::TYPE_NAME,)*
                }
            };
        }
        Cow::Borrowed(for_integers!(names))
    }

    /// Returns the type with a name in the catalog, if Python has it.
    fn of_name(name: &str) -> Option<Self> {
        if let Some(inner) = name.strip_prefix('(').and_then(|n| n.strip_suffix(')'))
            && !inner.is_empty()
        {
            let parts: Option<Vec<_>> = parts_of(inner).map(Self::of_name).collect();
            let parts = parts.filter(|parts| parts.len() > 1)?;
            let is_key = parts.iter().all(|part| part.is_key());
            return is_key.then(|| Self::Tuple(interned(parts)));
        }
        let others = [Self::Bytes, Self::String, Self::Bool, Self::Unit];
        let mut all = others.into_iter().chain(Self::NUMBERS);
        all.find(|column| column.name() == name)
    }

    /// Returns the length of an encoded key, if it is the same for all keys.
    fn fixed_len(self) -> Option<usize> {
        macro_rules! lengths {
            ($($variant:ident $type:ident),*) => {
                match self {
                    Self::Bytes | Self::String | Self::Unit | Self::F32 | Self::F64 => None,
                    Self::Bool => <bool as Key>::FIXED_LEN,
                    Self::Tuple(parts) => {
                        sum(&parts.iter().map(|part| part.fixed_len()).collect::<Vec<_>>())
                    }
                    $(Self::$variant => <$type as Key>::FIXED_LEN,)*
                }
            };
        }
        for_integers!(lengths)
    }

    /// Returns whether keys can have this type.
    fn is_key(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::Unit)
    }

    /// Returns the type for an argument: `bytes`, `str`, `int`, `bool`, `float`, `type(None)`,
    /// `tuple[...]` of these, or a [`Type`].
    pub(crate) fn of_argument(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = argument.py();
        if let Ok(named) = argument.cast::<Type>() {
            return Ok(named.get().0);
        }
        for (class, column) in [
            (py.get_type::<PyBytes>(), Self::Bytes),
            (py.get_type::<PyString>(), Self::String),
            (py.get_type::<PyBool>(), Self::Bool),
            (py.get_type::<PyNone>(), Self::Unit),
            (py.get_type::<PyInt>(), Self::I64),
            (py.get_type::<PyFloat>(), Self::F64),
        ] {
            if argument.is(&class) {
                return Ok(column);
            }
        }
        if let Ok(origin) = argument.getattr("__origin__")
            && origin.is(py.get_type::<PyTuple>())
        {
            return Self::tuple(argument.getattr("__args__")?.cast::<PyTuple>()?);
        }
        Err(PyTypeError::new_err(format!(
            "{} is not a type of a table: use bytes, str, int, bool, float, type(None), a tuple of these like \
             tuple[str, int], or one of braid.u8 … braid.f64",
            argument.repr()?
        )))
    }

    /// Returns the tuple type with these parts.
    fn tuple(parts: &Bound<'_, PyTuple>) -> PyResult<Self> {
        if parts.len() < 2 {
            return Err(PyTypeError::new_err(
                "a tuple type must have at least two parts",
            ));
        }
        let parts = parts.iter().map(|part| Self::of_key_argument(&part));
        Ok(Self::Tuple(interned(parts.collect::<PyResult<_>>()?)))
    }

    /// As [`ColumnType::of_argument`], for values.
    fn of_value_argument(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        match Self::of_argument(argument)? {
            Self::Tuple(_) => Err(PyTypeError::new_err(
                "a tuple can't be the type of values, only of keys",
            )),
            column => Ok(column),
        }
    }

    /// As [`ColumnType::of_argument`], for keys.
    pub(crate) fn of_key_argument(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        let column = Self::of_argument(argument)?;
        if !column.is_key() {
            return Err(PyTypeError::new_err(format!(
                "{} can't be the type of keys, only of values",
                column.name()
            )));
        }
        Ok(column)
    }
}

/// Splits the name of a tuple type, without its parentheses, into its parts.
fn parts_of(names: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    names
        .split(move |c| {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        })
        .map(str::trim)
}

/// A type of keys or values that has no Python class: a number of a fixed width, such as braid.u64,
/// or a tuple, such as braid.tuple_of(str, braid.u64).
#[pyclass(frozen, eq, hash, generic, module = "braid")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type(pub(crate) ColumnType);

/// Returns the type of keys that are tuples of these types. Unlike tuple[str, int], it accepts
/// braid's number types.
#[pyfunction]
#[pyo3(signature = (*parts))]
pub(crate) fn tuple_of(parts: &Bound<'_, PyTuple>) -> PyResult<Type> {
    ColumnType::tuple(parts).map(Type)
}

/// Returns the Python object that names a column's type.
pub(crate) fn class_of(py: Python<'_>, column: ColumnType) -> PyResult<Bound<'_, PyAny>> {
    Ok(match column {
        ColumnType::Bytes => py.get_type::<PyBytes>().into_any(),
        ColumnType::String => py.get_type::<PyString>().into_any(),
        ColumnType::Bool => py.get_type::<PyBool>().into_any(),
        ColumnType::Unit => py.get_type::<PyNone>().into_any(),
        ColumnType::I64 => py.get_type::<PyInt>().into_any(),
        ColumnType::F64 => py.get_type::<PyFloat>().into_any(),
        ColumnType::Tuple(_) => Bound::new(py, Type(column))?.into_any(),
        // Return the module's object: pickle compares identities.
        number => py.import("braid._braid")?.getattr(&*number.name())?,
    })
}

#[pymethods]
impl Type {
    /// Name of the type in the catalog.
    #[getter]
    fn name(&self) -> Cow<'static, str> {
        self.0.name()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let ColumnType::Tuple(parts) = self.0 else {
            return Ok(format!("braid.{}", self.0.name()));
        };
        let mut names = Vec::new();
        for part in parts {
            let class = class_of(py, *part)?;
            let name = class
                .getattr("__name__")
                .or_else(|_| class.repr().map(Bound::into_any))?;
            names.push(name.to_string());
        }
        Ok(format!("braid.tuple_of({})", names.join(", ")))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ColumnType::Tuple(parts) = self.0 else {
            return Ok(PyString::new(py, &self.0.name()).into_any());
        };
        let classes: PyResult<Vec<_>> = parts.iter().map(|part| class_of(py, *part)).collect();
        let make = py.import("braid")?.getattr("tuple_of")?;
        Ok(PyTuple::new(py, [make, PyTuple::new(py, classes?)?.into_any()])?.into_any())
    }
}

/// An encoded key or value.
pub(crate) enum Encoded<'a> {
    /// Borrowed from an immutable Python object.
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

/// Types of a table.
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
        ColumnType::Bool => "bool",
        ColumnType::Unit => "None",
        ColumnType::Tuple(_) => "tuple",
        ColumnType::F32 | ColumnType::F64 => "float",
        _ => "int",
    };
    let given = given.get_type();
    let given = given.name();
    let given = given
        .as_ref()
        .map_or(String::from("?"), |name| name.to_string());
    PyTypeError::new_err(format!(
        "a {} of this table must be {wanted}, not {given}",
        role.name()
    ))
}

#[cold]
fn number_error(column: ColumnType, role: Role, given: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = given.py();
    if error.is_instance_of::<PyOverflowError>(py) {
        let (role, name) = (role.name(), column.name());
        return PyOverflowError::new_err(format!("the {role} is out of range for {name}"));
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
                ColumnType::Bool => match object.cast::<PyBool>() {
                    Ok(truth) => Ok(Encoded::short(&[u8::from(truth.is_true())])),
                    Err(_) => Err(wrong_type(column, role, object)),
                },
                ColumnType::Unit if object.is_none() => Ok(Encoded::short(&[])),
                ColumnType::Unit => Err(wrong_type(column, role, object)),
                ColumnType::Tuple(parts) => encode_tuple(column, parts, object),
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

/// Appends a part of a tuple that is not the last one.
fn encode_part(column: ColumnType, part: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> PyResult<()> {
    let encoded = encode(column, Role::Key, part)?;
    match column.fixed_len() {
        Some(_) => out.extend_from_slice(&encoded),
        None => put_part::<Bytes>(&encoded[..], out),
    }
    Ok(())
}

fn encode_tuple<'a>(
    column: ColumnType,
    parts: Parts,
    object: &Bound<'_, PyAny>,
) -> PyResult<Encoded<'a>> {
    let tuple = object.cast::<PyTuple>();
    let tuple = tuple.map_err(|_| wrong_type(column, Role::Key, object))?;
    let (Some((last, others)), true) = (parts.split_last(), tuple.len() == parts.len()) else {
        return Err(PyTypeError::new_err(format!(
            "a key of this table must have {} parts, not {}",
            parts.len(),
            tuple.len()
        )));
    };
    let mut bytes = Vec::new();
    for (column, part) in others.iter().zip(tuple.iter()) {
        encode_part(*column, &part, &mut bytes)?;
    }
    bytes.extend_from_slice(&encode(*last, Role::Key, &tuple.get_item(others.len())?)?);
    Ok(Encoded::Owned(bytes))
}

fn decode_tuple<'py>(
    py: Python<'py>,
    parts: Parts,
    mut bytes: Bytes,
) -> PyResult<Bound<'py, PyAny>> {
    let mut decoded = Vec::with_capacity(parts.len());
    for (i, column) in parts.iter().enumerate() {
        let part = match column.fixed_len() {
            _ if i + 1 == parts.len() => std::mem::take(&mut bytes),
            Some(len) => bytes.split_to(len.min(bytes.len())),
            None => take_part::<Bytes>(&mut bytes).py()?,
        };
        decoded.push(decode(py, *column, Role::Key, part)?);
    }
    Ok(PyTuple::new(py, decoded)?.into_any())
}

fn encode_bytes<'a>(role: Role, object: &'a Bound<'_, PyAny>) -> PyResult<Encoded<'a>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Encoded::Borrowed(bytes.as_bytes()));
    }
    // These can change while the interpreter's lock is released.
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
                    // Fails as well, with the engine's message.
                    Err(_) => Ok(PyString::new(py, &<String as Value>::from_value_bytes(bytes).py()?).into_any()),
                },
                ColumnType::Bool => <bool as Key>::from_key_bytes(bytes).py()?.into_bound_py_any(py),
                ColumnType::Unit => {
                    <() as Value>::from_value_bytes(bytes).py()?;
                    Ok(py.None().into_bound(py))
                }
                ColumnType::Tuple(parts) => decode_tuple(py, parts, bytes),
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
    /// Returns the schema for type names of the catalog, if Python has the types.
    pub(crate) fn of_names(key: &str, value: &str) -> PyResult<Self> {
        let find = |name: &str| {
            ColumnType::of_name(name).ok_or_else(|| {
                TableTypeError::new_err(format!(
                    "cannot open the table in Python: its type {name} has no Python equivalent"
                ))
            })
        };
        Ok(Self {
            key: find(key)?,
            value: find(value)?,
        })
    }

    /// Returns the schema for the caller's arguments; the default is bytes.
    pub(crate) fn of_arguments(
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            key: key.map_or(Ok(ColumnType::Bytes), ColumnType::of_key_argument)?,
            value: value.map_or(Ok(ColumnType::Bytes), ColumnType::of_value_argument)?,
        })
    }

    pub(crate) fn encode_key<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<Encoded<'a>> {
        encode(self.key, Role::Key, key)
    }

    /// Encodes the common prefix of the keys that begin with these parts, or with this string.
    pub(crate) fn encode_prefix(&self, prefix: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        match self.key {
            ColumnType::Bytes | ColumnType::String => Ok(self.encode_key(prefix)?.to_vec()),
            ColumnType::Tuple(parts) => {
                let given = prefix.cast::<PyTuple>();
                let given = given.map_err(|_| wrong_type(self.key, Role::Key, prefix))?;
                if given.len() >= parts.len() {
                    return Ok(self.encode_key(prefix)?.to_vec());
                }
                let mut bytes = Vec::new();
                for (column, part) in parts.iter().zip(given.iter()) {
                    encode_part(*column, &part, &mut bytes)?;
                }
                Ok(bytes)
            }
            _ => Err(PyTypeError::new_err(
                "only keys that are bytes, str or tuples have prefixes; use range()",
            )),
        }
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

    /// Decodes a key or value inside `bytes`, without a copy where Python makes one anyway.
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
