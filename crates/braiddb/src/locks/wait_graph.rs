//! Wait-for graph: which transaction each waiting transaction waits for.
//!
//! A waiting transaction has one edge, to the holder of the lock that it waits for. The last
//! transaction that begins to wait closes a cycle, and follows the edges before it sleeps.
//!
//! A transaction that does not wait depends on the thread that runs it. If that thread is the
//! waiter itself, or waits in another of its transactions, then nothing may ever end the
//! transaction: the caller has two transactions open at once. But the graph knows only the thread
//! that used a transaction last, and a transaction can move to another thread, or with its task to
//! another worker. So such a cycle is an error only after a grace period in which no other thread
//! used the transaction.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::base::sync::{AtomicU64, Mutex};

/// Identifies a transaction context and its current use; never 0.
pub(crate) type Owner = u64;

/// The holder of a lock that nobody holds.
pub(super) const NOBODY: Owner = 0;

/// Bits of an owner number that count a context's uses; no lock outlives so many transactions.
const OWNER_USES_BITS: u32 = 32;

/// Returns the first owner number of a context, whose number is at least 1.
pub(crate) fn first_owner(context: u64) -> Owner {
    context << OWNER_USES_BITS
}

/// Returns the context's next owner number.
pub(crate) fn next_owner(owner: Owner) -> Owner {
    let uses = owner.wrapping_add(1) & ((1 << OWNER_USES_BITS) - 1);
    first_owner(context_of(owner)) | uses
}

fn context_of(owner: Owner) -> u64 {
    owner >> OWNER_USES_BITS
}

/// Grace period for a cycle through a transaction that the waiting thread used last: another thread
/// may have received the transaction since.
const GRACE: Duration = Duration::from_millis(100);

/// The thread that runs a transaction context, for transactions that wait for its locks.
#[derive(Debug)]
pub(crate) struct User {
    owner: AtomicU64,
    /// The thread that last acquired a lock for the transaction; `ENDING` once the commit has
    /// begun.
    thread: AtomicU64,
    /// Number of reads and lock acquisitions. Only the transaction's own thread writes it.
    uses: AtomicU64,
}

const ENDING: u64 = u64::MAX;

impl User {
    /// Creates a user that no waiter finds.
    pub(crate) fn unregistered(owner: Owner) -> Arc<Self> {
        Arc::new(Self {
            owner: AtomicU64::new(owner),
            thread: AtomicU64::new(ENDING),
            uses: AtomicU64::new(0),
        })
    }

    /// Records a read of the transaction.
    #[inline(always)]
    pub(crate) fn reads(&self) {
        // Relaxed, like all accesses here: only waiters load these values, as a guess that the
        // grace period corrects.
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.wrapping_add(1), Ordering::Relaxed);
    }

    /// Records that the transaction acquires a lock on this thread.
    #[inline(always)]
    pub(crate) fn locks(&self) {
        let thread = braid_rt::thread::index() as u64;
        self.thread.store(thread, Ordering::Relaxed);
        self.reads();
    }

    /// Records that the commit has begun: it releases the transaction's locks without further
    /// calls.
    #[inline(always)]
    pub(crate) fn ends(&self) {
        self.thread.store(ENDING, Ordering::Relaxed);
    }

    pub(crate) fn set_owner(&self, owner: Owner) {
        self.owner.store(owner, Ordering::Relaxed);
    }
}

/// The users of contexts, by context number.
#[derive(Debug, Default)]
struct Users {
    by_context: HashMap<u64, Weak<User>>,
    /// Length at which entries of freed contexts are removed.
    sweep_at: usize,
}

impl Users {
    fn add(&mut self, context: u64, user: &Arc<User>) {
        if self.by_context.len() >= self.sweep_at {
            self.by_context.retain(|_, user| user.strong_count() > 0);
            self.sweep_at = 2 * self.by_context.len() + 16;
        }
        self.by_context.insert(context, Arc::downgrade(user));
    }

    /// Returns the thread that last used an open transaction, and the number of its uses.
    fn last_use(&self, owner: Owner) -> Option<(u64, u64)> {
        let user = self.by_context.get(&context_of(owner))?.upgrade()?;
        let thread = user.thread.load(Ordering::Relaxed);
        // Locks that outlive their transaction have an earlier owner number.
        let is_open = user.owner.load(Ordering::Relaxed) == owner && thread != ENDING;
        is_open.then(|| (thread, user.uses.load(Ordering::Relaxed)))
    }
}

