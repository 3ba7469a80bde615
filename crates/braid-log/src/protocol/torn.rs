//! Transactions of which recovery finds only some fragments, for protocols that keep numbers after
//! one that is missing.

use std::collections::BTreeMap;

use super::Run;
use crate::base::numbers::SeqNo;

/// I15: the first number of the first transaction of which `runs` lack a fragment; [`SeqNo::MAX`] if
/// all are whole.
pub(crate) fn first_torn<'a>(runs: impl Iterator<Item = &'a Run>) -> SeqNo {
    torn(runs).next().unwrap_or(SeqNo::MAX)
}

/// The first numbers of the transactions of which `runs` lack a fragment, in ascending order.
pub(super) fn torn<'a>(runs: impl Iterator<Item = &'a Run>) -> impl Iterator<Item = SeqNo> {
    // By the transaction's first number, how many of its numbers are missing, or of its fragments.
    let mut missing: BTreeMap<SeqNo, u64> = BTreeMap::new();
    for run in runs.filter(|run| !run.rest.is_nothing()) {
        let (before, after) = (u64::from(run.rest.before), u64::from(run.rest.after));
        let own = run.last.count_after(run.first) + 1;
        let first = if run.rest.shares_number {
            run.first
        } else {
            SeqNo::new(run.first.get() - before)
        };
        let all = missing.entry(first).or_insert(before + own + after);
        *all = all.saturating_sub(own);
    }
    missing.retain(|_, missing| *missing > 0 && !braid_rt::mutant!("keep_torn_transactions"));
    if !missing.is_empty() {
        braid_rt::coverage_point("gap rule: a transaction lacks a fragment in a kept flush");
    }
    missing.into_keys()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transactions 1 to 5, 6, 7 to 9 and 10 to 11, each as its runs.
    #[test]
    fn a_transaction_is_whole_with_all_its_fragments() {
        let run = Run::fragment;
        let runs = [
            run(1, 2, 0, 3),
            run(3, 3, 2, 2),
            run(4, 5, 3, 0),
            run(6, 6, 0, 0),
            run(7, 8, 0, 1),
            run(9, 9, 2, 0),
            run(10, 10, 0, 1),
            run(11, 11, 1, 0),
        ];
        let without = |missing: &[usize]| {
            let there = runs.iter().enumerate();
            let there = there.filter(|(index, _)| !missing.contains(index));
            first_torn(there.map(|(_, run)| run)).get()
        };
        let none = SeqNo::MAX.get();
        assert_eq!(without(&[]), none);
        // A whole transaction, and all fragments of one.
        assert_eq!(without(&[3, 6, 7]), none);
        assert_eq!([0, 1, 2].map(|one| without(&[one])), [1, 1, 1]);
        assert_eq!([4, 5, 6, 7].map(|one| without(&[one])), [7, 7, 10, 10]);
        assert_eq!(without(&[7, 5]), 7);
    }

    #[test]
    fn fragments_with_one_number_are_counted() {
        let run = Run::sharing_fragment;
        let runs = [run(5, 0, 2), run(5, 2, 0), run(6, 0, 1), run(6, 1, 0)];
        let found: Vec<u64> = torn(runs.iter()).map(SeqNo::get).collect();
        assert_eq!(found, [5]);
        let runs = [run(5, 0, 2), run(5, 1, 1), run(5, 2, 0), run(6, 1, 0)];
        let found: Vec<u64> = torn(runs.iter()).map(SeqNo::get).collect();
        assert_eq!(found, [6]);
    }
}
