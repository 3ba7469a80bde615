//! Readers in other processes, alongside the writer: databases on the same medium that are opened
//! read-only.

use std::sync::Arc;

use braid::{Database, Error, Result, Snapshot};
use braid_io::SimDevice;
use fastrand::Rng;

use super::{Checked, Shared};
use crate::tables::Tables;

/// The medium that the readers of a round share with the writer.
#[derive(Clone, Default)]
pub(crate) struct Readers {
    device: Shared<Option<SimDevice>>,
}

/// One reader. Its process ends with it.
pub(crate) struct Reader {
    db: Database,
    /// The snapshot that it reads, possibly older than the state of `db`.
    pub(crate) snapshot: Snapshot,
    /// Handles from any state: each is valid for every snapshot.
    pub(crate) tables: Tables,
}

impl Readers {
    pub(crate) fn set_device(&self, device: SimDevice) {
        *self.device.lock() = Some(device);
    }

    pub(crate) fn open(&self) -> Result<Reader> {
        let device = self.device.lock().clone().expect("a round has a medium");
        let builder = Database::builder().pool_bytes(1 << 20);
        let db = builder.open_read_only_on(Arc::new(device))?;
        Ok(Reader {
            snapshot: db.snapshot(),
            tables: Tables::existing(&db)?,
            db,
        })
    }

    /// Whether faults of the medium can explain an error of a reader.
    pub(crate) fn is_excused(&self, error: &Error) -> bool {
        let device = self.device.lock();
        let is_whole = |device: &SimDevice| device.faults() == 0 && !device.has_crashed();
        let damaged = matches!(error, Error::Corrupted { .. } | Error::Decode { .. });
        !(damaged && device.as_ref().is_some_and(is_whole))
    }
}

impl Reader {
    /// Advances to a newer state, or stays. Everything up to `acknowledged` was acknowledged
    /// before.
    pub(crate) fn continue_reading(&mut self, acknowledged: u64, rng: &mut Rng) -> Checked {
        if rng.u32(..3) == 0 {
            return Ok(Ok(()));
        }
        let before = self.db.durable_seqno();
        let moved = self.db.refresh()?;
        let now = self.db.durable_seqno();
        ensure!(
            now >= before && moved == (now > before),
            "a reader went from {before} to {now}"
        );
        ensure!(
            now >= acknowledged,
            "a reader shows {now}, and {acknowledged} was acknowledged"
        );
        if rng.u32(..4) > 0 {
            self.snapshot = self.db.snapshot();
        }
        if rng.bool() {
            self.tables = Tables::existing(&self.db)?;
        }
        Ok(Ok(()))
    }
}
