//! The part of the model that all protocols share.

use super::rules::{Dependence, LockRelease, Protocol, Rules};

pub(crate) const LANES: usize = 3;
const KEYS: usize = 3;

/// The operations of one transaction: it reads a key, then overwrites one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Script {
    pub(crate) read: u8,
    pub(crate) write: u8,
    pub(crate) lane: u8,
}

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Waiting,
    /// The transaction holds its lock, and has read.
    Running,
    /// The transaction has its number.
    Assigned,
    /// Its log record is in its lane, and its write is visible.
    Applied,
    /// The transaction failed its validation; its abort record is logged.
    Abort,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) phase: Phase,
    pub(crate) number: u8,
    pub(crate) has_lock: bool,
    /// The writers of the versions that it read and overwrote.
    pub(crate) read_from: Option<u8>,
    pub(crate) overwrote: Option<u8>,
}

impl Transaction {
    /// The transactions that it depends on.
    pub(crate) fn dependencies(&self) -> impl Iterator<Item = usize> {
        let both = [self.read_from, self.overwrote];
        both.into_iter().flatten().map(usize::from)
    }
}

/// A flush: its number over all lanes, and the transactions whose log records it contains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flush {
    pub(crate) number: u8,
    pub(crate) log_records: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) buffer: Vec<u8>,
    pub(crate) in_flight: Option<Flush>,
    pub(crate) landed: Vec<Flush>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) lanes: [Lane; LANES],
    /// The newest numbers assigned.
    pub(crate) counter: u8,
    pub(crate) flushes: u8,
    pub(crate) epoch_end: u8,
    epochs: u8,
    /// The last writer of each key.
    writer: [Option<u8>; KEYS],
    lock: [Option<u8>; KEYS],
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin(usize),
    Assign(usize),
    Append(usize),
    Seal(usize),
    Land(usize),
    EndEpoch,
}

impl State {
    pub(crate) fn new(script: &[Script]) -> Self {
        let waiting = Transaction {
            phase: Phase::Waiting,
            number: 0,
            has_lock: false,
            read_from: None,
            overwrote: None,
        };
        Self {
            transactions: vec![waiting; script.len()],
            lanes: Default::default(),
            counter: 0,
            flushes: 0,
            epoch_end: 0,
            epochs: 0,
            writer: [None; KEYS],
            lock: [None; KEYS],
        }
    }

    /// Whether a transaction's log record is in a flush, and whether that has landed.
    pub(crate) fn flush_of(&self, transaction: usize) -> Option<(&Flush, bool)> {
        self.lanes.iter().find_map(|lane| {
            let has = |flush: &&Flush| flush.log_records.contains(&(transaction as u8));
            let landed = lane.landed.iter().find(has).map(|flush| (flush, true));
            landed.or(lane.in_flight.iter().find(has).map(|flush| (flush, false)))
        })
    }

    pub(crate) fn is_durable(&self, transaction: usize) -> bool {
        self.flush_of(transaction).is_some_and(|(_, landed)| landed)
    }

    /// Releases locks that the protocol no longer needs.
    fn release(&mut self, rules: &Rules, script: &[Script]) {
        loop {
            let due = (0..self.transactions.len()).find(|&i| {
                let transaction = &self.transactions[i];
                transaction.has_lock
                    && match (transaction.phase, rules.lock_release()) {
                        (Phase::Abort, _) | (Phase::Applied, LockRelease::Precommit) => true,
                        (Phase::Applied, LockRelease::Numbered) => self.flush_of(i).is_some(),
                        (Phase::Applied, LockRelease::Durable) => rules.is_acknowledged(self, i),
                        _ => false,
                    }
            });
            let Some(i) = due else { return };
            self.transactions[i].has_lock = false;
            self.lock[usize::from(script[i].write)] = None;
        }
    }

    /// Whether an append may proceed under the protocol's rule for dependencies.
    fn may_append(&self, rules: &Rules, script: &[Script], i: usize) -> bool {
        let mut on = self.transactions[i].clone();
        on.overwrote = self.writer[usize::from(script[i].write)];
        on.dependencies().all(|on| match rules.dependence() {
            Dependence::Implied | Dependence::Recorded => true,
            // In its own lane it cannot be sealed later.
            Dependence::Sealed => script[on].lane == script[i].lane || self.flush_of(on).is_some(),
            Dependence::Durable => rules.is_acknowledged(self, on),
        })
    }
}

/// Returns all possible steps in a state, with the states that follow.
pub(crate) fn steps(rules: &Rules, script: &[Script], state: &State) -> Vec<(Step, State)> {
    let mut steps = Vec::new();
    let mut add = |step: Step, change: &dyn Fn(&mut State)| {
        let mut next = state.clone();
        change(&mut next);
        next.release(rules, script);
        steps.push((step, next));
    };
    let due = state
        .transactions
        .iter()
        .any(|t| t.number > state.epoch_end);
    let is_settled = rules.durable_seqno(state) >= state.epoch_end;
    if rules.protocol == Protocol::Epoch && due && is_settled && state.epochs < 2 {
        add(Step::EndEpoch, &|next| {
            next.epoch_end = next.counter;
            next.epochs += 1;
        });
    }
    for (i, transaction) in state.transactions.iter().enumerate() {
        let (read, write) = (usize::from(script[i].read), usize::from(script[i].write));
        match transaction.phase {
            Phase::Waiting if state.lock[write].is_none() => add(Step::Begin(i), &|next| {
                next.lock[write] = Some(i as u8);
                let own = &mut next.transactions[i];
                own.has_lock = true;
                own.phase = Phase::Running;
                own.read_from = next.writer[read];
            }),
            Phase::Running => add(Step::Assign(i), &|next| {
                next.counter += 1;
                next.transactions[i].number = next.counter;
                next.transactions[i].phase = Phase::Assigned;
            }),
            Phase::Assigned if state.may_append(rules, script, i) => {
                add(Step::Append(i), &|next| {
                    next.lanes[usize::from(script[i].lane)].buffer.push(i as u8);
                    let own = &mut next.transactions[i];
                    // The validation: the version read must be the one that a transaction with its
                    // number would read.
                    if own.read_from != next.writer[read] {
                        own.phase = Phase::Abort;
                        return;
                    }
                    own.phase = Phase::Applied;
                    own.overwrote = next.writer[write];
                    next.writer[write] = Some(i as u8);
                })
            }
            _ => {}
        }
    }
    for (lane, content) in state.lanes.iter().enumerate() {
        if content.in_flight.is_some() {
            add(Step::Land(lane), &|next| {
                let lane = &mut next.lanes[lane];
                lane.landed.extend(lane.in_flight.take());
            });
        } else if !content.buffer.is_empty() {
            add(Step::Seal(lane), &|next| {
                next.flushes += 1;
                let lane = &mut next.lanes[lane];
                lane.in_flight = Some(Flush {
                    number: next.flushes,
                    log_records: std::mem::take(&mut lane.buffer),
                });
            });
        }
    }
    steps
}
