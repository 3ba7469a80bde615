//! Operations of a run, and their records.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use fastrand::Rng;

use crate::zipf::{Zipf, scatter};
use crate::{Spec, Workload};

/// Longest scan of [`Workload::YcsbE`], in records.
pub const MAX_SCAN: u64 = 100;

/// Frequency of each kind of operation, in percent; the rest are inserts of new records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mix {
    read: u8,
    modify: u8,
    scan: u8,
}

impl Mix {
    fn of(workload: Workload) -> Self {
        let (read, modify, scan) = match workload {
            Workload::YcsbA | Workload::YcsbF => (50, 50, 0),
            Workload::YcsbB => (95, 5, 0),
            Workload::YcsbC => (100, 0, 0),
            Workload::YcsbD => (95, 0, 0),
            Workload::YcsbE => (0, 0, 95),
            Workload::YcsbInsert => (0, 0, 0),
            Workload::Scan => (0, 0, 100),
            _ => (0, 100, 0),
        };
        Mix { read, modify, scan }
    }
}

/// One operation, which is one transaction. Numbers are ordinals of records, not keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A read of one record.
    Read(u64),
    /// A locked read of a record, followed by an overwrite with one field changed.
    Modify(u64),
    /// A new record.
    Insert(u64),
    /// `len` records, starting with the key of this record.
    Scan { from: u64, len: usize },
}

/// State shared by all threads of a run: the shape of the data and the number of records so far.
#[derive(Debug)]
pub(crate) struct Plan {
    workload: Workload,
    zipf: Zipf,
    /// Number of records of a scan.
    scan: RangeInclusive<u64>,
    /// Ordinal of the next new record.
    next: CachePadded<AtomicU64>,
    /// Approximate number of records whose insert was acknowledged; "latest" counts back from it.
    newest: CachePadded<AtomicU64>,
}

impl Plan {
    /// Creates a plan over the loaded records.
    pub(crate) fn new(spec: &Spec) -> Arc<Self> {
        let records = spec.records;
        Arc::new(Plan {
            workload: spec.workload,
            zipf: Zipf::new(records, spec.zipf),
            scan: match spec.workload {
                Workload::Scan => spec.scan_length..=spec.scan_length,
                _ => 1..=MAX_SCAN,
            },
            next: CachePadded::new(AtomicU64::new(records)),
            newest: CachePadded::new(AtomicU64::new(records)),
        })
    }

    /// Returns the key of the record with this ordinal.
    #[inline]
    pub(crate) fn key(&self, ordinal: u64) -> u64 {
        scatter(ordinal)
    }

    /// Records that an insert was acknowledged.
    pub(crate) fn inserted(&self, ordinal: u64) {
        // Relaxed: a draw only needs a recent number; a record that does not exist yet is counted
        // as missing.
        self.newest.fetch_max(ordinal + 1, Ordering::Relaxed);
    }
}

/// Operations of one thread.
#[derive(Debug)]
pub(crate) struct Generator {
    plan: Arc<Plan>,
    mix: Mix,
    rng: Rng,
}

impl Generator {
    pub(crate) fn new(plan: Arc<Plan>, seed: u64) -> Self {
        let mix = Mix::of(plan.workload);
        Generator {
            plan,
            mix,
            rng: Rng::with_seed(seed),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Returns the next operation.
    #[inline]
    pub(crate) fn next(&mut self) -> Op {
        let zipf = &self.plan.zipf;
        // A read-only workload does not need a random number.
        let dice = if self.mix.read == 100 {
            0
        } else {
            self.rng.u8(0..100)
        };
        if dice < self.mix.read {
            let rank = zipf.draw(&mut self.rng);
            if self.plan.workload == Workload::YcsbD {
                // The newest record is the most frequent one.
                let newest = self.plan.newest.load(Ordering::Relaxed);
                return Op::Read(newest - 1 - rank);
            }
            Op::Read(rank)
        } else if dice < self.mix.read + self.mix.modify {
            Op::Modify(zipf.draw(&mut self.rng))
        } else if dice < self.mix.read + self.mix.modify + self.mix.scan {
            let from = zipf.draw(&mut self.rng);
            let len = self.rng.u64(self.plan.scan.clone()) as usize;
            Op::Scan { from, len }
        } else {
            Op::Insert(self.plan.next.fetch_add(1, Ordering::Relaxed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(workload: Workload, seed: u64) -> Generator {
        let spec = Spec {
            records: 1_000,
            ..Spec::new(workload)
        };
        Generator::new(Plan::new(&spec), seed)
    }

    /// Returns how many of 10,000 operations are reads, modifications, scans and inserts.
    fn census(workload: Workload) -> [u32; 4] {
        let mut generator = generator(workload, 11);
        let mut counts = [0; 4];
        for _ in 0..10_000 {
            match generator.next() {
                Op::Read(n) => {
                    assert!(n < 1_000 + u64::from(counts[3]));
                    counts[0] += 1;
                }
                Op::Modify(n) => {
                    assert!(n < 1_000);
                    counts[1] += 1;
                }
                Op::Scan { len, .. } => {
                    assert!((1..=100).contains(&len));
                    counts[2] += 1;
                }
                Op::Insert(n) => {
                    assert_eq!(n, 1_000 + u64::from(counts[3]), "new ordinals are dense");
                    generator.plan().inserted(n);
                    counts[3] += 1;
                }
            }
        }
        counts
    }

    #[test]
    fn mixes_are_those_of_ycsb() {
        let near = |seen: u32, percent: u32| seen.abs_diff(percent * 100) < 250;
        for (workload, wanted) in [
            (Workload::YcsbA, [50, 50, 0, 0]),
            (Workload::YcsbB, [95, 5, 0, 0]),
            (Workload::YcsbC, [100, 0, 0, 0]),
            (Workload::YcsbD, [95, 0, 0, 5]),
            (Workload::YcsbE, [0, 0, 95, 5]),
            (Workload::YcsbF, [50, 50, 0, 0]),
            (Workload::YcsbInsert, [0, 0, 0, 100]),
            (Workload::YcsbUpdate, [0, 100, 0, 0]),
        ] {
            let seen = census(workload);
            assert!(
                (0..4).all(|i| near(seen[i], wanted[i])),
                "{workload}: {seen:?}"
            );
        }
    }

    #[test]
    fn latest_means_newest_first() {
        let mut generator = generator(Workload::YcsbD, 5);
        generator.plan().inserted(1_499);
        let reads: Vec<u64> = (0..2_000)
            .filter_map(|_| match generator.next() {
                Op::Read(n) => Some(n),
                _ => None,
            })
            .collect();
        let newest = reads.iter().filter(|&&n| n == 1_499).count();
        assert!(
            newest * 20 > reads.len(),
            "{newest} of {} reads",
            reads.len()
        );
        assert!(reads.iter().all(|&n| (500..1_500).contains(&n)));
    }
}
