//! Recovery: what each lane's tablespace has after a crash.

use super::machine::{Flush, LANES, Phase, State};
use super::rules::{Mutant, Protocol, Rules};

/// The transactions that each lane's tablespace has after recovery.
pub(crate) type Recovered = [Vec<usize>; LANES];

/// A crash.
pub(crate) struct Crash<'a> {
    rules: &'a Rules,
    state: &'a State,
    /// For each lane, the flushes that are found.
    found: [Vec<&'a Flush>; LANES],
}

impl<'a> Crash<'a> {
    /// A crash in which these lanes' flushes in flight arrive.
    pub(crate) fn new(rules: &'a Rules, state: &'a State, arriving: u8) -> Self {
        let number = |i: &u8| state.transactions[usize::from(*i)].number;
        let found = std::array::from_fn(|index| {
            let lane = &state.lanes[index];
            let arrives = arriving & 1 << index != 0;
            let in_flight = lane.in_flight.iter().filter(|_| arrives);
            let flushes = lane.landed.iter().chain(in_flight);
            let is_needed = |flush: &&Flush| {
                let mut numbers = flush.log_records.iter().map(number);
                numbers.any(|number| number > lane.checkpoint)
            };
            flushes.filter(is_needed).collect()
        });
        Self {
            rules,
            state,
            found,
        }
    }

    /// Recovers: the checkpoints, and the parts that recovery keeps.
    pub(crate) fn recovered(&self) -> Recovered {
        let is_kept: Box<dyn Fn(usize, usize) -> bool> = match self.rules.protocol {
            // One lane ends at its first bad chunk.
            Protocol::Serial | Protocol::Aether if !self.rules.has_parts => Box::new(|_, _| true),
            Protocol::Serial | Protocol::Aether | Protocol::Glsn | Protocol::Epoch => {
                let cut = self.cut_at_gap();
                Box::new(move |_, i| self.number(i) <= cut && self.is_whole(i, u8::MAX))
            }
            Protocol::GwsnStrict | Protocol::Gwsn => {
                let cut = self.flush_cut();
                if self.rules.mutant == Mutant::CutPartsByLane {
                    Box::new(move |lane, i| self.is_there(lane, i, cut))
                } else {
                    let torn = match self.rules.mutant {
                        Mutant::KeepDependentsOfTorn => u8::MAX,
                        _ => self.first_torn(cut),
                    };
                    Box::new(move |_, i| self.is_whole(i, cut) && self.number(i) < torn)
                }
            }
            Protocol::Gsn => {
                let cuts = self.lane_cuts();
                Box::new(move |lane, i| {
                    let lane = match self.rules.mutant {
                        Mutant::CutPartsByLane => lane,
                        _ => self.home(i),
                    };
                    self.number(i) < cuts[lane]
                })
            }
        };
        std::array::from_fn(|lane| {
            let is_recovered = |&i: &usize| {
                self.state.transactions[i].phase != Phase::Abort
                    && (self.is_in_checkpoint(lane, i)
                        || (self.find(lane, i).is_some() && is_kept(lane, i)))
            };
            (0..self.state.transactions.len())
                .filter(is_recovered)
                .collect()
        })
    }

    fn number(&self, i: usize) -> u8 {
        self.state.transactions[i].number
    }

    fn home(&self, i: usize) -> usize {
        self.state.transactions[i].parts.home()
    }

    /// The number up to which some checkpoint has everything, so that every lane was durable.
    fn base(&self) -> u8 {
        if self.rules.mutant == Mutant::ForgetCheckpoints {
            return 0;
        }
        let checkpoints = self.state.lanes.iter().map(|lane| lane.checkpoint);
        checkpoints.max().unwrap_or(0)
    }

    fn is_in_checkpoint(&self, lane: usize, i: usize) -> bool {
        let transaction = &self.state.transactions[i];
        transaction.parts.has(lane)
            && (1..=self.state.lanes[lane].checkpoint).contains(&transaction.number)
    }

