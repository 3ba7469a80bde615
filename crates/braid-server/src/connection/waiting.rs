//! What a connection waits for.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use braid::Database;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::joined::Slot;
use super::replies::Pending;
use super::{Connection, Finished, Loading, buffers};
use crate::channels::Inbox;
use crate::flushes;
use crate::observe::Activity;
use crate::resp::Reply;
use crate::shared::Signal;
use crate::waiters::Place;

/// Waits of a busy connection after which it looks for messages.
const BUSY_WAITS: u32 = 16;

/// Why the connection continues after waiting.
pub(super) enum Wake {
    Read(std::io::Result<usize>),
    Written(std::io::Result<usize>),
    Durable,
    Loaded(Result<Finished, JoinError>),
    Message(Option<Reply>),
    Elements,
    TimedOut,
    Unblocked,
    PauseChanged,
    Killed,
    Idle,
    Turn,
}

/// What nearly every wait is for.
struct Usual<'a> {
    kill: &'a Signal,
    output: &'a mut BytesMut,
    writes: bool,
    /// Whether the stream may still hold bytes that it has accepted: a connection with TLS does.
    is_unflushed: &'a mut bool,
    db: &'a Database,
    activity: &'a Activity,
    /// Sequence number that has to be durable, and the one for which the connection waited last.
    seqno: Option<u64>,
    awaited: &'a mut u64,
    /// Writes that run together with those of other connections.
    joined: Option<&'a Slot>,
    loading: Option<&'a mut JoinHandle<Finished>>,
    input: &'a mut BytesMut,
    reads: bool,
    inbox: &'a mut Inbox,
}

impl Usual<'_> {
    fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<Wake> {
        if self.kill.poll(context).is_ready() {
            return Poll::Ready(Wake::Killed);
        }
        if self.writes
            && let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(context, self.output)
        {
            *self.is_unflushed = true;
            // Relaxed: a statistic.
            match written {
                // Nothing has changed that the connection need react to.
                Ok(len) if len == self.output.len() && self.reads => {
                    self.activity.sent.fetch_add(len as u64, Ordering::Relaxed);
                    self.output.clear();
                    buffers::release_output(self.output);
                    self.writes = false;
                }
                written => return Poll::Ready(Wake::Written(written)),
            }
        }
        if *self.is_unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut *stream).poll_flush(context)
        {
            *self.is_unflushed = false;
            if let Err(error) = flushed {
                return Poll::Ready(Wake::Written(Err(error)));
            }
        }
        if let Some(seqno) = self.seqno
            && flushes::poll_durable(self.db, seqno, self.awaited, context).is_ready()
        {
            return Poll::Ready(Wake::Durable);
        }
        if let Some(slot) = self.joined
            && slot.poll(self.db, context).is_ready()
        {
            return Poll::Ready(Wake::Durable);
        }
        if let Some(loading) = &mut self.loading
            && let Poll::Ready(loaded) = Pin::new(loading).poll(context)
        {
            return Poll::Ready(Wake::Loaded(loaded));
        }
        if self.reads
            && let Poll::Ready(result) = buffers::read(stream, self.input, context)
        {
            return Poll::Ready(Wake::Read(result));
        }
        self.inbox.poll_receive(context).map(Wake::Message)
    }
}

impl Connection {
    /// Waits for the next thing to do.
    pub(super) async fn wait<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        has_more: bool,
    ) -> Wake {
        // While requests wait for the medium, their connection reads at most once further.
        let has_next = !self.input.is_empty() || self.postponed.is_some() || self.wrong.is_some();
        let is_loading = self.loading.is_some() || has_next && self.joined_is_loading();
        let may_read = !self.session.closes && !has_more && !is_loading;
        let reads = may_read && self.input.len() < self.input_limit && {
            // While the output waits for its reader, only a waiting command reads further, to
            // notice the end of the connection.
            self.may_execute() || self.blocked.is_some() || self.postponed.is_some()
        };
        let blocked_until = self.blocked.as_ref().and_then(|blocked| blocked.deadline);
        let pending_until = self.pending.front().and_then(Pending::deadline);
        let deadline = blocked_until.into_iter().chain(pending_until).min();
        let idle = self.idle.filter(|_| {
            self.blocked.is_none()
                && self.postponed.is_none()
                && self.pending.is_empty()
                && !self.has_joined
                && self.loading.is_none()
                && !self.session.is_monitor
                && self.session.subscriptions.is_empty()
        });
        // Below, messages come after requests, so that a busy connection need not look for them each
        // time. Their turn comes nevertheless.
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(BUSY_WAITS)
            && let Poll::Ready(message) =
                poll_fn(|context| Poll::Ready(self.inbox.poll_receive(context))).await
        {
            return Wake::Message(message);
        }
        // A request that waits for others before it waits for no pause.
        let is_postponed = self.postponed.is_some() && self.loading.is_none() && !self.has_joined;
        let mut usual = Usual {
            kill: &self.client.kill,
            writes: !self.output.is_empty() && !self.holds,
            output: &mut self.output,
            is_unflushed: &mut self.is_unflushed,
            db: &self.shared.keyspace.db,
            activity: self.shared.activities.of(self.session.stripe),
            seqno: self.pending.front().and_then(|front| front.seqno),
            awaited: &mut self.awaited,
            joined: self.joined.as_deref().filter(|_| self.has_joined),
            loading: match &mut self.loading {
                Some(Loading::Running(loading) | Loading::Pages(loading, ..)) => Some(loading),
                _ => None,
            },
            input: &mut self.input,
            reads,
            inbox: &mut self.inbox,
        };
        let usual = poll_fn(|context| usual.poll(stream, context));
        let place = self.blocked.as_ref().map(|blocked| &blocked.place);
        let is_blocked = place.is_some();
        if !(is_blocked || is_postponed || has_more || deadline.is_some() || idle.is_some()) {
            return usual.await;
        }
        let (client, pauses) = (&self.client, &self.shared.pauses);
        // Timers and places in queues take half a KiB, which other waits go without.
        Box::pin(async move {
            tokio::select! {
                biased;
                wake = usual => wake,
                () = elements(place), if is_blocked => Wake::Elements,
                () = client.unblock.notified(), if is_blocked => Wake::Unblocked,
                () = pauses.changed(), if is_postponed => Wake::PauseChanged,
                () = tokio::task::yield_now(), if has_more => Wake::Turn,
                () = sleep(deadline), if deadline.is_some() => Wake::TimedOut,
                () = sleep_for(idle), if idle.is_some() => Wake::Idle,
            }
        })
        .await
    }
}

async fn elements(place: Option<&Place>) {
    match place {
        Some(place) => place.notified().await,
        None => std::future::pending().await,
    }
}

/// Sleeps for a time. Makes the timer when it is polled: a branch of `select!` whose condition is false
/// is evaluated nevertheless.
async fn sleep_for(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

async fn sleep(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
