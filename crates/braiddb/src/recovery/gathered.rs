//! The newest write of each key, gathered in memory before any tree changes.

use braid_rt::{narrow, prefetch, to_usize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use braid_log::SeqNo;

use crate::format::redo::Redo;

/// A transaction's write, not yet gathered.
pub(super) struct Found<'a> {
    pub(super) hash: u64,
    pub(super) version: SeqNo,
    pub(super) redo: Redo<'a>,
}

impl<'a> Found<'a> {
    #[inline]
    pub(super) fn new(redo: Redo<'a>, version: SeqNo) -> Self {
        Self {
            hash: xxh3_64_with_seed(redo.key, redo.table.into()),
            version,
            redo,
        }
    }
}

/// The newest gathered write of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write<'a> {
    pub(super) version: SeqNo,
    pub(super) redo: Redo<'a>,
}

/// The fixed part of an entry. The key and the value follow.
#[derive(Clone, Copy)]
struct Head {
    hash: u64,
    version: SeqNo,
    table: u32,
    key_len: u32,
    /// [`REMOVED`] if the key is removed.
    value_len: u32,
    /// Bytes that the entry has for a value.
    room: u32,
}

/// Bytes of a [`Head`].
const HEAD: usize = 32;

/// The length of the value of a removed key.
const REMOVED: u32 = u32::MAX;

impl Head {
    #[inline]
    fn decode(entry: &[u8]) -> Self {
        let words = entry[..HEAD].as_chunks().0;
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let low = |i: usize| narrow(word(i) & u64::from(u32::MAX));
        let high = |i: usize| narrow(word(i) >> 32);
        Self {
            hash: word(0),
            version: SeqNo::new(word(1)),
            table: low(2),
            key_len: high(2),
            value_len: low(3),
            room: high(3),
        }
    }

    #[inline]
    fn encode(self) -> [u8; HEAD] {
        let words = [
            self.hash,
            self.version.get(),
            u64::from(self.table) | u64::from(self.key_len) << 32,
            u64::from(self.value_len) | u64::from(self.room) << 32,
        ];
        let mut bytes = [0; HEAD];
        for (chunk, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }
}

/// Slots of an empty table.
const SLOTS_MIN: usize = 64;

/// Entries begin at multiples of this.
const UNIT: usize = 8;

/// Most units of entries before the next writes: the slots can refer to four times as many, which
/// leaves room for these.
const UNITS_MAX: usize = 1 << 30;

/// Most bytes that may be gathered before the next writes.
pub(super) const BYTES_MAX: usize = UNITS_MAX.saturating_mul(UNIT);

/// The newest gathered writes of some keys: a hash table with open addressing. Unlike others, it
/// can load what several keys need at the same time: its memory does not fit in the processor's
/// caches, and most of the time is spent waiting for it. For the same reason, a key and its value
/// lie together.
#[derive(Default)]
pub(super) struct Gathered {
    /// The upper half of a write's hash and the place of its entry plus 1, or 0. At most half of
    /// the slots are used.
    slots: Vec<u64>,
    used: usize,
    entries: Vec<u8>,
}

const TAG: u64 = 0xffff_ffff << 32;

/// Returns the place of a slot's entry.
#[inline]
fn place_of(slot: u64) -> usize {
    ((slot & !TAG) as usize - 1) * UNIT
}

impl Gathered {
    /// The bits of a hash that number the slots.
    #[inline]
    fn mask(&self) -> u64 {
        self.slots.len().max(1) as u64 - 1
    }

    /// Bytes of memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() + size_of_val(&self.slots[..])
    }

    /// Returns the number of the slot that refers to an entry with a hash, or of the first free
    /// slot after those that may.
    #[inline]
    fn find(&self, hash: u64, mut is_same: impl FnMut(usize) -> bool) -> Result<usize, usize> {
        let mask = self.mask();
        let mut at = to_usize(hash & mask);
        while let Some(&slot) = self.slots.get(at) {
            if slot == 0 {
                break;
            }
            if (slot ^ hash) & TAG == 0 && is_same(place_of(slot)) {
                return Ok(at);
            }
            at = to_usize((at as u64 + 1) & mask);
        }
        Err(at)
    }

    fn occupy(&mut self, hash: u64, place: usize) {
        let (Ok(at) | Err(at)) = self.find(hash, |_| false);
        self.refer(at, hash, place);
    }

    fn refer(&mut self, at: usize, hash: u64, place: usize) {
        self.slots[at] = hash & TAG | u64::from(narrow::<u32>(place / UNIT + 1));
    }

