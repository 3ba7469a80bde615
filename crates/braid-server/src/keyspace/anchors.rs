//! Anchors of rank indexes that transactions have found, kept for later changes of the same sorted sets.
//!
//! A search for an anchor is a range read, which costs as much as several writes, and a change of a
//! score needs up to two on each level. Rules:
//!
//! - A transaction reads and locks the entry of a sorted set before it changes the set, and each change
//!   gives the entry another stamp. So anchors that a transaction kept with the stamp that it wrote are
//!   those of the set while the entry has that stamp.
//! - A transaction takes the anchors away while it changes the set, and keeps them only after its
//!   commit. What it rolls back, it forgets.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_rt::mutant;

use super::data::Data;

/// Most bytes of the anchors of one set, and of all that a keyspace keeps.
const SET_BYTES_MAX: usize = 2 << 20;
const BYTES_MAX: usize = 4 << 20;

/// Most sets whose anchors are kept: they are searched one by one.
const SETS_MAX: usize = 64;

/// About how many bytes an anchor takes in addition to its keys.
const ANCHOR_BYTES: usize = 64;

/// An anchor, whose key is its member's place in rank order.
#[derive(Debug)]
struct Anchor {
    count: u64,
    /// Up to here, inclusive, all anchors after this one are known.
    until: Box<[u8]>,
}

/// Known anchors of one sorted set.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    /// Levels from 1 on.
    levels: Vec<BTreeMap<Box<[u8]>, Anchor>>,
    bytes: usize,
}

impl Anchors {
    fn level(&self, level: u8) -> Option<&BTreeMap<Box<[u8]>, Anchor>> {
        self.levels.get(usize::from(level) - 1)
    }

    fn level_mut(&mut self, level: u8) -> &mut BTreeMap<Box<[u8]>, Anchor> {
        let level = usize::from(level);
        if self.levels.len() < level {
            self.levels.resize_with(level, BTreeMap::new);
        }
        &mut self.levels[level - 1]
    }

    /// Returns the last known anchor that is not after `member`, and its count if no other anchor can
    /// lie between them.
    pub(super) fn find(&self, level: u8, member: &[u8]) -> Option<(&[u8], Option<u64>)> {
        let (key, anchor) = last_before(self.level(level)?, member)?;
        Some((key, (*anchor.until >= *member).then_some(anchor.count)))
    }

    /// Notes that an anchor is the last one that is not after `until`.
    pub(super) fn note(&mut self, level: u8, key: &[u8], count: u64, until: &[u8]) {
        self.make_room(key.len() + until.len() + ANCHOR_BYTES);
        let anchors = self.level_mut(level);
        let mut more = until.len();
        match anchors.get_mut(key) {
            Some(anchor) => {
                more = more.saturating_sub(anchor.until.len());
                anchor.until = until.into();
            }
            None => {
                more += key.len() + ANCHOR_BYTES;
                let until = until.into();
                anchors.insert(key.into(), Anchor { count, until });
            }
        }
        self.bytes += more;
    }

    /// Notes the count of an anchor, which may be a new one.
    pub(super) fn put(&mut self, level: u8, key: &[u8], count: u64) {
        self.make_room(2 * key.len() + ANCHOR_BYTES);
        let anchors = self.level_mut(level);
        if let Some(anchor) = anchors.get_mut(key) {
            anchor.count = count;
            return;
        }
        let until = match last_before(anchors, key) {
            Some((_, before)) if *before.until > *key => before.until.clone(),
            _ => key.into(),
        };
        let more = key.len() + until.len() + ANCHOR_BYTES;
        anchors.insert(key.into(), Anchor { count, until });
        self.bytes += more;
    }

    /// Notes that an anchor is gone.
    pub(super) fn remove(&mut self, level: u8, key: &[u8]) {
        if let Some(anchor) = self.level_mut(level).remove(key) {
            let less = key.len() + anchor.until.len() + ANCHOR_BYTES;
            self.bytes = self.bytes.saturating_sub(less);
        }
    }

    /// Forgets all anchors if they would take too much memory.
    fn make_room(&mut self, more: usize) {
        if self.bytes + more > SET_BYTES_MAX {
            *self = Anchors::default();
        }
    }
}

fn last_before<'a>(
    anchors: &'a BTreeMap<Box<[u8]>, Anchor>,
    member: &[u8],
) -> Option<(&'a [u8], &'a Anchor)> {
    let up_to = (Bound::Unbounded, Bound::Included(member));
    let last = anchors.range::<[u8], _>(up_to).next_back();
    last.map(|(key, anchor)| (&**key, anchor))
}

/// Anchors of the sorted sets that a transaction changes.
#[derive(Debug, Default)]
pub(super) struct Changing {
    sets: BTreeMap<u64, Changed>,
    /// Identity and stamp of the sorted set that a command read last.
    last: (u64, u64),
}

/// A sorted set that a transaction changes.
#[derive(Debug, Default)]
struct Changed {
    /// The last stamp that the transaction wrote.
    stamp: Option<u64>,
    anchors: Anchors,
}

impl Changing {
    /// Notes that a command has read the entry of a sorted set, with this stamp.
    pub(super) fn read(&mut self, id: u64, stamp: u64) {
        self.last = (id, stamp);
    }

