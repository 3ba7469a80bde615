//! A workload in parts, each with its tables on a memory node, and threads on both nodes.
//!
//! Every part has all tables of the workload. A transaction uses one part, drawn uniformly, so half of
//! the transactions are remote to their thread where the parts are on two nodes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid::tablespace::{AgentHook, AgentWork};
use braid_rt::numa;
use fastrand::Rng;

use super::model::{Access, Agents, Memory};
use crate::BenchError;
use crate::engines::{
    Abilities, Acknowledgement, Body, BraidEngine, Counters, KvEngine, Mode, Order, Session,
    Setting, Stop, TableId, Transaction, Wait,
};

/// Parts of a workload, and nodes of the figure.
pub(super) const PARTS: usize = 2;

/// Bytes of a record's header in the log, about.
const LOG_HEADER: usize = 20;

/// Node of each part's data, and of the log of its transactions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nodes {
    pub(super) data: [usize; PARTS],
    pub(super) log: [usize; PARTS],
}

thread_local! {
    /// The node on which a thread of the figure runs.
    static NODE: Cell<Option<usize>> = const { Cell::new(None) };
    /// What became of the accesses that the thread asked of agents.
    static ASKED: Cell<Asked> = const { Cell::new(Asked { agents: false, own_bytes: 0 }) };
}

/// Accesses that were left to agents since the last look.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// Whether there were any.
    agents: bool,
    /// Bytes that the thread accessed itself, since the agent was late.
    own_bytes: usize,
}

/// The model's memory, as the engine's agents find it.
pub(super) struct Modelled {
    memory: Arc<Memory>,
    nodes: Nodes,
}

impl Modelled {
    pub(super) fn new(memory: &Arc<Memory>, nodes: Nodes) -> Arc<Self> {
        let memory = memory.clone();
        Arc::new(Self { memory, nodes })
    }

    /// The node of a tablespace: that of part `i` has the number `i + 1`.
    fn node(&self, tablespace: u8) -> usize {
        self.nodes.data[usize::from(tablespace) - 1]
    }
}

impl AgentHook for Modelled {
    fn is_remote(&self, tablespace: u8) -> bool {
        let node = NODE.get();
        let is_remote = node.is_some_and(|node| node != self.node(tablespace));
        if is_remote {
            let agents = true;
            ASKED.set(Asked {
                agents,
                ..ASKED.get()
            });
        }
        is_remote
    }

    fn worked(&self, work: AgentWork) {
        if work.by_agent {
            let node = self.node(work.tablespace);
            let access = if work.writes {
                Access::Write
            } else {
                Access::Read
            };
            self.memory.access(access, work.bytes, node, node);
        } else {
            let asked = ASKED.get();
            let own_bytes = asked.own_bytes + work.bytes;
            ASKED.set(Asked { own_bytes, ..asked });
        }
    }
}

/// An engine whose tables exist once for each part.
pub(super) struct Placed<'a> {
    engine: &'a BraidEngine,
    /// Number of the workload's tables.
    tables: usize,
    nodes: Nodes,
    /// What accesses take, if that is modelled.
    model: Option<&'a Memory>,
    sessions: AtomicUsize,
    /// The part that is being loaded.
    loading: Option<usize>,
}

impl<'a> Placed<'a> {
    pub(super) fn new(
        engine: &'a BraidEngine,
        tables: usize,
        nodes: Nodes,
        model: Option<&'a Memory>,
    ) -> Self {
        Self {
            engine,
            tables,
            nodes,
            model,
            sessions: AtomicUsize::new(0),
            loading: None,
        }
    }

    /// Returns the same engine, of which sessions use one part alone, to load it.
    pub(super) fn of_part(&self, part: usize) -> Self {
        Self {
            loading: Some(part),
            ..Self::new(self.engine, self.tables, self.nodes, None)
        }
    }
}

impl KvEngine for Placed<'_> {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn abilities(&self) -> Abilities {
        self.engine.abilities()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let node = number % PARTS;
        NODE.set(self.loading.is_none().then_some(node));
        if self.loading.is_none() && self.model.is_none() {
            // The thread's own: the runner starts threads for a run.
            numa::run_on(node);
        }
        Ok(Box::new(PlacedSession {
            inner: self.engine.session()?,
            placed: self,
            node,
            rng: Rng::with_seed(number as u64),
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.engine.settle()
    }

    fn counters(&self) -> Counters {
        self.engine.counters()
    }

    fn setting(&self) -> Setting {
        self.engine.setting()
    }
}

struct PlacedSession<'a> {
    inner: Box<dyn Session + 'a>,
    placed: &'a Placed<'a>,
    /// The node on which the thread runs.
    node: usize,
    rng: Rng,
}

