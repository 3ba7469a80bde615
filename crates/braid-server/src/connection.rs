//! Serves one connection.
//!
//! The connection executes requests as they arrive, without waiting for the device in between: a
//! write leaves a sequence number. Replies are sent in the order of the requests, each when everything
//! that its command read and wrote is durable. So one flush answers many requests of one connection
//! and of all others; see [`flushes`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use braid::Database;
use braid_rt::mutant;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::channels::{Inbox, Topic};
use crate::command::Command;
use crate::executor::{
    Outcome, Within, execute, execute_again, execute_together, is_postponed, joins,
};
use crate::failure::{Failure, Wait};
use crate::flushes;
use crate::resp::{CHANGED_CHANNEL, Limits, Protocol, Reply, RequestParser};
use crate::session::{Replies, Session};
use crate::shared::{Client, Shared};
use crate::waiters::Place;

/// Requests of one connection that may wait for the device at once.
const PENDING_MAX: usize = 4096;

/// Requests that one connection executes before the others of its thread get their turn.
const TURN: usize = 64;

/// Most bytes of requests that run in one transaction: it holds the locks of all their keys.
const TOGETHER_BYTES: usize = 64 << 10;

/// Waits of a busy connection after which it looks for messages.
const BUSY_WAITS: u32 = 16;

/// Most bytes that one read takes.
const READ_LEN: usize = 16 << 10;

/// Bytes of replies that wait for later ones, to be sent together.
const HOLD_MAX: usize = 16 << 10;

/// Bytes of replies from which on a connection reads no further requests.
const OUTPUT_HIGH: usize = 1 << 20;

/// A reply that waits for the device or its turn.
#[derive(Debug)]
struct Pending {
    reply: Reply,
    protocol: Protocol,
    /// Sequence number up to which everything must be durable before the reply is sent.
    seqno: Option<u64>,
    weight: usize,
    /// When the command had run.
    since: Instant,
    /// Until when the reply waits for the device, and the reply afterwards.
    limit: Option<Box<(Instant, Reply)>>,
}

impl Pending {
    fn deadline(&self) -> Option<Instant> {
        self.limit.as_ref().map(|limit| limit.0)
    }

    /// Returns whether the reply has waited long enough; it is the other one then.
    fn has_timed_out(&mut self) -> bool {
        let over = self.limit.take_if(|limit| limit.0 <= Instant::now());
        if let Some(limit) = over {
            self.reply = limit.1;
            return true;
        }
        false
    }
}

/// A command that waits for elements.
#[derive(Debug)]
struct Blocked {
    args: Vec<Bytes>,
    otherwise: Reply,
    deadline: Option<Instant>,
    place: Place,
}