    /// Takes what is known of a set.
    pub(super) fn take(&mut self, id: u64, kept: &KeptAnchors) -> Anchors {
        if let Some(changed) = self.sets.get_mut(&id) {
            return std::mem::take(&mut changed.anchors);
        }
        let (last, stamp) = self.last;
        let found = (last == id).then(|| kept.take(id, stamp));
        found.flatten().unwrap_or_default()
    }

    /// Keeps what is known of a set, after changes of its index.
    pub(super) fn keep(&mut self, id: u64, anchors: Anchors) {
        self.sets.entry(id).or_default().anchors = anchors;
    }

    /// Notes that an entry of a set is written with a stamp.
    pub(super) fn wrote(&mut self, id: u64, stamp: u64) {
        if let Some(changed) = self.sets.get_mut(&id) {
            changed.stamp = Some(stamp);
        }
    }

    /// Forgets everything, because the transaction is rolled back to an earlier state.
    pub(super) fn forget(&mut self) {
        if !mutant!("server_keep_anchors_of_the_undone") {
            // An entry that the transaction wrote before that state has a stamp that nobody kept.
            *self = Changing::default();
        }
    }
}

impl Data {
    /// Takes what is known of the rank index of a sorted set that the command changes.
    pub(crate) fn take_anchors(&mut self, id: u64) -> Anchors {
        self.changing.take(id, &self.keyspace.anchors)
    }

    /// Keeps what is known of the rank index of a sorted set for later changes of it.
    pub(crate) fn keep_anchors(&mut self, id: u64, anchors: Anchors) {
        self.changing.keep(id, anchors);
    }
}

/// Anchors of a sorted set as of a stamp of its entry.
#[derive(Debug)]
struct Kept {
    id: u64,
    stamp: u64,
    anchors: Anchors,
}

/// Anchors of the sorted sets that were changed last.
#[derive(Debug, Default)]
pub(crate) struct KeptAnchors(Mutex<VecDeque<Kept>>);

impl KeptAnchors {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the anchors of a set whose entry has this stamp; `None` if those are not known.
    fn take(&self, id: u64, stamp: u64) -> Option<Anchors> {
        let mut sets = self.lock();
        let at = sets.iter().rposition(|kept| kept.id == id)?;
        let kept = sets.remove(at)?;
        (kept.stamp == stamp || mutant!("server_take_anchors_of_any_stamp")).then_some(kept.anchors)
    }

    /// Keeps the anchors of the sets that a committed transaction has changed.
    pub(super) fn keep(&self, changing: Changing) {
        if changing.sets.is_empty() {
            return;
        }
        let mut sets = self.lock();
        for (id, changed) in changing.sets {
            let Some(stamp) = changed.stamp else { continue };
            sets.retain(|kept| kept.id != id);
            sets.push_back(Kept {
                id,
                stamp,
                anchors: changed.anchors,
            });
        }
        let mut bytes: usize = sets.iter().map(|kept| kept.anchors.bytes).sum();
        while sets.len() > SETS_MAX || bytes > BYTES_MAX {
            let Some(oldest) = sets.pop_front() else {
                break;
            };
            bytes -= oldest.anchors.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns anchors of a set, kept with a stamp.
    fn changing(id: u64, stamp: u64, anchors: Anchors) -> Changing {
        let mut changing = Changing::default();
        changing.keep(id, anchors);
        changing.wrote(id, stamp);
        changing
    }

    #[test]
    fn anchors_are_those_of_one_stamp() {
        let kept = KeptAnchors::default();
        let anchors = || {
            let mut anchors = Anchors::default();
            anchors.note(1, b"", 5, b"m");
            anchors
        };
        kept.keep(changing(7, 1, anchors()));
        assert!(kept.take(8, 1).is_none());
        let taken = kept.take(7, 1).unwrap();
        assert_eq!(taken.find(1, b"c"), Some((&b""[..], Some(5))));
        // The transaction that changes the set has them alone.
        assert!(kept.take(7, 1).is_none());
        kept.keep(changing(7, 1, anchors()));
        assert!(kept.take(7, 2).is_none());
        // A set that got no stamp was not changed by a command that ended well.
        let mut unchanged = Changing::default();
        unchanged.keep(7, anchors());
        kept.keep(unchanged);
        assert!(kept.take(7, 1).is_none());
    }

    #[test]
    fn anchors_of_many_or_large_sets_are_forgotten() {
        let kept = KeptAnchors::default();
        for id in 0..2 * SETS_MAX as u64 {
            kept.keep(changing(id, 1, Anchors::default()));
        }
        assert_eq!(kept.lock().len(), SETS_MAX);
        assert!(kept.take(2 * SETS_MAX as u64 - 1, 1).is_some());
        for id in 0..4 {
            let mut anchors = Anchors::default();
            let mut largest = 0;
            for number in 0..10_000_u32 {
                let mut key = vec![b'x'; 1000];
                key.extend_from_slice(&number.to_be_bytes());
                anchors.put(1, &key, 1);
                largest = largest.max(anchors.bytes);
            }
            assert!(largest > SET_BYTES_MAX / 2 && largest <= SET_BYTES_MAX);
            kept.keep(changing(id, 1, anchors));
            let bytes: usize = kept.lock().iter().map(|kept| kept.anchors.bytes).sum();
            assert!(bytes <= BYTES_MAX);
        }
    }
}
