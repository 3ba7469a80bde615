//! The numbers of a log. Each kind has its own type, so that one kind cannot be passed for another.

use std::fmt;
use std::sync::atomic::Ordering;

use braid_rt::narrow;

use crate::base::sync::AtomicU64;

macro_rules! numbers {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

        /// The number alone: the field that holds it has its name.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

numbers! {
    /// The sequence number of a transaction: its position in the global order. A transaction is
    /// assigned one number per record, and the last is its sequence number.
    ///
    /// In the log and the engine, this type keeps sequence numbers apart from lengths, offsets and
    /// the numbers of other things. Files, and the interface of `braiddb`, have it as `u64`: users
    /// store it in their own tables, and no function of that interface takes it beside another
    /// integer.
    pub struct SeqNo;

    /// The number of a flush in the order over all lanes, with the protocols `gwsn` and
    /// `gwsn-strict`. They start from 1 in each incarnation of the log.
    pub struct FlushNo;

    /// The number of a flush group in its lane: the transactions that one flush writes, and that
    /// wait for it together. With [`GroupNo::NONE`] a thread waits for everything up to a sequence
    /// number.
    pub(crate) struct GroupNo;
}

impl SeqNo {
    /// A bound above every number that is assigned.
    pub const MAX: Self = Self(u64::MAX);

    /// The number before this one.
    #[inline]
    #[must_use]
    pub const fn prev(self) -> Self {
        Self(self.0 - 1)
    }

    /// The count of the numbers after `earlier`, up to this one; 0 if there are none.
    #[inline]
    pub const fn count_after(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A [`SeqNo`] that threads share.
#[derive(Debug)]
pub(crate) struct AtomicSeqNo(AtomicU64);

impl AtomicSeqNo {
    pub(crate) fn new(seqno: SeqNo) -> Self {
        Self(AtomicU64::new(seqno.0))
    }

    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> SeqNo {
        SeqNo(self.0.load(order))
    }

    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn store(&self, seqno: SeqNo, order: Ordering) {
        self.0.store(seqno.0, order);
    }

    /// Adds `count` to the number, and returns the number before.
    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn fetch_add(&self, count: u64, order: Ordering) -> SeqNo {
        SeqNo(self.0.fetch_add(count, order))
    }

    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn fetch_max(&self, seqno: SeqNo, order: Ordering) -> SeqNo {
        SeqNo(self.0.fetch_max(seqno.0, order))
    }

    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn fetch_min(&self, seqno: SeqNo, order: Ordering) -> SeqNo {
        SeqNo(self.0.fetch_min(seqno.0, order))
    }

    /// Replaces `current` by `new`. Returns whether the number was `current`.
    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn replace(
        &self,
        current: SeqNo,
        new: SeqNo,
        success: Ordering,
        failure: Ordering,
    ) -> bool {
        let replaced = self.0.compare_exchange(current.0, new.0, success, failure);
        replaced.is_ok()
    }
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
