//! What was refused: ACL LOG.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Most entries.
const ENTRIES_MAX: usize = 128;

/// Most characters that an entry shows of a command, key or channel.
const OBJECT_MAX: usize = 256;

/// Time within which an equal refusal is counted with the one before.
const SAME: Duration = Duration::from_secs(60);

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Authentication,
    Command,
    Key,
    Channel,
}

impl Reason {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::Authentication => "auth",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
        }
    }
}

/// A refusal.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) count: u64,
    pub(crate) reason: Reason,
    /// `toplevel`, or `multi` for a command in a transaction.
    pub(crate) context: &'static str,
    /// Command, key or channel.
    pub(crate) object: String,
    pub(crate) user: String,
    pub(crate) client: String,
    pub(crate) since: Instant,
    pub(crate) created: SystemTime,
    pub(crate) updated: SystemTime,
}

/// The newest refusals.
#[derive(Debug, Default)]
pub(crate) struct Log {
    state: Mutex<(u64, VecDeque<Entry>)>,
}

impl Log {
    /// Adds a refusal; `client` describes the connection.
    pub(crate) fn add(
        &self,
        reason: Reason,
        context: &'static str,
        mut object: String,
        user: &str,
        client: String,
    ) {
        if let Some((end, _)) = object.char_indices().nth(OBJECT_MAX) {
            object.truncate(end);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, entries) = &mut *state;
        let now = SystemTime::now();
        let same = entries.iter().position(|entry| {
            entry.reason == reason
                && entry.context == context
                && entry.object == object
                && entry.user == user
                && entry.since.elapsed() < SAME
        });
        let entry = match same.and_then(|at| entries.remove(at)) {
            Some(mut entry) => {
                entry.count += 1;
                entry.updated = now;
                entry.client = client;
                entry
            }
            None => {
                let id = *next;
                *next += 1;
                Entry {
                    id,
                    count: 1,
                    reason,
                    context,
                    object,
                    user: user.to_owned(),
                    client,
                    since: Instant::now(),
                    created: now,
                    updated: now,
                }
            }
        };
        entries.push_front(entry);
        entries.truncate(ENTRIES_MAX);
    }

    /// Returns the newest entries, newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<Entry> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1.iter().take(count).cloned().collect()
    }

    pub(crate) fn clear(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1.clear();
    }
}
