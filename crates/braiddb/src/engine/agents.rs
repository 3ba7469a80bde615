//! Agents of tablespaces: threads on a tablespace's memory node that read and write its pages for
//! threads of other nodes.
//!
//! A request is a function of the tree alone: it returns copies, and whether a transaction may use what
//! was read is decided by the thread that asked, as after its own read. Validation and everything about
//! versions and locks stays with that thread. An agent never waits for a transaction or for another
//! agent, and a thread that waits for an agent holds no latch.

use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use braid_log::SeqNo;
use braid_rt::atomic::{AtomicBool, Ordering};
use braid_rt::numa;
use braid_store::{
    Direction, LeafHint, LeafScan, Position, RecordMeta, StoreError, Taken, Tree, ValueRef,
};
use bytes::Bytes;

use super::Engine;
use crate::base::handover::{By, Ring};
use crate::base::remote_access::{AgentWork, Hook};
use crate::schema::entry::{SPACES_MAX, space_of};
use crate::schema::table::TableCore;

/// A copy of a record, if there is one, and the place where it was looked for.
pub(crate) type ReadCopy = (LeafHint, Option<Taken<Bytes>>);

/// An agent's batches of a scan are that many times as large, since a request costs more than a record.
const BATCHES: usize = 4;

/// The agent of a tablespace.
pub(crate) struct Agent {
    pub(crate) ring: Ring,
    space: u8,
    node: Option<usize>,
    hook: Hook,
}

impl Agent {
    /// Creates an agent without a thread.
    pub(crate) fn new(space: u8, node: Option<usize>, hook: Hook) -> Self {
        Self {
            ring: Ring::new(),
            space,
            node,
            hook,
        }
    }

    /// Does work of other threads on the tablespace's node, until the ring is stopped.
    pub(crate) fn serve(&self) {
        if let Some(node) = self.node {
            numa::run_on(node);
        }
        self.ring.serve();
    }

    /// Whether the tablespace is on another node than the calling thread.
    fn is_remote(&self) -> bool {
        match (&self.hook.0, self.node) {
            (Some(hook), _) => hook.is_remote(self.space),
            (None, Some(node)) => braid_rt::thread::index() % numa::nodes() != node,
            (None, None) => false,
        }
    }

    /// Tells the hook of work on records of this size.
    pub(crate) fn note(&self, by: By, writes: bool, bytes: usize) {
        if let Some(hook) = &self.hook.0 {
            hook.worked(AgentWork {
                tablespace: self.space,
                writes,
                bytes,
                by_agent: by == By::Agent,
            });
        }
    }

    /// As [`Tree::read_at`]: copies the value of a record if `up_to` is not before its version.
    pub(crate) fn read(
        self: &Arc<Self>,
        tree: &Tree,
        hint: &mut LeafHint,
        key: &[u8],
        up_to: SeqNo,
    ) -> Result<Option<Taken<Bytes>>, StoreError> {
        let (agent, tree, key) = (self.clone(), tree.clone(), Bytes::copy_from_slice(key));
        let mut own = *hint;
        let asked = self.ring.ask(move |by| {
            let wanted = |meta: RecordMeta| SeqNo::new(meta.version) <= up_to;
            let found = tree.read_at(&mut own, &key, wanted, |value| value.to_bytes());
            if let Ok(found) = &found {
                let value = found.as_ref().and_then(|(_, value)| value.as_ref());
                agent.note(by, false, value.map_or(0, Bytes::len));
            }
            (found, own)
        });
        let (found, own) = asked.wait();
        *hint = own;
        found
    }

    /// Reads the newest versions of several keys, each with the hint where it was found.
    pub(crate) fn read_many(
        self: &Arc<Self>,
        keys: Vec<(Tree, Bytes)>,
    ) -> Result<Vec<ReadCopy>, StoreError> {
        let agent = self.clone();
        let asked = self.ring.ask(move |by| {
            let read = |(tree, key): &(Tree, Bytes)| {
                let mut hint = LeafHint::default();
                let found = tree.read_at(&mut hint, key, |_| true, |value| value.to_bytes())?;
                let value = found.as_ref().and_then(|(_, value)| value.as_ref());
                agent.note(by, false, value.map_or(0, Bytes::len));
                Ok((hint, found))
            };
            keys.iter().map(read).collect()
        });
        asked.wait()
    }

