//! Readers in other processes, alongside the writer: databases on the same medium that are opened
//! read-only.

use std::sync::Arc;

use braid::{Database, Error, Result, Snapshot};
use braid_io::SimDevice;
use fastrand::Rng;

use super::{Checked, Shared};
use crate::spaces::Spaces;
use crate::tables::Tables;

/// The media that the readers of a round share with the writer.
#[derive(Clone, Default)]
pub(crate) struct Readers {
    media: Shared<Option<(SimDevice, Spaces)>>,
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
    pub(crate) fn set_media(&self, device: SimDevice, spaces: Spaces) {
        *self.media.lock() = Some((device, spaces));
    }

    pub(crate) fn open(&self) -> Result<Reader> {
        let media = self.media.lock().clone();
        let (device, spaces) = media.expect("a round has a medium");
        let builder = spaces.name_in(Database::builder().pool_bytes(1 << 20));
        let db = builder.open_read_only_on(Arc::new(device))?;
        Ok(Reader {
            snapshot: db.snapshot(),
            tables: Tables::existing(&db)?,
            db,
        })
    }

    /// Whether faults of the medium can explain an error of a reader.
    pub(crate) fn is_excused(&self, error: &Error) -> bool {
        let media = self.media.lock();
        let is_whole = |device: &SimDevice| device.faults() == 0 && !device.has_crashed();
        let are_whole = |(device, spaces): &(SimDevice, Spaces)| {
            is_whole(device) && spaces.devices().iter().all(is_whole)
        };
        let is_torn = matches!(
            error,
            Error::Corrupted { .. } | Error::Decode { .. } | Error::Tablespace(_)
        );
        !(is_torn && media.as_ref().is_some_and(are_whole))
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
