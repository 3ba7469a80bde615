//! An index of ranks over an ordered set of members: finds the rank of a member, and the member of
//! a rank, without a scan.
//!
//! The index is a skip list with counts (W. Pugh, "A Skip List Cookbook", 1990, section 3.4), laid
//! out in an ordered table. A member's height comes from a keyed hash of it, so the index needs no
//! random numbers, and clients cannot choose heights. A member of height `h` has an *anchor* on
//! each level from 1 to `h`; the anchor counts the members from itself to the next anchor of its
//! level. Each level begins with a sentinel, which counts the members before the first anchor.
//! One member in 16 has an anchor on level 1, one in 256 on level 2, and so on: an insertion
//! changes one count per level.

use std::ops::Bound;

use super::anchors::Anchors;
use super::entry::read_u64;
use super::view::{Bucket, View};

/// Most levels: enough for 16^12 members.
const LEVELS_MAX: u32 = 12;

/// Returns the height of a member with this hash.
pub(crate) fn height(hash: u64) -> u8 {
    (hash.trailing_zeros() / 4).min(LEVELS_MAX) as u8
}

/// The rank index of one sorted set.
pub(crate) struct RankIndex<'a> {
    pub(crate) view: &'a mut View,
    pub(crate) table: &'a Bucket,
    /// Prefix of the members in rank order, which are level 0.
    pub(crate) members: Vec<u8>,
    /// Prefix of the anchors.
    pub(crate) anchors: Vec<u8>,
    /// Anchors that need no search; changes keep them up to date.
    pub(crate) known: &'a mut Anchors,
}

impl RankIndex<'_> {
    /// Prefix of a level.
    fn level(&self, level: u8) -> Vec<u8> {
        self.at(level, &[])
    }

    fn at(&self, level: u8, member: &[u8]) -> Vec<u8> {
        // Room for all parts at once: each change needs several keys.
        let mut key = Vec::with_capacity(self.anchors.len() + 1 + member.len());
        if level == 0 {
            key.extend_from_slice(&self.members);
        } else {
            key.extend_from_slice(&self.anchors);
            key.push(level);
        }
        key.extend_from_slice(member);
        key
    }

    /// Returns the last anchor of a level that is not after `member`, with its count.
    fn anchor_before(&mut self, level: u8, member: &[u8]) -> braid::Result<(Vec<u8>, u64)> {
        let nearest = match self.known.find(level, member) {
            Some((anchor, Some(count))) => return Ok((anchor.to_vec(), count)),
            // The sentinel is the first.
            found => found.map_or(&[][..], |(anchor, _)| anchor),
        };
        let from = Bound::Included(self.at(level, nearest));
        let to = Bound::Included(self.at(level, member));
        let mut range = self.view.range(self.table, from, to)?;
        let (key, count) = range.next_back_in_place().ok_or_else(damaged)??;
        let anchor = key[self.anchors.len() + 1..].to_vec();
        let count = read_u64(count);
        drop(range);
        self.known.note(level, &anchor, count, member);
        Ok((anchor, count))
    }

    /// Counts the members from `member` to the next anchor of `level`, through the level below.
    fn count_to_next(&self, level: u8, member: &[u8]) -> braid::Result<u64> {
        let (_, end) = braid::prefix_bounds(&self.level(level));
        let next = self
            .view
            .range(self.table, Bound::Excluded(self.at(level, member)), end)?
            .next()
            .transpose()?;
        let below = level - 1;
        let to = match next {
            Some((key, _)) => Bound::Excluded(self.at(below, &key[self.anchors.len() + 1..])),
            None => braid::prefix_bounds(&self.level(below)).1,
        };
        let mut count = 0;
        for entry in self
            .view
            .range(self.table, Bound::Included(self.at(below, member)), to)?
        {
            let (_, value) = entry?;
            count += if below == 0 { 1 } else { read_u64(&value) };
        }
        Ok(count)
    }

    /// Stores the count of an anchor.
    fn put(&mut self, level: u8, anchor: &[u8], count: u64) -> braid::Result<()> {
        self.known.put(level, anchor, count);
        let key = self.at(level, anchor);
        self.view.put(self.table, &key, &count.to_be_bytes())
    }

    /// Adds a member that is on level 0 already. `levels` is the number of levels, and `len` the
    /// number of other members.
    pub(crate) fn insert(
        &mut self,
        member: &[u8],
        height: u8,
        levels: &mut u8,
        len: u64,
    ) -> braid::Result<()> {
        while *levels < height {
            *levels += 1;
            self.put(*levels, &[], len)?;
        }
        for level in 1..=*levels {
            let (anchor, count) = self.anchor_before(level, member)?;
            if level <= height {
                let right = self.count_to_next(level, member)?;
                let left = (count + 1).checked_sub(right).ok_or_else(damaged)?;
                self.put(level, &anchor, left)?;
                self.put(level, member, right)?;
            } else {
                self.put(level, &anchor, count + 1)?;
            }
        }
        Ok(())
    }

    /// Removes a member.
    pub(crate) fn remove(&mut self, member: &[u8], height: u8, levels: u8) -> braid::Result<()> {
        for level in 1..=levels {
            let mut own = 0;
            if level <= height {
                let key = self.at(level, member);
                own = read_u64(&self.view.get(self.table, &key)?.ok_or_else(damaged)?);
                self.view.remove(self.table, &key)?;
                self.known.remove(level, member);
            }
            let (anchor, count) = self.anchor_before(level, member)?;
            let count = (count + own).checked_sub(1).ok_or_else(damaged)?;
            self.put(level, &anchor, count)?;
        }
        Ok(())
    }

    /// Moves a member without anchors from one position to another. Only the anchors before which
    /// just one of the positions lies count differently.
    pub(crate) fn shift(&mut self, from: &[u8], to: &[u8], levels: u8) -> braid::Result<()> {
        let (first, last) = if from < to { (from, to) } else { (to, from) };
        for level in 1..=levels {
            let (after, after_count) = self.anchor_before(level, last)?;
            // Upper levels have some of this level's anchors.
            if *after <= *first {
                break;
            }
            let (before, before_count) = self.anchor_before(level, first)?;
            let (gains, loses) = if last == to {
                ((after, after_count), (before, before_count))
            } else {
                ((before, before_count), (after, after_count))
            };
            self.put(level, &gains.0, gains.1 + 1)?;
            let count = loses.1.checked_sub(1).ok_or_else(damaged)?;
            self.put(level, &loses.0, count)?;
        }
        Ok(())
    }

    /// Returns the number of members before `bound`, which need not be a member.
    pub(crate) fn rank(&self, bound: &[u8], levels: u8) -> braid::Result<u64> {
        let mut rank = 0;
        let mut position = Vec::new();
        for level in (1..=levels).rev() {
            let mut current = None;
            let from = Bound::Included(self.at(level, &position));
            let to = Bound::Included(self.at(level, bound));
            for entry in self.view.range(self.table, from, to)? {
                let (key, count) = entry?;
                rank += current.replace(read_u64(&count)).unwrap_or(0);
                position = key[self.anchors.len() + 1..].to_vec();
            }
        }
        let from = Bound::Included(self.at(0, &position));
        let to = Bound::Excluded(self.at(0, bound));
        for entry in self.view.range(self.table, from, to)? {
            entry?;
            rank += 1;
        }
        Ok(rank)
    }

    /// Returns the key on level 0, without its prefix, at which the members from rank `rank` on
    /// begin, and how many members to skip from there.
    pub(crate) fn seek(&self, mut rank: u64, levels: u8) -> braid::Result<(Vec<u8>, u64)> {
        let mut position = Vec::new();
        for level in (1..=levels).rev() {
            let from = self.at(level, &position);
            let prefix = self.level(level);
            let mut entries = self.view.prefix_from(self.table, &prefix, from)?;
            let mut current = entries.next().ok_or_else(damaged)??;
            while read_u64(&current.1) <= rank {
                let Some(next) = entries.next().transpose()? else {
                    break;
                };
                rank -= read_u64(&current.1);
                current = next;
            }
            position = current.0[prefix.len()..].to_vec();
        }
        Ok((position, rank))
    }
}

