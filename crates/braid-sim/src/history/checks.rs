//! Checks of a round, and of the archive at the end of a history.

use braid::backup::BackupError;
use braid::{Database, Error, Protocol};

use super::History;
use super::salvaged::Commit;
use crate::background::OfRound;
use crate::check::{Survival, Violation, check};
use crate::graph;
use crate::plan::survival;
use crate::record::{Found, Outcome, Round, Tx};

impl History {
    /// Checks a round, also against the state that the next opening found.
    pub(super) fn check(
        &mut self,
        round: &Round,
        found: Option<&Found>,
        protocol: Protocol,
    ) -> Result<(), Violation> {
        let survival = survival(protocol);
        // A damaged page of the data file is reported, or no reader needs it.
        let lenient = self.decayed && (self.tampered || !self.one_page);
        let checked = check(round, found, survival, lenient)
            .and_then(|()| graph::check(round, self.plan.snapshot));
        if checked.is_err() {
            let found = found.map(ToString::to_string).unwrap_or_default();
            self.report = format!("{round}\n{found}");
        }
        checked?;
        let is_lost = |found: &Found, tx: &Tx| tx.writes() && !found.marks.contains(&tx.id);
        if found.is_some_and(|found| round.txs.iter().any(|tx| is_lost(found, tx))) {
            self.count(match survival {
                Survival::Prefix => "a tail of the order lost",
                Survival::Closed => "a part of the order lost",
            });
        }
        Ok(())
    }

    pub(super) fn check_background(
        &mut self,
        of_round: OfRound,
        round: &Round,
    ) -> Result<(), Violation> {
        let checked = self.background.check_round(of_round, round);
        if checked.is_err() {
            self.report = round.to_string();
        }
        checked
    }

    pub(super) fn count_commits(&mut self, round: &Round) {
        let is_committed = |tx: &&Tx| matches!(tx.outcome, Outcome::Committed(_));
        self.outcome.commits += round.txs.iter().filter(is_committed).count() as u64;
        self.commits.extend(Commit::of_round(round));
        self.has_written = (round.txs.iter().filter(is_committed)).any(Tx::writes);
    }

    /// Returns whether an operation succeeded. If not, a fault must have been injected, possibly in
    /// the background while the database was opened, so that the opening succeeded nevertheless.
    pub(super) fn must_work<T>(
        &self,
        or_else: &str,
        outcome: braid::Result<T>,
    ) -> Result<bool, Violation> {
        match outcome {
            Err(error) if self.faults() == 0 => Err(format!("{or_else}: {error}")),
            outcome => Ok(outcome.is_ok()),
        }
    }

    /// Brings the archive up to date, if the database was opened with it, and checks the archive's
    /// promises.
    pub(super) fn check_archive(&mut self, db: &Database, found: &Found) -> Result<(), Violation> {
        let Some(mut archive) = self.archive.take().filter(|_| !self.decayed) else {
            return Ok(());
        };
        let archived = db.archive_now();
        let is_gap = matches!(archived, Err(Error::Backup(BackupError::ArchiveGap { .. })));
        let archived = match archived {
            Ok(None) => return Ok(()),
            Err(_) if is_gap && archive.may_lack() => true,
            // An error of the archive's own medium, which was injected in the previous round.
            Err(_) if archive.medium().faults() > 0 => return Ok(()),
            archived => self.must_work("a working archive fails", archived)?,
        };
        if !archived {
            return Ok(());
        }
        archive.check(&self.background.copies, found, !is_gap)?;
        self.count(if is_gap {
            "archives lack transactions"
        } else {
            "archives restored"
        });
        let builder = self.plan.builder(&mut self.rng);
        if !self.plan.lies && archive.check_twin(db, builder, &mut self.rng)? {
            self.count("copies of a database share an archive");
        }
        Ok(())
    }
}
