//! Validation: checks that the transaction's reads would return the same at its sequence number.

use braid_log::SeqNo;

use crate::base::written::Written;
use crate::engine::Engine;
use crate::engine::context::{Context, PointRead};
use crate::engine::leaves::Leaves;
use crate::engine::write_set::signature_of;
use crate::error::{ConflictKind, Result};
use crate::mvcc::range_reads::{Fingerprint, RangeRead};

/// Spins for which a validation waits for another transaction that is committing a key it read: a
/// commit takes about a microsecond unless its thread lost the processor.
const MARK_SPINS: u32 = 200;
const MARK_YIELDS: u32 = 50;

/// Validates the reads of a transaction with this sequence number. Adds to them the removals that
/// they hold because of.
pub(super) fn validate(engine: &Engine, state: &mut Context, seqno: SeqNo) -> Result<()> {
    let mut removals = Vec::new();
    for read in &state.reads.points {
        if braid_rt::mutant!("skip_validation") {
            continue;
        }
        validate_point(engine, state, read, seqno, &mut removals)?;
    }
    if !state.reads.ranges.is_empty() {
        validate_ranges(engine, state, seqno, &mut removals)?;
    }
    if !removals.is_empty() && !braid_rt::mutant!("forget_later_removals") {
        braid_rt::coverage_point("validation: absent because of a later removal");
        state.reads.add_removals(removals);
    }
    Ok(())
}

#[inline(always)]
fn validate_point(
    engine: &Engine,
    state: &Context,
    read: &PointRead,
    seqno: SeqNo,
    removals: &mut Vec<SeqNo>,
) -> Result<()> {
    if !wait_for_mark(engine, read.hash, state.owner) {
        return Err(engine.conflict(ConflictKind::Read));
    }
    let tree = &state.tables[read.table as usize].tree;
    if tree.is_current(read.stamp) {
        return Ok(());
    }
    let found = tree.get(state.reads.key(read), |_| false)?;
    let holds = match found.map(|found| found.meta) {
        Some(meta) if meta.seqno() == read.version => true,
        // The key is absent, as it was. It must also have been absent at this sequence number: a
        // later removal may have removed an entry that a transaction inserted before this sequence
        // number.
        Some(meta) => {
            let before = meta.seqno() < seqno || braid_rt::mutant!("believe_absence");
            if read.absent && meta.tombstone && !before {
                braid_rt::coverage_point("validation: an absence of a greater number");
            }
            // Where the removal is lost, the key that it removed is back.
            removals.push(meta.seqno());
            read.absent && meta.tombstone && before
        }
        None => read.absent && engine.gc.none_purged_from(seqno),
    };
    if holds {
        Ok(())
    } else {
        Err(engine.conflict(ConflictKind::Read))
    }
}

/// The write-set signature of the tables of all ranges that the transaction read.
pub(super) fn tables_of_ranges(state: &Context) -> u64 {
    let read = state.reads.ranges.iter();
    let tables = read.map(|read| signature_of(state.tables[read.table as usize].id));
    if braid_rt::mutant!("ranges_wait_for_one_table") {
        return tables.last().unwrap_or_default();
    }
    tables.fold(0, |all, table| all | table)
}

fn validate_ranges(
    engine: &Engine,
    state: &Context,
    seqno: SeqNo,
    removals: &mut Vec<SeqNo>,
) -> Result<()> {
    if !braid_rt::mutant!("ranges_do_not_wait") {
        // A transaction with a smaller sequence number may be about to insert into the range. Waits
        // are only for smaller sequence numbers, so there is no cycle.
        engine.log.wait_applied(seqno, tables_of_ranges(state));
    }
    for read in state.reads.ranges.iter() {
        let tree = &state.tables[read.table as usize].tree;
        if tree.is_current(read.stamp) {
            continue;
        }
        if read.fingerprint.is_none() && !braid_rt::mutant!("forget_forgotten_scans") {
            return Err(engine.conflict(ConflictKind::Range));
        }
        let now = fingerprint(state, read, seqno, removals)?;
        if braid_rt::mutant!("skip_range_validation") || read.fingerprint.is_none() {
            continue;
        }
        // After the reads, two transactions may have inserted a key into the range and removed it
        // again, the first before this sequence number and the second after it. If this transaction
        // has assigned its sequence number, the second one's tombstone is retained. A transaction
        // without writes has not: it validates at a sequence number that others may share, and
        // their tombstone may already be purged (see the test
        // `a_purged_removal_after_the_number_is_a_conflict`).
        let purged =
            !engine.gc.none_purged_from(seqno) && !braid_rt::mutant!("forget_purges_in_ranges");
        if now != read.fingerprint || purged {
            return Err(engine.conflict(ConflictKind::Range));
        }
    }
    Ok(())
}

/// Waits until no other transaction is about to write the key. Returns `false` after a while,
/// because two transactions could wait for each other.
fn wait_for_mark(engine: &Engine, hash: u64, owner: u64) -> bool {
    for round in 0..MARK_SPINS + MARK_YIELDS {
        if !engine.locks.is_committing_by_other(hash, owner) {
            return true;
        }
        if round < MARK_SPINS {
            braid_rt::thread::spin_loop();
        } else {
            braid_rt::thread::yield_now();
        }
    }
    false
}

/// Returns the fingerprint of the range's current contents; `None` if an entry was removed from it
/// at `seqno` or later, so that the range may have contained more before. Adds the removals in the
/// range that are newer than all that was read.
fn fingerprint(
    state: &Context,
    read: &RangeRead,
    seqno: SeqNo,
    removals: &mut Vec<SeqNo>,
) -> Result<Option<Fingerprint>> {
    let tree = &state.tables[read.table as usize].tree;
    let mut fingerprint = Fingerprint::default();
    let (lower, upper) = state.reads.ranges.bounds(read);
    for leaf in Leaves::new(tree, lower, upper) {
        for record in leaf?.records() {
            match record.meta.tombstone {
                // Also at `seqno` itself: a transaction without writes has no sequence number of
                // its own, so it may validate at that of the removal.
                true if record.meta.seqno() > seqno => return Ok(None),
                true if record.meta.seqno() == seqno
                    && !braid_rt::mutant!("share_a_number_with_a_removal") =>
                {
                    return Ok(None);
                }
                true if record.meta.seqno() > state.reads.newest => {
                    removals.push(record.meta.seqno());
                }
                true => {}
                false => fingerprint.add(record.key, record.meta.seqno()),
            }
        }
    }
    Ok(Some(fingerprint))
}
