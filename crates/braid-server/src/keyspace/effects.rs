//! What other connections learn of a transaction once it has committed.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::data::Data;
use crate::kind::Kind;
use crate::tracking::Changes;

/// What happened to a key, for keyspace notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Class of the event as in `notify-keyspace-events`: `$`, `h`, `l`, `s`, `z`, `g`, `x`.
    pub(crate) class: char,
    pub(crate) name: &'static str,
    pub(crate) database: u32,
    pub(crate) key: Bytes,
}

/// A message for the subscribers of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) is_shard: bool,
    pub(crate) channel: Bytes,
    pub(crate) text: Bytes,
}

/// What other connections learn once the transaction has committed.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) events: Vec<Event>,
    /// Number of keys that were found expired.
    pub(crate) expired: u64,
    pub(crate) arrivals: Vec<Arrival>,
    /// Messages of a script.
    pub(crate) messages: Vec<Message>,
    /// Whether the transaction may have changed something.
    pub(crate) is_write: bool,
    /// Whether `changes` has the changed keys.
    pub(crate) is_tracked: bool,
    pub(crate) changes: Changes,
}

/// Something for which clients may wait. Keys are named with the number of their database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A key got elements.
    Elements {
        key: (u32, Bytes),
        kind: Kind,
        count: usize,
    },
    /// A reader of a group of a stream left entries for others.
    Left { key: (u32, Bytes), group: Bytes },
    /// A stream or a group of it is gone.
    Gone { key: (u32, Bytes) },
    /// Other data is in a database now.
    Database(u32),
}

impl Data {
    /// Records an event of the selected database, if somebody wants notifications.
    pub(crate) fn notify(&mut self, class: char, name: &'static str, key: &[u8]) {
        // Relaxed: a command that runs while the classes change may be of before or after.
        if !self.keyspace.notifies.load(Ordering::Relaxed) {
            return;
        }
        self.effects.events.push(Event {
            class,
            name,
            database: self.database,
            key: Bytes::copy_from_slice(key),
        });
    }

    /// Records that a key has changed, if somebody wants to know.
    pub(super) fn changed(&mut self, key: &[u8]) {
        if self.effects.is_tracked {
            self.effects.changes.keys.push(Bytes::copy_from_slice(key));
        }
    }

    /// Records that clients may be waiting for the new elements of a key.
    pub(crate) fn pushed(&mut self, key: &[u8], kind: Kind, count: usize) {
        self.effects.arrivals.push(Arrival::Elements {
            key: (self.database, Bytes::copy_from_slice(key)),
            kind,
            count,
        });
    }

    /// Records that readers of groups must not wait for entries of a stream any longer.
    pub(super) fn stream_is_gone(&mut self, key: &[u8]) {
        self.effects.arrivals.push(Arrival::Gone {
            key: (self.database, Bytes::copy_from_slice(key)),
        });
    }
}
