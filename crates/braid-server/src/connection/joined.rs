//! Writes of several connections of one thread that run in one transaction.
//!
//! A transaction for each write of a client that waits for its reply costs more than the write itself. So
//! a connection that has read everything its client sent leaves its writes here. When the thread has
//! looked at all its sockets, it runs what they left in one transaction, before it requests the flush
//! that their replies wait for anyway.
//!
//! A connection that gets another request first has the thread run everything that is left here, so
//! each client's requests take effect in their order. If a write fails or the transaction conflicts,
//! nothing has changed, and each connection runs its own writes.
//!
//! If a write needs what is not in memory, nothing has changed either: another thread reads it first,
//! and this one meanwhile serves its other connections.

use std::cell::RefCell;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use braid::{Database, MissingPages};
use braid_rt::{call_user, mutant};
use bytes::Bytes;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Connection;
use crate::command::Command;
use crate::executor::{Author, Joint, LOADS_MAX, Obstacle, execute_joint, load_pages};
use crate::flushes;
use crate::resp::{Reply, reuse};
use crate::session::Session;
use crate::shared::Shared;

/// Requests after which a transaction is long enough: it holds the locks of all their keys.
const REQUESTS_MAX: usize = 64;

/// Bytes after which a transaction is long enough.
const BYTES_MAX: usize = 64 << 10;

/// Requests of other connections after which the thread runs what it has although it has more to do.
const OTHERS_MAX: usize = 512;

/// Most writes of a connection that run together with those of others.
const JOINED_MAX: usize = 8;

/// Further writes that a connection runs on its own after one that failed: it spoiled a transaction for
/// other connections.
const ALONE: u8 = 16;

