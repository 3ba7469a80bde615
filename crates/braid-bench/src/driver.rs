//! The interface between the runner and a workload.

use crate::engines::{Abilities, KvEngine, Session, Stop, Transaction};
use crate::{BenchError, LoadProgress};

/// A workload with its parameters: its data, and the transactions of its clients. It is the same on
/// every engine.
pub trait Driver: Send + Sync {
    /// Returns the name on the command line and in reports.
    fn name(&self) -> &str;

    /// Returns the size of the data, in words.
    fn describe(&self) -> String;

    /// Returns the tables that the engine must be opened with; a
    /// [`TableId`](crate::engines::TableId) is a position in this list.
    fn tables(&self) -> Vec<String>;

    /// Returns the abilities that an engine must have.
    fn needs(&self) -> Abilities;

    /// Returns the kinds of transactions, if several are reported separately; a [`Step`]'s `kind`
    /// is a position in this list.
    fn kinds(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns whether the clients have a last transaction, so that the run ends with it and not
    /// after a time.
    fn is_finite(&self) -> bool {
        false
    }

    /// Loads the workload's data into the engine, unless an earlier run left the same data there.
    /// Called once before a run or a check. Returns the number of records loaded.
    ///
    /// # Errors
    ///
    /// The engine's.
    fn load(
        &self,
        engine: &dyn KvEngine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<u64, BenchError>;

    /// Returns the client of a thread, numbered from 0. `seed` decides all of its draws except the
    /// content of records.
    fn client(&self, thread: usize, seed: u64) -> Box<dyn Client + '_>;

    /// Checks the engine's data while no client runs, after a run or a crash.
    ///
    /// # Errors
    ///
    /// The engine's. A failed check is not an error; its result reports it.
    fn check(&self, engine: &dyn KvEngine) -> Result<Vec<Check>, BenchError> {
        let _ = engine;
        Ok(Vec::new())
    }

    /// Returns the number of acknowledged transactions that the data proves; grows while the
    /// clients run.
    fn acknowledged(&self) -> u64 {
        0
    }

    /// Returns how many such transactions the engine contains, including those of earlier runs and
    /// of the load; `None` if they leave no countable trace.
    ///
    /// # Errors
    ///
    /// The engine's.
    fn present(&self, engine: &dyn KvEngine) -> Result<Option<u64>, BenchError> {
        let _ = engine;
        Ok(None)
    }
}

/// Checks a workload's data after a run: its consistency, and that it contains exactly the
/// acknowledged transactions. `before` is the result of [`Driver::present`] between load and run.
///
/// # Errors
///
/// The engine's. A failed check is not an error; its result reports it.
pub fn check(
    engine: &dyn KvEngine,
    driver: &dyn Driver,
    before: Option<u64>,
) -> Result<Vec<Check>, BenchError> {
    let mut checks = driver.check(engine)?;
    if let Some((before, present)) = before.zip(driver.present(engine)?) {
        checks.push(Check::equal(
            "every acknowledged transaction is there, and no other",
            present.saturating_sub(before),
            driver.acknowledged(),
        ));
    }
    Ok(checks)
}

/// One client: draws transactions and executes them.
pub trait Client {
    /// Draws the next transaction with all of its inputs. Returns `None` after the last one, which
    /// only a [finite](Driver::is_finite) workload has.
    fn draw(&mut self) -> Option<Step>;

    /// Runs the body of the transaction drawn last. Called once for each attempt, so it must not
    /// consume the inputs.
    ///
    /// # Errors
    ///
    /// [`Stop::RolledBack`] if the workload requests a rollback, or the error of the transaction.
    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop>;

    /// Makes the single read drawn last, if the step was [`Access::Get`]; returns whether the key
    /// existed.
    ///
    /// # Errors
    ///
    /// The session's.
    fn get(&mut self, session: &mut dyn Session) -> Result<bool, Stop> {
        let _ = session;
        Ok(false)
    }

    /// Called when a writing transaction is durable, in the order of the draws; `token` is that of
    /// its step.
    fn acknowledged(&mut self, token: u64) {
        let _ = token;
    }
}

/// A transaction that has been drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How the transaction is passed to the engine.
    pub access: Access,
    /// Its kind, a position in [`Driver::kinds`]; 0 if there is only one.
    pub kind: usize,
    /// Passed to [`Client::acknowledged`].
    pub token: u64,
    /// Bytes of keys and values that it writes.
    pub bytes: u32,
}

impl Step {
    /// Returns a writing transaction of the only kind.
    #[must_use]
    pub fn write(bytes: usize) -> Self {
        Step {
            access: Access::Write,
            kind: 0,
            token: 0,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }

    /// Returns a read-only transaction of the only kind.
    #[must_use]
    pub fn read(access: Access) -> Self {
        Step {
            access,
            ..Step::write(0)
        }
    }
}

/// How a transaction is passed to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A transaction that writes.
    Write,
    /// A transaction that reads one consistent state.
    Read,
    /// A single read outside of any transaction.
    Get,
}

/// A consistency condition and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The condition.
    pub condition: String,
    /// The violation; `None` if the condition holds.
    pub violation: Option<String>,
}

impl Check {
    /// Creates a condition that holds unless there is a violation.
    pub fn new(condition: impl Into<String>, violation: Option<String>) -> Self {
        Check {
            condition: condition.into(),
            violation,
        }
    }

    /// Returns the condition and its violation; `None` if it holds.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let violation = self.violation.as_ref()?;
        Some(format!("{}: {violation}", self.condition))
    }

    /// Creates the condition that two numbers are equal.
    pub fn equal<T: PartialEq + std::fmt::Display>(
        condition: impl Into<String>,
        found: T,
        wanted: T,
    ) -> Self {
        let violation = (found != wanted).then(|| format!("{found} instead of {wanted}"));
        Check::new(condition, violation)
    }
}