/// Why the connection continues after waiting.
enum Wake {
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

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Session,
    pub(crate) inbox: Inbox,
    pub(crate) client: Arc<Client>,
    parser: RequestParser,
    input: BytesMut,
    output: BytesMut,
    pending: VecDeque<Pending>,
    /// About how many bytes of replies are pending.
    pending_bytes: usize,
    /// Whether the output waits for the pending replies: requests that arrived together are answered
    /// together.
    holds: bool,
    /// Sequence number for whose durability the connection waited last.
    awaited: u64,
    /// How often the connection has waited.
    waits: u32,
    blocked: Option<Blocked>,
    /// A request that waits until a pause has ended.
    postponed: Option<Vec<Bytes>>,
    /// Bytes of output from which on a connection ends, and of input.
    output_limit: usize,
    input_limit: usize,
    bulk_limit: i64,
    idle: Option<Duration>,
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: Session,
        inbox: Inbox,
        client: Arc<Client>,
    ) -> Self {
        let options = shared.options();
        Connection {
            session,
            inbox,
            client,
            parser: RequestParser::default(),
            input: BytesMut::new(),
            output: BytesMut::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            holds: false,
            awaited: 0,
            waits: 0,
            blocked: None,
            postponed: None,
            output_limit: options.client_output_buffer_limit,
            input_limit: options.client_query_buffer_limit,
            bulk_limit: i64::try_from(options.proto_max_bulk_len).unwrap_or(i64::MAX),
            idle: (!options.timeout.is_zero()).then_some(options.timeout),
            shared,
        }
    }

    /// Serves the connection until one side ends it.
    pub(crate) async fn run<S: AsyncRead + AsyncWrite>(mut self, stream: S) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let is_complete = self.serve(&mut reader, &mut writer).await;
        // A client that sees the end of its connection must not find a subscription of it any more.
        drop(self);
        if is_complete {
            let _ = writer.shutdown().await;
        }
    }

    /// Returns whether all replies were written.
    async fn serve<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        reader: &mut R,
        writer: &mut W,
    ) -> bool {
        loop {
            let executed = self.execute_some();
            if executed > 0 {
                self.holds = !self.pending.is_empty() && self.output.len() < HOLD_MAX;
            }
            self.collect_replies();
            if executed > 0 {
                flushes::executed(executed);
                self.publish_info();
            }
            if self.output.len() > self.output_limit || self.inbox.has_overflowed() {
                return false;
            }
            let is_done = self.session.closes && self.pending.is_empty();
            if is_done && self.output.is_empty() {
                return true;
            }
            let wake = self.wait(reader, writer, executed == TURN).await;
            if !self.handle(wake) {
                return false;
            }
        }
    }

    /// Executes requests that have arrived; returns how many.
    fn execute_some(&mut self) -> usize {
        let mut executed = 0;
        let (mut together, mut bytes) = (Vec::new(), 0);
        if let Some(args) = self.postponed.take() {
            executed += 1;
            self.execute(args);
        }
        while executed < TURN && self.may_execute() {
            let limits = if self.session.is_authenticated {
                Limits {
                    arguments: 1024 * 1024,
                    bulk: self.bulk_limit,
                }
            } else {
                Limits::UNAUTHENTICATED
            };
            match self.parser.next(&mut self.input, limits) {
                Ok(None) => break,
                Ok(Some(args)) if args.is_empty() => {}
                Ok(Some(args)) => {
                    executed += 1;
                    if let Some(command) = joins(&self.shared, &self.session, &args) {
                        bytes += args.iter().map(Bytes::len).sum::<usize>();
                        together.push((command, args));
                        if bytes >= TOGETHER_BYTES {
                            self.execute_together(&mut together);
                            bytes = 0;
                        }
                    } else {
                        self.execute_together(&mut together);
                        bytes = 0;
                        self.execute(args);
                    }
                }
                Err(error) => {
                    self.execute_together(&mut together);
                    self.reply(Reply::error(format!("ERR {error}")), None);
                    self.session.closes = true;
                }
            }
        }
        self.execute_together(&mut together);
        executed
    }

    /// Executes writes that arrived one after another in one transaction, which costs less than one for
    /// each, and removes them.
    fn execute_together(&mut self, requests: &mut Vec<(&'static Command, Vec<Bytes>)>) {
        if requests.len() > 1
            && let Some((replies, ticket)) =
                execute_together(&self.shared, &mut self.session, requests)
        {
            requests.clear();
            let (seqno, since) = (ticket.map(flushes::add), Some(Instant::now()));
            for reply in replies {
                self.reply_since(reply, seqno, since);
            }
            return;
        }
        // A pause that has begun meanwhile must not let a request overtake one before it.
        for (_, args) in requests.drain(..) {
            self.execute_now(args);
        }
    }

    fn may_execute(&self) -> bool {
        self.blocked.is_none()
            && self.postponed.is_none()
            && !self.session.closes
            && self.pending.len() < PENDING_MAX
            && self.output.len() + self.pending_bytes < OUTPUT_HIGH
    }

    fn execute(&mut self, args: Vec<Bytes>) {
        if let Some(pause) = self.shared.pauses.current()
            && is_postponed(&self.session, &args, &pause)
        {
            self.postponed = Some(args);
            return;
        }
        self.execute_now(args);
    }

    fn execute_now(&mut self, mut args: Vec<Bytes>) {
        match execute(&self.shared, &mut self.session, &mut args) {
            Outcome::Reply(reply, ticket) => self.reply(reply, ticket.map(flushes::add)),
            Outcome::Within(within) => self.reply_within(*within),
            Outcome::Wait(wait) => self.block(args, wait),
        }
    }

    /// Queues a reply that waits until everything up to a sequence number is durable, unless the client
    /// wants none.
    fn reply(&mut self, reply: Reply, seqno: Option<u64>) {
        self.reply_since(reply, seqno, None);
    }

    /// Queues a reply as [`Connection::reply`], to a request that had run at a time, by default now.
    fn reply_since(&mut self, reply: Reply, seqno: Option<u64>, since: Option<Instant>) {
        match self.session.replies {
            Replies::On => {}
            Replies::Off => return,
            Replies::SkipNext => {
                self.session.replies = Replies::Skip;
                return;
            }
            Replies::Skip => {
                self.session.replies = Replies::On;
                return;
            }
        }
        let protocol = self.session.protocol;
        let is_next = self.pending.is_empty() || mutant!("server_reply_out_of_turn");
        if seqno.is_none() && is_next {
            reply.encode(protocol, &mut self.output);
            return;
        }
        let weight = reply.weight();
        self.pending_bytes += weight;
        self.pending.push_back(Pending {
            reply,
            protocol,
            seqno,
            weight,
            since: since.unwrap_or_else(Instant::now),
            limit: None,
        });
    }

    /// Queues a reply that waits for the device until its time has passed.
    fn reply_within(&mut self, within: Within) {
        let before = self.pending.len();
        self.reply(within.reply, Some(flushes::add(within.ticket)));
        // The client may want no reply.
        if let Some(pending) = self.pending.get_mut(before) {
            let deadline = Instant::now() + within.timeout;
            pending.limit = Some(Box::new((deadline, within.otherwise)));
        }
    }

    /// Lets a command wait. The client registers first and looks again afterwards, so elements
    /// that arrive meanwhile are not missed.
    fn block(&mut self, args: Vec<Bytes>, wait: Wait) {
        let deadline = wait.timeout.map(|timeout| Instant::now() + timeout);
        let place = self.shared.waiters.register(
            self.session.id,
            self.session.database,
            &wait.keys,
            &wait.interest,
        );
        self.blocked = Some(Blocked {
            args: wait.again.unwrap_or(args),
            otherwise: wait.otherwise,
            deadline,
            place,
        });
        self.try_again();
    }

    /// Runs a waiting command again.
    fn try_again(&mut self) {
        let Some(mut blocked) = self.blocked.take() else {
            return;
        };
        blocked.place.rearm();
        match execute_again(&self.shared, &mut self.session, &mut blocked.args) {
            Outcome::Reply(reply, ticket) => self.reply(reply, ticket.map(flushes::add)),
            Outcome::Within(within) => self.reply_within(*within),
            Outcome::Wait(_) => self.blocked = Some(blocked),
        }
    }

    /// Encodes the replies whose turn it is.
    fn collect_replies(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let db = &self.shared.keyspace.db;
        let durable = db.durable_seqno();
        // Writes that ran together are counted together.
        let (mut since, mut writes) = (None, 0);
        while let Some(front) = self.pending.front_mut() {
            let seqno = front.seqno;
            let outcome = match seqno {
                None => Ok(()),
                Some(_) if mutant!("server_reply_before_durable") => Ok(()),
                Some(seqno) if seqno <= durable => Ok(()),
                // Returns at once with the error.
                Some(seqno) if flushes::has_failed() => self.shared.keyspace.db.wait_durable(seqno),
                Some(_) if front.has_timed_out() => Ok(()),
                Some(_) => break,
            };
            let ran = front.since;
            if seqno.is_some() {
                if since != Some(ran) {
                    self.count_writes(since.replace(ran), writes);
                    writes = 0;
                }
                writes += 1;
            }
            self.finish_front(outcome);
        }
        self.count_writes(since, writes);
    }

    /// Counts writes that had run at a time and are answered now.
    fn count_writes(&self, since: Option<Instant>, writes: u64) {
        let Some(since) = since else {
            return;
        };
        let duration = since.elapsed();
        let activity = self.shared.activities.of(self.session.stripe);
        activity.writes.record_many(duration, writes);
        let threshold = self.shared.thresholds.spike();
        self.shared.spikes.add("commit", duration, threshold);
    }

    fn finish_front(&mut self, outcome: braid::Result<()>) {
        let Some(front) = self.pending.pop_front() else {
            return;
        };
        self.holds = false;
        self.pending_bytes -= front.weight;
        let reply = match outcome {
            Ok(()) => front.reply,
            // Only reopening the database shows whether the write survived.
            Err(error) => Failure::from(error).to_reply(),
        };
        reply.encode(front.protocol, &mut self.output);
    }

    /// Tells CLIENT LIST about the connection.
    fn publish_info(&mut self) {
        let session = &self.session;
        let mut info = self
            .client
            .info
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if info.name != session.name {
            info.name = session.name.clone();
        }
        if info.library != session.library {
            info.library = session.library.clone();
        }
        info.database = session.database;
        info.last_command = session.last_command;
        info.last_active = Some(std::time::Instant::now());
        info.channels = session.subscribed(false);
        info.shards = session.subscribed(true);
        info.queued = session.queue.as_ref().map(|queue| queue.requests.len());
        info.watched = session.watched.len();
        info.protocol = session.protocol.number();
        info.is_blocked = self.blocked.is_some();
    }

    /// Waits for the next thing to do.
    async fn wait<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
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

    /// Encodes a message. Messages about keys that another client keeps are for subscribers of their
    /// channel only, if the protocol does not tell messages from replies.
    fn show(&mut self, message: &Reply) {
        let protocol = self.session.protocol;
        let channel = (Topic::Channel, Bytes::from_static(CHANGED_CHANNEL));
        if matches!(message, Reply::Tracking(_))
            && protocol == Protocol::Resp2
            && !self.session.subscriptions.contains(&channel)
        {
            return;
        }
        message.encode(protocol, &mut self.output);
        self.holds = false;
    }

    /// Reacts to what happened; returns whether the connection continues.
    fn handle(&mut self, wake: Wake) -> bool {
        match wake {
            Wake::Read(Ok(0)) => {
                // The client sends nothing more, and may still read the replies.
                self.session.closes = true;
                self.blocked = None;
                self.postponed = None;
            }
            Wake::Read(Ok(_)) => {
                return self.input.len() < self.input_limit;
            }
            Wake::Read(Err(_)) | Wake::Written(Err(_)) | Wake::Idle | Wake::Message(None) => {
                return false;
            }
            Wake::Written(Ok(len)) => self.output.advance(len),
            Wake::Durable | Wake::Turn | Wake::PauseChanged => {}
            Wake::Message(Some(message)) => {
                self.show(&message);
                while self.output.len() < OUTPUT_HIGH
                    && let Some(message) = self.inbox.try_receive()
                {
                    self.show(&message);
                }
            }
            Wake::Elements => self.try_again(),
            Wake::TimedOut => {
                let now = Instant::now();
                let is_over = |blocked: &mut Blocked| blocked.deadline.is_some_and(|at| at <= now);
                // Otherwise the reply that is next has waited long enough.
                if let Some(blocked) = self.blocked.take_if(is_over) {
                    self.reply(blocked.otherwise, None);
                }
            }
            Wake::Unblocked => {
                if let Some(blocked) = self.blocked.take() {
                    // Acquire pairs with the release in CLIENT UNBLOCK.
                    let reply = if self.client.unblock_fails.load(Ordering::Acquire) {
                        Reply::error("UNBLOCKED client unblocked via CLIENT UNBLOCK")
                    } else {
                        blocked.otherwise
                    };
                    self.reply(reply, None);
                }
            }
            Wake::Killed => {
                if !self.shared.is_stopping() {
                    return false;
                }
                self.session.closes = true;
                if self.blocked.take().is_some() || self.postponed.take().is_some() {
                    self.reply(Reply::error("UNBLOCKED the server is stopping"), None);
                }
            }
        }
        true
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for (topic, name) in std::mem::take(&mut self.session.subscriptions) {
            self.shared
                .channels
                .unsubscribe(topic, &name, self.session.id);
        }
        self.shared.stop_tracking(&mut self.session);
        if self.session.is_monitor {
            self.shared.monitors.remove(self.session.id);
        }
        self.shared.clients().remove(&self.session.id);
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
