//! State of one connection.

use std::collections::BTreeSet;
use std::sync::Arc;

use braid::{Database, Durability};
use bytes::Bytes;

use crate::acl::{Acl, User};
use crate::channels::{Mailbox, Topic};
use crate::keyspace::Data;
use crate::resp::{Protocol, Reply};
use crate::tracking::{Mode, Opt};

/// A key that WATCH named, as it was.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) database: u32,
    pub(crate) key: Bytes,
    /// Stamp of the entry; `None` if there was none.
    pub(crate) stamp: Option<u64>,
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Each with the number of its command.
    pub(crate) requests: Vec<(usize, Vec<Bytes>)>,
    /// Whether a command could not be queued; EXEC fails then.
    pub(crate) is_broken: bool,
    pub(crate) done: Done,
}

/// Replies to commands of a transaction that must not run twice, although the transaction may, by their
/// positions. Takes memory only for commands without data, which few transactions have.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Each with the version of the protocol that is selected after it.
    replies: Vec<Option<(Reply, Protocol)>>,
    /// The version of the protocol that was selected when the transaction ran first.
    protocol: Option<Protocol>,
    /// Whether one of the commands was BGSAVE.
    pub(crate) saves: bool,
}

impl Done {
    /// Begins an attempt. Returns the version of the protocol that was selected at the first one.
    pub(crate) fn begin(&mut self, selected: Protocol) -> Protocol {
        *self.protocol.get_or_insert(selected)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&(Reply, Protocol)> {
        self.replies.get(at)?.as_ref()
    }

    /// Keeps a reply.
    pub(crate) fn keep(&mut self, at: usize, reply: &Reply, protocol: Protocol) {
        if self.replies.len() <= at {
            self.replies.resize(at + 1, None);
        }
        self.replies[at] = Some((reply.clone(), protocol));
    }
}

/// Whether the next commands are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    On,
    Off,
    /// Not for this command.
    SkipNext,
    Skip,
}

/// What the client of a connection keeps of what it reads.
#[derive(Debug)]
pub(crate) struct Caching {
    pub(crate) mode: Mode,
    /// What CLIENT CACHING said about the next command.
    pub(crate) next: Option<bool>,
}

/// State of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) name: Bytes,
    pub(crate) library: (Bytes, Bytes),
    pub(crate) protocol: Protocol,
    pub(crate) database: u32,
    pub(crate) is_authenticated: bool,
    /// Who the connection is; `default` before it authenticates.
    pub(crate) user: Arc<User>,
    /// When a write is answered: `Immediate` or `Buffered`.
    pub(crate) durability: Durability,
    pub(crate) queue: Option<Queue>,
    pub(crate) watched: Vec<Watched>,
    pub(crate) subscriptions: BTreeSet<(Topic, Bytes)>,
    pub(crate) mailbox: Mailbox,
    /// Whether the connection gets copies of all requests.
    pub(crate) is_monitor: bool,
    pub(crate) replies: Replies,
    /// Whether the client keeps what it reads, and learns of changes.
    pub(crate) caching: Option<Caching>,
    /// Sequence number of the newest write whose durability this connection has not seen.
    pub(crate) pending: u64,
    /// The durable state that the last command read: others that arrived together with it read the same.
    pub(crate) snapshot: Option<Box<Data>>,
    pub(crate) last_command: &'static str,
    /// Whether the connection ends after its replies.
    pub(crate) closes: bool,
    /// Stripe of counters that belongs to the connection's thread.
    pub(crate) stripe: u16,
}

impl Session {
    /// Forgets the commands that wait for EXEC, and the keys that are watched.
    pub(crate) fn end_transaction(&mut self) {
        self.queue = None;
        self.watched.clear();
    }

    /// Returns the state of a connection that has not sent anything.
    pub(crate) fn new(id: u64, acl: &Acl, mailbox: Mailbox, stripe: u16) -> Self {
        let (user, is_authenticated) = acl.default_user();
        Self {
            id,
            name: Bytes::new(),
            library: Default::default(),
            protocol: Protocol::default(),
            database: 0,
            is_authenticated,
            user,
            durability: Durability::default(),
            queue: None,
            watched: Vec::new(),
            subscriptions: BTreeSet::new(),
            mailbox,
            is_monitor: false,
            replies: Replies::default(),
            caching: None,
            pending: 0,
            snapshot: None,
            last_command: "",
            closes: false,
            stripe,
        }
    }

    /// Returns whether the durable state contains everything that the client was answered, and its
    /// last write, which may still be on its way to the device.
    pub(crate) fn sees_own_writes(&self, db: &Database) -> bool {
        self.pending == 0 || db.durable_seqno() >= self.pending
    }

    /// Returns whether the client keeps what the present command reads.
    pub(crate) fn keeps_reads(&self) -> bool {
        self.caching.as_ref().is_some_and(|caching| {
            caching.mode.prefixes.is_none()
                && match caching.mode.opt {
                    Opt::All => true,
                    Opt::In => caching.next == Some(true),
                    Opt::Out => caching.next != Some(false),
                }
        })
    }

    /// Returns the number of subscriptions that PUBLISH serves, or of those to shards.
    pub(crate) fn subscribed(&self, shards: bool) -> usize {
        self.subscriptions
            .iter()
            .filter(|(topic, _)| (*topic == Topic::Shard) == shards)
            .count()
    }
}
