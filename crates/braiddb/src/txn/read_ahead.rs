//! Reading several keys of a transaction by one request to an agent.
//!
//! The transaction notes the keys that its program announces, of any tables. Its first read of one of
//! them asks the agent of that tablespace for all that are noted. What was read waits in the context
//! until the transaction reads the key: then it counts as read when the agent read it, and the commit
//! validates it by the stamp from then. A read under a lock uses it only if the leaf has not changed
//! since, so that it returns what is newest under the lock.

use std::sync::Arc;

use braid_log::SeqNo;
use braid_store::{LeafHint, Taken, ValueRef};
use bytes::Bytes;

use super::transaction::Transaction;
use crate::engine::Engine;
use crate::engine::agents::{Agent, ReadCopy};
use crate::engine::context::{Ahead, ReadAhead, Wanted};
use crate::error::Result;
use crate::schema::entry::space_of;
use crate::schema::table::TableCore;
use crate::types::{AsKey, Key};

/// With so many keys that no read asked for, a program does not read what it announces.
const WANTED_MAX: usize = 1_024;

/// When a copy that was made ahead may be returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Always, since the commit validates the read.
    Validated,
    /// While it is the newest version: the transaction has locked the key.
    Newest,
}

impl Transaction {
    /// Notes keys of a table that has an agent, for reads that follow.
    #[cold]
    pub(super) fn want<'q, K: Key, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        core: &Arc<TableCore>,
        keys: impl IntoIterator<Item = &'q Q>,
    ) {
        let copy = |key: &Q| key.with_key_bytes(Bytes::copy_from_slice);
        // The caller's iterator may read in this transaction.
        let keys: Vec<Bytes> = keys.into_iter().map(copy).collect();
        let state = &mut **self.state().borrow_mut();
        if state.snapshot.is_some() {
            return;
        }
        let table = state.table_index(core);
        let wanted = &mut state.ahead.wanted;
        if wanted.len() > WANTED_MAX {
            wanted.clear();
        }
        wanted.extend(keys.into_iter().map(|key| Wanted { table, key }));
    }
}

/// Returns what was read ahead of a key, if the program has announced it.
fn take_ahead(
    agent: &Arc<Agent>,
    ahead: &mut ReadAhead,
    tables: &[Arc<TableCore>],
    wanted: (u32, &[u8]),
) -> Option<ReadCopy> {
    if let Some(found) = ahead.take(wanted) {
        return Some(found);
    }
    if !ahead.wanted.iter().any(|other| other.is(wanted)) {
        return None;
    }
    let space = |table: u32| space_of(tables[table as usize].id);
    let is_here = |other: &mut Wanted| space(other.table) == space(wanted.0);
    let asked: Vec<Wanted> = ahead.wanted.extract_if(.., is_here).collect();
    let keys = asked.iter().map(|wanted| {
        let tree = tables[wanted.table as usize].tree.clone();
        (tree, wanted.key.clone())
    });
    // After an error, the read itself finds the error of its own key.
    let found = agent.read_many(keys.collect()).ok()?;
    // Older ones were not wanted.
    ahead.found.clear();
    let found = asked.into_iter().zip(found);
    ahead
        .found
        .extend(found.map(|(wanted, copy)| Ahead { wanted, copy }));
    ahead.take(wanted)
}

/// Calls `take` with what was read ahead of a key, or with what the agent reads now.
#[cold]
#[inline(never)]
pub(super) fn read_ahead_or_now<T>(
    agent: &Arc<Agent>,
    hint: &mut LeafHint,
    (table, key): (u32, &[u8]),
    (ahead, tables): (&mut ReadAhead, &[Arc<TableCore>]),
    may_use: Use,
    mut take: impl FnMut(ValueRef<'_>) -> T,
) -> Result<Option<Taken<T>>> {
    let tree = &tables[table as usize].tree;
    let copy = take_ahead(agent, ahead, tables, (table, key));
    let is_usable = |copy: &ReadCopy| {
        may_use == Use::Validated
            || tree.is_current(copy.0.stamp())
            || braid_rt::mutant!("believe_copies_under_locks")
    };
    let Some((place, found)) = copy.filter(is_usable) else {
        let found = Engine::read_by_agent(agent, tree, hint, key, SeqNo::MAX, take)?;
        return Ok(found);
    };
    if may_use == Use::Newest {
        braid_rt::coverage_point("a read under a lock uses what an agent has read ahead");
    }
    *hint = place;
    let mut take = |value: Bytes| take(ValueRef::from(&value));
    Ok(found.map(|(meta, value)| (meta, value.map(&mut take))))
}
