//! Applying a logged transaction to the trees.

use std::sync::Arc;

use braid_log::SeqNo;
use braid_store::{Change, LeafHint};

use super::leaves::load_ahead;
use crate::base::written::Written;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::error::{Error, Result};
use crate::mvcc::gc::{GcBuffer, RetiredChain, Tombstone};
use crate::mvcc::versions::{Added, VersionHint};
use crate::schema::table::TableCore;

/// Applies the writes to the trees, and keeps the versions that they replace for snapshots.
#[inline(never)]
pub(super) fn apply(engine: &Engine, state: &mut Context, seqno: SeqNo) -> Result<()> {
    let Context {
        writes,
        tables,
        hints,
        gc,
        ..
    } = state;
    for (at, write) in writes.live().enumerate() {
        load_ahead(engine, tables, writes, at);
        let table = &tables[write.table as usize];
        let key = writes.key(write);
        let hints = hints.of_write(write.hint, write.hash, key, write.table, &table.tree);
        let change = (write.hash, key, writes.value(write));
        apply_write(engine, table, change, seqno, hints, gc)?;
    }
    Ok(())
}

/// Applies the write of a key, given with its hash, to its tree.
#[inline(always)]
pub(super) fn apply_write(
    engine: &Engine,
    table: &Arc<TableCore>,
    (hash, key, value): (u64, &[u8], Option<&[u8]>),
    seqno: SeqNo,
    (hint, near): (&mut LeafHint, Option<&mut LeafHint>),
    gc: &mut GcBuffer,
) -> Result<()> {
    let bucket = engine.locks.bucket_of(hash);
    let mut added = Added::Queued;
    let mut oldest = VersionHint::default();
    // Not in the closure's result, because the tree would copy the error around.
    let mut failed = None;
    table.tree.modify_near(hint, near, key, |old| {
        let keep = (Change::Keep, ());
        if let Some(old) = old {
            let meta = old.meta();
            // No transaction of this log has this version: the page was damaged before its
            // checksum was computed.
            if meta.seqno() >= seqno && meta.seqno() > engine.log.last_seqno() {
                failed = Some(from_nowhere(table.id, meta.seqno()));
                return keep;
            }
            // I7: a key's versions follow the sequence numbers, because the key's lock is held
            // from before the assignment until now.
            if meta.seqno() >= seqno {
                disordered(meta.seqno(), seqno);
            }
            if !meta.tombstone {
                let mut replaced = gc.spare.take();
                if let Err(error) = gc.spare.fill(&mut replaced, table.id, key, &old, seqno) {
                    failed = Some(error.into());
                    return keep;
                }
                gc.versions += 1;
                gc.bytes += replaced.space();
                oldest = replaced.hint();
                // Before the new version is in place, so that a snapshot that is too old for
                // the new version finds this one.
                added = engine.locks.versions(bucket).lock().push(replaced);
            }
        } else if value.is_none() {
            return keep;
        }
        let change = match value {
            Some(value) => Change::Put {
                version: seqno.get(),
                value,
            },
            None => Change::Tombstone {
                version: seqno.get(),
            },
        };
        (change, ())
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    match added {
        Added::Queued => {}
        Added::First => gc.retired.push(RetiredChain {
            end: seqno,
            bucket,
            oldest,
        }),
        Added::Long => gc.long.push(bucket),
    }
    if value.is_none() {
        let tombstone = Tombstone::new(seqno, Arc::clone(table), key);
        gc.tombstones.push(tombstone);
    }
    Ok(())
}

#[cold]
fn disordered(version: SeqNo, seqno: SeqNo) -> ! {
    panic!("version {version} after {seqno}");
}

#[cold]
fn from_nowhere(table: u32, version: SeqNo) -> Error {
    Error::Corrupted {
        what: format!("a record has version {version}, which was assigned to no transaction"),
        location: format!("data.braid, table {table}"),
    }
}
