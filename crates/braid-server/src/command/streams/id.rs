//! Ids of entries of streams: milliseconds and a sequence number.

use bytes::Bytes;

use crate::failure::{Failure, Result};
use crate::resp::Reply;

/// Id of an entry, ordered as the entries are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(pub(super) u128);

impl Id {
    pub(super) const MIN: Id = Id(0);
    pub(super) const MAX: Id = Id(u128::MAX);

    pub(super) fn new(ms: u64, sequence: u64) -> Id {
        Id(u128::from(ms) << 64 | u128::from(sequence))
    }

    pub(super) fn ms(self) -> u64 {
        (self.0 >> 64) as u64
    }

    pub(super) fn sequence(self) -> u64 {
        self.0 as u64
    }

    pub(super) fn next(self) -> Option<Id> {
        self.0.checked_add(1).map(Id)
    }

    pub(super) fn previous(self) -> Option<Id> {
        self.0.checked_sub(1).map(Id)
    }

    /// Parses `ms` or `ms-sequence`; `sequence` is used if there is none.
    fn parse(text: &[u8], sequence: u64) -> Option<Id> {
        let number = |text: &[u8]| -> Option<u64> {
            let is_plain = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
            is_plain
                .then(|| std::str::from_utf8(text).ok()?.parse().ok())
                .flatten()
        };
        match text.iter().position(|byte| *byte == b'-') {
            None => Some(Id::new(number(text)?, sequence)),
            Some(at) => Some(Id::new(number(&text[..at])?, number(&text[at + 1..])?)),
        }
    }

    /// Parses an id that is not an interval's end: neither `-` nor `+`.
    pub(super) fn strict(text: &[u8]) -> Result<Id> {
        Id::parse(text, 0).ok_or_else(invalid)
    }

    /// Returns whether an argument is an id.
    pub(super) fn is_id(text: &[u8]) -> bool {
        Id::parse(text, 0).is_some()
    }

    pub(super) fn reply(self) -> Reply {
        Reply::copied(self.to_string())
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.ms(), self.sequence())
    }
}

pub(super) fn invalid() -> Failure {
    Failure::client("ERR Invalid stream ID specified as stream command argument")
}

/// Parses the first id of an interval: `-`, `+`, an id, or `(` and an id that does not belong to it.
pub(super) fn start(text: &Bytes) -> Result<Id> {
    let no_start = || Failure::client("ERR invalid start ID for the interval");
    match &text[..] {
        b"-" => Ok(Id::MIN),
        b"+" => Ok(Id::MAX),
        [b'(', id @ ..] => Id::parse(id, 0)
            .ok_or_else(invalid)?
            .next()
            .ok_or_else(no_start),
        id => Id::parse(id, 0).ok_or_else(invalid),
    }
}

/// Parses the last id of an interval.
pub(super) fn end(text: &Bytes) -> Result<Id> {
    let no_end = || Failure::client("ERR invalid end ID for the interval");
    match &text[..] {
        b"-" => Ok(Id::MIN),
        b"+" => Ok(Id::MAX),
        // An id without sequence number means its first entry if it does not belong to the interval.
        [b'(', id @ ..] => Id::parse(id, 0)
            .ok_or_else(invalid)?
            .previous()
            .ok_or_else(no_end),
        id => Id::parse(id, u64::MAX).ok_or_else(invalid),
    }
}

/// Id that XADD asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewId {
    /// `*`
    Next,
    /// `ms-*`
    NextOf(u64),
    Exact(Id),
}

impl NewId {
    pub(super) fn parse(text: &[u8]) -> Result<NewId> {
        if text == b"*" {
            return Ok(NewId::Next);
        }
        if let Some(ms) = text.strip_suffix(b"-*") {
            let id = Id::parse(ms, 0).filter(|_| !ms.contains(&b'-'));
            return Ok(NewId::NextOf(id.ok_or_else(invalid)?.ms()));
        }
        let id = Id::strict(text)?;
        if id == Id::MIN {
            return Err(Failure::client(
                "ERR The ID specified in XADD must be greater than 0-0",
            ));
        }
        Ok(NewId::Exact(id))
    }

    /// Returns the id of an entry after `last`, at time `now`.
    pub(super) fn after(self, last: Id, now: u64) -> Result<Id> {
        let exhausted = || {
            Failure::client(
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            )
        };
        let too_small = || {
            Failure::client(
                "ERR The ID specified in XADD is equal or smaller than the target stream top item",
            )
        };
        match self {
            NewId::Next if now > last.ms() => Ok(Id::new(now, 0)),
            NewId::Next => last.next().ok_or_else(exhausted),
            NewId::NextOf(ms) if ms > last.ms() => Ok(Id::new(ms, 0)),
            NewId::NextOf(ms) if ms < last.ms() => Err(too_small()),
            NewId::NextOf(ms) => {
                let sequence = last.sequence().checked_add(1).ok_or_else(too_small)?;
                Ok(Id::new(ms, sequence))
            }
            NewId::Exact(id) if id > last => Ok(id),
            NewId::Exact(_) if last == Id::MAX => Err(exhausted()),
            NewId::Exact(_) => Err(too_small()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_and_grow() {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(Id::strict(b"5-3").unwrap(), Id::new(5, 3));
        assert_eq!(Id::strict(b"5").unwrap(), Id::new(5, 0));
        for text in [
            "",
            "-",
            "+",
            "5-",
            "-5",
            "x",
            "5-x",
            "5-1-1",
            "99999999999999999999",
            "+5",
        ] {
            assert!(Id::strict(text.as_bytes()).is_err(), "{text:?}");
        }
        assert_eq!(start(&bytes("(5-3")).unwrap(), Id::new(5, 4));
        assert_eq!(end(&bytes("(5-0")).unwrap(), Id::new(4, u64::MAX));
        assert_eq!(end(&bytes("5")).unwrap(), Id::new(5, u64::MAX));
        assert_eq!(start(&bytes("5")).unwrap(), Id::new(5, 0));
        assert!(end(&bytes("(0-0")).is_err());
        assert!(start(&bytes("(18446744073709551615-18446744073709551615")).is_err());

        let last = Id::new(7, 2);
        assert_eq!(NewId::Next.after(last, 9).unwrap(), Id::new(9, 0));
        assert_eq!(NewId::Next.after(last, 3).unwrap(), Id::new(7, 3));
        assert_eq!(
            NewId::parse(b"7-*").unwrap().after(last, 0).unwrap(),
            Id::new(7, 3)
        );
        assert_eq!(
            NewId::parse(b"8-*").unwrap().after(last, 0).unwrap(),
            Id::new(8, 0)
        );
        assert!(NewId::parse(b"6-*").unwrap().after(last, 0).is_err());
        assert!(NewId::parse(b"7-2").unwrap().after(last, 0).is_err());
        assert!(NewId::parse(b"0-0").is_err());
        assert!(NewId::parse(b"1-1-*").is_err());
        assert_eq!(
            NewId::parse(b"0-*").unwrap().after(Id::MIN, 0).unwrap(),
            Id::new(0, 1)
        );
        let full = Id::new(7, u64::MAX);
        assert_eq!(NewId::Next.after(full, 0).unwrap(), Id::new(8, 0));
        assert!(NewId::parse(b"7-*").unwrap().after(full, 0).is_err());
        assert!(NewId::Next.after(Id::MAX, 0).is_err());
    }
}