    /// Finds a transaction's part in a lane's log.
    fn find(&self, lane: usize, i: usize) -> Option<&Flush> {
        let mut flushes = self.found[lane].iter().copied();
        flushes.find(|flush| flush.log_records.contains(&(i as u8)))
    }

    /// Whether a lane has a transaction's part in a flush up to `cut`.
    fn is_there(&self, lane: usize, i: usize, cut: u8) -> bool {
        self.find(lane, i).is_some_and(|flush| flush.number <= cut)
    }

    /// Whether all parts of a transaction are there: in a flush up to `cut`, or in a checkpoint, or
    /// because everything up to some checkpoint was durable.
    fn is_whole(&self, i: usize, cut: u8) -> bool {
        let transaction = &self.state.transactions[i];
        let is_there = |lane| {
            let is_covered =
                self.rules.mutant != Mutant::ForgetCheckpoints && self.is_in_checkpoint(lane, i);
            is_covered || self.is_there(lane, i, cut)
        };
        let mut parts = transaction.parts.iter();
        match self.rules.mutant {
            Mutant::PartsWithoutCount => parts.any(is_there),
            _ => transaction.number <= self.base() || parts.all(is_there),
        }
    }

    /// The transactions of which a part is found.
    fn candidates(&self) -> impl Iterator<Item = usize> {
        let is_found = |&i: &usize| (0..LANES).any(|lane| self.find(lane, i).is_some());
        (0..self.state.transactions.len()).filter(is_found)
    }

    /// The last number before the first that is missing.
    fn cut_at_gap(&self) -> u8 {
        if matches!(
            self.rules.mutant,
            Mutant::SkipGapRule | Mutant::KeepDependentsOfTorn
        ) {
            return u8::MAX;
        }
        let is_there = |n: &u8| {
            let has = |i| self.number(i) == *n && self.is_whole(i, u8::MAX);
            *n <= self.base() || self.candidates().any(has)
        };
        (1..=self.state.counter).take_while(is_there).count() as u8
    }

    /// The last flush before the first that is missing.
    fn flush_cut(&self) -> u8 {
        if self.rules.protocol == Protocol::GwsnStrict || self.rules.mutant == Mutant::SkipGapRule {
            return u8::MAX;
        }
        let is_there = |n: &u8| {
            let mut flushes = self.found.iter().flatten();
            *n <= self.state.flush_base || flushes.any(|flush| flush.number == *n)
        };
        (1..=self.state.flushes).take_while(is_there).count() as u8
    }

    /// The first number of a transaction that has parts in flushes up to `cut`, but not all.
    fn first_torn(&self, cut: u8) -> u8 {
        let is_torn = |&i: &usize| {
            let mut lanes = 0..LANES;
            !self.is_whole(i, cut) && lanes.any(|lane| self.is_there(lane, i, cut))
        };
        let torn = self.candidates().filter(is_torn);
        torn.map(|i| self.number(i)).min().unwrap_or(u8::MAX)
    }

    /// For each lane, the first number at home there that is not kept: of a transaction that lacks a
    /// part, or depends on one that is not kept.
    fn lane_cuts(&self) -> [u8; LANES] {
        let mut cuts = [u8::MAX; LANES];
        let is_kept = |i: usize, cuts: &[u8; LANES]| {
            self.number(i) <= self.base()
                || (self.is_whole(i, u8::MAX) && self.number(i) < cuts[self.home(i)])
        };
        let forgets = matches!(
            self.rules.mutant,
            Mutant::ForgetDependencies | Mutant::SkipGapRule | Mutant::KeepDependentsOfTorn
        );
        loop {
            let is_lost = |&i: &usize| {
                let home = self.home(i);
                let mut on = self.state.transactions[i].dependencies();
                let is_lost = |on| self.home(on) != home && !is_kept(on, &cuts);
                self.number(i) < cuts[home]
                    && (!self.is_whole(i, u8::MAX) || (!forgets && on.any(is_lost)))
            };
            let Some(lost) = self.candidates().find(is_lost) else {
                return cuts;
            };
            cuts[self.home(lost)] = self.number(lost);
        }
    }
}
