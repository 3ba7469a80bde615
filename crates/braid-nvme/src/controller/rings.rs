//! A submission queue and its completion queue in memory.

use braid_rt::narrow;

use super::words::Words;
use super::{Host, barrier};
use crate::DriveError;

/// An entry of a submission queue.
pub(super) type Entry = [u32; 16];

/// What a completion says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) result: u32,
    pub(super) queue: u16,
    pub(super) id: u16,
    /// Status without the bits "more" and "do not retry".
    pub(super) status: u16,
}

pub(super) struct Rings {
    pub(super) submission: Words,
    pub(super) completion: Words,
    entries: u16,
    tail: u16,
    /// Tail that the controller knows.
    rung: u16,
    head: u16,
    /// Head that the controller knows.
    answered: u16,
    /// Value of the phase bit of new completions.
    phase: u32,
}

impl Rings {
    pub(super) fn new(host: &impl Host, entries: u16) -> Result<Self, DriveError> {
        Ok(Self {
            submission: Words::new(host, usize::from(entries) * 16)?,
            completion: Words::new(host, usize::from(entries) * 4)?,
            entries,
            tail: 0,
            rung: 0,
            head: 0,
            answered: 0,
            phase: 1,
        })
    }

    /// Empties both queues, which the controller does not use.
    pub(super) fn clear(&mut self) {
        self.submission.clear();
        self.completion.clear();
        (self.tail, self.rung, self.head, self.answered) = (0, 0, 0, 0);
        self.phase = 1;
    }

    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.submission.address(), self.completion.address())
    }

    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    fn after(&self, index: u16) -> u16 {
        if index + 1 == self.entries {
            0
        } else {
            index + 1
        }
    }

    /// Puts an entry into the submission queue, which is not full: at most `entries - 1` commands
    /// are in flight, and the controller fetches entries in their order.
    pub(super) fn push(&mut self, entry: &Entry) {
        let start = usize::from(self.tail) * 16;
        for (i, word) in entry.iter().enumerate() {
            self.submission.store(start + i, *word);
        }
        self.tail = self.after(self.tail);
    }

    /// Tells the controller about new entries.
    pub(super) fn ring(&mut self, host: &impl Host, doorbell: usize) {
        if self.rung == self.tail {
            return;
        }
        barrier::before_doorbell();
        host.write(doorbell, u32::from(self.tail));
        self.rung = self.tail;
    }

    /// Returns the next completion.
    pub(super) fn next(&mut self) -> Option<Answer> {
        let start = usize::from(self.head) * 4;
        let word = |i: usize| self.completion.load(start + i);
        let last = word(3);
        if last >> 16 & 1 != self.phase {
            return None;
        }
        barrier::after_phase();
        let half = |word: u32, shift: u32| -> u16 { narrow(u64::from(word >> shift & 0xffff)) };
        let answer = Answer {
            result: word(0),
            queue: half(word(2), 16),
            id: half(last, 0),
            status: half(last, 17) & 0x7ff,
        };
        self.head = self.after(self.head);
        if self.head == 0 {
            self.phase ^= 1;
        }
        Some(answer)
    }

    /// Tells the controller which completions were taken.
    pub(super) fn answer(&mut self, host: &impl Host, doorbell: usize) {
        if self.answered == self.head {
            return;
        }
        barrier::before_reuse();
        host.write(doorbell, u32::from(self.head));
        self.answered = self.head;
    }
}