impl PlacedSession<'_> {
    fn draw(&mut self) -> Part {
        let part = self
            .placed
            .loading
            .unwrap_or_else(|| self.rng.usize(0..PARTS));
        Part {
            first: part * self.placed.tables,
            data: self.placed.nodes.data[part],
            log: self.placed.nodes.log[part],
            from: self.node,
        }
    }
}

/// The part that a transaction uses, seen from its thread.
#[derive(Clone, Copy)]
struct Part {
    /// Its first table.
    first: TableId,
    data: usize,
    log: usize,
    from: usize,
}

impl Part {
    /// Accounts for an access that has taken place: of an agent's, this thread has the copy.
    fn data(&self, model: Option<&Memory>, access: Access, bytes: usize) {
        let Some(model) = model else {
            return;
        };
        let asked = ASKED.take();
        if model.agents != Agents::Real || !asked.agents {
            return model.access(access, bytes, self.from, self.data);
        }
        let own = asked.own_bytes.min(bytes);
        if own > 0 {
            model.access(access, own, self.from, self.data);
        }
        model.copy(bytes - own);
    }

    /// Whether the writes of a transaction are accounted for after its commit, which leaves them to an
    /// agent.
    fn writes_by_agent(&self, model: Option<&Memory>) -> bool {
        model.is_some_and(|model| model.agents == Agents::Real) && self.from != self.data
    }

    /// Reads a value by `read`, which passes it to its argument, and accounts for the access.
    fn read(
        &self,
        model: Option<&Memory>,
        found: &mut dyn FnMut(&[u8]),
        read: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<bool, Stop>,
    ) -> Result<bool, Stop> {
        let mut bytes = 0;
        let is_there = read(&mut |value| {
            bytes = value.len();
            found(value);
        })?;
        self.data(model, Access::Read, bytes);
        Ok(is_there)
    }
}

impl Session for PlacedSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        wait: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let (part, model) = (self.draw(), self.placed.model);
        let mut written = Vec::new();
        let outcome = self.inner.transact(mode, wait, &mut |tx| {
            written.clear();
            let mut tx = PlacedTransaction {
                tx,
                part,
                model,
                logged: 0,
                written: &mut written,
            };
            body(&mut tx)?;
            if let (Some(model), 1..) = (model, tx.logged) {
                model.access(Access::Write, tx.logged, part.from, part.log);
            }
            ASKED.take();
            Ok(())
        });
        if outcome.is_ok() && !written.is_empty() {
            let asked = ASKED.get();
            for bytes in written {
                ASKED.set(asked);
                part.data(model, Access::Write, bytes);
            }
        }
        outcome
    }

    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let (part, inner) = (self.draw(), &mut self.inner);
        part.read(self.placed.model, found, |found| {
            inner.get(part.first + table, key, found)
        })
    }
}

struct PlacedTransaction<'a> {
    tx: &'a mut dyn Transaction,
    part: Part,
    model: Option<&'a Memory>,
    /// Bytes of its log record.
    logged: usize,
    /// Sizes of the writes that its commit leaves to an agent.
    written: &'a mut Vec<usize>,
}

impl PlacedTransaction<'_> {
    fn written(&mut self, bytes: usize) {
        self.logged += bytes + LOG_HEADER;
        if self.part.writes_by_agent(self.model) {
            self.written.push(bytes);
        } else {
            self.part.data(self.model, Access::Write, bytes);
        }
    }
}

impl Transaction for PlacedTransaction<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let (part, tx) = (self.part, &mut self.tx);
        part.read(self.model, found, |found| {
            tx.get(part.first + table, key, found)
        })
    }

    fn get_for_update(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let (part, tx) = (self.part, &mut self.tx);
        part.read(self.model, found, |found| {
            tx.get_for_update(part.first + table, key, found)
        })
    }

    fn prefetch(&mut self, table: TableId, keys: &[&[u8]]) -> Result<(), Stop> {
        self.tx.prefetch(self.part.first + table, keys)
    }

    fn reads_by_message(&self) -> bool {
        let has_agents = (self.model).is_none_or(|model| model.agents == Agents::Real);
        has_agents && self.part.from != self.part.data
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.tx.put(self.part.first + table, key, value)?;
        self.written(key.len() + value.len());
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.tx.delete(self.part.first + table, key)?;
        self.written(key.len());
        Ok(())
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        let mut bytes = 0;
        let table = self.part.first + table;
        self.tx.scan(table, from, to, order, &mut |key, value| {
            bytes += key.len() + value.len();
            visit(key, value)
        })?;
        self.part.data(self.model, Access::Read, bytes);
        Ok(())
    }
}
