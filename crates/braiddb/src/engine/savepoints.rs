//! Savepoints of a write set.

use std::ops::Range;

use braid_rt::atomic::{AtomicU64, Ordering};

use braid_rt::narrow;

/// Number of savepoints that a context reserves at a time.
const RESERVED: u64 = 1 << 10;

/// Position in a write set.
#[derive(Debug)]
struct Mark {
    number: u64,
    writes: usize,
    redo: usize,
}

/// The savepoints of a transaction, and the undo information to return to them. Empty, without
/// allocated memory, until the first savepoint is set.
#[derive(Debug, Default)]
pub(crate) struct Savepoints {
    marks: Vec<Mark>,
    /// Pairs of a write and the earlier write of the same key that it superseded, since the first
    /// savepoint.
    superseded: Vec<(u32, u32)>,
    /// Numbers reserved for later savepoints, also those of later transactions of the context.
    reserved: Range<u64>,
}

impl Savepoints {
    /// Records that a write superseded an earlier write.
    #[inline]
    pub(crate) fn note(&mut self, write: u32, before: usize) {
        if !self.marks.is_empty() {
            self.superseded.push((write, narrow(before)));
        }
    }

    /// Removes and returns the write that `write`, the newest one, superseded, if that was
    /// recorded.
    pub(crate) fn take_note(&mut self, write: u32) -> Option<u32> {
        let note = self.superseded.pop_if(|(later, _)| *later == write);
        note.map(|(_, before)| before)
            .filter(|_| !braid_rt::mutant!("forget_the_replaced"))
    }

    pub(crate) fn add(&mut self, writes: usize, redo: usize) -> u64 {
        // Unique over all transactions, so that a savepoint of one is unknown to the others.
        let number = self.reserved.next().unwrap_or_else(|| {
            // Relaxed: the counter orders nothing. Many at once, because all threads share it.
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let first = NEXT.fetch_add(RESERVED, Ordering::Relaxed);
            self.reserved = first + 1..first + RESERVED;
            first
        });
        self.marks.push(Mark {
            number,
            writes,
            redo,
        });
        number
    }

    /// Drops the savepoints after `number`, which remains. Returns its numbers of writes and redo
    /// bytes.
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
