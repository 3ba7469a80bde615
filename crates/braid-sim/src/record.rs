//! The record of a round: the events as the clients saw them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Identifies a transaction over the whole history; its values carry it.
pub type TxId = u64;

/// Set in the names of transactions whose values are large.
pub(crate) const LARGE: TxId = 1 << 40;

/// Set in the names of transactions whose values nearly fill a log file.
pub(crate) const BULKY: TxId = 1 << 41;

/// A key of the table that transactions work on.
pub type Key = u8;

/// A value: its writer, after the writers of the versions to which it was appended, back to the
/// last version that was not appended. (Like Elle's lists, they reveal the order of a key's
/// versions without the engine's numbers.)
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The writers; the last one wrote this version.
    pub writers: Vec<TxId>,
    /// Whether its writer was about to overwrite it. No other transaction may see such a version.
    pub intermediate: bool,
}

impl Version {
    /// Returns the version's writer.
    pub fn writer(&self) -> TxId {
        *self.writers.last().expect("a version has a writer")
    }

    /// Passes the bytes after the list to `take`, in parts, until `take` returns false. Their
    /// number and contents differ from writer to writer.
    fn padding(&self, mut take: impl FnMut(&[u8]) -> bool) {
        let mut rng = fastrand::Rng::with_seed(self.writer());
        let mut len = match rng.u32(..64) {
            _ if self.writer() & BULKY != 0 => rng.usize(30_000..60_000),
            0..20 if self.writer() & LARGE != 0 => rng.usize(5_000..60_000),
            0 => rng.usize(4_000..20_000),
            1..6 => rng.usize(500..3_000),
            _ => rng.usize(..60),
        };
        // The bytes of every other writer are compressible.
        let same = self.writer() & 16 != 0;
        let mut part = [rng.u8(..); 512];
        while len > 0 {
            if !same {
                rng.fill(&mut part);
            }
            let now = len.min(part.len());
            if !take(&part[..now]) {
                break;
            }
            len -= now;
        }
    }

    /// Encodes the value for the database.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.intermediate), self.writers.len() as u8];
        let writers = self.writers.iter().flat_map(|writer| writer.to_le_bytes());
        bytes.extend(writers);
        self.padding(|part| {
            bytes.extend_from_slice(part);
            true
        });
        bytes
    }

    /// Decodes a value from the database. Returns `None` if no client can have written it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[intermediate, count], rest) = bytes.split_first_chunk()?;
        let (lists, mut rest) = rest.split_at_checked(usize::from(count) * 8)?;
        let writer = |chunk: &[u8]| chunk.try_into().ok().map(u64::from_le_bytes);
        let version = Self {
            writers: lists.chunks(8).map(writer).collect::<Option<_>>()?,
            intermediate: intermediate == 1,
        };
        if count == 0 {
            return None;
        }
        let mut is_whole = true;
        version.padding(|part| {
            match rest.strip_prefix(part) {
                Some(tail) => rest = tail,
                None => is_whole = false,
            }
            is_whole
        });
        (is_whole && rest.is_empty()).then_some(version)
    }
}

/// The table at one place of the order.
pub type State = BTreeMap<Key, Version>;

/// One operation of a transaction, with the versions that it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A read, plain or locking.
    Get(Key, Option<Version>),
    /// All entries from the first key up to before the second.
    Scan(Key, Key, Vec<(Key, Version)>),
    /// A write.
    Put(Key, Version),
    /// A removal.
    Remove(Key),
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Get(key, Some(seen)) => write!(f, "{key} was {seen}"),
            Op::Get(key, None) => write!(f, "{key} was not there"),
            Op::Scan(from, to, seen) => {
                write!(f, "{from}..{to} were")?;
                seen.iter()
                    .try_for_each(|(key, seen)| write!(f, " {key}: {seen}"))
            }
            Op::Put(key, version) => write!(f, "{key} became {version}"),
            Op::Remove(key) => write!(f, "{key} was removed"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.intermediate { "..." } else { "" };
        write!(f, "{:?}{more}", self.writers)
    }
}

impl Op {
    pub(crate) fn is_write(&self) -> bool {
        matches!(self, Self::Put(..) | Self::Remove(_))
    }
}

