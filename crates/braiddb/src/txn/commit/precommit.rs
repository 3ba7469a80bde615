//! Precommit: from private writes to a transaction that other transactions see.

use braid_log::{LockRelease, PendingCommit};
use braid_rt::atomic::Ordering;
use braid_rt::{SEQUENCE_NUMBER, excused, narrow};
use braid_store::{LoadRefusal, SHORT_KEY_MAX};

use super::Precommitted;
use super::apply::apply;
use super::by_agents::apply_by_agents;
use super::dependencies::dependencies;
use super::leaves::prepare_leaves;
use super::validate::{tables_of_ranges, validate};
use crate::engine::context::Context;
use crate::engine::{Engine, PooledContext};
use crate::error::{ConflictKind, Error, Result};
use crate::options::{Durability, Isolation, TransactionOptions};
use crate::schema::table::TableCore;

/// Most writes whose application other transactions' acknowledgements wait for, and most bytes of
/// them: they need only few new pages.
const SHORT_APPLY_RECORDS: u32 = 64;
const SHORT_APPLY_BYTES: usize = 64 << 10;

impl PooledContext {
    pub(super) fn precommit(
        &mut self,
        options: TransactionOptions,
        waits: bool,
        is_nonblocking: bool,
    ) -> Result<Precommitted> {
        let engine = &*self.engine;
        let state = &mut **self.state.get_mut();
        let ranges = self.ranges.get_mut();
        state.reads.add_ranges(ranges, || engine.log.last_seqno());
        if state.writes.is_empty() {
            let _refusal = is_nonblocking.then(LoadRefusal::new);
            return precommit_reads(engine, state, options);
        }
        engine.check_writable()?;
        if state.locks_in_commit {
            engine.lock_for_commit(state)?;
        }
        state.user.ends();
        let records = narrow(state.writes.live_len());
        let bytes = state.writes.log_payload().len();
        admit(engine, state, bytes)?;
        if !state.reads.ranges.is_empty() && options.isolation == Isolation::Serializable {
            wait_for_long_writers(engine, state);
        }
        prepare_leaves(engine, state, is_nonblocking)?;
        let mut pending = if engine.settings.has_logs {
            engine.enter_logs(state)?
        } else {
            engine.log.enter(&[state.writes.log_payload()])?
        };
        for &hash in &state.locks {
            engine.locks.mark_committing(hash);
        }
        pending.set_signature(state.writes.signature());
        let seqno = pending.assign(records);
        if let Err(error) = check(engine, state, options, &mut pending) {
            pending.abort();
            engine.unlock_all(state);
            drop(pending.finish());
            return Err(error);
        }
        pending.append(&[state.writes.log_payload()]);
        let by_agents = engine.agents.are_used();
        let is_short = records <= SHORT_APPLY_RECORDS && bytes <= SHORT_APPLY_BYTES;
        if !is_short || engine.may_wait_for_pages(state) || by_agents {
            pending.begin_long_apply();
        }
        if braid_rt::mutant!("unlock_before_apply") {
            engine.unlock_all(state);
        }
        let applied = if by_agents {
            apply_by_agents(&self.engine, state, seqno)
        } else {
            apply(engine, state, seqno)
        };
        if let Err(error) = applied {
            state.gc.clear();
            return Err(fail_logged(engine, pending, &error));
        }
        engine.trim_room(state);
        if engine.settings.lock_release == LockRelease::Precommit {
            engine.unlock_all(state);
        } else {
            state
                .locks
                .iter()
                .for_each(|&hash| engine.locks.unmark_committing(hash));
        }
        // A waiting commit flushes on its own thread. Other commits request a flush, unless their
        // durability needs none.
        let ticket = match (options.durability, waits) {
            (Durability::Immediate, false) => pending.finish_async(),
            _ => pending.finish(),
        };
        engine.collect_versions(&mut state.gc);
        Ok(Precommitted { seqno, ticket })
    }
}

/// Waits for large transactions that write to the tables of ranges which this one read: its
/// validation would wait for them, and others for it.
#[cold]
fn wait_for_long_writers(engine: &Engine, state: &Context) {
    if !braid_rt::mutant!("validate_long_writers_late") {
        engine.log.wait_long_applied(tables_of_ranges(state));
    }
}

/// Commits a transaction without writes: it serializes after the newest transaction, and everything
/// it read must be durable (I4).
fn precommit_reads(
    engine: &Engine,
    state: &mut Context,
    options: TransactionOptions,
) -> Result<Precommitted> {
    engine.check_open()?;
    if options.isolation == Isolation::Serializable {
        let seqno = engine.log.last_seqno().next();
        check_moves(engine, state)?;
        validate(engine, state, seqno)?;
    }
    engine.check_shown(|| state.reads.newest)?;
    engine.unlock_all(state);
    engine.counters.read_only_commit();
    let seqno = state.reads.newest;
    Ok(Precommitted {
        seqno,
        ticket: engine.log.ticket(seqno),
    })
}