    /// Loads what gathering these writes will need.
    #[inline]
    pub(super) fn prefetch<'f>(&self, found: impl Iterator<Item = &'f Found<'f>> + Clone) {
        let mask = self.slots.len().wrapping_sub(1);
        for found in found.clone() {
            let slot = to_usize(found.hash) & mask;
            prefetch(self.slots.as_ptr().wrapping_add(slot));
        }
        for found in found {
            if let Ok(at) = self.find(found.hash, |_| true) {
                let entry = self.entries[place_of(self.slots[at])..].as_ptr();
                let len = HEAD + found.redo.key.len() + found.redo.value.map_or(0, <[u8]>::len);
                for line in (0..len.min(256)).step_by(64) {
                    prefetch(entry.wrapping_add(line));
                }
            }
        }
    }

    /// Gathers a write, if it is the newest of its key.
    #[inline]
    pub(super) fn gather(&mut self, found: &Found<'_>) {
        let (redo, version) = (found.redo, found.version);
        let value = redo.value.unwrap_or_default();
        let value_len = redo.value.map_or(REMOVED, |value| narrow(value.len()));
        let mut head = Head {
            hash: found.hash,
            version,
            table: redo.table,
            key_len: narrow(redo.key.len()),
            value_len,
            room: narrow(value.len()),
        };
        let same = |place: usize| {
            let entry = &self.entries[place..];
            let old = Head::decode(entry);
            (old.hash, old.table, old.key_len) == (head.hash, head.table, head.key_len)
                && entry[HEAD..HEAD + redo.key.len()] == *redo.key
        };
        match self.find(found.hash, same) {
            Ok(at) => {
                let place = place_of(self.slots[at]);
                let entry = &mut self.entries[place..];
                let old = Head::decode(entry);
                if (old.version < version) == braid_rt::mutant!("older_wins") {
                    return;
                }
                if value.len() <= old.room as usize {
                    head.room = old.room;
                    entry[..HEAD].copy_from_slice(&head.encode());
                    let value_at = HEAD + redo.key.len();
                    entry[value_at..value_at + value.len()].copy_from_slice(value);
                } else {
                    // The old entry stays behind, unused.
                    let place = self.append(head, redo.key, value);
                    self.refer(at, found.hash, place);
                }
            }
            Err(_) => {
                self.reserve_slot();
                let place = self.append(head, redo.key, value);
                self.occupy(found.hash, place);
                self.used += 1;
            }
        }
    }

    fn append(&mut self, head: Head, key: &[u8], value: &[u8]) -> usize {
        let place = self.entries.len();
        let len = HEAD + key.len() + value.len();
        self.entries.reserve(len.next_multiple_of(UNIT));
        self.entries.extend_from_slice(&head.encode());
        self.entries.extend_from_slice(key);
        self.entries.extend_from_slice(value);
        self.entries.resize(place + len.next_multiple_of(UNIT), 0);
        place
    }

    /// Makes room for a slot.
    fn reserve_slot(&mut self) {
        if self.slots.len() < 2 * (self.used + 1) {
            let slots = vec![0; (2 * self.slots.len()).max(SLOTS_MIN)];
            let old = std::mem::replace(&mut self.slots, slots);
            for slot in old.into_iter().filter(|&slot| slot != 0) {
                let place = place_of(slot);
                self.occupy(Head::decode(&self.entries[place..]).hash, place);
            }
        }
    }

    /// Returns the gathered writes, in the order of tables and keys.
    pub(super) fn sorted(&self) -> Vec<Write<'_>> {
        let slots = self.slots.iter().filter(|&&slot| slot != 0);
        let mut writes: Vec<_> = slots.map(|&slot| self.write(place_of(slot))).collect();
        writes.sort_unstable_by(|a, b| (a.redo.table, a.redo.key).cmp(&(b.redo.table, b.redo.key)));
        writes
    }

    fn write(&self, place: usize) -> Write<'_> {
        let entry = &self.entries[place..];
        let head = Head::decode(entry);
        let (key, rest) = entry[HEAD..].split_at(head.key_len as usize);
        let value = (head.value_len != REMOVED).then(|| &rest[..head.value_len as usize]);
        Write {
            version: head.version,
            redo: Redo {
                table: head.table,
                key,
                value,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Against a map, over many sizes of the table, with hashes that collide, lengths that grow and
    /// shrink, and removals.
    #[test]
    fn the_newest_write_of_each_key_is_kept() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut gathered, mut expected) = (Gathered::default(), BTreeMap::new());
        for _ in 0..20_000 {
            let (key, version) = (rng.u64(..3_000), rng.u64(1..20_000));
            let bytes = key.to_be_bytes();
            let value = rng.u8(..5).gt(&0).then(|| vec![key as u8; rng.usize(..20)]);
            let found = Found {
                // A few hashes, equal in the lowest bits, in the highest, or in all.
                hash: (key % 7) << 32 | (key % 1_000),
                version: SeqNo::new(version),
                redo: Redo {
                    table: 1,
                    key: &bytes,
                    value: value.as_deref(),
                },
            };
            gathered.prefetch([&found].into_iter());
            gathered.gather(&found);
            let newest = expected.entry(key).or_insert((0, None));
            if newest.0 < version {
                *newest = (version, value);
            }
        }
        let found = gathered.sorted().into_iter().map(|write| {
            let key = u64::from_be_bytes(write.redo.key.try_into().unwrap());
            (
                key,
                (write.version.get(), write.redo.value.map(<[u8]>::to_vec)),
            )
        });
        // `sorted` has each key once, in order.
        assert!(found.eq(expected));
    }

    #[test]
    fn the_bytes_in_use_grow_with_what_is_gathered() {
        let mut gathered = Gathered::default();
        assert_eq!(gathered.bytes(), 0);
        let mut gather = |version, value: &[u8]| {
            let redo = Redo {
                table: 1,
                key: b"key",
                value: Some(value),
            };
            gathered.gather(&Found::new(redo, SeqNo::new(version)));
            gathered.bytes()
        };
        let first = gather(1, &[1; 100]);
        assert_eq!(first, SLOTS_MIN * 8 + 136);
        assert_eq!(
            gather(2, &[2; 90]),
            first,
            "it fits in the place of the older one"
        );
        assert_eq!(gather(3, &[3; 100]), first, "the place keeps its length");
        assert_eq!(
            gather(4, &[4; 200]),
            first + 240,
            "a longer one needs another place"
        );
        assert_eq!(gathered.sorted().len(), 1);
    }
}
