//! Reads what is not in memory on other threads.
//!
//! A thread that serves connections reads only what is in memory: a read of the medium takes as long as
//! hundreds of other requests. A read that needs more comes here with those that its client sent right
//! after it, and goes to one of the runtime's threads for work that waits. So reads of several
//! connections wait for the medium at the same time. Before writes, another thread reads the entries of
//! their keys.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Author, check, count_hits, note};
use crate::command::{Command, Run, placed_keys, run_on};
use crate::failure::{Failure, Result};
use crate::keyspace::{Data, Effects};
use crate::limit;
use crate::resp::{ProtocolError, Reply};
use crate::session::Session;
use crate::shared::Shared;
use crate::signature::Flag;

/// Most requests that run one after another without a reply to the first.
const REQUESTS_MAX: usize = limit(64, 4);

/// Bytes of replies after which the others wait until the client has read some.
const REPLIES_MAX: usize = limit(1 << 20, 2_000);

/// Whether a command failed because what it reads is not in memory.
pub(super) fn would_block(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Engine(braid::Error::Io { source, .. }) if source.kind() == ErrorKind::WouldBlock
    )
}

/// Whether a command can run on another thread: it only reads, and waits for nobody.
pub(super) fn can_load(command: &Command) -> bool {
    matches!(command.run, Run::Data(_)) && command.is(Flag::Readonly) && !command.is(Flag::Blocking)
}

/// Reads of one connection that wait for the medium.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    database: u32,
    requests: Vec<(&'static Command, Vec<Bytes>)>,
    /// The error in the bytes after them.
    wrong: Option<ProtocolError>,
}

/// Reads that have run.
#[derive(Debug)]
pub(crate) struct Loaded {
    load: Load,
    /// What the first requests led to, and how long each took.
    replies: Vec<(Reply, Duration)>,
    effects: Effects,
}

impl Load {
    /// Begins with a request whose execution found that something is not in memory.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        session: &Session,
        command: &'static Command,
        args: Vec<Bytes>,
    ) -> Load {
        Load {
            shared: Arc::clone(shared),
            database: session.database,
            requests: vec![(command, args)],
            wrong: None,
        }
    }

    /// Adds the client's next request if it is such a read, too; returns it otherwise.
    pub(crate) fn add(&mut self, session: &Session, args: Vec<Bytes>) -> Option<Vec<Bytes>> {
        let shared = &self.shared;
        let is_usual = self.requests.len() < REQUESTS_MAX
            && session.caching.is_none()
            && shared.monitors.is_empty()
            && shared.pauses.current().is_none();
        match check(shared, session, &args) {
            Ok(command) if is_usual && can_load(command) => {
                // Relaxed: a statistic.
                let activity = shared.activities.of(session.stripe);
                activity.commands.fetch_add(1, Ordering::Relaxed);
                self.requests.push((command, args));
                None
            }
            _ => Some(args),
        }
    }

    /// Notes that the bytes after the requests are none.
    pub(crate) fn end_with(&mut self, wrong: ProtocolError) {
        self.wrong = Some(wrong);
    }

    /// Runs the requests, or as many as make [`REPLIES_MAX`] bytes. To be called where it may wait.
    pub(crate) fn run(self) -> Loaded {
        let mut replies = Vec::with_capacity(self.requests.len());
        let mut began = Instant::now();
        let mut effects = Effects::default();
        let data = self.shared.keyspace.durable(self.database);
        match data.and_then(|mut data| self.prefetch(&mut data).map(|()| data)) {
            Ok(mut data) => {
                let mut bytes = 0;
                for (command, args) in &self.requests {
                    if bytes >= REPLIES_MAX {
                        break;
                    }
                    let reply = run(command, &mut data, args);
                    bytes += reply.weight();
                    let ended = Instant::now();
                    replies.push((reply, ended - began));
                    began = ended;
                }
                effects = std::mem::take(&mut data.effects);
            }
            Err(failure) => {
                let reply = (failure.to_reply(), began.elapsed());
                replies.resize(self.requests.len(), reply);
            }
        }
        Loaded {
            load: self,
            replies,
            effects,
        }
    }

    fn prefetch(&self, data: &mut Data) -> Result<()> {
        let requests = self.requests.iter();
        data.prefetch(requests.flat_map(|(command, args)| placed_keys(command, args)))
    }
}

/// Brings the entries of keys that are to be changed into memory. To be called where it may wait. Ignores
/// errors: who needs an entry meets them.
pub(crate) fn load_entries(shared: &Shared, database: u32, keys: &[Bytes]) {
    if let Ok(mut data) = shared.keyspace.durable(database) {
        let _ = data.prefetch(keys.iter());
        // One alone is not prefetched, and of many not all.
        for key in keys {
            let _ = data.header(key);
        }
    }
}

/// Returns the reply to bytes that are not a request, after which a connection ends.
pub(crate) fn malformed(shared: &Shared, session: &mut Session, wrong: &ProtocolError) -> Reply {
    let text = format!("ERR {wrong}");
    shared.errors.count(&text);
    session.closes = true;
    Reply::error(text)
}

fn run(command: &Command, data: &mut Data, args: &[Bytes]) -> Reply {
    let Run::Data(run) = command.run else {
        return Reply::Null;
    };
    run_on(command, run, data, args).unwrap_or_else(|failure| failure.to_reply())
}

impl Loaded {
    /// Notes what has run, tells others of it, and returns the replies, and the requests that have not run.
    pub(crate) fn finish(
        self,
        shared: &Shared,
        session: &mut Session,
    ) -> (Vec<Reply>, Option<Load>) {
        shared.publish(self.effects, None);
        let mut load = self.load;
        let mut replies = Vec::with_capacity(self.replies.len() + 1);
        let requests = load.requests.drain(..self.replies.len());
        for ((command, args), (reply, duration)) in requests.zip(self.replies) {
            session.last_command = command.name;
            let has_failed = matches!(reply, Reply::Error(_));
            match &reply {
                Reply::Error(text) => shared.errors.count(text),
                _ => count_hits(shared, session, command, &reply),
            }
            let author = Author::of(session);
            note(shared, author, command, &args, duration, has_failed);
            replies.push(reply);
        }
        if !load.requests.is_empty() {
            return (replies, Some(load));
        }
        replies.extend(load.wrong.map(|wrong| malformed(shared, session, &wrong)));
        (replies, None)
    }
}
