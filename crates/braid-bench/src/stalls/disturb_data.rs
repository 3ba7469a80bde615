//! Disturbances by whole tables: loading, dropping and moving them.

use braid::TableOptions;

use super::scenario::LARGE;
use super::stage::{self, Disturbance, Stage};
use crate::BenchError;

pub(super) fn bulk_load(stage: &Stage) -> Disturbance<'static> {
    let (db, entries) = (stage.db(), stage.sizes.table_entries());
    Disturbance::once(move || {
        stage::bulk_load(&db, "loaded", entries, LARGE, TableOptions::default())?;
        Ok(())
    })
}

pub(super) fn drop_table(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let db = stage.db();
    drop(stage.load_large("dropped")?);
    Ok(Disturbance::once(move || {
        db.drop_table("dropped")?;
        Ok(())
    }))
}

/// Half of the data file is free, in front of the rest.
pub(super) fn compaction(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let (db, entries) = (stage.db(), stage.sizes.table_entries() / 2);
    for name in ["freed", "moved"] {
        drop(stage.load(name, entries, LARGE, TableOptions::default())?);
    }
    db.drop_table("freed")?;
    Ok(Disturbance::once(move || {
        db.compact()?;
        Ok(())
    }))
}
