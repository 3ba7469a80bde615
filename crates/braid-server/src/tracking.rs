//! Caches of clients: which client has read which key, and which clients learn of a change.
//!
//! Readers see the durable state. A client that learned of a change before it is durable would read
//! the old value again and keep it, so a thread of its own waits for the durability of each change,
//! and only then sends the keys. Three rules make a cache that drops what it is sent never stale:
//!
//! - a key is noted before it is read, so a change that the reader does not see yet is sent to it;
//! - a client is sent a change after the replies to what it asked before, because these depend on
//!   nothing newer;
//! - changes that began before the first client tracked keys count as changes of everything.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_rt::mutant;
use bytes::Bytes;

use crate::channels::Mailbox;
use crate::resp::{Notice, Reply};

/// Changes that may wait for their durability; further writers wait, too.
const QUEUED_MAX: usize = 1 << 14;

/// Changes that are sent after one wait.
const BATCH: usize = 1 << 10;

/// Which reads of a connection its client keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Opt {
    #[default]
    All,
    /// Those after CLIENT CACHING YES.
    In,
    /// Those that do not follow CLIENT CACHING NO.
    Out,
}

/// How a client wants to learn of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) opt: Opt,
    /// Whether the client learns nothing of its own changes.
    pub(crate) noloop: bool,
    /// Client that gets the messages instead.
    pub(crate) redirect: Option<u64>,
    /// Prefixes of all keys of interest, read or not; none for every key. `None` without BCAST.
    pub(crate) prefixes: Option<Vec<Bytes>>,
}

/// Keys that a transaction changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) keys: Vec<Bytes>,
    /// Whether any key may have changed.
    pub(crate) everything: bool,
    /// Sequence number of the transaction.
    pub(crate) seqno: u64,
}

/// Changes on their way to the clients.
#[derive(Debug)]
enum Item {
    Changes(Changes, Option<u64>),
    Stop,
}

/// A client whose reads are noted.
#[derive(Debug)]
struct Tracked {
    mode: Mode,
    mailbox: Mailbox,
    keys: HashSet<Bytes>,
    /// Whether the client knows that the one to which it redirects is gone.
    knows_broken: bool,
}

#[derive(Debug, Default)]
struct Table {
    clients: BTreeMap<u64, Tracked>,
    readers: HashMap<Bytes, BTreeSet<u64>>,
    /// Pairs of a client and a key.
    pairs: usize,
}

/// The clients that have read each key.
#[derive(Debug)]
pub(crate) struct Tracking {
    table: Mutex<Table>,
    sender: SyncSender<Item>,
    receiver: Mutex<Option<Receiver<Item>>>,
    /// Keys that were forgotten because there were too many.
    evicted: AtomicU64,
}

impl Default for Tracking {
    fn default() -> Self {
        let (sender, receiver) = sync_channel(QUEUED_MAX);
        Tracking {
            table: Mutex::default(),
            sender,
            receiver: Mutex::new(Some(receiver)),
            evicted: AtomicU64::new(0),
        }
    }
}

/// What INFO tells about tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackingFigures {
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    pub(crate) items: usize,
    pub(crate) prefixes: usize,
    pub(crate) evicted: u64,
}

impl Tracking {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to track a client, or changes its mode. `is_on` says whether any client is tracked.
    /// Returns whether it was the first one: then the caller waits until everything committed is
    /// durable before it answers.
    pub(crate) fn begin(
        &self,
        client: u64,
        mode: Mode,
        mailbox: &Mailbox,
        is_on: &AtomicBool,
    ) -> bool {
        let mut table = self.lock();
        let is_first = table.clients.is_empty();
        let keys = table.clients.remove(&client).map(|tracked| tracked.keys);
        let tracked = Tracked {
            mode,
            mailbox: mailbox.clone(),
            keys: keys.unwrap_or_default(),
            knows_broken: false,
        };
        table.clients.insert(client, tracked);
        is_on.store(true, Ordering::SeqCst);
        // Pairs with the fence in `is_wanted`: a writer sees the flag, or this thread its commit.
        fence(Ordering::SeqCst);
        is_first
    }

    /// Returns whether a committed change concerns somebody.
    pub(crate) fn is_wanted(is_on: &AtomicBool) -> bool {
        fence(Ordering::SeqCst);
        is_on.load(Ordering::SeqCst)
    }

    /// Ends the tracking of a client, if it is tracked.
    pub(crate) fn end(&self, client: u64, is_on: &AtomicBool) {
        let mut table = self.lock();
        let Some(tracked) = table.clients.remove(&client) else {
            return;
        };
        for key in tracked.keys {
            table.forget(&key, client);
        }
        if table.clients.is_empty() {
            is_on.store(false, Ordering::SeqCst);
        }
    }

    /// Notes that a client is about to read keys. Beyond `limit` pairs of a client and a key, others
    /// count as changed and are forgotten; zero is no limit.
    pub(crate) fn remember(
        &self,
        client: u64,
        keys: Vec<Bytes>,
        limit: usize,
        find: impl Fn(u64) -> Option<Mailbox>,
    ) {
        let mut table = self.lock();
        let table = &mut *table;
        let Some(tracked) = table.clients.get_mut(&client) else {
            return;
        };
        for key in keys {
            // The key may be a part of a large request, which it would keep in memory.
            let key = Bytes::copy_from_slice(&key);
            if tracked.keys.insert(key.clone()) {
                table.readers.entry(key).or_default().insert(client);
                table.pairs += 1;
            }
        }
        while limit > 0 && table.pairs > limit {
            let Some(key) = table.readers.keys().next().cloned() else {
                break;
            };
            // Relaxed: a statistic.
            self.evicted.fetch_add(1, Ordering::Relaxed);
            table.invalidate(&key, None, &find);
        }
    }