fn damaged() -> braid::Error {
    braid::Error::Corrupted {
        what: "the rank index of a sorted set does not fit its members".to_owned(),
        location: "table elements".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use braid::Database;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn ranks_are_those_of_an_ordered_set(
            changes in proptest::collection::vec((0u8..4, 0u8..200, 0u8..200), 1..400),
        ) {
            let db = Database::in_memory().unwrap();
            let table: Bucket = db.open_table("elements").unwrap();
            let mut view = View::Transaction(Box::new(db.begin()));
            // A quarter of the members has an anchor, to have several levels with few members.
            let height = |member: u8| height(u64::from(member.wrapping_mul(37)) << 2);
            let mut levels = 0;
            let mut model = BTreeSet::new();
            let mut known = Anchors::default();
            for (kind, member, target) in changes {
                let len = model.len() as u64;
                let mut index = RankIndex {
                    view: &mut view,
                    table: &table,
                    members: vec![1],
                    anchors: vec![2],
                    known: &mut known,
                };
                if kind < 2 && model.insert(member) {
                    index.view.put(&table, &[1, member], b"").unwrap();
                    index.insert(&[member], height(member), &mut levels, len).unwrap();
                } else if kind == 2 && model.remove(&member) {
                    index.view.remove(&table, &[1, member]).unwrap();
                    index.remove(&[member], height(member), levels).unwrap();
                } else if kind == 3
                    && height(member) + height(target) == 0
                    && model.contains(&member)
                    && model.insert(target)
                {
                    model.remove(&member);
                    index.view.remove(&table, &[1, member]).unwrap();
                    index.view.put(&table, &[1, target], b"").unwrap();
                    index.shift(&[member], &[target], levels).unwrap();
                }
            }
            let index = RankIndex {
                view: &mut view,
                table: &table,
                members: vec![1],
                anchors: vec![2],
                known: &mut known,
            };
            for bound in 0..=201u8 {
                let expected = model.range(..bound).count() as u64;
                prop_assert_eq!(index.rank(&[bound], levels).unwrap(), expected);
            }
            for (rank, member) in model.iter().enumerate() {
                let (position, skip) = index.seek(rank as u64, levels).unwrap();
                let mut from = vec![1];
                from.extend(position);
                let found = index.view.prefix_from(&table, &[1], from).unwrap().nth(skip as usize);
                prop_assert_eq!(&found.unwrap().unwrap().0[..], &[1, *member][..]);
            }
        }
    }
}
