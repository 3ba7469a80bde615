//! Applying a logged transaction by the agents of its tablespaces: one request for all writes in a
//! tablespace.
//!
//! The writes lie in memory that the committing thread shares with the agents until all of them are
//! done. It waits for all before it goes on, whatever the outcome: a transaction releases no lock and
//! leaves no commit slot while a part of it is being applied. Besides the locks and the slot, which it
//! has at any application, it holds nothing meanwhile. A panic in an agent continues in the committing
//! thread, and so has the same consequence as one in an application without agents (I8).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use braid_log::SeqNo;
use braid_store::LeafHint;

use super::apply::{apply, apply_write};
use crate::base::handover::By;
use crate::engine::Engine;
use crate::engine::agents::Agent;
use crate::engine::context::Context;
use crate::engine::write_set::WriteSet;
use crate::error::Result;
use crate::mvcc::gc::GcBuffer;
use crate::schema::entry::space_of;
use crate::schema::table::TableCore;

/// The writes of a transaction, while several threads apply them.
struct Logged {
    writes: WriteSet,
    tables: Vec<Arc<TableCore>>,
    seqno: SeqNo,
}

impl Logged {
    /// Applies the writes in the tablespaces of which `is_part` holds, and calls `applied` with the size
    /// of each. Returns what they leave for the collection of versions.
    fn apply_part(
        &self,
        engine: &Engine,
        is_part: impl Fn(u8) -> bool,
        mut applied: impl FnMut(usize),
    ) -> Result<GcBuffer> {
        let mut gc = GcBuffer::default();
        let mut hint = LeafHint::default();
        for write in self.writes.live() {
            let table = &self.tables[write.table as usize];
            if !is_part(space_of(table.id)) {
                continue;
            }
            let (key, value) = (self.writes.key(write), self.writes.value(write));
            let change = (write.hash, key, value);
            apply_write(
                engine,
                table,
                change,
                self.seqno,
                (&mut hint, None),
                &mut gc,
            )?;
            applied(key.len() + value.map_or(0, <[u8]>::len));
        }
        Ok(gc)
    }
}

/// Applies a transaction of a database with agents: each agent its part, and this thread the rest.
#[cold]
#[inline(never)]
pub(super) fn apply_by_agents(
    engine: &Arc<Engine>,
    state: &mut Context,
    seqno: SeqNo,
) -> Result<()> {
    let agents = agents_of(engine, state);
    if agents.is_empty() {
        return apply(engine, state, seqno);
    }
    let logged = Arc::new(Logged {
        writes: std::mem::take(&mut state.writes),
        tables: std::mem::take(&mut state.tables),
        seqno,
    });
    let ask = |(space, agent): &(u8, Arc<Agent>)| {
        let (space, agent) = (*space, agent.clone());
        let (engine, logged) = (engine.clone(), logged.clone());
        move |by| {
            if braid_rt::mutant!("answer_without_the_work") && by == By::Agent {
                return Ok(GcBuffer::default());
            }
            if braid_rt::mutant!("drop_a_request_when_full") && by == By::Caller {
                return Ok(GcBuffer::default());
            }
            let applied = |bytes| agent.note(by, true, bytes);
            logged.apply_part(&engine, |of_table| of_table == space, applied)
        }
    };
    let asked: Vec<_> = agents
        .iter()
        .map(|agent| agent.1.ring.ask(ask(agent)))
        .collect();
    let is_own = |space| agents.iter().all(|agent| agent.0 != space);
    // Unwind safe: the panic is resumed below.
    let own = catch_unwind(AssertUnwindSafe(|| {
        logged.apply_part(engine, is_own, |_| ())
    }));
    if braid_rt::mutant!("apply_after_acknowledgement") {
        return own.unwrap_or_else(|panic| resume_unwind(panic)).map(|_| ());
    }
    let of_agents = asked
        .into_iter()
        .map(|asked| catch_unwind(AssertUnwindSafe(|| asked.wait())));
    let parts: Vec<_> = of_agents.chain([own]).collect();
    let logged = Arc::into_inner(logged).expect("agents drop the writes before they are done");
    state.writes = logged.writes;
    state.tables = logged.tables;
    for part in parts {
        match part {
            Ok(part) => add_garbage(&mut state.gc, part?),
            Err(_) if braid_rt::mutant!("survive_a_panic_of_an_agent") => {}
            Err(panic) => resume_unwind(panic),
        }
    }
    Ok(())
}

/// Returns the agents of the tablespaces to which the transaction writes from another node.
fn agents_of(engine: &Engine, state: &Context) -> Vec<(u8, Arc<Agent>)> {
    let mut agents: Vec<(u8, Arc<Agent>)> = Vec::new();
    if !state.room.is_divided() {
        return agents;
    }
    for write in state.writes.live() {
        let table = &state.tables[write.table as usize];
        let space = space_of(table.id);
        if agents.iter().any(|agent| agent.0 == space) {
            continue;
        }
        agents.extend(engine.agent_for(table).map(|agent| (space, agent.clone())));
    }
    agents
}

/// Adds what a part leaves to what the transaction leaves.
fn add_garbage(gc: &mut GcBuffer, part: GcBuffer) {
    if braid_rt::mutant!("forget_the_versions_of_agents") {
        return;
    }
    gc.retired.extend(part.retired);
    gc.tombstones.extend(part.tombstones);
    gc.long.extend(part.long);
    gc.versions += part.versions;
    gc.bytes += part.bytes;
}
