//! Tickets of asynchronous commits.

use std::future::Future;
use std::pin::Pin;
use std::sync::RwLock;
use std::task::{Context, Poll};

use pyo3::prelude::*;
use pyo3::sync::RwLockExt;

use crate::errors::{IntoPyResult, broken};
use crate::fork::{self, Own};
use crate::notifier::{self, Waiter};

/// Reports when a transaction is durable: check it with poll, block with wait, or await it in
/// asyncio.
///
/// The transaction becomes durable even if the ticket is dropped.
#[pyclass(frozen, weakref, module = "braid")]
#[derive(Debug)]
pub(crate) struct Ticket {
    seqno: u64,
    /// Generation of the process that made the ticket.
    generation: u64,
    /// Locked for writing only to poll, which never blocks.
    ticket: RwLock<Own<braid::Ticket>>,
}

impl Ticket {
    pub(crate) fn new(ticket: braid::Ticket) -> Self {
        Self {
            seqno: ticket.seqno(),
            generation: fork::generation(),
            ticket: RwLock::new(Own::new(ticket)),
        }
    }

    /// Returns the outcome, if it is known.
    pub(crate) fn outcome(&self, py: Python<'_>) -> PyResult<Option<braid::Result<u64>>> {
        fork::check(self.generation)?;
        let ticket = self.ticket.read_py_attached(py).map_err(|_| broken())?;
        let ticket = ticket.get()?;
        let outcome = py.detach(|| ticket.try_wait());
        Ok(outcome.map(|outcome| outcome.map(|commit| commit.seqno())))
    }

    /// Returns the outcome, if it is known; otherwise registers `waiter` to be woken then.
    fn register(&self, py: Python<'_>, waiter: &Waiter) -> PyResult<Option<braid::Result<u64>>> {
        fork::check(self.generation)?;
        let mut ticket = self.ticket.write_py_attached(py).map_err(|_| broken())?;
        let ticket = ticket.get_mut()?;
        let waker = waiter.waker();
        let poll = py.detach(|| Pin::new(ticket).poll(&mut Context::from_waker(&waker)));
        Ok(match poll {
            Poll::Ready(outcome) => Some(outcome.map(|commit| commit.seqno())),
            Poll::Pending => None,
        })
    }
}

#[pymethods]
impl Ticket {
    /// Sequence number of the transaction, its place in the serial order.
    #[getter]
    fn seqno(&self) -> u64 {
        self.seqno
    }

    /// Returns whether the transaction is durable. Raises PoisonedError if it will not become
    /// durable.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        match self.outcome(py)? {
            Some(outcome) => outcome.py().map(|_| true),
            None => Ok(false),
        }
    }

    /// Waits until the transaction is durable; returns its sequence number. Raises PoisonedError if
    /// it will not become durable.
    fn wait(&self, py: Python<'_>) -> PyResult<u64> {
        fork::check(self.generation)?;
        let ticket = self.ticket.read_py_attached(py).map_err(|_| broken())?;
        let ticket = ticket.get()?;
        Ok(py.detach(|| ticket.wait()).py()?.seqno())
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let ticket = slf.get();
        let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = event_loop.call_method0("create_future")?;
        let known = match ticket.outcome(py)? {
            Some(outcome) => Some(outcome),
            None => {
                let waiter = Waiter::new(slf, &event_loop, &future)?;
                let outcome = ticket.register(py, &waiter)?;
                if outcome.is_some() {
                    waiter.cancel();
                }
                outcome
            }
        };
        if let Some(outcome) = known {
            notifier::resolve(&future, outcome.py())?;
        }
        future.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        format!("<braid.Ticket {}>", self.seqno)
    }
}
