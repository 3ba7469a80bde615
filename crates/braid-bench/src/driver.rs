//! What the runner needs of a workload.

use crate::engines::{Abilities, KvEngine, Session, Stop, Transaction};
use crate::{BenchError, LoadProgress};

/// A workload with its parameters: what it stores, and who does what to it. The same on every engine.
pub trait Driver: Send + Sync {
    /// The name on the command line and in reports.
    fn name(&self) -> &str;

    /// The size of the data, for people.
    fn describe(&self) -> String;

    /// The tables that an engine must be opened with; a [`TableId`](crate::engines::TableId) is a
    /// place in this list.
    fn tables(&self) -> Vec<String>;

    /// What an engine must be able to do.
    fn needs(&self) -> Abilities;

    /// The kinds of transactions, if there are several to be reported apart; a [`Step`]'s `kind` is a
    /// place in this list.
    fn kinds(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether the clients have a last transaction, so that the run ends with it and not after a time.
    fn is_finite(&self) -> bool {
        false
    }

    /// Fills the engine with what the workload needs, unless an earlier run left the same data there.
    /// Called once before a run or a check. Returns the number of records loaded now.
    ///
    /// # Errors
    /// The engine's.
    fn load(
        &self,
        engine: &dyn KvEngine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<u64, BenchError>;

    /// What the thread of this number (from 0) does. `seed` decides all of its draws but what it writes into records.
    fn client(&self, thread: usize, seed: u64) -> Box<dyn Client + '_>;

    /// Checks what the engine holds while no client runs, be it after a run or after a crash.
    ///
    /// # Errors
    /// The engine's. A check that fails is no error; it says so in its result.
    fn check(&self, engine: &dyn KvEngine) -> Result<Vec<Check>, BenchError> {
        let _ = engine;
        Ok(Vec::new())
    }

    /// Acknowledged transactions that can be found in the data again; grows while the clients run.
    fn acknowledged(&self) -> u64 {
        0
    }

    /// How many of such transactions the engine holds, earlier runs' and the load's included; `None` if they
    /// leave nothing that can be counted.
    ///
    /// # Errors
    /// The engine's.
    fn present(&self, engine: &dyn KvEngine) -> Result<Option<u64>, BenchError> {
        let _ = engine;
        Ok(None)
    }
}

/// Checks a workload's data after a run: its consistency, and that they hold just what was acknowledged.
/// `before` is what [`Driver::present`] said between load and run.
///
/// # Errors
/// The engine's. A check that fails is no error; it says so in its result.
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
    /// Draws the next transaction with all of its inputs; `None` if there is none left, which only a
    /// [finite](Driver::is_finite) workload says.
    fn draw(&mut self) -> Option<Step>;

    /// The body of the transaction drawn last. Called once an attempt, so it must not spend the inputs.
    ///
    /// # Errors
    /// [`Stop::RolledBack`] if the workload wants it undone, or what the transaction returned.
    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop>;

    /// The single read drawn last, if the step was [`Access::Get`]; says whether the key was there.
    ///
    /// # Errors
    /// What the session returned.
    fn get(&mut self, session: &mut dyn Session) -> Result<bool, Stop> {
        let _ = session;
        Ok(false)
    }

    /// A writing transaction is durable; `token` is that of its step. In the order of the draws.
    fn acknowledged(&mut self, token: u64) {
        let _ = token;
    }
}

/// A transaction that has been drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How it goes to the engine.
    pub access: Access,
    /// Its kind, a place in [`Driver::kinds`]; 0 if there are none.
    pub kind: usize,
    /// Comes back in [`Client::acknowledged`].
    pub token: u64,
    /// Bytes of keys and values that it writes.
    pub bytes: u32,
}

impl Step {
    /// A writing transaction of the only kind.
    #[must_use]
    pub fn write(bytes: usize) -> Self {
        Step {
            access: Access::Write,
            kind: 0,
            token: 0,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }

    /// A transaction of the only kind that writes nothing.
    #[must_use]
    pub fn read(access: Access) -> Self {
        Step {
            access,
            ..Step::write(0)
        }
    }
}

/// How a transaction goes to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A transaction that writes.
    Write,
    /// A transaction that reads one consistent state.
    Read,
    /// A single read outside of any transaction.
    Get,
}

/// A consistency condition and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What must hold.
    pub condition: String,
    /// What was found instead; `None` if it holds.
    pub violation: Option<String>,
}

impl Check {
    /// A condition that holds unless there is a violation.
    pub fn new(condition: impl Into<String>, violation: Option<String>) -> Self {
        Check {
            condition: condition.into(),
            violation,
        }
    }

    /// The condition and what was found instead; `None` if it holds.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let violation = self.violation.as_ref()?;
        Some(format!("{}: {violation}", self.condition))
    }

    /// A condition that two numbers are equal.
    pub fn equal<T: PartialEq + std::fmt::Display>(
        condition: impl Into<String>,
        found: T,
        wanted: T,
    ) -> Self {
        let violation = (found != wanted).then(|| format!("{found} instead of {wanted}"));
        Check::new(condition, violation)
    }
}
