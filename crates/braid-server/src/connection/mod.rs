//! Serves one connection.
//!
//! The connection executes requests as they arrive, without waiting for the device in between: a
//! write leaves a sequence number. Replies are sent in the order of the requests, each when everything
//! that its command read and wrote is durable. So one flush answers many requests of one connection
//! and of all others; see [`flushes`].
//!
//! A read that would wait for the device is left to another thread, and the requests after it wait until
//! it is answered. For what else needs the device, another thread loads pages; then it runs again here.

mod buffers;
mod joined;
mod replies;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use braid_rt::mutant;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::channels::{Inbox, Topic};
use crate::command::Command;
use crate::executor::{
    Attempt, Load, Loaded, Obstacle, Outcome, execute, execute_together, is_postponed, joins,
    load_pages, malformed,
};
use crate::failure::Wait;
use crate::flushes;
use crate::limit;
use crate::resp::{CHANGED_CHANNEL, Limits, Protocol, ProtocolError, Reply, RequestParser, reuse};
use crate::session::Session;
use crate::shared::{Client, Shared};
use crate::waiters::Place;
use joined::{Request, Slot};
use replies::Pending;
use waiting::Wake;

pub(crate) use joined::{end, gather};

/// Requests of one connection that may wait for the device at once.
const PENDING_MAX: usize = limit(4096, 8);

/// Requests that one connection executes before the others of its thread get their turn.
const TURN: usize = limit(64, 5);

/// Requests that run in one transaction and need no further memory: the usual length of a pipeline.
const TOGETHER_USUAL: usize = 16;

/// Most bytes of requests that run in one transaction: it holds the locks of all their keys.
const TOGETHER_BYTES: usize = limit(64 << 10, 300);

/// Bytes of replies that wait for later ones, to be sent together.
const HOLD_MAX: usize = limit(16 << 10, 200);

/// Bytes of replies from which on a connection reads no further requests.
const OUTPUT_HIGH: usize = limit(1 << 20, 900);

/// A command that waits for elements.
#[derive(Debug)]
struct Blocked {
    args: Vec<Bytes>,
    otherwise: Reply,
    deadline: Option<Instant>,
    place: Place,
}

/// What another thread does for a connection, because it waits for the medium.
#[derive(Debug)]
enum Loading {
    /// It runs reads.
    Running(JoinHandle<Finished>),
    /// It ran reads, and continues when the client has read replies.
    Stopped(Box<Load>),
    /// It loads pages for a request, which then runs again.
    Pages(JoinHandle<Finished>, Vec<Bytes>, Attempt),
}

/// What another thread has done for a connection.
#[derive(Debug)]
enum Finished {
    Reads(Box<Loaded>),
    Pages,
}

impl Loading {
    fn begin(load: Box<Load>) -> Loading {
        Loading::Running(spawn_blocking(|| Finished::Reads(Box::new(load.run()))))
    }
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
    /// Whether the stream may still hold bytes that it has accepted.
    is_unflushed: bool,
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
    /// Where the connection finds the replies to writes that run together with those of others.
    joined: Option<Arc<Slot>>,
    /// Whether there are such writes.
    has_joined: bool,
    /// How often the connection still runs its writes on its own.
    alone: u8,
    blocked: Option<Blocked>,
    /// A request that waits until a pause has ended, or until the requests before it have run.
    postponed: Option<Vec<Bytes>>,
    /// The error in the bytes after writes that wait for the medium.
    wrong: Option<ProtocolError>,
    loading: Option<Loading>,
    /// Bytes of output from which on a connection ends, and of input.
    output_limit: usize,
    input_limit: usize,
    bulk_limit: i64,
    idle: Option<Duration>,
}

