//! Reading several keys of a transaction by one request to an agent.
//!
//! What was read waits in the context until the transaction reads the key: then it counts as read when
//! the agent read it, and the commit validates it by the stamp from then.

use std::sync::Arc;

use braid_log::SeqNo;
use braid_store::{LeafHint, Taken, ValueRef};
use bytes::Bytes;

use super::transaction::Transaction;
use crate::engine::Engine;
use crate::engine::agents::{Agent, ReadCopy};
use crate::engine::context::Ahead;
use crate::error::Result;
use crate::schema::table::TableCore;
use crate::types::{AsKey, Key};

impl Transaction {
    /// Reads keys of a table that has an agent, for reads that follow. A hint: an error is left to them.
    #[cold]
    pub(super) fn read_ahead<'q, K: Key, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        agent: &Arc<Agent>,
        core: &Arc<TableCore>,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<()> {
        let copy = |key: &Q| key.with_key_bytes(Bytes::copy_from_slice);
        // The caller's iterator may read in this transaction.
        let keys: Vec<Bytes> = keys.into_iter().map(copy).collect();
        let Ok(found) = agent.read_many(&core.tree, keys.clone()) else {
            return Ok(());
        };
        let state = &mut **self.state().borrow_mut();
        if state.snapshot.is_some() {
            return Ok(());
        }
        let table = state.table_index(core);
        // Older ones were not wanted.
        state.ahead.clear();
        let ahead = keys.into_iter().zip(found);
        state.ahead.extend(ahead.map(|(key, (hint, found))| Ahead {
            table,
            key,
            hint,
            found,
        }));
        Ok(())
    }
}

/// Takes what was read ahead of a key.
fn take_ahead(ahead: &mut Vec<Ahead>, table: u32, key: &[u8]) -> Option<ReadCopy> {
    let is_it = |ahead: &Ahead| ahead.table == table && ahead.key == key;
    let found = ahead.iter().position(is_it)?;
    let Ahead { hint, found, .. } = ahead.swap_remove(found);
    Some((hint, found))
}

/// Calls `take` with what was read ahead of a key, or with what the agent reads now.
#[cold]
#[inline(never)]
pub(super) fn read_ahead_or_now<T>(
    agent: &Arc<Agent>,
    core: &TableCore,
    hint: &mut LeafHint,
    key: &[u8],
    (ahead, table): (&mut Vec<Ahead>, u32),
    mut take: impl FnMut(ValueRef<'_>) -> T,
) -> Result<Option<Taken<T>>> {
    let Some((place, found)) = take_ahead(ahead, table, key) else {
        let found = Engine::read_by_agent(agent, &core.tree, hint, key, SeqNo::MAX, take)?;
        return Ok(found);
    };
    *hint = place;
    let mut take = |value: Bytes| take(ValueRef::from(&value));
    Ok(found.map(|(meta, value)| (meta, value.map(&mut take))))
}
