//! Activities of a history alongside plain transactions, with the rules for them over all rounds. A
//! plan chooses among them; unused ones do not affect a history.

/// Returns a violation unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Ok(Err(format!($($what)+)));
        }
    };
}

mod archive;
mod batches;
mod callbacks;
mod copies;
mod feed;
mod leases;
mod loads;
mod moves;
mod readers;
mod spare;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use braid::tablespace::TablespaceError;
use braid::{Database, Error, Result};

pub(crate) use archive::Archive;
pub(crate) use batches::Batches;
pub(crate) use callbacks::Callbacks;
pub(crate) use copies::{Copies, CopiesOfRound};
pub(crate) use feed::{Consumer, Shown};
pub(crate) use leases::Leases;
pub(crate) use loads::Loads;
pub(crate) use moves::Moves;
pub(crate) use readers::{Reader, Readers};
pub(crate) use spare::Spare;

use crate::check::Violation;
use crate::plan::Plan;
use crate::record::{Found, Round};
use crate::tables::Tables;

/// Notes of a history that all its tasks share. No task is interrupted while it holds their lock.
struct Shared<T>(Arc<Mutex<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("nobody panics while it is locked")
    }
}

/// The background activities of a history; see the module's documentation.
#[derive(Clone, Default)]
pub(crate) struct Background {
    pub(crate) leases: Leases,
    pub(crate) loads: Loads,
    pub(crate) batches: Batches,
    pub(crate) consumer: Consumer,
    pub(crate) copies: Copies,
    pub(crate) readers: Readers,
    pub(crate) callbacks: Callbacks,
    pub(crate) spare: Spare,
    pub(crate) moves: Moves,
    /// The first violation that a client found, which can't end the history itself.
    complaint: Shared<Option<Violation>>,
}

/// The outcome of a check, or an error that faults of the device may explain.
pub(crate) type Checked = Result<std::result::Result<(), Violation>>;

impl Background {
    /// Checks the state after an opening against earlier promises. No client uses the database yet.
    pub(crate) fn check_opened(
        &self,
        plan: &Plan,
        db: &Database,
        tables: &Tables,
        found: &Found,
    ) -> Checked {
        if let Some(table) = &tables.leases
            && let Err(violation) = self.leases.check(&db.snapshot(), tables, table)?
        {
            return Ok(Err(violation));
        }
        if plan.loads
            && let Err(violation) = self.loads.check_opened(db)?
        {
            return Ok(Err(violation));
        }
        if plan.loads
            && let Err(violation) = self.batches.check_opened(db)?
        {
            return Ok(Err(violation));
        }
        if plan.spaces > 0
            && let Err(violation) = self.spare.check_opened(db)?
        {
            return Ok(Err(violation));
        }
        if plan.has_moves()
            && let Err(violation) = self.moves.check_opened(db)?
        {
            return Ok(Err(violation));
        }
        if plan.feed {
            return self.consumer.check_opened(db, &found.marks);
        }
        Ok(Ok(()))
    }

    pub(crate) fn complain(&self, violation: Violation) {
        self.complaint.lock().get_or_insert(violation);
    }

    /// Takes the notes of a round.
    pub(crate) fn take_round(&self, plan: &Plan) -> OfRound {
        OfRound {
            shown: plan.feed.then(|| self.consumer.take_round()),
            copies: self.copies.take_round(),
            callbacks: self.callbacks.clone(),
        }
    }

    /// Checks the notes of a round against its transactions.
    pub(crate) fn check_round(
        &self,
        of_round: OfRound,
        round: &Round,
    ) -> std::result::Result<(), Violation> {
        if let Some(complaint) = self.complaint.lock().take() {
            return Err(complaint);
        }
        if let Some(shown) = of_round.shown {
            self.consumer.check_round(shown, round)?;
        }
        of_round.callbacks.check_round()?;
        of_round.copies.check(round)
    }
}

/// The notes of a round.
pub(crate) struct OfRound {
    shown: Option<Shown>,
    copies: CopiesOfRound,
    callbacks: Callbacks,
}

/// Whether injected faults, a failed device or a closed database can explain an error.
fn is_fault(error: &Error) -> bool {
    matches!(
        error,
        Error::Poisoned { .. }
            | Error::Closed
            | Error::OutOfSpace { .. }
            | Error::Io { .. }
            | Error::Tablespace(TablespaceError::Failed { .. })
            | Error::Conflict(_)
    )
}

/// Checks that, of the round's transactions whose place is known, exactly those up to a number are
/// present.
pub(crate) fn exactly_up_to(
    round: &Round,
    seqno: u64,
    marks: &BTreeSet<crate::record::TxId>,
) -> std::result::Result<(), String> {
    use crate::record::Outcome;
    for tx in round.txs.iter().filter(|tx| tx.writes()) {
        let is_there = marks.contains(&tx.id);
        let (should, why) = match tx.outcome {
            Outcome::Committed(own) => (own <= seqno, "number"),
            Outcome::Aborted => (false, "abort"),
            Outcome::InDoubt => continue,
        };
        if is_there != should {
            return Err(format!(
                "{} is {} at {seqno}, against its {why}",
                tx.id,
                if is_there { "there" } else { "not there" },
            ));
        }
    }
    Ok(())
}
