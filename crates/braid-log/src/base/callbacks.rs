//! Callbacks and wakers of tickets that no thread blocks on.

use std::sync::atomic::Ordering;
use std::task::Waker;

use crossbeam_utils::CachePadded;

use crate::LogError;
use crate::base::numbers::{AtomicSeqNo, SeqNo};
use crate::base::sync::Mutex;

/// An action that runs once a number is durable, or can no longer become durable.
pub(crate) enum Action {
    /// Call a function with the outcome.
    Call(Box<dyn FnOnce(Result<(), LogError>) + Send>),
    /// Wake a task, which asks for the outcome itself.
    Wake(Waker),
}

impl std::fmt::Debug for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Action")
    }
}

impl Action {
    /// Runs the action with the outcome.
    pub(crate) fn run(self, outcome: &Result<(), LogError>) {
        match self {
            Action::Call(call) => call(outcome.clone()),
            // The panic hook has reported a waker that panics.
            Action::Wake(waker) => drop(braid_rt::call_user(|| waker.wake())),
        }
    }
}

struct Shard {
    actions: Mutex<Vec<(SeqNo, Action)>>,
    /// The least number in `actions`; [`SeqNo::MAX`] if empty.
    least: AtomicSeqNo,
}

/// Registered actions, in shards so that threads of different strands do not contend.
pub(crate) struct Callbacks {
    shards: Box<[CachePadded<Shard>]>,
}

impl Callbacks {
    pub(crate) fn new(shards: usize) -> Self {
        let shard = || {
            CachePadded::new(Shard {
                actions: Mutex::new(Vec::new()),
                least: AtomicSeqNo::new(SeqNo::MAX),
            })
        };
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
        }
    }

    /// Registers an action. The caller loads the durable seqno (`SeqCst`) afterwards and calls
    /// [`Callbacks::run`] itself if the number is durable already.
    pub(crate) fn add(&self, shard: usize, seqno: SeqNo, action: Action) {
        let shard = &self.shards[shard % self.shards.len()];
        let mut actions = shard.actions.lock();
        actions.push((seqno, action));
        // SeqCst: pairs with `run`. Either `run` sees the number, or the caller sees the durable
        // seqno.
        shard.least.fetch_min(seqno, Ordering::SeqCst);
    }

    /// Runs everything up to `durable_seqno`, on this thread. The durable seqno was published
    /// (`SeqCst`) before.
    pub(crate) fn run(&self, durable_seqno: SeqNo, outcome: &Result<(), LogError>) {
        (0..self.shards.len()).for_each(|shard| self.run_shard(shard, durable_seqno, outcome));
    }

    /// Like [`Callbacks::run`], of one shard.
    pub(crate) fn run_shard(
        &self,
        shard: usize,
        durable_seqno: SeqNo,
        outcome: &Result<(), LogError>,
    ) {
        let shard = &self.shards[shard];
        // SeqCst: pairs with `add`.
        if shard.least.load(Ordering::SeqCst) > durable_seqno {
            return;
        }
        let mut due = {
            let mut actions = shard.actions.lock();
            let due: Vec<_> = actions
                .extract_if(.., |(seqno, _)| *seqno <= durable_seqno)
                .collect();
            let least = actions.iter().map(|&(seqno, _)| seqno).min();
            shard
                .least
                .store(least.unwrap_or(SeqNo::MAX), Ordering::SeqCst);
            due
        };
        due.sort_unstable_by_key(|&(seqno, _)| seqno);
        for (_, action) in due {
            action.run(outcome);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn runs_due_actions_once() {
        let callbacks = Callbacks::new(2);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for seqno in [5, 3, 8] {
            let seen = seen.clone();
            let call = move |outcome: Result<(), LogError>| {
                seen.lock().push((seqno, outcome.is_ok()));
            };
            let action = Action::Call(Box::new(call));
            callbacks.add(seqno as usize, SeqNo::new(seqno), action);
        }
        callbacks.run(SeqNo::new(2), &Ok(()));
        assert!(seen.lock().is_empty());
        callbacks.run(SeqNo::new(5), &Ok(()));
        callbacks.run(SeqNo::new(5), &Ok(()));
        assert_eq!(*seen.lock(), [(3, true), (5, true)]);
        callbacks.run(
            SeqNo::MAX,
            &Err(LogError::Poisoned {
                cause: "test".into(),
            }),
        );
        assert_eq!(seen.lock()[2], (8, false));
    }
}
