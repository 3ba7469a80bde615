//! Types of values.

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    String = 1,
    Hash = 2,
    List = 3,
    Set = 4,
    SortedSet = 5,
    Stream = 6,
}

impl Kind {
    /// Returns the name that TYPE answers with.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::List => "list",
            Kind::Set => "set",
            Kind::SortedSet => "zset",
            Kind::Stream => "stream",
        }
    }

    /// Returns the type that an entry's byte stands for.
    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        [
            Kind::String,
            Kind::Hash,
            Kind::List,
            Kind::Set,
            Kind::SortedSet,
            Kind::Stream,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}
