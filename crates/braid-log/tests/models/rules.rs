//! The rules in which the protocols differ.

use super::machine::{Flush, LANES, Phase, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Serial,
    Aether,
    Glsn,
    GwsnStrict,
    Gwsn,
    Epoch,
    Gsn,
}

impl Protocol {
    pub(crate) const ALL: [Self; 7] = [
        Self::Serial,
        Self::Aether,
        Self::Glsn,
        Self::GwsnStrict,
        Self::Gwsn,
        Self::Epoch,
        Self::Gsn,
    ];

    pub(crate) fn has_one_lane(self) -> bool {
        matches!(self, Self::Serial | Self::Aether)
    }

    pub(crate) fn numbers_flushes(self) -> bool {
        matches!(self, Self::Gwsn | Self::GwsnStrict)
    }
}

/// A deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    /// Acknowledges transactions whose flush is still in flight.
    AcknowledgeSealed,
    /// Recovery keeps records after a gap.
    SkipGapRule,
    /// Locks are released at precommit, and no transaction waits for a flush's number.
    ReleaseBeforeNumber,
    /// Only a transaction's own lane is considered for its acknowledgement, and for a snapshot.
    IgnoreOtherLanes,
    /// Dependencies are not recorded.
    ForgetDependencies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockRelease {
    Precommit,
    Numbered,
    Durable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependence {
    Implied,
    Sealed,
    Durable,
    Recorded,
}

/// The state after a crash: for each lane, the flushes that arrived.
pub(crate) type Arrived<'a> = [Vec<&'a Flush>; LANES];

pub(crate) struct Rules {
    pub(crate) protocol: Protocol,
    pub(crate) mutant: Mutant,
}

impl Rules {
    pub(crate) fn new(protocol: Protocol, mutant: Mutant) -> Self {
        Self { protocol, mutant }
    }

    pub(crate) fn lock_release(&self) -> LockRelease {
        match self.protocol {
            _ if self.mutant == Mutant::ReleaseBeforeNumber => LockRelease::Precommit,
            Protocol::Serial | Protocol::GwsnStrict => LockRelease::Durable,
            Protocol::Gwsn => LockRelease::Numbered,
            _ => LockRelease::Precommit,
        }
    }

    pub(crate) fn dependence(&self) -> Dependence {
        match self.protocol {
            _ if self.mutant == Mutant::ReleaseBeforeNumber => Dependence::Implied,
            Protocol::GwsnStrict => Dependence::Durable,
            Protocol::Gwsn => Dependence::Sealed,
            Protocol::Gsn => Dependence::Recorded,
            _ => Dependence::Implied,
        }
    }

    /// The last flush up to which all have landed.
    pub(crate) fn landed_flushes(&self, state: &State) -> u8 {
        let has_landed = |number: &u8| {
            let mut landed = state.lanes.iter().flat_map(|lane| &lane.landed);
            landed.any(|flush| flush.number == *number)
        };
        (1..=state.flushes).take_while(has_landed).count() as u8
    }

    /// Whether a transaction's own bytes count as durable.
    fn is_durable(&self, state: &State, i: usize) -> bool {
        match state.flush_of(i) {
            None => false,
            Some(_) if self.mutant == Mutant::AcknowledgeSealed => true,
            Some((flush, _)) if self.protocol.numbers_flushes() => {
                flush.number <= self.landed_flushes(state)
                    || (self.mutant == Mutant::IgnoreOtherLanes && state.is_durable(i))
            }
            Some((_, landed)) => landed,
        }
    }

    /// The greatest number up to which everything is durable and finished.
    fn durable_prefix(&self, state: &State) -> u8 {
        let is_open = |i: &usize| {
            let transaction = &state.transactions[*i];
            match transaction.phase {
                Phase::Waiting | Phase::Running => false,
                Phase::Assigned => self.mutant != Mutant::IgnoreOtherLanes,
                Phase::Applied | Phase::Abort => !self.is_durable(state, *i),
            }
        };
        let open = (0..state.transactions.len()).filter(is_open);
        let least = open.map(|i| state.transactions[i].number).min();
        least.map_or(state.counter, |number| number - 1)
    }

    /// The number at which read-only snapshots are taken.
    pub(crate) fn durable_seqno(&self, state: &State) -> u8 {
        let durable = self.durable_prefix(state);
        match self.protocol {
            // The result never decreases: an epoch ends only after the previous one is
            // acknowledged.
            Protocol::Epoch if state.epoch_end <= durable => state.epoch_end,
            Protocol::Epoch => 0,
            _ => durable,
        }
    }

