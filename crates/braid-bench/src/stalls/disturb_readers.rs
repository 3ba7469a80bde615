//! Disturbances that only read: backups, feeds, statistics and checks.

use std::thread;
use std::time::Duration;

use super::stage::{Disturbance, Stage};
use crate::BenchError;

/// Time that the reader of the slow feed takes for a transaction.
const SLOWNESS: Duration = Duration::from_millis(10);

/// Number of transactions after which the reader of the feed acknowledges.
const ACKNOWLEDGED: u64 = 100;

/// Time between two calls in a loop of short ones.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

pub(super) fn backup(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let (db, path) = (stage.db(), stage.beside("backup"));
    drop(stage.load_large("copied")?);
    Ok(Disturbance::once(move || {
        db.backup(&path)?;
        Ok(())
    }))
}

pub(super) fn slow_feed(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let feed = stage.db().feed("slow")?;
    let mut changes = feed.changes()?;
    let mut read = 0;
    Ok(Disturbance::repeated(move || {
        if changes.next_within(SLOWNESS)?.is_some() {
            read += 1;
            if read % ACKNOWLEDGED == 0 {
                feed.acknowledge(changes.position())?;
            }
        }
        thread::sleep(SLOWNESS);
        Ok(())
    }))
}

pub(super) fn stats(stage: &Stage) -> Disturbance<'static> {
    let db = stage.db();
    Disturbance::repeated(move || {
        std::hint::black_box(db.stats());
        thread::sleep(PAUSE);
        Ok(())
    })
}

pub(super) fn verify(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let dir = stage.database_dir();
    drop(stage.load_large("checked")?);
    Ok(Disturbance::repeated(move || {
        let report = braid::offline::verify(&dir, &mut |_| ())?;
        match report.damages {
            0 => Ok(()),
            damages => Err(BenchError::Damaged { damages }),
        }
    }))
}