    /// Passes on what a committed transaction changed.
    pub(crate) fn changed(&self, changes: Changes, writer: Option<u64>) {
        if changes.everything || !changes.keys.is_empty() {
            // Fails when the server has stopped: then nobody reads any more.
            let _ = self.sender.send(Item::Changes(changes, writer));
        }
    }

    /// Ends [`Tracking::run`].
    pub(crate) fn stop(&self) {
        let _ = self.sender.send(Item::Stop);
    }

    /// Sends changes to the clients that have to know, each after `wait` has waited for its
    /// durability, until [`Tracking::stop`].
    pub(crate) fn run(&self, wait: impl Fn(u64), find: impl Fn(u64) -> Option<Mailbox>) {
        let receiver = self
            .receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(receiver) = receiver else {
            return;
        };
        while let Ok(first) = receiver.recv() {
            let mut batch = vec![first];
            batch.extend(receiver.try_iter().take(BATCH));
            let newest = batch.iter().map(|item| match item {
                Item::Changes(changes, _) => changes.seqno,
                Item::Stop => 0,
            });
            // Returns as well when the log has failed: a client that reads again loses nothing.
            if !mutant!("server_track_before_durable") {
                wait(newest.max().unwrap_or(0));
            }
            for item in batch {
                match item {
                    Item::Changes(changes, writer) => {
                        self.lock().deliver(&changes, writer, &find);
                    }
                    Item::Stop => return,
                }
            }
        }
    }

    /// Returns how many clients, keys, pairs of them and prefixes there are.
    pub(crate) fn figures(&self) -> TrackingFigures {
        let table = self.lock();
        let prefixes = table
            .clients
            .values()
            .filter_map(|t| t.mode.prefixes.as_ref());
        TrackingFigures {
            clients: table.clients.len(),
            keys: table.readers.len(),
            items: table.pairs,
            prefixes: prefixes.map(|prefixes| prefixes.len().max(1)).sum(),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Returns whether the client to which another one redirects is known to be gone.
    pub(crate) fn is_broken(&self, client: u64) -> bool {
        let table = self.lock();
        let tracked = table.clients.get(&client);
        tracked.is_some_and(|tracked| tracked.knows_broken)
    }
}

impl Tracked {
    fn send(&mut self, keys: Option<Vec<Bytes>>, find: &impl Fn(u64) -> Option<Mailbox>) {
        let changed = Reply::Tracking(Notice::Changed {
            keys,
            is_redirected: self.mode.redirect.is_some(),
        });
        let Some(target) = self.mode.redirect else {
            self.mailbox.send(changed);
            return;
        };
        if let Some(mailbox) = find(target) {
            mailbox.send(changed);
        } else if !std::mem::replace(&mut self.knows_broken, true) {
            self.mailbox.send(Reply::Tracking(Notice::Broken(target)));
        }
    }
}

impl Table {
    /// Forgets that a client has read a key.
    fn forget(&mut self, key: &Bytes, client: u64) {
        if let Some(readers) = self.readers.get_mut(key) {
            self.pairs -= usize::from(readers.remove(&client));
            if readers.is_empty() {
                self.readers.remove(key);
            }
        }
    }

    /// Tells the readers of a key that it has changed. They learn of the next change after they have
    /// read it again; a writer that wants to know nothing of its own changes keeps the key.
    fn invalidate(
        &mut self,
        key: &Bytes,
        writer: Option<u64>,
        find: &impl Fn(u64) -> Option<Mailbox>,
    ) {
        let readers = self.readers.get(key).cloned().unwrap_or_default();
        for client in readers {
            let Some(tracked) = self.clients.get_mut(&client) else {
                continue;
            };
            if tracked.mode.noloop && writer == Some(client) {
                continue;
            }
            tracked.keys.remove(key);
            tracked.send(Some(vec![key.clone()]), find);
            self.forget(key, client);
        }
    }

    fn deliver(
        &mut self,
        changes: &Changes,
        writer: Option<u64>,
        find: &impl Fn(u64) -> Option<Mailbox>,
    ) {
        if changes.everything {
            self.readers.clear();
            self.pairs = 0;
            for tracked in self.clients.values_mut() {
                tracked.keys.clear();
                tracked.send(None, find);
            }
            return;
        }
        for key in &changes.keys {
            self.invalidate(key, writer, find);
        }
        for (client, tracked) in &mut self.clients {
            let Some(prefixes) = &tracked.mode.prefixes else {
                continue;
            };
            if tracked.mode.noloop && writer == Some(*client) {
                continue;
            }
            let is_wanted = |key: &&Bytes| {
                prefixes.is_empty() || prefixes.iter().any(|prefix| key.starts_with(prefix))
            };
            let keys: BTreeSet<Bytes> = changes.keys.iter().filter(is_wanted).cloned().collect();
            if !keys.is_empty() {
                tracked.send(Some(keys.into_iter().collect()), find);
            }
        }
    }
}
