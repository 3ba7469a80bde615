//! Callbacks of tickets, some of which panic: each is called once.

use braid::Ticket;

use super::Shared;
use crate::check::Violation;

/// The number of calls of each callback registered since the last check.
#[derive(Clone, Default)]
pub(crate) struct Callbacks(Shared<Vec<u32>>);

impl Callbacks {
    /// Registers a callback that counts its call and calls `durable` if the transaction is durable.
    /// With `panics`, it then panics.
    pub(crate) fn register(
        &self,
        ticket: Ticket,
        panics: bool,
        durable: impl FnOnce() + Send + 'static,
    ) {
        let place = {
            let mut calls = self.0.lock();
            calls.push(0);
            calls.len() - 1
        };
        let calls = self.0.clone();
        ticket.on_durable(move |outcome| {
            calls.lock()[place] += 1;
            if outcome.is_ok() {
                durable();
            }
            if panics {
                braid_rt::coverage_point("a callback panics");
                braid_rt::panic_deliberately();
            }
        });
    }

    /// Compares the calls with the registrations, after the last handle of the database was
    /// dropped.
    pub(crate) fn check_round(&self) -> Result<(), Violation> {
        let calls = std::mem::take(&mut *self.0.lock());
        match calls.iter().find(|calls| **calls != 1) {
            None => Ok(()),
            Some(calls) => Err(format!("a callback was called {calls} times")),
        }
    }
}
