//! Keys and values of any table, decoded by the types in its catalog entry.

mod json;
mod literal;
mod text;
mod tuple;

use std::fmt;

use braid::{AsKey, AsValue, Key, Value};
use bytes::Bytes;

use crate::suggest::suggestion;
pub(crate) use json::{from_json, to_json};
pub(crate) use literal::{from_literal, to_literal, typed_literal};
pub(crate) use text::{from_text, to_text};
pub(crate) use tuple::{canonical, from_parts};

/// A key or a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Datum {
    Unsigned(u128),
    Signed(i128),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Value of a table that is a set of keys.
    Unit,
    Text(String),
    Bytes(Bytes),
    /// Parts of a key.
    Tuple(Vec<Datum>),
}

/// Type of the bytes of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unsigned,
    Signed,
    Float,
    Bool,
    Unit,
    Text,
    Tuple,
    /// Bytes, arrays of bytes, and types defined by programs.
    Bytes,
}

/// Whether a column contains keys or values, whose encodings differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Key,
    Value,
}

/// The type of a table's keys or values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    name: String,
    role: Role,
}

/// Bytes or text that do not match the column's type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mismatch(String);

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Mismatch {
    fn new(column: &Column, found: impl fmt::Display) -> Self {
        Mismatch(format!(
            "{found} is not a {} of type {}",
            column.role, column.name
        ))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Key => "key",
            Role::Value => "value",
        })
    }
}

/// Calls a macro for each pair of an integer type and its variant.
macro_rules! for_integers {
    ($with:ident) => {
        $with!(Unsigned: u8 u16 u32 u64 u128; Signed: i8 i16 i32 i64 i128)
    };
}

impl Column {
    pub(crate) fn key(name: &str) -> Self {
        Column {
            name: name.to_owned(),
            role: Role::Key,
        }
    }