/// Reserves room in the data file for the transaction's changes. After it is logged, the
/// transaction cannot fail for lack of space.
#[inline(always)]
fn admit(engine: &Engine, state: &mut Context, bytes: usize) -> Result<()> {
    if bytes > SHORT_KEY_MAX {
        admit_large(engine, state, bytes)
    } else {
        admit_entries(engine, state, 0, bytes)
    }
}

/// Admits a transaction that may have written long keys.
#[cold]
#[inline(never)]
fn admit_large(engine: &Engine, state: &mut Context, bytes: usize) -> Result<()> {
    let mut entries = state.writes.layer_entries();
    if entries > 0 {
        engine.store.expect_long_keys();
    }
    if braid_rt::mutant!("admit_long_keys_as_short_ones") {
        entries = 0;
    }
    admit_entries(engine, state, entries, bytes)
}

/// Admits a transaction whose long keys add at most `entries` entries to the layers.
#[inline(always)]
fn admit_entries(engine: &Engine, state: &mut Context, entries: usize, bytes: usize) -> Result<()> {
    let size = (state.writes.len() + entries, bytes);
    if engine.store.admits(&state.room, size) {
        return Ok(());
    }
    engine.admit_slowly(state, size)
}

/// Checks a transaction that has its sequence number, and passes its dependencies to the log. After
/// an error the caller must append an abort record.
#[inline(always)]
fn check(
    engine: &Engine,
    state: &mut Context,
    options: TransactionOptions,
    pending: &mut PendingCommit<'_>,
) -> Result<()> {
    check_tables(engine, state)?;
    // At every isolation: a lock of a key in the old place protects nothing in the new one.
    check_moves(engine, state)?;
    if options.isolation == Isolation::Serializable && !state.reads.is_empty() {
        // Validate at the transaction's first sequence number: all its sequence numbers are its
        // own.
        let validation = || validate(engine, state, pending.first_seqno());
        let why = "a page that was read may have been evicted since";
        excused(SEQUENCE_NUMBER, why, validation)?;
    }
    // After the validation, which may have passed the locks of a transaction that could not be
    // applied: such a transaction poisons the log before it releases its locks.
    if engine.log.is_poisoned() && !braid_rt::mutant!("commit_after_failure") {
        engine.check_not_poisoned()?;
    }
    if engine.settings.wants_dependencies {
        let why = "the protocol acknowledges in this order";
        let found = excused(SEQUENCE_NUMBER, why, || dependencies(engine, state))?;
        pending.depends_on(&found);
    }
    Ok(())
}

fn check_tables(engine: &Engine, state: &Context) -> Result<()> {
    for write in state.writes.live() {
        let table = &state.tables[write.table as usize];
        if !table.is_settled() {
            check_unsettled(engine, table, state.writes.key(write))?;
        }
    }
    Ok(())
}

/// Checks that a transaction which has its sequence number may write to a table that was dropped or
/// that moves.
#[cold]
#[inline(never)]
fn check_unsettled(engine: &Engine, table: &TableCore, key: &[u8]) -> Result<()> {
    table.check_alive()?;
    let is_sealed = table.is_sealed() && !braid_rt::mutant!("write_to_a_sealed_table");
    if table.is_moved() || is_sealed {
        braid_rt::coverage_point("move: a transaction conflicts with its end");
        return Err(engine.conflict(ConflictKind::Moved));
    }
    table.note_change(key);
    Ok(())
}

/// Checks that no table moved after the transaction read it: its old tree does not change any more,
/// so validation would find that everything is as it was read.
#[inline]
fn check_moves(engine: &Engine, state: &Context) -> Result<()> {
    // SeqCst: a move sets it before another transaction, which has a later sequence number, can
    // write to the new tree.
    if engine.tables.have_moved.load(Ordering::SeqCst) {
        return check_tables_read(engine, state);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn check_tables_read(engine: &Engine, state: &Context) -> Result<()> {
    let points = state.reads.points.iter().map(|read| read.table);
    let ranges = state.reads.ranges.iter().map(|read| read.table);
    let locked = 0..narrow(state.tables.len());
    let locked = locked.filter(|&table| state.has_locked(table));
    let mut read = points.chain(ranges).chain(locked);
    let has_moved = |table: u32| state.tables[table as usize].is_moved();
    if read.any(has_moved) && !braid_rt::mutant!("validate_in_the_old_tree") {
        return Err(engine.conflict(ConflictKind::Moved));
    }
    Ok(())
}

/// Poisons the database after a transaction was logged but not completely applied: only recovery
/// can produce a correct state. Returns that error, because the store's error would promise that
/// nothing was written.
#[cold]
fn fail_logged(engine: &Engine, pending: PendingCommit<'_>, error: &Error) -> Error {
    braid_rt::coverage_point("commit: a logged transaction can't be applied");
    let cause = format!("cannot apply a logged transaction: {error}");
    pending.fail(&cause);
    engine.poisoned();
    Error::Poisoned { cause }
}
