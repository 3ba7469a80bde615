//! The part of the model that all protocols share.

use super::rules::{Dependence, LockRelease, Mutant, Protocol, Rules};

pub(crate) const LANES: usize = 3;
const KEYS: usize = 3;

/// The operations of one transaction: it reads a key, then overwrites one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Script {
    pub(crate) read: u8,
    pub(crate) write: u8,
    /// The lanes that get a part of its log record.
    pub(crate) lanes: LaneSet,
}

/// A set of lanes, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneSet(pub(crate) u8);

impl LaneSet {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn of(lane: usize) -> Self {
        Self(1 << lane)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..LANES).filter(move |&lane| self.has(lane))
    }

    pub(crate) fn has(self, lane: usize) -> bool {
        self.0 & 1 << lane != 0
    }

    fn with(self, lane: usize) -> Self {
        Self(self.0 | 1 << lane)
    }

    /// The lane in whose order a transaction with parts in these lanes is: the first.
    pub(crate) fn home(self) -> usize {
        self.0.trailing_zeros() as usize
    }
}

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Waiting,
    /// The transaction holds its lock, and has read.
    Running,
    /// The transaction has its number.
    Assigned,
    /// The transaction is valid, and some parts of its log record are in their lanes.
    Appending,
    /// All parts of its log record are in their lanes, and its write is visible.
    Applied,
    /// The transaction failed its validation; its home lane has its abort record.
    Abort,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) phase: Phase,
    pub(crate) number: u8,
    /// The lanes that get a part of its log record, and those that have it.
    pub(crate) parts: LaneSet,
    pub(crate) appended: LaneSet,
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

/// A flush: its number over all lanes, and the transactions of whose log records it contains a part.
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
    /// The number up to which the checkpoint of the lane's tablespace has everything; the log before
    /// it is truncated.
    pub(crate) checkpoint: u8,
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
    /// The last flush that a checkpoint covers, and the number of checkpoints.
    pub(crate) flush_base: u8,
    checkpoints: u8,
    /// The last writer of each key.
    writer: [Option<u8>; KEYS],
    lock: [Option<u8>; KEYS],
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin(usize),
    Assign(usize),
    /// Appends the part of a transaction that a lane gets.
    Append(usize, usize),
    Seal(usize),
    Land(usize),
    EndEpoch,
    /// Publishes a checkpoint of the tablespace of a lane, and truncates the lane's log.
    Checkpoint(usize),
}

impl State {
    pub(crate) fn new(script: &[Script]) -> Self {
        let waiting = |one: &Script| Transaction {
            phase: Phase::Waiting,
            number: 0,
            parts: one.lanes,
            appended: LaneSet::NONE,
            has_lock: false,
            read_from: None,
            overwrote: None,
        };
        Self {
            transactions: script.iter().map(waiting).collect(),
            lanes: Default::default(),
            counter: 0,
            flushes: 0,
            epoch_end: 0,
            epochs: 0,
            flush_base: 0,
            checkpoints: 0,
            writer: [None; KEYS],
            lock: [None; KEYS],
        }
    }

    /// Returns the flush with the part that a lane has of a transaction, and whether it has landed.
    pub(crate) fn part_of(&self, lane: usize, transaction: usize) -> Option<(&Flush, bool)> {
        let lane = &self.lanes[lane];
        let has = |flush: &&Flush| flush.log_records.contains(&(transaction as u8));
        let landed = lane.landed.iter().find(has).map(|flush| (flush, true));
        landed.or_else(|| lane.in_flight.iter().find(has).map(|flush| (flush, false)))
    }

    /// Returns the first of the flushes with a transaction's parts, once one is sealed.
    pub(crate) fn flush_of(&self, transaction: usize) -> Option<&Flush> {
        let parts = self.transactions[transaction].parts.iter();
        let sealed = parts.filter_map(|lane| self.part_of(lane, transaction));
        let sealed = sealed.map(|(flush, _)| flush);
        sealed.min_by_key(|flush| flush.number)
    }