/// Returns every version that was seen, with its key; `None` for a key that was seen missing.
pub(crate) fn seen(ops: &[Op]) -> impl Iterator<Item = (Key, Option<&Version>)> {
    ops.iter().flat_map(|op| {
        let (point, range) = match op {
            Op::Get(key, seen) => (Some((*key, seen.as_ref())), None),
            Op::Scan(_, _, seen) => (None, Some(seen)),
            _ => (None, None),
        };
        let range = range.into_iter().flatten();
        let range = range.map(|(key, version)| (*key, Some(version)));
        point.into_iter().chain(range)
    })
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction has no effect.
    Aborted,
    /// The transaction was visible to others with this number.
    Committed(u64),
    /// The commit failed, and its outcome is unknown.
    InDoubt,
}

/// A transaction as its client saw it.
#[derive(Clone, Debug)]
pub struct Tx {
    /// Its name in values.
    pub id: TxId,
    /// Its operations, in order.
    pub ops: Vec<Op>,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether it was acknowledged as durable.
    pub acknowledged: bool,
    /// Whether its reads come from one snapshot, without validation.
    pub snapshot: bool,
    /// When it began, on a clock of events.
    pub begun: u64,
    /// When its commit returned.
    pub ended: u64,
}

impl Tx {
    /// Whether it wrote anything.
    pub fn writes(&self) -> bool {
        self.ops.iter().any(Op::is_write)
    }

    /// Returns every version that it saw, with its key; `None` for a key that it saw missing.
    pub fn seen(&self) -> impl Iterator<Item = (Key, Option<&Version>)> {
        seen(&self.ops)
    }

    /// Returns the keys that it saw missing, before it wrote any.
    pub fn absent(&self) -> Vec<Key> {
        let reads = self.ops.iter().take_while(|op| !op.is_write());
        let absent = reads.flat_map(|op| match op {
            Op::Get(key, None) => vec![*key],
            Op::Scan(from, to, seen) => (*from..*to)
                .filter(|key| seen.iter().all(|(there, _)| there != key))
                .collect(),
            _ => Vec::new(),
        });
        absent.collect()
    }

    /// The keys that it wrote.
    pub fn keys(&self) -> BTreeSet<Key> {
        let key = |op: &Op| match op {
            Op::Put(key, _) | Op::Remove(key) => Some(*key),
            _ => None,
        };
        self.ops.iter().filter_map(key).collect()
    }
}

/// A read-only snapshot and its reads.
#[derive(Clone, Debug)]
pub struct View {
    /// The snapshot contains the commits up to this number.
    pub seqno: u64,
    /// Reads only.
    pub ops: Vec<Op>,
}

/// A read of the whole table.
pub(crate) fn whole(state: State) -> Op {
    Op::Scan(0, u8::MAX, state.into_iter().collect())
}

/// The state found after a crash.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The table.
    pub state: State,
    /// The transactions found: each leaves its own mark.
    pub marks: BTreeSet<TxId>,
}

/// Everything between two openings.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The table at the beginning.
    pub base: State,
    /// All transactions, in the order in which they began.
    pub txs: Vec<Tx>,
    /// All read-only snapshots.
    pub views: Vec<View>,
}

fn show(f: &mut fmt::Formatter<'_>, ops: &[Op]) -> fmt::Result {
    ops.iter().try_for_each(|op| write!(f, "; {op}"))
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "before:")?;
        for (key, version) in &self.base {
            write!(f, " {key}: {version}")?;
        }
        for tx in &self.txs {
            let acknowledged = if tx.acknowledged {
                ", acknowledged"
            } else {
                ""
            };
            write!(
                f,
                "\n{} (time {} to {}): {:?}{acknowledged}",
                tx.id, tx.begun, tx.ended, tx.outcome
            )?;
            show(f, &tx.ops)?;
        }
        for view in &self.views {
            write!(f, "\nsnapshot at {}", view.seqno)?;
            show(f, &view.ops)?;
        }
        Ok(())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found:")?;
        for (key, version) in &self.state {
            write!(f, " {key}: {version}")?;
        }
        write!(f, "; marks {:?}", self.marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_back_and_others_are_not() {
        for writer in 1..500 {
            let version = Version {
                writers: vec![writer + 7, writer],
                intermediate: writer % 2 == 0,
            };
            let mut bytes = version.encode();
            assert_eq!(Version::decode(&bytes), Some(version));
            bytes.push(0);
            assert_eq!(Version::decode(&bytes), None);
            bytes.pop();
            bytes.pop();
            assert_eq!(Version::decode(&bytes), None);
        }
        assert_eq!(Version::decode(&[0, 0]), None);
        assert_eq!(Version::decode(&[]), None);
    }
}
