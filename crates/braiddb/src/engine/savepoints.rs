//! The savepoints of a write set.

use std::sync::atomic::{AtomicU64, Ordering};

use braid_rt::narrow;

/// Where a write set was.
#[derive(Debug)]
struct Mark {
    number: u64,
    writes: usize,
    redo: usize,
}

/// The savepoints of a transaction that stand, and what it takes to return to them. Empty, and without
/// memory of its own, until the first one is made.
#[derive(Debug, Default)]
pub(crate) struct Savepoints {
    marks: Vec<Mark>,
    /// Since the first savepoint: a write, and the earlier one of the same key that it took the place of.
    superseded: Vec<(u32, u32)>,
}

impl Savepoints {
    /// Notes that a write takes the place of another.
    #[inline]
    pub(crate) fn note(&mut self, write: u32, before: usize) {
        if !self.marks.is_empty() {
            self.superseded.push((write, narrow(before)));
        }
    }

    /// The write whose place the newest one took, if that was noted.
    pub(crate) fn take_note(&mut self, write: u32) -> Option<u32> {
        let note = self.superseded.pop_if(|(later, _)| *later == write);
        note.map(|(_, before)| before)
            .filter(|_| !braid_rt::mutant!("forget_the_replaced"))
    }

    pub(crate) fn add(&mut self, writes: usize, redo: usize) -> u64 {
        // Over all transactions, so that one's savepoint is unknown to the others. Relaxed: it orders
        // nothing.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.marks.push(Mark {
            number,
            writes,
            redo,
        });
        number
    }

    /// Drops the savepoints behind one of these, which stays; says where that is.
    pub(crate) fn return_to(&mut self, number: u64) -> Option<(usize, usize)> {
        let at = self.marks.iter().rposition(|mark| mark.number == number)?;
        self.marks.truncate(at + 1);
        Some((self.marks[at].writes, self.marks[at].redo))
    }

    pub(crate) fn clear(&mut self) {
        self.marks.clear();
        self.superseded.clear();
    }
}
