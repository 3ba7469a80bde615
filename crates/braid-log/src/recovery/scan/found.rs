//! The numbers that a lane holds of one incarnation.

use crate::base::numbers::{FlushNo, SeqNo};
use crate::protocol::{Dependent, Run};

/// Runs kept before those below the durable seqno are folded into a count. Simulated logs are
/// short.
fn fold_at() -> usize {
    if braid_rt::simulation::is_on() {
        8
    } else {
        1 << 16
    }
}

/// The contents that a lane holds of one incarnation.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The greatest durable seqno that a chunk or segment header records.
    pub(crate) durable_seqno: SeqNo,
    pub(crate) protocol: u8,
    pub(crate) base: SeqNo,
    /// The part kept of the previous incarnation, from the header.
    pub(crate) kept: Vec<u64>,
    /// Numbers of flushes.
    pub(crate) flushes: Vec<FlushNo>,
    pub(crate) dependents: Vec<Dependent>,
    /// Count of numbers up to the durable seqno whose runs were folded.
    folded: u64,
    /// All other log records.
    pub(crate) runs: Vec<Run>,
    pub(super) fold_at: usize,
}

impl Found {
    pub(super) fn add(&mut self, run: Run) {
        self.runs.push(run);
        if self.runs.len() >= self.fold_at.max(fold_at()) {
            braid_rt::coverage_point("scan: numbers up to the durable seqno are folded");
            let durable_seqno = self.durable_seqno;
            self.folded += count_up_to(&mut self.runs, durable_seqno);
            self.fold_at = 2 * self.runs.len();
            // An acknowledged transaction depends on no lost one.
            self.dependents
                .retain(|dependent| dependent.seqno > durable_seqno);
        }
    }

    /// Counts the numbers up to `durable_seqno`, which is at least the lane's own, and removes
    /// their runs.
    pub(crate) fn take_up_to(&mut self, durable_seqno: SeqNo) -> u64 {
        debug_assert!(durable_seqno >= self.durable_seqno || self.folded == 0);
        std::mem::take(&mut self.folded) + count_up_to(&mut self.runs, durable_seqno)
    }
}

/// Removes the runs that end at or before `durable_seqno`; returns the count of their numbers.
fn count_up_to(runs: &mut Vec<Run>, durable_seqno: SeqNo) -> u64 {
    let mut count = 0;
    runs.retain(|run| {
        let keep = run.last > durable_seqno;
        if !keep {
            count += run.last.count_after(run.first) + 1;
        }
        keep
    });
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_folded_count_once() {
        let many = fold_at() as u64;
        let dependent = |number| Dependent {
            seqno: SeqNo::new(number),
            on: Vec::new(),
        };
        let mut found = Found {
            durable_seqno: SeqNo::new(many - 10),
            dependents: [many - 11, many - 10, many - 9].map(dependent).to_vec(),
            ..Found::default()
        };
        let mut add = |number| {
            let number = SeqNo::new(number);
            found.add(Run {
                first: number,
                last: number,
                flush: FlushNo::NONE,
                ..Run::default()
            });
            found.runs.len() as u64
        };
        for number in 1..many {
            assert_eq!(add(number), number);
        }
        assert_eq!(add(many), 10);
        assert_eq!((found.folded, found.fold_at), (many - 10, 20));
        assert_eq!(found.dependents, [dependent(many - 9)]);
        assert_eq!(found.take_up_to(SeqNo::new(many - 4)), many - 4);
        assert_eq!(found.runs.len(), 4);
        assert_eq!(found.take_up_to(SeqNo::new(many)), 4);
    }
}