/// A request and its command.
pub(super) type Request = (&'static Command, Vec<Bytes>);

/// The state of the writes that a connection has left.
#[derive(Debug, Default)]
pub(super) enum Fate {
    /// There are none.
    #[default]
    None,
    /// They have not run.
    Waiting {
        waker: Option<Waker>,
        /// Whether what they read is not in memory, so another thread reads it first.
        is_loading: bool,
    },
    /// They have run.
    Done(Done),
    /// They have changed nothing, and the connection has to run them.
    Returned {
        requests: Vec<Request>,
        /// Whether one of them is why.
        is_cause: bool,
    },
}

/// Replies to writes that have run.
#[derive(Debug)]
pub(super) struct Done {
    /// Those to more than one request are [`Reply::Several`].
    pub(super) reply: Reply,
    /// Sequence number of the writes.
    written: u64,
    /// Sequence number up to which everything must be durable before they are sent.
    pub(super) seqno: Option<u64>,
    /// When they had run.
    pub(super) since: Instant,
    /// Sequence number for which the connection waits already.
    awaited: u64,
}

/// Where a connection finds what has become of its writes.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<Fate>);

impl Slot {
    fn fate(&self) -> MutexGuard<'_, Fate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has become of the writes of the connection; `None` if they have not run.
    pub(super) fn take(&self) -> Option<Fate> {
        let mut fate = self.fate();
        (!matches!(*fate, Fate::Waiting { .. })).then(|| take(&mut *fate))
    }

    /// Whether the writes wait for something that another thread reads.
    pub(super) fn is_loading(&self) -> bool {
        matches!(*self.fate(), Fate::Waiting { is_loading, .. } if is_loading)
    }

    /// Notes that the connection ends: nobody has to be woken.
    pub(super) fn forsake(&self) {
        if let Fate::Waiting { waker, .. } = &mut *self.fate() {
            *waker = None;
        }
    }

    /// Waits until the replies can be sent, or the connection has to run its writes.
    pub(super) fn poll(&self, db: &Database, context: &Context<'_>) -> Poll<()> {
        match &mut *self.fate() {
            Fate::None => Poll::Pending,
            Fate::Waiting { waker, .. } => {
                if !waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(context.waker()))
                {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
            Fate::Done(Done {
                seqno: Some(seqno),
                awaited,
                ..
            }) => flushes::poll_durable(db, *seqno, awaited, context),
            Fate::Done(_) | Fate::Returned { .. } => Poll::Ready(()),
        }
    }
}

/// A connection whose writes run together with those of others.
struct Owner {
    slot: Arc<Slot>,
    requests: usize,
    id: u64,
    name: Bytes,
}

/// Writes that run in one transaction.
#[derive(Default)]
struct Batch {
    joint: Joint,
    requests: Vec<Request>,
    owners: Vec<Owner>,
    /// How often pages were loaded for them.
    loads: u8,
}

/// What the connections of a thread have left.
#[derive(Default)]
struct Joined {
    shared: Option<Arc<Shared>>,
    batch: Batch,
    bytes: usize,
    /// Requests that the thread has executed since the first of these came.
    others: usize,
}

thread_local! {
    static JOINED: RefCell<Joined> = RefCell::default();
    /// Memory for requests of one connection.
    static SPARE: RefCell<Vec<Request>> = const { RefCell::new(Vec::new()) };
}

/// Returns memory for requests of one connection that run in one transaction.
pub(super) fn memory() -> Vec<Request> {
    SPARE.take()
}

/// Keeps the memory of requests for the next connection of the thread.
pub(super) fn keep(requests: Vec<Request>) {
    if requests.is_empty() && requests.capacity() <= REQUESTS_MAX {
        SPARE.set(requests);
    }
}

/// Leaves writes of a connection to run together with those of others; `requests` is empty afterwards.
pub(super) fn add(
    shared: &Arc<Shared>,
    session: &mut Session,
    slot: &Arc<Slot>,
    requests: &mut Vec<Request>,
    bytes: usize,
) {
    let joint = Joint::of(session);
    let differs = JOINED.with_borrow(|joined| {
        let batch = &joined.batch;
        !batch.requests.is_empty() && batch.joint != joint
    });
    if differs {
        run();
    }
    let is_long = JOINED.with_borrow_mut(|joined| {
        if joined.batch.requests.is_empty() {
            joined.batch.joint = joint;
            (joined.bytes, joined.others) = (0, 0);
        }
        if joined.shared.is_none() {
            joined.shared = Some(Arc::clone(shared));
        }
        joined.batch.add(session, slot, requests);
        joined.bytes += bytes;
        joined.batch.requests.len() >= REQUESTS_MAX || joined.bytes >= BYTES_MAX
    });
    flushes::expect();
    if is_long {
        run();
        flushes::request();
    }
}

/// Counts requests that a connection of this thread has executed.
pub(super) fn executed(requests: usize) {
    let is_due = JOINED.with_borrow_mut(|joined| {
        joined.others += requests;
        joined.others >= OTHERS_MAX && !joined.batch.requests.is_empty()
    });
    if is_due && !mutant!("server_join_until_idle") {
        run();
    }
}

/// Runs what the connections of this thread have left.
pub(super) fn run() {
    let mut joined = JOINED.take();
    if let Some(shared) = &joined.shared {
        joined.batch.run(shared);
    }
    // Its memory serves the next ones. What runs here leaves nothing.
    JOINED.set(joined);
}

/// Ends the thread's part in a server.
pub(crate) fn end() {
    JOINED.take();
    SPARE.take();
}

/// To be called when the thread has nothing else to do: runs what its connections have left, requests
/// a flush for everything that it has executed, and waits a while for its end; but first has the
/// runtime look at the sockets.
pub(crate) fn gather() {
    if flushes::looks_first() {
        return;
    }
    run();
    flushes::gather();
}

impl Batch {
    /// Adds writes of a connection; `requests` is empty afterwards.
    fn add(&mut self, session: &mut Session, slot: &Arc<Slot>, requests: &mut Vec<Request>) {
        session.snapshot = None;
        if let Some((command, _)) = requests.last() {
            session.last_command = command.name;
        }
        *slot.fate() = Fate::Waiting {
            waker: None,
            is_loading: false,
        };
        self.owners.push(Owner {
            slot: Arc::clone(slot),
            requests: requests.len(),
            id: session.id,
            name: session.name.clone(),
        });
        self.requests.append(requests);
    }

    /// Runs the writes, or has pages loaded that they need, and runs them later.
    fn run(&mut self, shared: &Arc<Shared>) {
        if self.requests.is_empty() {
            return;
        }
        let authors = self.owners.iter().map(|owner| {
            let author = Author {
                stripe: self.joint.stripe,
                id: owner.id,
                name: &owner.name,
            };
            (author, owner.requests)
        });
        // A request that makes the server panic, which is a defect, ends its own connection when it runs
        // alone. Here it would end the thread, and with it the connections of all its other clients.
        let how = (self.joint, self.loads >= LOADS_MAX);
        let executed = call_user(|| execute_joint(shared, how, &self.requests, authors));
        match executed.unwrap_or(Err(Obstacle::Engine)) {
            Ok((replies, written, ticket)) => {
                let seqno = ticket.map(flushes::add);
                self.requests.drain(..).for_each(|(_, args)| reuse(args));
                self.answer(replies, written, seqno);
            }
            Err(Obstacle::Missing(pages)) => self.load(shared, pages),
            Err(Obstacle::Request(at)) => self.return_requests(Some(at)),
            Err(Obstacle::Engine) => self.return_requests(None),
        }
    }

    /// Has another thread load pages that the writes need, and then runs them.
    #[cold]
    fn load(&mut self, shared: &Arc<Shared>, pages: MissingPages) {
        for owner in &self.owners {
            if let Fate::Waiting { is_loading, .. } = &mut *owner.slot.fate() {
                *is_loading = true;
            }
        }
        let mut batch = take(self);
        batch.loads += 1;
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let reader = Arc::clone(&shared);
            // What it cannot read, the writes read themselves in the end.
            let _ = spawn_blocking(move || load_pages(&reader, &pages)).await;
            batch.run(&shared);
        });
    }

    /// Gives each connection its replies. A connection that waits is woken when they can be sent.
    fn answer(&mut self, replies: Vec<Reply>, written: u64, seqno: Option<u64>) {
        let since = Instant::now();
        let mut replies = replies.into_iter();
        for owner in self.owners.drain(..) {
            let mut fate = owner.slot.fate();
            let Fate::Waiting { waker, .. } = take(&mut *fate) else {
                continue;
            };
            let awaited = match (&waker, seqno) {
                (Some(_), Some(seqno)) => seqno,
                _ => 0,
            };
            let mut own = replies.by_ref().take(owner.requests);
            let reply = match own.next() {
                Some(reply) if owner.requests == 1 => reply,
                first => Reply::Several(first.into_iter().chain(own).collect()),
            };
            *fate = Fate::Done(Done {
                reply,
                written,
                seqno,
                since,
                awaited,
            });
            drop(fate);
            match (waker, seqno) {
                (Some(waker), Some(seqno)) => flushes::wait(seqno, waker),
                (Some(waker), None) => waker.wake(),
                (None, _) => {}
            }
        }
    }

    /// Lets each connection run its writes. `cause` is the position of the request that failed.
    fn return_requests(&mut self, cause: Option<usize>) {
        let mut requests = self.requests.drain(..);
        let mut begin = 0;
        for owner in self.owners.drain(..) {
            let end = begin + owner.requests;
            let own = requests.by_ref().take(owner.requests).collect();
            let is_cause = cause.is_some_and(|at| (begin..end).contains(&at));
            begin = end;
            let mut fate = owner.slot.fate();
            let Fate::Waiting { waker, .. } = take(&mut *fate) else {
                continue;
            };
            *fate = Fate::Returned {
                requests: own,
                is_cause,
            };
            drop(fate);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Connection {
    /// Leaves the last writes that the client has sent to run together with those of other connections.
    pub(super) fn join(&mut self, requests: &mut Vec<Request>, bytes: usize) {
        // A transaction of many does not become cheaper by more.
        if requests.is_empty() || requests.len() > JOINED_MAX {
            return;
        }
        if self.alone > 0 {
            self.alone -= 1;
            return;
        }
        let slot = self.joined.get_or_insert_default();
        add(&self.shared, &mut self.session, slot, requests, bytes);
        self.has_joined = true;
    }

    /// Whether writes that the client has sent wait for something that another thread reads.
    pub(super) fn joined_is_loading(&self) -> bool {
        self.has_joined && self.joined.as_ref().is_some_and(|slot| slot.is_loading())
    }

    /// Leaves writes to run on their own when another thread has loaded what they need; `requests` is empty
    /// afterwards.
    #[cold]
    pub(super) fn load_for(&mut self, requests: &mut Vec<Request>, pages: MissingPages) {
        let mut batch = Batch {
            joint: Joint::of(&self.session),
            ..Batch::default()
        };
        let slot = self.joined.get_or_insert_default();
        batch.add(&mut self.session, slot, requests);
        batch.load(&self.shared, pages);
        self.has_joined = true;
    }

    /// Takes what has become of writes that run together with those of others, and has them run if the
    /// client has sent more. Returns whether the connection may execute further requests.
    pub(super) fn settle(&mut self) -> bool {
        let (true, Some(slot)) = (self.has_joined, &self.joined) else {
            return true;
        };
        let fate = match slot.take() {
            Some(fate) => fate,
            None if self.input.is_empty() => return false,
            None if mutant!("server_overtake_joined") => return true,
            None => {
                run();
                match slot.take() {
                    Some(fate) => fate,
                    // Another thread reads what they need.
                    None => return false,
                }
            }
        };
        self.has_joined = false;
        // The output waited for these replies.
        self.holds = false;
        match fate {
            Fate::None | Fate::Waiting { .. } => {}
            Fate::Done(done) => {
                let written = if mutant!("server_forget_joined_writes") {
                    done.seqno.unwrap_or(0)
                } else {
                    done.written
                };
                self.session.pending = self.session.pending.max(written);
                self.reply_joined(done);
            }
            Fate::Returned { requests, is_cause } => {
                if is_cause {
                    self.alone = ALONE;
                }
                self.execute_each(requests.into_iter());
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
