//! Sorted sets. Elements of three kinds follow the identity: `0, hash of the member, member` with
//! the score; `1, score, member` in rank order with nothing; `2, ...` the index of ranks.

pub(super) mod add;
pub(super) mod combine;
pub(super) mod pop;
pub(super) mod range;

use std::ops::Bound;

use bytes::Bytes;

use super::arguments::{integer, is};
use super::sets::choose;
use crate::failure::{Failure, Result};
use crate::keyspace::{Anchors, Collection, Data, Entry, Kind, RankIndex, height, read_u64};
use crate::resp::Reply;

/// Prefix of members with their scores.
pub(super) const MEMBERS: u8 = 0;
/// Prefix of members in rank order.
const RANKED: u8 = 1;
/// Prefix of the index of ranks.
const ANCHORS: u8 = 2;

/// A member with its score.
pub(super) type Scored = (Bytes, f64);

fn prefix(set: &Collection, kind: u8) -> Vec<u8> {
    [&set.id.to_be_bytes()[..], &[kind]].concat()
}

/// Encodes a score so that bytes order as numbers.
fn encode_score(score: f64) -> [u8; 8] {
    // Zero has one encoding.
    let bits = (score + 0.0).to_bits();
    (if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    })
    .to_be_bytes()
}

fn decode_score(bytes: &[u8]) -> f64 {
    let bits = read_u64(bytes);
    f64::from_bits(if bits >> 63 == 1 {
        bits & !(1 << 63)
    } else {
        !bits
    })
}

/// Returns the score that is stored with a member.
pub(super) fn stored_score(value: &[u8]) -> f64 {
    f64::from_bits(read_u64(value))
}

/// Returns `score, member`, the order of ranks.
fn ranked(score: f64, member: &[u8]) -> Vec<u8> {
    [&encode_score(score), member].concat()
}

/// A sorted set within a transaction.
struct SortedSet<'a> {
    data: &'a mut Data,
    set: Collection,
}

