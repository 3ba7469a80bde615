//! What a connection waits for.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use braid::Database;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use super::Connection;
use super::replies::Pending;
use crate::flushes;
use crate::resp::Reply;
use crate::waiters::Place;

/// Waits of a busy connection after which it looks for messages.
const BUSY_WAITS: u32 = 16;

/// Most bytes that one read takes.
const READ_LEN: usize = 16 << 10;

/// Why the connection continues after waiting.
pub(super) enum Wake {
    Read(std::io::Result<usize>),
    Written(std::io::Result<usize>),
    Durable,
    Message(Option<Reply>),
    Elements,
    TimedOut,
    Unblocked,
    PauseChanged,
    Killed,
    Idle,
    Turn,
}

impl Connection {
    /// Waits for the next thing to do.
    pub(super) async fn wait<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        reader: &mut R,
        writer: &mut W,
        has_more: bool,
    ) -> Wake {
        let reads = !self.session.closes && !has_more && self.input.len() < self.input_limit && {
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
        let writes = !self.output.is_empty() && !self.holds;
        let seqno = self.pending.front().and_then(|front| front.seqno);
        let place = self.blocked.as_ref().map(|blocked| &blocked.place);
        let is_blocked = place.is_some();
        let is_postponed = self.postponed.is_some();
        tokio::select! {
            biased;
            () = poll_fn(|context| self.client.kill.poll(context)) => Wake::Killed,
            result = writer.write(&self.output), if writes => Wake::Written(result),
            () = durable(&self.shared.keyspace.db, seqno, &mut self.awaited), if seqno.is_some() => Wake::Durable,
            result = read(reader, &mut self.input), if reads => Wake::Read(result),
            message = poll_fn(|context| self.inbox.poll_receive(context)) => Wake::Message(message),
            () = elements(place), if is_blocked => Wake::Elements,
            () = self.client.unblock.notified(), if is_blocked => Wake::Unblocked,
            () = self.shared.pauses.changed(), if is_postponed => Wake::PauseChanged,
            () = tokio::task::yield_now(), if has_more => Wake::Turn,
            () = sleep(deadline), if deadline.is_some() => Wake::TimedOut,
            () = sleep_for(idle), if idle.is_some() => Wake::Idle,
        }
    }
}

thread_local! {
    /// What the thread reads into first: a connection that waits needs no memory for what may come.
    static ARRIVING: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_LEN].into());
}

/// Adds what has arrived to `input`; returns how many bytes, 0 at the end of the connection.
async fn read<R: AsyncRead + Unpin>(
    reader: &mut R,
    input: &mut BytesMut,
) -> std::io::Result<usize> {
    poll_fn(|context| {
        ARRIVING.with_borrow_mut(|bytes| {
            let mut buffer = ReadBuf::new(bytes);
            ready!(Pin::new(&mut *reader).poll_read(context, &mut buffer))?;
            input.extend_from_slice(buffer.filled());
            Ok(buffer.filled().len()).into()
        })
    })
    .await
}

async fn durable(db: &Database, seqno: Option<u64>, awaited: &mut u64) {
    match seqno {
        Some(seqno) => flushes::durable(db, seqno, awaited).await,
        None => std::future::pending().await,
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