/// Possible outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// A running thread may release the lock.
    Open,
    Cycle,
    /// A cycle, unless another thread has received one of the transactions; `uses` counts their
    /// uses.
    OwnThread {
        uses: u64,
    },
}

/// Edge of a waiting transaction.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// The transaction that holds the lock.
    holder: Owner,
    /// The thread that waits.
    thread: u64,
}

/// Grace period of a wait for a transaction of the same thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    pub(super) uses: u64,
    pub(super) until: Instant,
}

impl Grace {
    pub(super) fn new(uses: u64) -> Self {
        let until = braid_rt::now() + GRACE;
        Self { uses, until }
    }
}

/// The edges of all waiting transactions. Only waiting transactions, and those that release a lock
/// with waiters, access it.
#[derive(Debug, Default)]
pub(super) struct WaitGraph {
    /// Acquired before `users`.
    edges: Mutex<HashMap<Owner, Edge>>,
    /// Accessed by waiters, and when a context is created.
    users: Mutex<Users>,
}

impl WaitGraph {
    /// Creates the user of a new context with this first owner number.
    pub(super) fn user(&self, owner: Owner) -> Arc<User> {
        let user = User::unregistered(owner);
        self.users.lock().add(context_of(owner), &user);
        user
    }

    /// Adds the edge of `owner`, which is about to wait for `holder` on this thread, unless the
    /// edge closes a cycle. Additions are serialized, so the last edge of a cycle detects it.
    pub(super) fn begin_to_wait(&self, owner: Owner, holder: Owner) -> Outlook {
        let mut edges = self.edges.lock();
        let outlook = self.follow(&edges, owner, holder);
        if outlook != Outlook::Cycle {
            let thread = braid_rt::thread::index() as u64;
            edges.insert(owner, Edge { holder, thread });
        }
        outlook
    }

    /// Records the new holder of a lock that these transactions wait for; [`NOBODY`] once the lock
    /// is released.
    pub(super) fn set_holder(&self, waiting: impl Iterator<Item = Owner>, holder: Owner) {
        let mut edges = self.edges.lock();
        for owner in waiting {
            if let Some(edge) = edges.get_mut(&owner) {
                edge.holder = holder;
            }
        }
    }

    /// Removes the edge of a transaction that waits no longer.
    pub(super) fn end_wait(&self, owner: Owner) {
        self.edges.lock().remove(&owner);
    }

    /// Returns the outlook of `owner`, which waits for `holder` on this thread.
    pub(super) fn outlook(&self, owner: Owner, holder: Owner) -> Outlook {
        self.follow(&self.edges.lock(), owner, holder)
    }

