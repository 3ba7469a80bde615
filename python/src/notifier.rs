//! Notifications from the engine's threads to Python: completed flushes to the event loops that
//! await them, and changes of health to the listener.
//!
//! The thread that completes a flush must not wait for the interpreter's lock, because the thread
//! that holds it may wait for the flush. So it only sends a message through a channel. A thread of
//! this module receives the messages, acquires the interpreter's lock, and calls each event loop
//! once for all messages that have arrived.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle};

use braid::Health;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::{Error, IntoPyResult};
use crate::ticket::Ticket;
use crate::{fork, reports};

/// A future that waits for a ticket.
struct Job {
    ticket: Py<Ticket>,
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
}

/// A listener and the health to report.
struct Reported {
    listener: Arc<Py<PyAny>>,
    health: Health,
}

enum Message {
    Due(Job),
    Health(Reported),
    Stop,
}

struct Notifier {
    sender: Sender<Message>,
    thread: JoinHandle<()>,
    /// Generation of the process that has the notifier's thread.
    generation: u64,
}

/// The process's notifier, started when a ticket is first awaited. Accessed only with the
/// interpreter's lock.
static NOTIFIER: Mutex<Option<Notifier>> = Mutex::new(None);

fn sender() -> PyResult<Sender<Message>> {
    let mut notifier = NOTIFIER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = &*notifier {
        if running.generation == fork::generation() {
            return Ok(running.sender.clone());
        }
        // The thread stayed in the parent process; this process must not drop its end of the
        // channel.
        std::mem::forget(notifier.take());
    }
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("braid-notifier".into())
        .spawn(move || run(&receiver))?;
    *notifier = Some(Notifier {
        sender: sender.clone(),
        thread,
        generation: fork::generation(),
    });
    Ok(sender)
}

/// Stops the notifier before the interpreter exits; afterwards it could never acquire the
/// interpreter's lock.
pub(crate) fn stop_at_exit(py: Python<'_>) -> PyResult<()> {
    let stop = wrap_pyfunction!(stop, py)?;
    py.import("atexit")?.call_method1("register", (stop,))?;
    Ok(())
}

/// Stops the notifier. A later await starts another one.
#[pyfunction]
fn stop(py: Python<'_>) {
    let notifier = NOTIFIER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(notifier) = notifier else { return };
    if notifier.generation != fork::generation() {
        std::mem::forget(notifier);
        return;
    }
    let _ = notifier.sender.send(Message::Stop);
    // The thread may be about to acquire the interpreter's lock.
    let _ = py.detach(|| notifier.thread.join());
}

/// Callback registered with the engine for a [`Job`].
pub(crate) struct Waiter(Arc<Pending>);

struct Pending {
    job: Mutex<Option<Job>>,
    notifier: Sender<Message>,
}

impl Waiter {
    pub(crate) fn new(
        ticket: &Bound<'_, Ticket>,
        event_loop: &Bound<'_, PyAny>,
        future: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let job = Job {
            ticket: ticket.clone().unbind(),
            event_loop: event_loop.clone().unbind(),
            future: future.clone().unbind(),
        };
        Ok(Self(Arc::new(Pending {
            job: Mutex::new(Some(job)),
            notifier: sender()?,
        })))
    }

    pub(crate) fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    /// Discards the job.
    pub(crate) fn cancel(&self) {
        drop(self.0.take());
    }
}

impl Pending {
    fn take(&self) -> Option<Job> {
        self.job
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn send(&self) {
        if let Some(job) = self.take() {
            // After the interpreter's exit, no listener and no awaiting task is left.
            let _ = self.notifier.send(Message::Due(job));
        }
    }
}

impl Wake for Pending {
    fn wake(self: Arc<Self>) {
        self.send();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Notify the awaiting task even if the engine drops the callback.
        self.send();
    }
}

fn run(receiver: &Receiver<Message>) {
    while let Ok(first) = receiver.recv() {
        let mut jobs = Vec::new();
        let mut reported = Vec::new();
        let mut stop = false;
        for message in std::iter::once(first).chain(receiver.try_iter()) {
            match message {
                Message::Due(job) => jobs.push(job),
                Message::Health(health) => reported.push(health),
                Message::Stop => stop = true,
            }
        }
        Python::try_attach(|py| {
            deliver(py, jobs);
            reported.into_iter().for_each(|reported| reported.tell(py));
        });
        if stop {
            return;
        }
    }
}

/// Returns a callback that passes a change of health to a Python function, on the notifier's
/// thread.
pub(crate) fn health_listener(
    listener: &Bound<'_, PyAny>,
) -> PyResult<impl Fn(&Health) + Send + Sync + 'static> {
    let (listener, notifier) = (Arc::new(listener.clone().unbind()), sender()?);
    Ok(move |health: &Health| {
        let (listener, health) = (listener.clone(), health.clone());
        // After the interpreter's exit, no listener is left.
        let _ = notifier.send(Message::Health(Reported { listener, health }));
    })
}

impl Reported {
    fn tell(self, py: Python<'_>) {
        let outcome =
            reports::health(py, &self.health).and_then(|health| self.listener.call1(py, (health,)));
        if let Err(error) = outcome {
            // No caller could catch the exception.
            error.write_unraisable(py, Some(self.listener.bind(py)));
        }
    }
}

/// Passes all completed jobs to their event loops, with one call per loop.
fn deliver(py: Python<'_>, jobs: Vec<Job>) {
    type Due = Vec<(Py<PyAny>, Py<Ticket>)>;
    let mut loops: HashMap<usize, (Py<PyAny>, Due)> = HashMap::new();
    for job in jobs {
        let key = job.event_loop.as_ptr() as usize;
        let (_, due) = loops
            .entry(key)
            .or_insert_with(|| (job.event_loop, Vec::new()));
        due.push((job.future, job.ticket));
    }
    for (event_loop, due) in loops.into_values() {
        let called = PyList::new(py, due).and_then(|due| {
            let resolve = wrap_pyfunction!(resolve_all, py)?;
            event_loop.call_method1(py, "call_soon_threadsafe", (resolve, due))
        });
        // A closed loop has no awaiting tasks left.
        drop(called);
    }
}

/// Resolves futures whose tickets have an outcome; runs in the event loop.
#[pyfunction]
fn resolve_all(py: Python<'_>, due: Vec<(Bound<'_, PyAny>, Bound<'_, Ticket>)>) -> PyResult<()> {
    for (future, ticket) in due {
        let outcome = match ticket.get().outcome(py)? {
            Some(outcome) => outcome.py(),
            None => Err(Error::new_err(
                "the outcome of the transaction is unknown: its database was closed",
            )),
        };
        resolve(&future, outcome)?;
    }
    Ok(())
}

/// Sets the outcome of a future, unless it was cancelled.
pub(crate) fn resolve(future: &Bound<'_, PyAny>, outcome: PyResult<u64>) -> PyResult<()> {
    if future.call_method0("done")?.extract()? {
        return Ok(());
    }
    match outcome {
        Ok(number) => future.call_method1("set_result", (number,))?,
        Err(error) => future.call_method1("set_exception", (error,))?,
    };
    Ok(())
}