    /// Returns the last of the flushes with a transaction's parts, if all of its parts are sealed.
    pub(crate) fn last_flush_of(&self, transaction: usize) -> Option<&Flush> {
        let parts = self.transactions[transaction].parts.iter();
        let flushes = parts.map(|lane| self.part_of(lane, transaction).map(|(flush, _)| flush));
        let flushes: Option<Vec<&Flush>> = flushes.collect();
        flushes?.into_iter().max_by_key(|flush| flush.number)
    }

    /// Releases locks that the protocol no longer needs.
    fn release(&mut self, rules: &Rules, script: &[Script]) {
        loop {
            let due = (0..self.transactions.len()).find(|&i| {
                let transaction = &self.transactions[i];
                transaction.has_lock
                    && match (transaction.phase, rules.lock_release()) {
                        (Phase::Abort, _) | (Phase::Applied, LockRelease::Precommit) => true,
                        // One part is enough: recovery finds it, and ends before the transaction if
                        // another part is missing.
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

    fn append(&mut self, i: usize, lane: usize) {
        self.lanes[lane].buffer.push(i as u8);
        let own = &mut self.transactions[i];
        own.appended = own.appended.with(lane);
    }

    /// Appends a part of a valid transaction, and applies the transaction after its last part.
    fn append_valid(&mut self, script: &[Script], i: usize, lane: usize) {
        self.append(i, lane);
        let write = usize::from(script[i].write);
        let own = &mut self.transactions[i];
        if own.appended != own.parts {
            own.phase = Phase::Appending;
            return;
        }
        own.phase = Phase::Applied;
        own.overwrote = self.writer[write];
        self.writer[write] = Some(i as u8);
    }

    /// Whether an append may proceed under the protocol's rule for dependencies.
    fn may_append(&self, rules: &Rules, script: &[Script], i: usize) -> bool {
        // The lock of what it overwrites was released when that was safe, so only reads may have to
        // wait.
        let mut on = self.transactions[i].dependencies();
        on.all(|on| match rules.dependence() {
            Dependence::Implied | Dependence::Recorded => true,
            Dependence::Sealed => {
                let parts = self.transactions[on].parts;
                // In a lane that gets a part of both, it cannot be sealed later.
                let is_sealed =
                    |lane| script[i].lanes.has(lane) || self.part_of(lane, on).is_some();
                // One part is enough, as for the lock.
                rules.mutant == Mutant::AwaitNoPart || parts.iter().any(is_sealed)
            }
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
    if rules.protocol == Protocol::Epoch && due && is_settled && state.epochs < rules.epochs_max {
        add(Step::EndEpoch, &|next| {
            next.epoch_end = next.counter;
            next.epochs += 1;
        });
    }
    for i in 0..state.transactions.len() {
        transaction_steps(rules, script, state, i, &mut add);
    }
    for (lane, content) in state.lanes.iter().enumerate() {
        let checkpoint = rules.checkpoint_number(state, lane);
        if state.checkpoints < rules.checkpoints_max && checkpoint > content.checkpoint {
            add(Step::Checkpoint(lane), &|next| {
                next.lanes[lane].checkpoint = checkpoint;
                next.flush_base = rules.landed_flushes(state);
                next.checkpoints += 1;
            });
        }
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

/// Adds a step, which makes a change to the state.
type AddStep<'a> = dyn FnMut(Step, &dyn Fn(&mut State)) + 'a;

/// Adds the steps of a transaction.
fn transaction_steps(
    rules: &Rules,
    script: &[Script],
    state: &State,
    i: usize,
    add: &mut AddStep<'_>,
) {
    let transaction = &state.transactions[i];
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
            // The validation: the version read must be the one that a transaction with its
            // number would read.
            if transaction.read_from != state.writer[read] {
                let home = transaction.parts.home();
                add(Step::Append(i, home), &|next| {
                    next.append(i, home);
                    let own = &mut next.transactions[i];
                    own.parts = own.appended;
                    own.phase = Phase::Abort;
                });
                return;
            }
            for lane in transaction.parts.iter() {
                add(Step::Append(i, lane), &|next| {
                    next.append_valid(script, i, lane)
                });
            }
        }
        Phase::Appending => {
            let missing = |lane: &usize| !transaction.appended.has(*lane);
            for lane in transaction.parts.iter().filter(missing) {
                add(Step::Append(i, lane), &|next| {
                    next.append_valid(script, i, lane)
                });
            }
        }
        _ => {}
    }
}