    /// As [`Tree::scan_leaf`].
    pub(crate) fn scan_leaf(
        self: &Arc<Self>,
        tree: &Tree,
        near: Option<Position>,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        at_most: usize,
    ) -> Result<LeafScan, StoreError> {
        let (agent, tree) = (self.clone(), tree.clone());
        let (from, to) = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
        let asked = self.ring.ask(move |by| {
            let (from, to) = (from.as_ref(), to.as_ref());
            let (from, to) = (from.map(Vec::as_slice), to.map(Vec::as_slice));
            let scan = tree.scan_leaf(near, from, to, direction, at_most)?;
            let sizes = scan
                .records()
                .map(|record| record.key.len() + record.value.len());
            agent.note(by, false, sizes.sum());
            Ok(scan)
        });
        asked.wait()
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}

/// The agents of an open database, by tablespace.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    are_used: AtomicBool,
    agents: OnceLock<Box<[OnceLock<Arc<Agent>>]>>,
}

impl Agents {
    /// Makes threads of other nodes use an agent, whose thread was started.
    pub(crate) fn add(&self, agent: Arc<Agent>) {
        let none = || (0..SPACES_MAX).map(|_| OnceLock::new()).collect();
        let agents = self.agents.get_or_init(none);
        // The number of a tablespace is not used twice while a database is open.
        let _ = agents[usize::from(agent.space)].set(agent);
        // Relaxed: a thread that does not see it works directly.
        self.are_used.store(true, Ordering::Relaxed);
    }

    /// Returns a tablespace's agent, if it has one.
    pub(crate) fn of(&self, space: u8) -> Option<&Arc<Agent>> {
        self.agents.get()?.get(usize::from(space))?.get()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Agent>> {
        let agents = self.agents.get().into_iter();
        agents.flat_map(|agents| agents.iter().filter_map(OnceLock::get))
    }

    /// Whether any tablespace has an agent.
    #[inline(always)]
    pub(crate) fn are_used(&self) -> bool {
        // Relaxed: as in `add`.
        self.are_used.load(Ordering::Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn remote(&self, space: u8) -> Option<&Arc<Agent>> {
        self.of(space).filter(|agent| agent.is_remote())
    }
}

impl Engine {
    /// Returns the agent to which the calling thread leaves work on a table, if there is one.
    #[inline(always)]
    pub(crate) fn agent_for(&self, table: &TableCore) -> Option<&Arc<Agent>> {
        if self.agents.are_used() {
            return self.agents.remote(space_of(table.id));
        }
        None
    }

    /// Reads a key of a table for a thread that leaves it to an agent; see [`Agent::read`].
    //
    // `take` is passed by value, so that a direct read need not keep it in memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_by_agent<T>(
        agent: &Arc<Agent>,
        tree: &Tree,
        hint: &mut LeafHint,
        key: &[u8],
        up_to: SeqNo,
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Taken<T>>, StoreError> {
        let found = agent.read(tree, hint, key, up_to)?;
        Ok(found.map(|(meta, value)| (meta, value.map(|value| take(ValueRef::from(&value))))))
    }

    /// As [`Tree::read`], of a record that is not newer than `up_to`, by the agent of the table if there
    /// is one.
    #[inline(always)]
    pub(crate) fn read_up_to<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        up_to: SeqNo,
        take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Taken<T>>, StoreError> {
        match self.agent_for(table) {
            None => {
                let wanted = |meta: RecordMeta| SeqNo::new(meta.version) <= up_to;
                table.tree.read(key, wanted, take)
            }
            Some(agent) => {
                let mut hint = LeafHint::default();
                Self::read_by_agent(agent, &table.tree, &mut hint, key, up_to, take)
            }
        }
    }

    /// As [`Tree::scan_leaf`], by the agent of the table if there is one.
    pub(crate) fn scan_leaf(
        &self,
        table: &TableCore,
        near: Option<Position>,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        at_most: usize,
    ) -> Result<LeafScan, StoreError> {
        match self.agent_for(table) {
            None => table.tree.scan_leaf(near, from, to, direction, at_most),
            Some(agent) => {
                let at_most = at_most.saturating_mul(BATCHES);
                agent.scan_leaf(&table.tree, near, (from, to), direction, at_most)
            }
        }
    }
}