    /// Whether a transaction may have been acknowledged.
    pub(crate) fn is_acknowledged(&self, state: &State, i: usize) -> bool {
        let transaction = &state.transactions[i];
        if transaction.phase != Phase::Applied {
            return false;
        }
        let is_early = matches!(
            self.mutant,
            Mutant::AcknowledgeSealed | Mutant::IgnoreOtherLanes
        );
        match self.protocol {
            _ if is_early => self.is_durable(state, i),
            Protocol::Gsn => self.hardened(state)[lane_of(state, i)] >= transaction.number,
            _ => transaction.number <= self.durable_seqno(state),
        }
    }

    /// For each lane, the number up to which its transactions and all their dependencies are
    /// durable.
    fn hardened(&self, state: &State) -> [u8; LANES] {
        let all = 0..state.transactions.len();
        let open = |lane: usize, hardened: &[u8; LANES]| {
            let is_open = |i: &usize| {
                let transaction = &state.transactions[*i];
                match transaction.phase {
                    Phase::Waiting | Phase::Running => false,
                    // A pending commit holds all lanes back, because its lane is not known yet.
                    Phase::Assigned => true,
                    _ if lane_of(state, *i) != lane => false,
                    Phase::Abort => !self.is_durable(state, *i),
                    Phase::Applied => {
                        let lost = |on: usize| {
                            let of = lane_of(state, on);
                            of != lane && hardened[of] < state.transactions[on].number
                        };
                        !self.is_durable(state, *i) || transaction.dependencies().any(lost)
                    }
                }
            };
            let open = all.clone().filter(is_open);
            open.map(|i| state.transactions[i].number).min()
        };
        // The least fixpoint, from below: a cycle hardens no transaction.
        let mut hardened = [0; LANES];
        loop {
            let next = std::array::from_fn(|lane| {
                open(lane, &hardened).map_or(state.counter, |number| number - 1)
            });
            if next == hardened {
                return hardened;
            }
            hardened = next;
        }
    }

    /// The transactions that recovery keeps.
    pub(crate) fn kept(&self, state: &State, arrived: &Arrived<'_>) -> Vec<usize> {
        let flushes = || arrived.iter().flatten();
        let log_records =
            flushes().flat_map(|flush| flush.log_records.iter().map(|&i| usize::from(i)));
        let mut kept: Vec<usize> = log_records.collect();
        let number = |i: usize| state.transactions[i].number;
        let keeps_all = self.mutant == Mutant::SkipGapRule;
        match self.protocol {
            Protocol::Serial | Protocol::Aether | Protocol::GwsnStrict => {}
            _ if keeps_all => {}
            Protocol::Glsn | Protocol::Epoch => {
                let is_there = |n: &u8| kept.iter().any(|&i| number(i) == *n);
                let cut = (1..=state.counter).take_while(is_there).count() as u8;
                kept.retain(|&i| number(i) <= cut);
            }
            Protocol::Gwsn => {
                let is_there = |n: &u8| flushes().any(|flush| flush.number == *n);
                let cut = (1..=state.flushes).take_while(is_there).count() as u8;
                let counts = |i: usize| state.flush_of(i).is_some_and(|(f, _)| f.number <= cut);
                kept.retain(|&i| counts(i));
            }
            Protocol::Gsn => {
                if self.mutant != Mutant::ForgetDependencies {
                    self.drop_dependents(state, &mut kept);
                }
            }
        }
        kept.retain(|&i| state.transactions[i].phase == Phase::Applied);
        kept
    }

    /// In each lane, drops everything from the first number on whose dependencies are not kept,
    /// until nothing changes.
    fn drop_dependents(&self, state: &State, kept: &mut Vec<usize>) {
        loop {
            let is_lost = |&i: &usize| {
                let lane = lane_of(state, i);
                let mut on = state.transactions[i].dependencies();
                on.any(|on| lane_of(state, on) != lane && !kept.contains(&on))
            };
            let Some(lost) = kept.iter().copied().find(is_lost) else {
                return;
            };
            let (lane, number) = (lane_of(state, lost), state.transactions[lost].number);
            kept.retain(|&i| lane_of(state, i) != lane || state.transactions[i].number < number);
        }
    }
}

/// The lane that has a transaction's log record.
fn lane_of(state: &State, transaction: usize) -> usize {
    let i = transaction as u8;
    let has = |lane: &super::machine::Lane| {
        let flushes = lane.landed.iter().chain(&lane.in_flight);
        lane.buffer.contains(&i)
            || flushes
                .into_iter()
                .any(|flush| flush.log_records.contains(&i))
    };
    state.lanes.iter().position(has).unwrap_or(0)
}
