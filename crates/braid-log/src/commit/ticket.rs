//! Tickets: the promise that a transaction becomes durable.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::LogError;
use crate::base::callbacks::Action;
use crate::base::numbers::{GroupNo, LaneId, SeqNo, StrandId};
use crate::flush::core::{Core, WaitTarget};
use crate::options::FlushMode;
use crate::protocol::kind::LockRelease;

/// A reference to the log for the tickets of one strand. Each strand has its own, so that the
/// reference counts of different strands' tickets lie in different cache lines.
#[derive(Debug)]
pub(crate) struct StrandHandle {
    pub(crate) core: Arc<Core>,
    pub(crate) strand: StrandId,
    pub(crate) lane: LaneId,
}

/// The promise that a transaction becomes durable: block on it ([`Ticket::wait`]), ask
/// ([`Ticket::try_wait`]), register a callback ([`Ticket::on_durable`]) or await it as a `Future`.
///
/// Every use except [`Ticket::seqno`] causes a flush of the log, and so does dropping the ticket. A
/// ticket of [`PendingCommit::finish`] that is kept and never used does not; use
/// [`PendingCommit::finish_async`] if that may happen.
///
/// A ticket keeps the log's memory alive, and works after the last [`Log`] is gone.
///
/// [`PendingCommit::finish`]: crate::PendingCommit::finish
/// [`PendingCommit::finish_async`]: crate::PendingCommit::finish_async
/// [`Log`]: crate::Log
#[must_use = "a transaction is durable only once its ticket says so"]
pub struct Ticket {
    strand_handle: Arc<StrandHandle>,
    seqno: SeqNo,
    /// The flush group of the strand's lane that takes the bytes; [`GroupNo::NONE`] if unknown.
    group: GroupNo,
}

impl Ticket {
    pub(crate) fn new(strand_handle: Arc<StrandHandle>, seqno: SeqNo, group: GroupNo) -> Self {
        Self {
            strand_handle,
            seqno,
            group,
        }
    }

    pub(crate) fn request_flush(&self) {
        self.strand_handle
            .core
            .request_flush(&self.strand_handle.core.lanes[self.strand_handle.lane]);
    }

    /// The transaction's sequence number.
    pub fn seqno(&self) -> SeqNo {
        self.seqno
    }

    /// Whether the transaction is durable. Does not start a flush, and costs one load.
    pub fn is_durable(&self) -> bool {
        self.strand_handle.core.is_reached(self.target())
    }

    /// The outcome if it is known; starts a flush if not.
    ///
    /// With [`FlushMode::Callers`] no flush is started: a thread must wait or call
    /// [`Log::sync`](crate::Log::sync).
    pub fn try_wait(&self) -> Option<Result<(), LogError>> {
        let outcome = self.outcome();
        if outcome.is_none() {
            self.strand_handle
                .core
                .request_flush_everywhere(self.strand_handle.lane);
        }
        outcome
    }

    /// Blocks until the transaction is durable. The calling thread performs the flush if no other
    /// thread does.
    ///
    /// # Errors
    /// [`LogError::Poisoned`] if a write failed before the transaction was durable.
    pub fn wait(&self) -> Result<(), LogError> {
        self.strand_handle.core.wait(self.target())
    }

    /// Drops the ticket without asking for a flush: the transaction becomes durable with whatever
    /// is flushed next.
    pub fn detach(mut self) {
        // The mark of a ticket that asks for nothing when it is dropped.
        self.group = GroupNo::NONE;
    }

    /// Calls `f` with the outcome as soon as it is known: on the thread that finishes the flush, or
    /// immediately on this one. `f` should be short, because other waiters wait for it, and must
    /// not block on this log. If `f` panics, the process's panic hook reports the panic, and the
    /// log continues with the other callbacks.
    pub fn on_durable(self, f: impl FnOnce(Result<(), LogError>) + Send + 'static) {
        self.when_known(|outcome| drop(braid_rt::call_user(|| f(outcome))));
    }

    /// Like [`Ticket::on_durable`], for functions of the engine, which do not panic.
    pub(crate) fn when_known(self, f: impl FnOnce(Result<(), LogError>) + Send + 'static) {
        match self.outcome() {
            Some(outcome) => f(outcome),
            None => self.register(Action::Call(Box::new(f))),
        }
    }

    fn register(&self, action: Action) {
        let strand_handle = &*self.strand_handle;
        strand_handle
            .core
            .register(strand_handle.strand, self.target(), action);
    }

    /// The outcome if it is known. In a child made by `fork` it never changes.
    fn outcome(&self) -> Option<Result<(), LogError>> {
        let core = &self.strand_handle.core;
        let outcome = core.outcome(self.target());
        outcome.or_else(|| core.check_process().err().map(Err))
    }

    fn target(&self) -> WaitTarget {
        WaitTarget {
            lane: self.strand_handle.lane,
            group: self.group,
            seqno: self.seqno,
        }
    }

    /// The point at which the transaction's locks may be released; see
    /// [`Log::when_unlockable`](crate::Log::when_unlockable).
    #[inline]
    pub fn unlock_point(&self) -> UnlockPoint {
        let at = match self.strand_handle.core.protocol.lock_release() {
            LockRelease::Precommit => 0,
            LockRelease::Numbered => self.group.get(),
            LockRelease::Durable => self.seqno.get(),
        };
        UnlockPoint {
            strand: self.strand_handle.strand,
            at,
        }
    }
}

/// The point at which a transaction's locks may be released, as its protocol's [`LockRelease`]
/// prescribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnlockPoint {
    strand: StrandId,
    at: u64,
}

impl UnlockPoint {
    /// The strand that carries the transaction.
    pub fn strand(self) -> StrandId {
        self.strand
    }

    /// The value that [`Log::unlockable`](crate::Log::unlockable) must have reached.
    pub fn at(self) -> u64 {
        self.at
    }

    /// Returns the point `at` of the same strand.
    #[must_use]
    pub fn later(self, at: u64) -> Self {
        Self { at, ..self }
    }
}

impl Future for Ticket {
    type Output = Result<(), LogError>;

    /// With [`FlushMode::Callers`] polling flushes inline.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        let core = &self.strand_handle.core;
        if core.options.flush_mode == FlushMode::Callers {
            return Poll::Ready(self.wait());
        }
        self.register(Action::Wake(cx.waker().clone()));
        core.outcome(self.target())
            .map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The transaction must become durable soon, even if no caller polls again.
        let core = &self.strand_handle.core;
        if self.group != GroupNo::NONE && !core.is_reached(self.target()) {
            self.request_flush();
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("number", &self.seqno)
            .field("durable", &self.is_durable())
            .finish_non_exhaustive()
    }
}
