//! Order of a transaction's writes by key, for its scans.

use std::cmp::Ordering;
use std::ops::Bound;

use braid_rt::narrow;

/// Writes that are inserted one by one, and the part of the known ones up to which that is cheaper than
/// a look at all of them.
const FEW: usize = 8;
const PART: usize = 32;

/// The table and the key of a write.
type Place<'a> = (u32, &'a [u8]);

/// The positions of writes in the order of their tables and keys, one for each key. A scan extends the
/// order by the writes since the scan before it, so that scans between writes do not look at all writes
/// each time.
#[derive(Debug, Default)]
pub(super) struct Order {
    positions: Vec<u32>,
    /// Number of writes that were added.
    added: usize,
}

impl Order {
    /// Forgets all writes.
    pub(super) fn clear(&mut self) {
        self.positions.clear();
        self.added = 0;
    }

    /// Adds the writes up to a number of writes. `at` returns the table and the key of a write.
    pub(super) fn extend<'a>(
        &mut self,
        writes: usize,
        at: impl Fn(u32) -> Place<'a>,
        is_live: impl Fn(u32) -> bool,
    ) {
        let new = narrow(self.added)..narrow(writes);
        self.added = writes;
        if new.len() > FEW.max(self.positions.len() / PART) {
            // The sort finds that all but the new ones are in order.
            self.positions.extend(new);
            self.positions.retain(|&i| is_live(i));
            self.positions.sort_by(|&a, &b| at(a).cmp(&at(b)));
            return;
        }
        for i in new.filter(|&i| is_live(i)) {
            let place = self.positions.partition_point(|&other| at(other) < at(i));
            // The write that it supersedes has the same key.
            match self.positions.get_mut(place) {
                Some(other) if at(*other) == at(i) => *other = i,
                _ => self.positions.insert(place, i),
            }
        }
    }

    /// Returns the writes of a table inside the bounds.
    pub(super) fn range<'a>(
        &self,
        table: u32,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        at: impl Fn(u32) -> Place<'a>,
    ) -> &[u32] {
        let cut = |among: &[u32], key: &[u8], inclusive: bool| {
            among.partition_point(|&i| match at(i).cmp(&(table, key)) {
                Ordering::Less => true,
                Ordering::Equal => inclusive,
                Ordering::Greater => false,
            })
        };
        let all = &self.positions[..];
        let begin = match lower {
            Bound::Included(key) => cut(all, key, false),
            Bound::Excluded(key) => cut(all, key, true),
            Bound::Unbounded => cut(all, b"", false),
        };
        let rest = &all[begin..];
        let end = match upper {
            Bound::Included(key) => cut(rest, key, true),
            Bound::Excluded(key) => cut(rest, key, false),
            Bound::Unbounded => rest.partition_point(|&i| at(i).0 <= table),
        };
        &rest[..end]
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_scan_after_a_write_looks_at_few_others() {
        let keys: Vec<[u8; 4]> = (0..5000_u32)
            .map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes())
            .collect();
        let looks = Cell::new(0);
        let at = |i: u32| {
            looks.set(looks.get() + 1);
            (0, &keys[i as usize][..])
        };
        let mut order = Order::default();
        for writes in 4000..=keys.len() {
            order.extend(writes, at, |_| true);
            let key = &keys[writes - 1][..];
            let found = order.range(0, Bound::Included(key), Bound::Included(key), at);
            assert_eq!(found, [narrow::<u32>(writes - 1)]);
            assert!(writes == 4000 || looks.get() < 100, "{} looks", looks.get());
            looks.set(0);
        }
    }
}