    pub(crate) fn value(name: &str) -> Self {
        Column {
            name: name.to_owned(),
            role: Role::Value,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kind(&self) -> Kind {
        match (self.name.as_str(), self.role) {
            ("u8" | "u16" | "u32" | "u64" | "u128", _) => Kind::Unsigned,
            ("i8" | "i16" | "i32" | "i64" | "i128", _) => Kind::Signed,
            ("f32" | "f64", Role::Value) => Kind::Float,
            ("bool", _) => Kind::Bool,
            ("()", Role::Value) => Kind::Unit,
            ("string", _) => Kind::Text,
            (_, Role::Key) if tuple::parts(self).is_some() => Kind::Tuple,
            _ => Kind::Bytes,
        }
    }

    /// Returns the length of an array of bytes.
    fn array_len(&self) -> Option<usize> {
        let len = self.name.strip_prefix("[u8; ")?.strip_suffix(']')?;
        len.parse().ok()
    }

    /// Returns whether the type is one of Braid's own, so that its bytes can be checked.
    pub(crate) fn is_known(&self) -> bool {
        self.kind() != Kind::Bytes || self.name == "bytes" || self.array_len().is_some()
    }

    /// Refuses a type that is not one of Braid's own: a type name typed by hand is most likely
    /// misspelt.
    pub(crate) fn check_known(&self) -> Result<(), Mismatch> {
        if self.is_known() {
            return Ok(());
        }
        let names = match self.role {
            Role::Key => &NAMES[..],
            Role::Value => &VALUE_NAMES[..],
        };
        let others = match self.role {
            Role::Key => "[u8; N] and tuples like (string, u64)",
            Role::Value => "[u8; N]",
        };
        Err(Mismatch(format!(
            "unknown {} type {:?}{}; known are {} and {others}",
            self.role,
            self.name,
            suggestion(&self.name, names.iter().copied()),
            names.join(", ")
        )))
    }

    /// Decodes stored bytes; `None` if they are not a valid encoding of the type, which only a
    /// program with untyped access can write.
    pub(crate) fn decode(&self, bytes: &Bytes) -> Option<Datum> {
        macro_rules! decode {
            ($($variant:ident: $($type:ident)*);*) => {
                match (self.name.as_str(), self.role) {
                    $($(
                        (stringify!($type), Role::Key) => {
                            <$type as Key>::from_key_bytes(bytes.clone()).ok().map(|n| Datum::$variant(n.into()))
                        }
                        (stringify!($type), Role::Value) => {
                            <$type as Value>::from_value_bytes(bytes.clone()).ok().map(|n| Datum::$variant(n.into()))
                        }
                    )*)*
                    ("f32", Role::Value) => f32::from_value_bytes(bytes.clone()).ok().map(Datum::F32),
                    ("f64", Role::Value) => f64::from_value_bytes(bytes.clone()).ok().map(Datum::F64),
                    ("bool", Role::Key) => bool::from_key_bytes(bytes.clone()).ok().map(Datum::Bool),
                    ("bool", Role::Value) => bool::from_value_bytes(bytes.clone()).ok().map(Datum::Bool),
                    ("()", Role::Value) => bytes.is_empty().then_some(Datum::Unit),
                    ("string", _) => std::str::from_utf8(bytes).ok().map(|s| Datum::Text(s.to_owned())),
                    _ if self.kind() == Kind::Tuple => tuple::decode(self, bytes),
                    _ if self.array_len().is_some_and(|len| len != bytes.len()) => None,
                    _ => Some(Datum::Bytes(bytes.clone())),
                }
            };
        }
        for_integers!(decode)
    }

    /// Encodes a datum.
    pub(crate) fn encode(&self, datum: &Datum) -> Result<Vec<u8>, Mismatch> {
        macro_rules! encode {
            ($($variant:ident: $($type:ident)*);*) => {
                match (self.name.as_str(), self.role, datum) {
                    $($(
                        (stringify!($type), role, Datum::$variant(n)) => {
                            <$type>::try_from(*n).ok().map(|n| match role {
                                Role::Key => AsKey::<$type>::with_key_bytes(&n, <[u8]>::to_vec),
                                Role::Value => AsValue::<$type>::with_value_bytes(&n, <[u8]>::to_vec),
                            })
                        }
                    )*)*
                    ("f32", Role::Value, Datum::F32(n)) => Some(AsValue::<f32>::with_value_bytes(n, <[u8]>::to_vec)),
                    ("f64", Role::Value, Datum::F64(n)) => Some(AsValue::<f64>::with_value_bytes(n, <[u8]>::to_vec)),
                    ("bool", _, Datum::Bool(truth)) => Some(vec![u8::from(*truth)]),
                    ("()", Role::Value, Datum::Unit) => Some(Vec::new()),
                    ("string", _, Datum::Text(text)) => Some(text.as_bytes().to_vec()),
                    (_, Role::Key, Datum::Tuple(parts)) => return tuple::encode(self, parts),
                    (_, _, Datum::Bytes(bytes)) if self.kind() == Kind::Bytes => Some(bytes.to_vec()),
                    _ => None,
                }
            };
        }
        let encoded = for_integers!(encode);
        encoded.ok_or_else(|| self.out_of_range(datum))
    }

    /// Returns why a datum does not fit the type; for a number, the range of the type.
    fn out_of_range(&self, datum: &Datum) -> Mismatch {
        macro_rules! range {
            ($($variant:ident: $($type:ident)*);*) => {
                match self.name.as_str() {
                    $($(stringify!($type) => Some(format!("{} to {}", $type::MIN, $type::MAX)),)*)*
                    _ => None,
                }
            };
        }
        let found = number_text(datum).unwrap_or_else(|| format!("{datum:?}"));
        match for_integers!(range) {
            Some(range) => Mismatch(format!(
                "{found} is out of range for a {} of type {}: {range}",
                self.role, self.name
            )),
            None => Mismatch::new(self, found),
        }
    }

    /// Parses a number of this column.
    fn parse_number(&self, text: &str) -> Result<Datum, Mismatch> {
        let mismatch = || Mismatch::new(self, format_args!("{text:?}"));
        match self.kind() {
            Kind::Unsigned => text.parse().map(Datum::Unsigned).map_err(|_| mismatch()),
            Kind::Signed => text.parse().map(Datum::Signed).map_err(|_| mismatch()),
            Kind::Float if self.name == "f32" => {
                let number = parse_float(
                    text,
                    |s| s.parse().ok(),
                    |bits| u32::try_from(bits).ok().map(f32::from_bits),
                );
                number.map(Datum::F32).ok_or_else(mismatch)
            }
            Kind::Float => {
                let number =
                    parse_float(text, |s| s.parse().ok(), |bits| Some(f64::from_bits(bits)));
                number.map(Datum::F64).ok_or_else(mismatch)
            }
            Kind::Bool | Kind::Unit | Kind::Text | Kind::Tuple | Kind::Bytes => Err(mismatch()),
        }
    }
}

/// Braid's own types, except arrays and tuples.
const NAMES: [&str; 13] = [
    "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128", "bool", "string", "bytes",
];
const VALUE_NAMES: [&str; 16] = [
    "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128", "f32", "f64", "bool",
    "()", "string", "bytes",
];

/// Prefix of the bits of a NaN: there are many NaNs, and each must be restored exactly.
const NAN_BITS: &str = "NaN:";

fn parse_float<F>(
    text: &str,
    parse: impl Fn(&str) -> Option<F>,
    from_bits: impl Fn(u64) -> Option<F>,
) -> Option<F> {
    match text.strip_prefix(NAN_BITS) {
        Some(bits) => from_bits(u64::from_str_radix(bits, 16).ok()?),
        None => parse(text),
    }
}

/// Returns a number as text, from which [`Column::parse_number`] restores the same bits.
fn number_text(datum: &Datum) -> Option<String> {
    Some(match datum {
        Datum::Unsigned(n) => n.to_string(),
        Datum::Signed(n) => n.to_string(),
        Datum::F32(n) if n.is_nan() => format!("{NAN_BITS}{:x}", n.to_bits()),
        Datum::F64(n) if n.is_nan() => format!("{NAN_BITS}{:x}", n.to_bits()),
        Datum::F32(n) => n.to_string(),
        Datum::F64(n) => n.to_string(),
        Datum::Bool(truth) => truth.to_string(),
        Datum::Unit => "()".to_owned(),
        Datum::Text(_) | Datum::Bytes(_) | Datum::Tuple(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 20] = [
        "u8",
        "u16",
        "u32",
        "u64",
        "u128",
        "i8",
        "i16",
        "i32",
        "i64",
        "i128",
        "f32",
        "f64",
        "string",
        "bytes",
        "bool",
        "()",
        "[u8; 4]",
        "(string, u64)",
        "(bytes, (u8, string), bool)",
        "somebody's own",
    ];

    #[test]
    fn tuples_are_stored_as_the_library_stores_them() {
        let column = Column::key("(string, u64)");
        let stored = AsKey::<(String, u64)>::with_key_bytes(&("a\0b", 7u64), <[u8]>::to_vec);
        let literal = "(\"a\\x00b\", 7)";
        assert_eq!(to_literal(&column, &stored.clone().into()), literal);
        assert_eq!(
            from_literal(&column, literal).map_err(|e| e.to_string()),
            Ok(stored)
        );
        for bad in ["(a)", "(a, 1, 2)", "(a, x)", "(a, 1", "a", "(a, -1)"] {
            let error = from_literal(&column, bad).unwrap_err().to_string();
            assert!(error.contains("key of type"), "{bad}: {error}");
        }
        // As raw bytes, because they are not such a tuple.
        assert_eq!(column.decode(&Bytes::from_static(b"(a,1)")), None);
    }

    #[test]
    fn unknown_types_are_reported_with_the_nearest_name() {
        for (column, meant) in [
            (Column::key("strng"), "did you mean \"string\"?"),
            (Column::value("u46"), "did you mean \"u64\"?"),
            (Column::key("f64"), "unknown key type \"f64\""),
            (Column::key("()"), "unknown key type"),
            (Column::key("(u8, strng)"), "unknown key type"),
        ] {
            let error = column.check_known().unwrap_err().to_string();
            assert!(error.contains(meant), "{error}");
        }
        for name in NAMES[..NAMES.len() - 1]
            .iter()
            .filter(|name| !name.starts_with('('))
        {
            assert!(Column::value(name).check_known().is_ok(), "{name}");
        }
        assert!(
            Column::key("(bytes, (u8, string), bool)")
                .check_known()
                .is_ok()
        );
    }

    #[test]
    fn a_number_that_is_too_large_is_reported_with_the_range() {
        let error = from_text(&Column::value("u32"), "5000000000").unwrap_err();
        assert_eq!(
            error.to_string(),
            "5000000000 is out of range for a value of type u32: 0 to 4294967295"
        );
    }

    proptest! {
        /// Every written form of stored bytes can be converted back to them.
        #[test]
        fn every_form_leads_back_to_the_bytes(
            name in prop::sample::select(&NAMES[..]),
            is_key in any::<bool>(),
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..20),
                prop::sample::select(vec![1_usize, 2, 4, 8, 16]).prop_flat_map(|n| prop::collection::vec(any::<u8>(), n)),
                "\\PC{0,12}|[\"\\\\\u{0}-\u{20},]{0,8}".prop_map(String::into_bytes),
            ],
        ) {
            let column = if is_key { Column::key(name) } else { Column::value(name) };
            let bytes = Bytes::from(bytes);
            // JSON also represents invalid encodings.
            let json = to_json(&column, &bytes).to_string();
            let read = from_json(&column, &serde_json::from_str(&json).unwrap());
            prop_assert_eq!(read.map_err(|e| e.to_string()), Ok(bytes.to_vec()), "{}", json);
            let literal = to_literal(&column, &bytes);
            let read = from_literal(&column, &literal);
            prop_assert_eq!(read.map_err(|e| e.to_string()), Ok(bytes.to_vec()), "{}", literal);
            if let Some(text) = to_text(&column, &bytes) {
                let read = from_text(&column, &text);
                prop_assert_eq!(read.map_err(|e| e.to_string()), Ok(bytes.to_vec()), "{}", text);
            } else {
                prop_assert_eq!(column.decode(&bytes), None);
            }
        }
    }

    #[test]
    fn a_value_of_another_type_is_reported() {
        for (column, text) in [
            (Column::key("u8"), "256"),
            (Column::key("u64"), "-1"),
            (Column::value("i32"), "x"),
            (Column::value("f64"), "NaN:zz"),
            (Column::value("bytes"), "no base64!"),
        ] {
            let error = from_text(&column, text).unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains(column.name()),
                "{error}"
            );
        }
    }
}
