//! Free allocation units.

use std::collections::BTreeMap;

use super::image::Extent;

/// Runs of free units: the first unit of each, and how many.
#[derive(Debug, Default)]
pub(super) struct Space {
    runs: BTreeMap<u64, u64>,
    free: u64,
}

impl Space {
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Adds units that are not free yet.
    pub(super) fn add(&mut self, start: u64, units: u64) {
        if units == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + units);
        self.free += units;
        if let Some((&before, &len)) = self.runs.range(..start).next_back() {
            debug_assert!(before + len <= start, "V2: a unit is freed twice");
            if before + len == start {
                self.runs.remove(&before);
                start = before;
            }
        }
        if let Some((&after, &len)) = self.runs.range(start.max(end - units)..).next() {
            debug_assert!(end <= after, "V2: a unit is freed twice");
            if after == end {
                self.runs.remove(&after);
                end = after + len;
            }
        }
        self.runs.insert(start, end - start);
    }

    /// Takes units from a run that begins at `start`.
    fn take_from(&mut self, start: u64, units: u64) -> Extent {
        let len = self.runs.remove(&start).expect("a run begins here");
        if units < len {
            self.runs.insert(start + units, len - units);
        }
        self.free -= units;
        Extent {
            at: Some(start),
            units,
        }
    }

    /// Takes units: if possible those from `near` on, otherwise the first run that has all, and
    /// otherwise the largest runs. Returns `None`, and takes nothing, if there are too few.
    pub(super) fn take(&mut self, near: Option<u64>, mut units: u64) -> Option<Vec<Extent>> {
        if units > self.free {
            return None;
        }
        let mut taken = Vec::new();
        if let Some(near) = near
            && let Some(&len) = self.runs.get(&near)
        {
            let part = len.min(units);
            taken.push(self.take_from(near, part));
            units -= part;
        }
        while units > 0 {
            let whole = self.runs.iter().find(|(_, len)| **len >= units);
            let chosen = whole.or_else(|| self.runs.iter().max_by_key(|(_, len)| **len));
            let (&start, &len) = chosen?;
            let part = len.min(units);
            taken.push(self.take_from(start, part));
            units -= part;
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_taken_once_and_runs_are_joined() {
        let mut space = Space::default();
        space.add(0, 100);
        let first = space.take(None, 10).unwrap();
        assert_eq!(first[0].at, Some(0));
        let second = space.take(Some(10), 10).unwrap();
        assert_eq!(second[0].at, Some(10));
        assert_eq!(space.free(), 80);
        assert!(space.take(None, 81).is_none());
        space.add(0, 10);
        space.add(10, 10);
        assert_eq!(space.runs, BTreeMap::from([(0, 100)]));
        let mut random = fastrand::Rng::with_seed(1);
        let mut owned: Vec<Extent> = Vec::new();
        for _ in 0..2000 {
            if random.bool() {
                let near = random.bool().then(|| random.u64(..100));
                owned.extend(space.take(near, random.u64(1..20)).into_iter().flatten());
            } else if !owned.is_empty() {
                let back = owned.swap_remove(random.usize(..owned.len()));
                space.add(back.at.unwrap(), back.units);
            }
            let mut all: Vec<(u64, u64)> = owned.iter().map(|e| (e.at.unwrap(), e.units)).collect();
            all.extend(space.runs.iter().map(|(at, len)| (*at, *len)));
            all.sort_unstable();
            let mut end = 0;
            for (at, len) in all {
                assert_eq!(at, end);
                end = at + len;
            }
            assert_eq!(end, 100);
        }
    }
}
