//! The rules in which the protocols differ.

use super::machine::{LANES, Phase, State};

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
    /// A transaction is acknowledged when one of its parts is durable.
    AcknowledgeFirstPart,
    /// Parts that are not appended yet do not delay later transactions.
    IgnorePendingParts,
    /// A transaction waits for no part of those that it depends on.
    AwaitNoPart,
    /// Parts do not say how many there are, so recovery takes a transaction with one for whole.
    PartsWithoutCount,
    /// Recovery drops a transaction that lacks a part, and keeps those that depend on it.
    KeepDependentsOfTorn,
    /// Each lane keeps the parts below its own cut.
    CutPartsByLane,
    /// Recovery misses parts that the checkpoint of their tablespace has made unnecessary.
    ForgetCheckpoints,
    /// A checkpoint is published when its tablespace's own lane is durable up to it.
    CheckpointBeforeOtherLanes,
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

pub(crate) struct Rules {
    pub(crate) protocol: Protocol,
    pub(crate) mutant: Mutant,
    /// Whether transactions have parts in several lanes, each of a tablespace.
    pub(crate) has_parts: bool,
    /// Most checkpoints.
    pub(crate) checkpoints_max: u8,
    /// Most ends of epochs.
    pub(crate) epochs_max: u8,
}

impl Rules {
    /// The rules of a log in which each transaction has one part.
    pub(crate) fn new(protocol: Protocol, mutant: Mutant) -> Self {
        Self {
            protocol,
            mutant,
            has_parts: false,
            checkpoints_max: 0,
            epochs_max: 2,
        }
    }

    /// The rules of tablespaces, each with a lane and checkpoints of its own.
    pub(crate) fn of_tablespaces(protocol: Protocol, mutant: Mutant) -> Self {
        Self {
            has_parts: true,
            checkpoints_max: 1,
            epochs_max: 1,
            ..Self::new(protocol, mutant)
        }
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

    /// Whether all parts of a transaction count as durable.
    fn is_durable(&self, state: &State, i: usize) -> bool {
        let parts = match self.mutant {
            Mutant::IgnorePendingParts => state.transactions[i].appended,
            _ => state.transactions[i].parts,
        };
        let is_durable = |lane: usize| match state.part_of(lane, i) {
            None => false,
            Some(_) if self.mutant == Mutant::AcknowledgeSealed => true,
            Some((flush, landed)) if self.protocol.numbers_flushes() => {
                flush.number <= self.landed_flushes(state)
                    || (self.mutant == Mutant::IgnoreOtherLanes && landed)
            }
            Some((_, landed)) => landed,
        };
        match self.mutant {
            Mutant::AcknowledgeFirstPart => parts.iter().any(is_durable),
            _ => parts.iter().all(is_durable),
        }
    }

    /// The greatest number up to which everything is durable and finished.
    fn durable_prefix(&self, state: &State) -> u8 {
        let is_open = |i: &usize| {
            let transaction = &state.transactions[*i];
            match transaction.phase {
                Phase::Waiting | Phase::Running => false,
                Phase::Assigned => self.mutant != Mutant::IgnoreOtherLanes,
                Phase::Appending if self.mutant != Mutant::IgnorePendingParts => true,
                _ => !self.is_durable(state, *i),
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
            Protocol::Gsn => self.hardened(state)[transaction.parts.home()] >= transaction.number,
            _ => transaction.number <= self.durable_seqno(state),
        }
    }

    /// For each lane, the number up to which the transactions at home there and all their
    /// dependencies are durable.
    fn hardened(&self, state: &State) -> [u8; LANES] {
        let all = 0..state.transactions.len();
        let open = |lane: usize, hardened: &[u8; LANES]| {
            let is_open = |i: &usize| {
                let transaction = &state.transactions[*i];
                match transaction.phase {
                    Phase::Waiting | Phase::Running => false,
                    // A pending commit holds all lanes back, because its lane is not known yet.
                    Phase::Assigned => true,
                    _ if transaction.parts.home() != lane => false,
                    Phase::Appending if self.mutant != Mutant::IgnorePendingParts => true,
                    Phase::Appending | Phase::Abort => !self.is_durable(state, *i),
                    Phase::Applied => {
                        let lost = |on: usize| {
                            let of = state.transactions[on].parts.home();
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

    /// The number up to which a checkpoint of a lane's tablespace may have everything now.
    pub(crate) fn checkpoint_number(&self, state: &State, lane: usize) -> u8 {
        if self.mutant != Mutant::CheckpointBeforeOtherLanes {
            return self.durable_seqno(state);
        }
        let is_open = |i: &usize| match state.transactions[*i].phase {
            Phase::Waiting | Phase::Running => false,
            Phase::Assigned | Phase::Appending => true,
            Phase::Applied | Phase::Abort => {
                let in_lane = state.transactions[*i].parts.has(lane);
                in_lane && !state.part_of(lane, *i).is_some_and(|(_, landed)| landed)
            }
        };
        let open = (0..state.transactions.len()).filter(is_open);
        let least = open.map(|i| state.transactions[i].number).min();
        least.map_or(state.counter, |number| number - 1)
    }
}
