//! Salvage of copies of the devices without a tablespace, or without the log of one: what is not reported
//! as lost is there, and each transaction as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use braid::Error;
use braid::device::MemoryDevice;
use braid::offline::Finding;

use super::missing::{Gone, Trial, small};
use crate::check::Violation;
use crate::record::{Found, Key, Outcome, Round, Tx, TxId};
use crate::tables::Tables;

/// A committed transaction of a history.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    seqno: u64,
    /// The keys that it wrote.
    keys: BTreeSet<Key>,
}

impl Commit {
    /// Returns the committed transactions of a round that wrote.
    pub(super) fn of_round(round: &Round) -> impl Iterator<Item = (TxId, Self)> {
        let writers = round.txs.iter().filter(|tx| tx.writes());
        writers.filter_map(|tx: &Tx| match tx.outcome {
            Outcome::Committed(seqno) => Some((
                tx.id,
                Self {
                    seqno,
                    keys: tx.keys(),
                },
            )),
            _ => None,
        })
    }
}

/// What a salvage reports as lost.
struct Losses {
    all: Vec<String>,
    /// Only what transactions after this sequence number wrote is lost of the other tablespaces.
    others_after: Option<u64>,
}

impl Losses {
    fn new(all: Vec<String>) -> Self {
        const OTHERS: &str = "log: what transactions after sequence number ";
        let of_log = |loss: &&String| loss.starts_with("log: ");
        let number = |loss: &String| {
            let (number, rest) = loss.strip_prefix(OTHERS)?.split_once(' ')?;
            let is_of_one = rest.starts_with("wrote to tablespace ");
            if is_of_one {
                Some(u64::MAX)
            } else {
                number.parse().ok()
            }
        };
        // Of other losses, it is not known what they concern.
        let after = |loss| number(loss).unwrap_or(0);
        let others_after = all.iter().filter(of_log).map(after).min();
        Self { all, others_after }
    }
}

impl Trial<'_> {
    /// Salvages the copies without what is gone.
    pub(super) fn salvage(&self) -> Result<(), Violation> {
        let except = if self.gone == Gone::Unnamed {
            self.number
        } else {
            0
        };
        let salvage = self.without.salvage_except(except);
        let (mut losses, into) = (Vec::new(), Arc::new(MemoryDevice::new()));
        let salvaged = self.history.medium(self.main.clone()).and_then(|medium| {
            let mut sink = |finding| {
                if let Finding::Lost(loss) = finding {
                    losses.push(loss);
                }
            };
            let report = salvage.run_on(medium, into.clone(), &mut sink)?;
            if self.is_without_log && report.transactions > 0 {
                braid_rt::coverage_point("a salvage keeps what other logs have");
            }
            let db = small().background_threads(false).open_on(into)?;
            match Tables::existing(&db) {
                // The log that is gone hides whether their creation was durable. `marks` is the last one.
                Err(Error::TableNotFound { .. }) => Ok(Found::default()),
                tables => tables?.found_in(&db.snapshot()),
            }
        });
        let found = salvaged.map_err(|error| error.to_string())?;
        let losses = Losses::new(losses);
        let checked = self.check_salvaged(&found, &losses);
        checked.map_err(|what| format!("{what}; losses: {:?}", losses.all))
    }

    fn check_salvaged(&self, found: &Found, losses: &Losses) -> Result<(), Violation> {
        let whole = &self.whole;
        if losses.all.is_empty() && (found.state != whole.state || found.marks != whole.marks) {
            return Err("it is not the whole".to_owned());
        }
        // Where the tables are after moves is not known.
        let (plan, count) = (&self.history.plan, u64::from(self.history.plan.spaces) + 1);
        let has_marks = plan.seed % count != self.number as u64;
        if plan.has_moves() || !has_marks {
            return Ok(());
        }
        if let Some(id) = found.marks.difference(&whole.marks).next() {
            return Err(format!("transaction {id} is there, which did not commit"));
        }
        let is_missing = |key: Key| u64::from(key) % count == self.number as u64;
        let reach = losses.others_after.unwrap_or(u64::MAX);
        let commits = &self.history.commits;
        // Newer ones may be in a checkpoint of one tablespace, and be lost from another.
        let is_whole = |id: TxId| {
            reach == u64::MAX || commits.get(&id).is_some_and(|commit| commit.seqno <= reach)
        };
        for (key, version) in found.state.iter().filter(|(key, _)| !is_missing(**key)) {
            if is_whole(version.writer()) && !found.marks.contains(&version.writer()) {
                return Err(format!("key {key} has {version}, which is not there"));
            }
        }
        for (key, version) in whole.state.iter().filter(|(key, _)| !is_missing(**key)) {
            let is_there = found.marks.contains(&version.writer());
            if is_there && is_whole(version.writer()) && found.state.get(key) != Some(version) {
                return Err(format!("key {key} lacks {version}, which is there"));
            }
        }
        for id in whole.marks.difference(&found.marks) {
            let Some(commit) = commits.get(id) else {
                continue;
            };
            if commit.seqno <= reach && !commit.keys.iter().copied().any(is_missing) {
                return Err(format!(
                    "transaction {id} of the other tablespaces is neither there nor lost"
                ));
            }
        }
        Ok(())
    }
}