impl SortedSet<'_> {
    fn member_at(&self, member: &[u8]) -> Vec<u8> {
        self.data
            .keyspace
            .hashed_key(&prefix(&self.set, MEMBERS), member)
    }

    /// Returns the place of `score, member` among the elements.
    fn ranked_at(&self, ranked: &[u8]) -> Vec<u8> {
        [&self.set.id.to_be_bytes()[..], &[RANKED], ranked].concat()
    }

    fn score(&self, member: &[u8]) -> Result<Option<f64>> {
        let found = self.data.element(&self.member_at(member))?;
        Ok(found.map(|score| stored_score(&score)))
    }

    fn with_index<R>(
        &mut self,
        f: impl FnOnce(&mut RankIndex<'_>) -> braid::Result<R>,
    ) -> Result<R> {
        self.with_known(&mut Anchors::default(), f)
    }

    /// Changes the index.
    fn change_index(
        &mut self,
        f: impl FnOnce(&mut RankIndex<'_>) -> braid::Result<()>,
    ) -> Result<()> {
        let mut known = self.data.take_anchors(self.set.id);
        self.with_known(&mut known, f)?;
        self.data.keep_anchors(self.set.id, known);
        Ok(())
    }

    fn with_known<R>(
        &mut self,
        known: &mut Anchors,
        f: impl FnOnce(&mut RankIndex<'_>) -> braid::Result<R>,
    ) -> Result<R> {
        let table = self.data.elements();
        Ok(f(&mut RankIndex {
            view: &mut self.data.view,
            table: &table,
            members: prefix(&self.set, RANKED),
            anchors: prefix(&self.set, ANCHORS),
            known,
        })?)
    }

    fn levels(&self) -> u8 {
        self.set.extra as u8
    }

    fn add(&mut self, member: &[u8], score: f64) -> Result<()> {
        let at = ranked(score, member);
        self.data.put_element(&self.ranked_at(&at), &[])?;
        let key = self.member_at(member);
        self.data
            .put_element(&key, &score.to_bits().to_be_bytes())?;
        let height = height(self.data.keyspace.hash(member));
        let (mut levels, len) = (self.levels(), self.set.len);
        self.change_index(|index| index.insert(&at, height, &mut levels, len))?;
        self.set.extra = i64::from(levels);
        self.set.len += 1;
        Ok(())
    }

    fn remove(&mut self, member: &[u8], score: f64) -> Result<()> {
        let at = ranked(score, member);
        self.data.remove_element(&self.ranked_at(&at))?;
        let key = self.member_at(member);
        self.data.remove_element(&key)?;
        let height = height(self.data.keyspace.hash(member));
        let levels = self.levels();
        self.change_index(|index| index.remove(&at, height, levels))?;
        self.set.len = self.set.len.saturating_sub(1);
        Ok(())
    }

    /// Gives a member another score.
    fn change(&mut self, member: &[u8], before: f64, after: f64) -> Result<()> {
        if height(self.data.keyspace.hash(member)) > 0 {
            self.remove(member, before)?;
            return self.add(member, after);
        }
        let (from, to) = (ranked(before, member), ranked(after, member));
        self.data.remove_element(&self.ranked_at(&from))?;
        self.data.put_element(&self.ranked_at(&to), &[])?;
        let key = self.member_at(member);
        self.data
            .put_element(&key, &after.to_bits().to_be_bytes())?;
        let levels = self.levels();
        self.change_index(|index| index.shift(&from, &to, levels))
    }

    /// Returns the number of members before a position in rank order.
    fn rank(&mut self, bound: &[u8]) -> Result<u64> {
        let levels = self.levels();
        self.with_index(|index| index.rank(bound, levels))
    }

    /// Returns the members from rank `start` to `stop`, both inclusive.
    fn by_rank(&mut self, start: u64, stop: u64) -> Result<Vec<Scored>> {
        let levels = self.levels();
        let (position, skip) = self.with_index(|index| index.seek(start, levels))?;
        let ranked = prefix(&self.set, RANKED);
        let mut from = ranked.clone();
        from.extend_from_slice(&position);
        let table = self.data.elements();
        self.data
            .view
            .prefix_from(&table, &ranked, from)?
            .skip(skip as usize)
            .take((stop - start + 1) as usize)
            .map(|entry| Ok(scored(&entry?.0)))
            .collect()
    }

    /// Returns all members in rank order.
    fn all(&mut self) -> Result<Vec<Scored>> {
        if self.set.len == 0 {
            Ok(Vec::new())
        } else {
            self.by_rank(0, self.set.len - 1)
        }
    }
}

/// Decodes the key of a member in rank order.
fn scored(key: &Bytes) -> Scored {
    (key.slice(17..), decode_score(&key[9..]))
}

fn open(data: &mut Data, key: &[u8]) -> Result<Option<(Entry, Collection)>> {
    data.collection(key, Kind::SortedSet)
}

/// Removes members and stores the header; deletes the key with its last member.
fn remove_all(
    data: &mut Data,
    key: &[u8],
    entry: &Entry,
    set: Collection,
    members: &[Scored],
    event: &'static str,
) -> Result<()> {
    if members.is_empty() {
        return Ok(());
    }
    let mut set = SortedSet { data, set };
    for (member, score) in members {
        set.remove(member, *score)?;
    }
    let set = set.set;
    data.notify('z', event, key);
    data.put_collection(key, Some(entry), set)
}

pub(in crate::command) fn zrem(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some((entry, set)) = open(data, &args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let mut found: Vec<Scored> = Vec::new();
    for member in &args[2..] {
        let set = SortedSet {
            data: &mut *data,
            set,
        };
        if let Some(score) = set.score(member)?
            && !found.iter().any(|(seen, _)| seen == member)
        {
            found.push((member.clone(), score));
        }
    }
    remove_all(data, &args[1], &entry, set, &found, "zrem")?;
    Ok(Reply::Integer(found.len() as i64))
}

pub(in crate::command) fn zcard(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(
        open(data, &args[1])?.map_or(0, |(_, set)| set.len) as i64,
    ))
}

pub(in crate::command) fn zscore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some((_, set)) = open(data, &args[1])? else {
        return Ok(Reply::Null);
    };
    let score = SortedSet { data, set }.score(&args[2])?;
    Ok(score.map_or(Reply::Null, Reply::Double))
}

pub(in crate::command) fn zmscore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = open(data, &args[1])?;
    let mut scores = Vec::with_capacity(args.len() - 2);
    for member in &args[2..] {
        scores.push(match found {
            None => Reply::Null,
            Some((_, set)) => {
                let score = SortedSet {
                    data: &mut *data,
                    set,
                }
                .score(member)?;
                score.map_or(Reply::Null, Reply::Double)
            }
        });
    }
    Ok(Reply::Array(scores))
}

