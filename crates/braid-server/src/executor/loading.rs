//! Reads what is not in memory on other threads.
//!
//! A thread that serves connections reads only what is in memory: a read of the medium takes as long as
//! hundreds of other requests. A read that needs more comes here with those that its client sent right
//! after it, and goes to one of the runtime's threads for work that waits. So reads of several
//! connections wait for the medium at the same time.
//!
//! What else needs a page ends without an effect. Another thread loads what was missing, and the request
//! runs again, on its own thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid::MissingPages;
use braid_rt::mutant;
use bytes::Bytes;

use super::{Author, check, count_hits, note};
use crate::command::{Command, Run, placed_keys, run_on};
use crate::failure::Result;
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

/// Loads after which a request waits itself for what is still missing: it reads much, or a small pool has
/// lost what was loaded before.
pub(crate) const LOADS_MAX: u8 = 16;

/// The same for a script, of which each run takes time.
const SCRIPT_LOADS_MAX: u8 = 8;

/// The keys that a request prefetches together when it runs again.
const PREFETCHED_MAX: usize = 1024;

/// How often a request has run without an effect, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    has_waited: bool,
    loads: u8,
    waits: bool,
}

impl Attempt {
    /// The request has not run.
    pub(crate) const FIRST: Attempt = Attempt {
        has_waited: false,
        loads: 0,
        waits: false,
    };

    /// The request waits for pages itself.
    pub(crate) const WAITING: Attempt = Attempt {
        waits: true,
        ..Attempt::FIRST
    };

    /// The request has waited for elements. Writers notify as soon as they have committed, so it has to see
    /// commits that are not durable yet.
    pub(crate) const WITH_ELEMENTS: Attempt = Attempt {
        has_waited: true,
        ..Attempt::WAITING
    };

    pub(super) fn has_waited(self) -> bool {
        self.has_waited
    }

    pub(super) fn is_first(self) -> bool {
        !self.has_waited && !self.has_loaded()
    }

    pub(super) fn has_loaded(self) -> bool {
        self.loads > 0
    }

    /// The next attempt of a request, for which pages are loaded first.
    pub(super) fn after_load(self, is_script: bool) -> Attempt {
        let max = if is_script {
            SCRIPT_LOADS_MAX
        } else {
            LOADS_MAX
        };
        let loads = self.loads + 1;
        Attempt {
            loads,
            waits: loads >= max,
            ..self
        }
    }

    /// Sets how a request reads data.
    pub(super) fn prepare(self, data: &mut Data) {
        let waits = self.waits || mutant!("server_wait_for_pages");
        data.view.set_nonblocking(!waits);
        if self.has_loaded() {
            data.prefetched_max = PREFETCHED_MAX;
        }
    }
}

/// Loads pages for a request. To be called where it may wait. Ignores errors: the request meets them when it
/// waits itself.
pub(crate) fn load_pages(shared: &Shared, pages: &MissingPages) {
    let _ = shared.keyspace.db.load_pages(pages);
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
