//! Loading the leaves that a commit needs: from the medium, and into the processor's caches.

use std::ops::{Bound, Range};
use std::sync::Arc;

use braid_store::{LoadRefusal, Tree, collect_missing};

use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::hint_cache::LOCATED_MAX;
use crate::engine::write_set::WriteSet;
use crate::error::Result;
use crate::schema::table::TableCore;

/// Number of writes whose leaves a transaction larger than the pool loads together while it is
/// applied.
const AHEAD: usize = 256;

/// Loads the leaves that the transaction changes, and those in which its reads will be validated. A page
/// that is read after the transaction has its sequence number delays the transactions with greater
/// numbers. Fails if the commit `is_nonblocking` and would load some.
#[inline(always)]
pub(super) fn prepare_leaves(
    engine: &Engine,
    state: &mut Context,
    is_nonblocking: bool,
) -> Result<()> {
    if engine.may_wait_for_pages(state) {
        let refuses = is_nonblocking && !braid_rt::mutant!("block_in_commits");
        let _refusal = refuses.then(LoadRefusal::new);
        load_leaves(engine, state)?;
    }
    locate_records(state);
    Ok(())
}

/// Loads leaves from the medium. Fails if some are missing and the calling thread refuses to load pages.
///
/// A hint, up to a quarter of the buffer pool: what is missing when the transaction is applied is
/// read then, and an error is left to that read.
#[cold]
#[inline(never)]
pub(super) fn load_leaves(engine: &Engine, state: &mut Context) -> Result<()> {
    if state.writes.len() > LOCATED_MAX {
        // Now, so that applying them loads no leaf twice.
        state.writes.sort();
    }
    let least = engine.stores().map(|store| store.pool_pages()).min();
    let mut left = least.unwrap_or_default() / 4;
    let all = 0..state.writes.len();
    let loaded = load(&state.tables, &state.writes, all, &mut left).and_then(|()| {
        if braid_rt::mutant!("load_leaves_of_writes_only") {
            return Ok(());
        }
        load_reads(state, &mut left)
    });
    loaded.inspect_err(|_| {
        braid_rt::coverage_point("commit: one that must not wait needs pages");
    })
}

/// Loads the leaves of the next writes when a large transaction is applied and has come to write
/// `at`.
#[inline(always)]
pub(super) fn load_ahead(engine: &Engine, tables: &[Arc<TableCore>], writes: &WriteSet, at: usize) {
    if at.is_multiple_of(AHEAD) && writes.len() > AHEAD && engine.store.may_wait_for_pages() {
        let end = (at + AHEAD).min(writes.len());
        // Each write reads what is still missing then.
        let _ = load(tables, writes, at..end, &mut { AHEAD });
    }
}

#[cold]
#[inline(never)]
fn load(
    tables: &[Arc<TableCore>],
    writes: &WriteSet,
    range: Range<usize>,
    left: &mut usize,
) -> Result<()> {
    (0..).zip(tables).try_for_each(|(index, table)| {
        let keys = || {
            let of_table = writes.get(range.clone()).filter(|w| w.table == index);
            of_table.map(|write| writes.key(write))
        };
        load_missing(&table.tree, left, keys)?;
        if braid_rt::mutant!("load_leaves_without_large_values") {
            return Ok(());
        }
        let values = keys().map(|key| table.tree.load_large_value(key, left));
        Ok(collect_missing(values)?)
    })
}

/// Loads the leaves of reads that validation will repeat. Eviction counts as a change of a leaf.
fn load_reads(state: &Context, left: &mut usize) -> Result<()> {
    let (reads, ranges) = (&state.reads, &state.reads.ranges);
    for (index, table) in (0..).zip(&state.tables) {
        let tree = &table.tree;
        let points = reads.points.iter();
        let points = || {
            points
                .clone()
                .filter(|read| read.table == index && !tree.is_current(read.stamp))
        };
        load_missing(tree, left, || points().map(|read| reads.key(read)))?;
        let ranges = || {
            let of_table = ranges.iter().filter(|read| read.table == index);
            let again = of_table.filter(|read| !tree.is_current(read.stamp));
            again.map(|read| match ranges.bounds(read).0 {
                Bound::Included(key) | Bound::Excluded(key) => key,
                Bound::Unbounded => &[],
            })
        };
        load_missing(tree, left, ranges)?;
    }
    Ok(())
}

/// Loads the leaves of keys that are not in memory, `left` at most, and counts them there.
fn load_missing<'k, I: Iterator<Item = &'k [u8]>>(
    tree: &Tree,
    left: &mut usize,
    keys: impl Fn() -> I,
) -> Result<()> {
    // A second time, because the first may evict a node above the leaves.
    for _ in 0..2 {
        let missing = keys().filter(|key| !tree.is_in_memory(key)).take(*left);
        let missing: Vec<&[u8]> = missing.collect();
        if missing.is_empty() {
            break;
        }
        *left -= missing.len();
        tree.prefetch(&missing, |_, _| {})?;
    }
    Ok(())
}

/// Finds the places of the writes in their leaves, which the writes began to bring into the
/// processor's caches, and begins to fetch the records: one after the other, each write would wait
/// for memory several times.
#[inline(always)]
fn locate_records(state: &mut Context) {
    for write in state.writes.live().take(LOCATED_MAX) {
        let tree = &state.tables[write.table as usize].tree;
        let key = state.writes.key(write);
        let hints = &mut state.hints;
        hints.locate(write.hint, write.hash, key, write.table, tree);
    }
}
