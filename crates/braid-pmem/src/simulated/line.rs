//! The stores of one cache line that are not durable yet.

use std::collections::VecDeque;
use std::thread::ThreadId;

use braid_rt::simulation::{self, TaskId};

/// A thread, or a task of the deterministic scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ThreadKey {
    Task(TaskId),
    Thread(ThreadId),
}

impl ThreadKey {
    pub(super) fn current() -> Self {
        if simulation::is_on() {
            Self::Task(simulation::task())
        } else {
            Self::Thread(std::thread::current().id())
        }
    }
}

/// A store of one word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    /// Index of the word in its line.
    pub(super) word: usize,
    pub(super) value: u64,
    pub(super) by: ThreadKey,
    /// Number of fences of the thread before the store.
    pub(super) fences: u64,
    /// Whether every earlier store of the line becomes visible first.
    pub(super) is_ordered: bool,
}

/// The stores of a line since its durable contents, in the order in which they became visible.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Number of stores that became durable and were removed from the front.
    removed: u64,
    stores: VecDeque<Store>,
}

impl Line {
    /// Adds a store. It is ordered after all earlier ones if it is a release store, if its thread
    /// has passed a fence since, or if another thread stored before it: the two threads must have
    /// synchronized, or the order does not matter to them.
    pub(super) fn push(&mut self, store: Store) {
        let is_ordered = store.is_ordered
            || self
                .stores
                .back()
                .is_some_and(|last| last.by != store.by || last.fences != store.fences);
        self.stores.push_back(Store {
            is_ordered,
            ..store
        });
    }

    /// Position after the newest store.
    pub(super) fn end(&self) -> u64 {
        self.removed + self.stores.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    pub(super) fn words(&self) -> impl Iterator<Item = usize> {
        self.stores.iter().map(|store| store.word)
    }

    /// Makes the stores before a position durable: into the words of the line.
    pub(super) fn make_durable(&mut self, end: u64, durable: &mut [u64]) {
        while self.removed < end
            && let Some(store) = self.stores.pop_front()
        {
            durable[store.word] = store.value;
            self.removed += 1;
        }
    }

    /// Applies the stores that survive a crash to the durable words.
    pub(super) fn survive(&self, fate: Fate, random: &mut fastrand::Rng, durable: &mut [u64]) {
        let mut kept = vec![false; self.stores.len()];
        match fate {
            Fate::Nothing => {}
            Fate::Everything => kept.fill(true),
            Fate::Prefix => {
                let len = random.usize(..=self.stores.len());
                kept[..len].fill(true);
            }
            Fate::Reordered => {
                let mut is_needed = false;
                for (index, store) in self.stores.iter().enumerate().rev() {
                    kept[index] = is_needed || random.bool();
                    is_needed |= kept[index] && store.is_ordered;
                }
            }
        }
        for (store, _) in self.stores.iter().zip(&kept).filter(|(_, kept)| **kept) {
            durable[store.word] = store.value;
        }
    }
}

/// What a crash keeps of one line's stores that are not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Nothing,
    Everything,
    /// The first stores.
    Prefix,
    /// Any stores, but an ordered one only together with every earlier one.
    Reordered,
}

impl Fate {
    pub(super) fn random(random: &mut fastrand::Rng) -> Self {
        match random.u8(..4) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2 => Self::Prefix,
            _ => Self::Reordered,
        }
    }
}
