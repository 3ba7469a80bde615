//! A database whose clients have left keeps nothing for them.

use braid::{Database, Health};

use super::History;
use crate::check::Violation;
use crate::tables::Tables;

/// Blocks of a small data file that are not pages: superblocks, the root and the page map, with
/// their predecessors.
const BLOCKS_BESIDE_PAGES: u64 = 16;

impl History {
    /// Checks a database without clients: a lone transaction commits, and the database keeps
    /// nothing for clients that have left: no snapshot, no old version, no page and no log.
    pub(super) fn check_idle(&mut self, db: &Database, tables: &Tables) -> Result<(), Violation> {
        let plan = &self.plan;
        // Named snapshots, forgotten scans, and readers in other processes keep what they need, and
        // expired entries are removed at any time.
        let keeps = plan.named || plan.careless || plan.readers || plan.leases;
        if keeps || !matches!(db.health(), Health::Good) {
            return Ok(());
        }
        // The changes that readers of the log receive are compared with the clients' writes.
        if !plan.archive && !plan.feed && !plan.copies {
            let committed = db.sync().and_then(|()| tables.commit_alone(db));
            self.must_work("a transaction fails although no other runs", committed)?;
        }
        // Twice: a tombstone may wait for the room that a checkpoint frees.
        let compact = || db.compact().and_then(|_| db.compact());
        let compacted = db.sync().and_then(|()| compact());
        if !self.must_work("a working database cannot be compacted", compacted)? {
            return Ok(());
        }
        let stats = db.stats();
        if stats.snapshots > 0 || stats.old_versions > 0 {
            let (snapshots, versions) = (stats.snapshots, stats.old_versions);
            return Err(format!(
                "without clients, {snapshots} snapshots and {versions} old versions remain"
            ));
        }
        if stats.old_version_bytes > 0 {
            let bytes = stats.old_version_bytes;
            return Err(format!("{bytes} bytes of no old version remain"));
        }
        let spaces = stats.tablespaces.iter().map(|space| &space.store);
        for store in spaces.chain([&stats.store]) {
            let used = (store.file_bytes - store.file_free_bytes) / store.page_size as u64;
            if used > store.pages + store.pages / 64 + BLOCKS_BESIDE_PAGES {
                let pages = store.pages;
                return Err(format!("{pages} pages take {used} blocks"));
            }
        }
        let bytes = stats.log_bytes_to_recover;
        if bytes > 0 {
            return Err(format!("{bytes} bytes of log remain after a checkpoint"));
        }
        self.count("no residue of clients");
        Ok(())
    }
}
