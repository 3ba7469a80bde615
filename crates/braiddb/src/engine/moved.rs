//! The old trees of tables that moved to another tablespace.
//!
//! Handles to the table refer to the old tree, and a read that began before the move may be in it. So
//! the tree is not freed like that of a dropped table, of which nobody has a handle, but emptied: it
//! stays a tree, and a read notices afterwards that the table has moved. The empty tree is freed like
//! that of a dropped table, or by the next opening.

use std::sync::Arc;

use braid_store::Change;

use super::Engine;
use super::leaves::Leaves;
use crate::error::Result;
use crate::schema::table::TableCore;

impl Engine {
    /// Empties the old trees that no snapshot reads. The caller lets nobody else do it meanwhile.
    pub(super) fn empty_moved_tables(&self) -> Result<()> {
        let moved = std::mem::take(&mut *self.tables.moved.lock());
        let mut left = Vec::new();
        let mut result = Ok(());
        for core in moved {
            match self.empty_moved_table(&core) {
                Ok(true) => self.tables.dropped.lock().push(core),
                Ok(false) => left.push(core),
                Err(error) => {
                    result = Err(error);
                    left.push(core);
                }
            }
        }
        self.tables.moved.lock().append(&mut left);
        result
    }

    /// Empties an old tree. Returns `false` if that is not possible yet.
    fn empty_moved_table(&self, core: &Arc<TableCore>) -> Result<bool> {
        let Some(successor) = core.successor() else {
            return Ok(true);
        };
        self.snapshots.advance(self.log.visible_seqno());
        let is_read = self.snapshots.watermark() < successor.since();
        if is_read && !braid_rt::mutant!("empty_a_moved_table_under_snapshots") {
            braid_rt::coverage_point("move: the old tree is kept for a snapshot");
            return Ok(false);
        }
        successor.forget_predecessor();
        let mut leaves = Leaves::all(&core.tree);
        loop {
            let begun = braid_rt::now();
            let Some(leaf) = leaves.next() else { break };
            for record in leaf?.records() {
                if self.is_closed() || !core.tree.has_room_to_purge(record.key) {
                    // The next checkpoint frees room.
                    return Ok(false);
                }
                // Of one record, because a checkpoint waits for the gate.
                let _gate = self.change_pages();
                core.tree.modify(record.key, |_| (Change::Remove, ()))?;
            }
            self.log.pause_background(begun);
        }
        braid_rt::coverage_point("move: the old tree is emptied");
        Ok(true)
    }
}
