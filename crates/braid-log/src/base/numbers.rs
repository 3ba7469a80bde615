//! The numbers of a log. Each kind has its own type, so that one kind cannot be passed for another.

use std::fmt;

use braid_rt::narrow;

macro_rules! numbers {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        $vis struct $name(u64);

        impl $name {
            /// No number: the numbers themselves start from 1.
            $vis const NONE: Self = Self(0);

            /// The number with this value.
            #[inline]
            $vis const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The number's value.
            #[inline]
            $vis const fn get(self) -> u64 {
                self.0
            }

            /// The number after this one.
            #[inline]
            #[must_use]
            $vis const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

numbers! {
    /// The number of a flush in the order over all lanes, with the protocols `gwsn` and
    /// `gwsn-strict`. They start from 1 in each incarnation of the log.
    pub struct FlushNo;

    /// The number of a flush group in its lane: the transactions that one flush writes, and that
    /// wait for it together. With [`GroupNo::NONE`] a thread waits for everything up to a sequence
    /// number.
    pub(crate) struct GroupNo;
}

macro_rules! indexes {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        $vis struct $name(usize);

        impl $name {
            /// Creates the id with this index.
            #[inline]
            $vis const fn new(index: usize) -> Self {
                Self(index)
            }

            /// The index.
            #[inline]
            $vis const fn get(self) -> usize {
                self.0
            }

            /// The index as headers store it.
            $vis fn to_u16(self) -> u16 {
                narrow(self.0)
            }
        }

        impl From<u16> for $name {
            fn from(index: u16) -> Self {
                Self(index.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

indexes! {
    /// A lane of a log: a sequence of segments with its own flushes.
    pub(crate) struct LaneId;

    /// A strand of a log: an append buffer. Its lane is its index modulo the number of lanes.
    pub struct StrandId;
}