    fn follow(&self, edges: &HashMap<Owner, Edge>, owner: Owner, holder: Owner) -> Outlook {
        let own_thread = braid_rt::thread::index() as u64;
        let mut at = holder;
        // Sum of the uses of the running transactions on the path.
        let mut uses = None;
        // A chain of distinct owners cannot be longer than the number of waiters.
        for _ in 0..=edges.len() {
            if at == owner {
                return uses.map_or(Outlook::Cycle, |uses| Outlook::OwnThread { uses });
            }
            if let Some(edge) = edges.get(&at) {
                at = edge.holder;
                continue;
            }
            let Some((thread, used)) = self.users.lock().last_use(at) else {
                break;
            };
            let sum = uses.unwrap_or(0u64).wrapping_add(used);
            uses = Some(sum);
            if thread == own_thread && !braid_rt::mutant!("wait_for_own_thread") {
                return Outlook::OwnThread { uses: sum };
            }
            match edges.values().find(|edge| edge.thread == thread) {
                Some(edge) => at = edge.holder,
                None => break,
            }
        }
        Outlook::Open
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_use_of_a_context_has_its_own_number() {
        let first = first_owner(3);
        let second = next_owner(first);
        let third = next_owner(second);
        assert_eq!([second, third], [first + 1, first + 2]);
        let last = first_owner(4) - 1;
        assert_eq!([second, last].map(context_of), [3, 3]);
        assert_eq!(next_owner(last), first, "the uses start again");
    }

    /// A waiter must not believe that a transaction waits for its own thread after it moved on.
    #[test]
    fn the_last_use_belongs_to_an_open_transaction() {
        let graph = WaitGraph::default();
        let owner = first_owner(3);
        let user = graph.user(owner);
        let last_use = |owner| graph.users.lock().last_use(owner);
        let own_thread = braid_rt::thread::index() as u64;
        assert_eq!(last_use(owner), None, "it has no thread yet");
        user.locks();
        assert_eq!(last_use(owner), Some((own_thread, 1)));
        user.reads();
        assert_eq!(last_use(owner), Some((own_thread, 2)));
        assert_eq!(last_use(next_owner(owner)), None);
        user.ends();
        assert_eq!(last_use(owner), None);
        user.set_owner(next_owner(owner));
        user.locks();
        assert_eq!(last_use(owner), None, "its locks outlived it");
        assert_eq!(last_use(next_owner(owner)), Some((own_thread, 3)));
        drop(user);
        assert_eq!(last_use(next_owner(owner)), None);
    }

    #[test]
    fn users_of_freed_contexts_are_forgotten() {
        let mut users = Users::default();
        let kept: Vec<_> = (1..=40)
            .map(|context| {
                let user = User::unregistered(first_owner(context));
                users.add(context, &user);
                user
            })
            .collect();
        for context in 41..=1000 {
            users.add(context, &User::unregistered(first_owner(context)));
        }
        let is_known = |context: u64| users.by_context.contains_key(&context);
        assert!((1..=40).all(is_known));
        // Twice the contexts in use, and a few, at the last sweep.
        assert!(users.by_context.len() <= 2 * kept.len() + 20);
        assert!(users.sweep_at > kept.len());
    }

    #[test]
    fn a_grace_period_lies_ahead() {
        let before = braid_rt::now();
        assert!(Grace::new(0).until >= before + GRACE);
    }

    /// Registers waits without sleeping, as the owners' threads would.
    fn wait_for(graph: &WaitGraph, owner: Owner, holder: Owner, thread: u64) {
        graph.edges.lock().insert(owner, Edge { holder, thread });
    }

    #[test]
    fn the_outlook_of_a_wait_follows_holders_and_threads() {
        let graph = WaitGraph::default();
        let own_thread = braid_rt::thread::index() as u64;
        let [one, two, three] = [1, 2, 3].map(first_owner);
        let users = [one, two, three].map(|owner| graph.user(owner));
        let outlook = |holder| graph.outlook(one, holder);
        // Nobody has used the holder: its commit runs.
        assert_eq!(outlook(two), Outlook::Open);
        // Two waits for three, which runs on another thread.
        let elsewhere = own_thread + 1;
        users[2].thread.store(elsewhere, Ordering::Relaxed);
        users[2].reads();
        wait_for(&graph, two, three, elsewhere + 1);
        assert_eq!(outlook(two), Outlook::Open);
        // That thread waits for a lock of one.
        wait_for(&graph, first_owner(9), one, elsewhere);
        assert_eq!(outlook(two), Outlook::OwnThread { uses: 1 });
        graph.end_wait(first_owner(9));
        assert_eq!(outlook(two), Outlook::Open);
        // This thread used three last.
        users[2].locks();
        assert_eq!(outlook(two), Outlook::OwnThread { uses: 2 });
        assert_eq!(outlook(three), Outlook::OwnThread { uses: 2 });
        // Three waits for one.
        wait_for(&graph, three, one, own_thread);
        assert_eq!(outlook(two), Outlook::Cycle);
        assert_eq!(outlook(three), Outlook::Cycle);
        // One has released its lock, and a fourth transaction acquires it.
        graph.set_holder([three].into_iter(), NOBODY);
        assert_eq!(outlook(two), Outlook::Open);
        graph.set_holder([three, first_owner(8)].into_iter(), first_owner(4));
        assert_eq!(graph.outlook(first_owner(4), two), Outlook::Cycle);
        assert!(!graph.edges.lock().contains_key(&first_owner(8)));
    }

    /// A request that would close a cycle is not registered; any other one is.
    #[test]
    fn a_wait_is_registered_unless_it_closes_a_cycle() {
        let graph = WaitGraph::default();
        assert_eq!(graph.begin_to_wait(1, 2), Outlook::Open);
        assert_eq!(graph.begin_to_wait(2, 1), Outlook::Cycle);
        let waiting: Vec<Owner> = graph.edges.lock().keys().copied().collect();
        assert_eq!(waiting, [1]);
    }
}