fn rank_of(data: &mut Data, args: &[Bytes], from_end: bool) -> Result<Reply> {
    let with_score = match args.get(3) {
        None => false,
        Some(word) if args.len() == 4 && is(word, "WITHSCORE") => true,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let missing = if with_score {
        Reply::NullArray
    } else {
        Reply::Null
    };
    let Some((_, set)) = open(data, &args[1])? else {
        return Ok(missing);
    };
    let mut set = SortedSet { data, set };
    let Some(score) = set.score(&args[2])? else {
        return Ok(missing);
    };
    let mut rank = set.rank(&ranked(score, &args[2]))?;
    if from_end {
        rank = set.set.len.saturating_sub(1 + rank);
    }
    let rank = Reply::Integer(rank as i64);
    Ok(if with_score {
        Reply::Array(vec![rank, Reply::Double(score)])
    } else {
        rank
    })
}

pub(in crate::command) fn zrank(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    rank_of(data, args, false)
}

pub(in crate::command) fn zrevrank(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    rank_of(data, args, true)
}

/// Returns the score of a member.
pub(in crate::command) fn score_of(
    data: &mut Data,
    set: &Collection,
    member: &[u8],
) -> Result<Option<f64>> {
    SortedSet { data, set: *set }.score(member)
}

/// Returns all members in rank order.
pub(in crate::command) fn all(data: &mut Data, set: &Collection) -> Result<Vec<Scored>> {
    SortedSet { data, set: *set }.all()
}

/// Builds a sorted set that no key has yet; `None` if a member is repeated.
pub(in crate::command) fn build(data: &mut Data, members: &[Scored]) -> Result<Option<Collection>> {
    let set = data.new_collection(Kind::SortedSet);
    let mut set = SortedSet { data, set };
    for (member, score) in members {
        if set.score(member)?.is_some() {
            return Ok(None);
        }
        set.add(member, *score)?;
    }
    Ok(Some(set.set))
}

/// Returns the members with scores from `from` up to `to`, which is excluded.
pub(in crate::command) fn by_score(
    data: &Data,
    set: &Collection,
    from: f64,
    to: f64,
) -> Result<Vec<Scored>> {
    let at = |score: f64| {
        let mut at = prefix(set, RANKED);
        at.extend_from_slice(&encode_score(score));
        at
    };
    let table = data.elements();
    let found = data
        .view
        .range(&table, Bound::Included(at(from)), Bound::Excluded(at(to)))?;
    found.map(|entry| Ok(scored(&entry?.0))).collect()
}

/// Answers with members, and with scores if asked: pairs in RESP3, alternating in RESP2.
fn answer(found: Vec<Scored>, with_scores: bool) -> Reply {
    if with_scores {
        Reply::Scored(found)
    } else {
        Reply::bulks(found.into_iter().map(|(member, _)| member))
    }
}

/// Replaces a key by a new sorted set; returns the number of members.
pub(in crate::command) fn store(
    data: &mut Data,
    key: &[u8],
    members: Vec<Scored>,
    event: &'static str,
) -> Result<Reply> {
    if let Some(old) = data.entry(key)? {
        data.delete(key, &old)?;
        if members.is_empty() {
            data.notify('g', "del", key);
        }
    }
    if members.is_empty() {
        return Ok(Reply::Integer(0));
    }
    let set = data.new_collection(Kind::SortedSet);
    let mut set = SortedSet { data, set };
    for (member, score) in &members {
        set.add(member, *score)?;
    }
    let set = set.set;
    data.put_collection(key, None, set)?;
    data.notify('z', event, key);
    data.pushed(key, Kind::SortedSet, members.len());
    Ok(Reply::Integer(members.len() as i64))
}

pub(in crate::command) fn zrandmember(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let count = args.get(2).map(|count| integer(count)).transpose()?;
    let with_scores = match args.get(3) {
        None => false,
        Some(word) if args.len() == 4 && is(word, "WITHSCORES") => true,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let found = open(data, &args[1])?;
    let Some(count) = count else {
        let Some((_, set)) = found else {
            return Ok(Reply::Null);
        };
        let member = data.sample_element(&prefix(&set, MEMBERS), set.len)?;
        return Ok(Reply::optional(member.map(|(member, _)| member)));
    };
    let Some((_, set)) = found else {
        return Ok(Reply::Array(Vec::new()));
    };
    let chosen = choose(data, &prefix(&set, MEMBERS), set.len, count)?;
    let chosen = chosen
        .into_iter()
        .map(|(member, value)| (member, stored_score(&value)))
        .collect();
    Ok(answer(chosen, with_scores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_order_as_bytes() {
        let scores = [
            f64::NEG_INFINITY,
            -1e300,
            -1.5,
            -0.0,
            1e-300,
            1.0,
            2.5,
            f64::INFINITY,
        ];
        for pair in scores.windows(2) {
            assert!(encode_score(pair[0]) < encode_score(pair[1]), "{pair:?}");
        }
        for score in scores {
            assert_eq!(decode_score(&encode_score(score)), score);
        }
        assert_eq!(encode_score(0.0), encode_score(-0.0));
    }
}