impl Connection {
    /// Returns a connection that has not sent anything. In a box, because each function that waits for
    /// another one would hold a connection of its own.
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: Session,
        inbox: Inbox,
        client: Arc<Client>,
    ) -> Box<Self> {
        let options = shared.options();
        Box::new(Connection {
            session,
            inbox,
            client,
            parser: RequestParser::default(),
            input: BytesMut::new(),
            output: BytesMut::new(),
            is_unflushed: false,
            pending: VecDeque::new(),
            pending_bytes: 0,
            holds: false,
            awaited: 0,
            waits: 0,
            joined: None,
            has_joined: false,
            alone: 0,
            blocked: None,
            postponed: None,
            wrong: None,
            loading: None,
            output_limit: options.client_output_buffer_limit,
            input_limit: options.client_query_buffer_limit,
            bulk_limit: i64::try_from(options.proto_max_bulk_len).unwrap_or(i64::MAX),
            idle: (!options.timeout.is_zero()).then_some(options.timeout),
            shared,
        })
    }

    /// Serves the connection until one side ends it.
    pub(crate) async fn run<S: AsyncRead + AsyncWrite + Unpin>(mut self: Box<Self>, mut stream: S) {
        let is_complete = self.serve(&mut stream).await;
        // A client that sees the end of its connection must not find a subscription of it any more.
        drop(self);
        if is_complete {
            let _ = stream.shutdown().await;
        }
    }

    /// Returns whether all replies were written.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&mut self, stream: &mut S) -> bool {
        loop {
            let executed = self.execute_some();
            let was_full = !self.has_room();
            if executed > 0 {
                let waits = !self.pending.is_empty() || self.has_joined;
                self.holds = waits && self.output.len() < HOLD_MAX;
            }
            self.collect_replies();
            if executed > 0 {
                joined::executed(executed);
                flushes::executed(executed);
                self.publish_info();
            }
            if self.output.len() > self.output_limit || self.inbox.has_overflowed() {
                return false;
            }
            let is_done = self.session.closes
                && self.pending.is_empty()
                && !self.has_joined
                && self.loading.is_none();
            if is_done && self.output.is_empty() {
                return true;
            }
            // Replies make room when they move to the output, too: what has arrived continues then.
            let has_room_again =
                was_full && self.has_room() && !mutant!("server_wait_in_spite_of_room");
            let wake = self.wait(stream, executed == TURN || has_room_again).await;
            if !self.handle(wake) {
                return false;
            }
        }
    }

    /// Executes requests that have arrived; returns how many.
    fn execute_some(&mut self) -> usize {
        let mut executed = 0;
        if let Some(Loading::Stopped(_)) = self.loading
            && self.has_room()
            && let Some(Loading::Stopped(load)) = self.loading.take()
        {
            self.loading = Some(Loading::begin(load));
        }
        if self.loading.is_some() || !self.settle() {
            return 0;
        }
        // Nearly every second time the connection was woken for a reply.
        if self.input.is_empty() && self.postponed.is_none() && self.wrong.is_none() {
            self.session.snapshot = None;
            return 0;
        }
        let (mut together, mut bytes) = (joined::memory(), 0);
        if let Some(args) = self.postponed.take() {
            executed += 1;
            self.execute(args, Attempt::FIRST);
        }
        if let Some(wrong) = self.wrong.take() {
            self.refuse(wrong);
        }
        while executed < TURN && self.may_execute() && !self.has_joined {
            match self.next_request() {
                Ok(None) => {
                    self.join(&mut together, bytes);
                    break;
                }
                Ok(Some(args)) if args.is_empty() => {}
                Ok(Some(args)) => {
                    executed += 1;
                    if let Some(command) = joins(&self.shared, &self.session, &args) {
                        bytes += args.iter().map(Bytes::len).sum::<usize>();
                        if together.capacity() == 0 {
                            together.reserve(TOGETHER_USUAL);
                        }
                        together.push((command, args));
                        if bytes >= TOGETHER_BYTES {
                            self.execute_together(&mut together);
                            bytes = 0;
                        }
                    } else {
                        self.execute_together(&mut together);
                        bytes = 0;
                        if self.has_joined {
                            self.postponed = Some(args);
                        } else {
                            self.execute(args, Attempt::FIRST);
                        }
                    }
                }
                Err(error) => {
                    self.execute_together(&mut together);
                    if self.has_joined {
                        self.wrong = Some(error);
                    } else {
                        self.refuse(error);
                    }
                }
            }
        }
        self.execute_together(&mut together);
        joined::keep(together);
        buffers::release_input(&mut self.input);
        // Requests that arrive later see what has become durable meanwhile.
        self.session.snapshot = None;
        executed
    }

    /// Executes writes that arrived one after another in one transaction, which costs less than one for
    /// each, and removes them.
    fn execute_together(&mut self, requests: &mut Vec<(&'static Command, Vec<Bytes>)>) {
        if requests.is_empty() {
            return;
        }
        match execute_together(&self.shared, &mut self.session, requests) {
            Ok((replies, ticket)) => {
                requests.drain(..).for_each(|(_, args)| reuse(args));
                return self.reply_together(replies, ticket.map(flushes::add));
            }
            Err(Obstacle::Missing(pages)) => return self.load_for(requests, pages),
            Err(Obstacle::Request(_) | Obstacle::Engine) => {}
        }
        self.execute_each(requests.drain(..));
    }

    /// Executes requests that could not run together, one after another. A pause that has begun meanwhile must
    /// not let one overtake another, and neither must one that waits for pages: nearly all of them are in
    /// memory.
    fn execute_each(&mut self, requests: impl Iterator<Item = Request>) {
        for (_, args) in requests {
            self.execute_now(args, Attempt::WAITING);
        }
    }

    /// Answers bytes that are not a request, and ends the connection.
    fn refuse(&mut self, wrong: ProtocolError) {
        let reply = malformed(&self.shared, &mut self.session, &wrong);
        self.reply(reply, None);
    }

    /// Returns the next request, if all of it has arrived.
    fn next_request(&mut self) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        let limits = if self.session.is_authenticated {
            Limits {
                arguments: 1024 * 1024,
                bulk: self.bulk_limit,
            }
        } else {
            Limits::UNAUTHENTICATED
        };
        self.parser.next(&mut self.input, limits)
    }

    fn may_execute(&self) -> bool {
        self.blocked.is_none()
            && self.loading.is_none()
            && self.postponed.is_none()
            && !self.session.closes
            && self.has_room()
    }

    /// Whether there is room for further replies.
    fn has_room(&self) -> bool {
        self.pending.len() < PENDING_MAX && self.output.len() + self.pending_bytes < OUTPUT_HIGH
    }

    fn execute(&mut self, args: Vec<Bytes>, attempt: Attempt) {
        if let Some(pause) = self.shared.pauses.current()
            && is_postponed(&self.session, &args, &pause)
        {
            self.postponed = Some(args);
            return;
        }
        self.execute_now(args, attempt);
    }

    fn execute_now(&mut self, mut args: Vec<Bytes>, attempt: Attempt) {
        match execute(&self.shared, &mut self.session, &mut args, attempt) {
            Outcome::Reply(reply, ticket) => self.reply(reply, ticket.map(flushes::add)),
            Outcome::Within(within) => self.reply_within(*within),
            Outcome::Wait(wait) => return self.block(args, wait),
            Outcome::Load(command) => return self.load(command, args),
            Outcome::Missing(pages, next) => {
                let shared = Arc::clone(&self.shared);
                let loading = spawn_blocking(move || {
                    load_pages(&shared, &pages);
                    Finished::Pages
                });
                self.loading = Some(Loading::Pages(loading, args, next));
                return;
            }
        }
        reuse(args);
    }

    /// Has another thread run a read that waits for the medium, and the reads that have arrived after
    /// it.
    fn load(&mut self, command: &'static Command, args: Vec<Bytes>) {
        let mut load = Load::new(&self.shared, &self.session, command, args);
        while self.postponed.is_none() {
            match self.next_request() {
                Ok(None) => break,
                Ok(Some(args)) if args.is_empty() => {}
                Ok(Some(args)) => self.postponed = load.add(&self.session, args),
                Err(wrong) => {
                    load.end_with(wrong);
                    break;
                }
            }
        }
        self.loading = Some(Loading::begin(Box::new(load)));
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
        let mut args = wait.again.unwrap_or(args);
        // They may wait for hours, and their memory is shared.
        for arg in &mut args {
            *arg = Bytes::copy_from_slice(arg);
        }
        self.blocked = Some(Blocked {
            args,
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
        let (args, attempt) = (&mut blocked.args, Attempt::WITH_ELEMENTS);
        match execute(&self.shared, &mut self.session, args, attempt) {
            Outcome::Reply(reply, ticket) => self.reply(reply, ticket.map(flushes::add)),
            Outcome::Within(within) => self.reply_within(*within),
            // Such an attempt waits for pages itself: what has just been written is in memory.
            Outcome::Wait(_) | Outcome::Load(_) | Outcome::Missing(..) => {
                self.blocked = Some(blocked);
            }
        }
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
        buffers::begin_output(&mut self.output);
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
            Wake::Read(Ok(len)) => {
                let activity = self.shared.activities.of(self.session.stripe);
                // Relaxed: a statistic.
                activity.received.fetch_add(len as u64, Ordering::Relaxed);
                return self.input.len() < self.input_limit;
            }
            Wake::Read(Err(_)) | Wake::Written(Err(_)) | Wake::Idle | Wake::Message(None) => {
                return false;
            }
            Wake::Written(Ok(len)) => {
                let activity = self.shared.activities.of(self.session.stripe);
                // Relaxed: a statistic.
                activity.sent.fetch_add(len as u64, Ordering::Relaxed);
                self.output.advance(len);
                buffers::release_output(&mut self.output);
            }
            Wake::Durable | Wake::Turn | Wake::PauseChanged => {}
            Wake::Loaded(Ok(Finished::Pages)) => {
                if let Some(Loading::Pages(_, args, attempt)) = self.loading.take() {
                    self.execute(args, attempt);
                }
            }
            Wake::Loaded(Ok(Finished::Reads(loaded))) => {
                let (replies, rest) = loaded.finish(&self.shared, &mut self.session);
                self.loading = rest.map(|load| Loading::Stopped(Box::new(load)));
                for reply in replies {
                    self.reply(reply, None);
                }
            }
            // A request that makes the server panic, which is a defect, ends its connection.
            Wake::Loaded(Err(_)) => return false,
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
                // A request that waits for others before it is refused or answered after them.
                if self.loading.is_none()
                    && !self.has_joined
                    && (self.blocked.take().is_some() || self.postponed.take().is_some())
                {
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
        if let Some(slot) = self.joined.as_ref().filter(|_| self.has_joined) {
            slot.forsake();
        }
        if !self.pending.is_empty() || self.has_joined {
            flushes::forsake();
        }
        self.shared.stop_tracking(&mut self.session);
        if self.session.is_monitor {
            self.shared.monitors.remove(self.session.id);
        }
        self.shared.clients().remove(&self.session.id);
    }
}
