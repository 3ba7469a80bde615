//! Measurements by sensor and time: loaded in bulk, appended, read by range, compressed, and
//! expired.
//!
//! ```sh
//! cargo run -p braiddb --example time_series
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use braid::{Compression, Database, Readable, Result, Table, TableOptions};

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// Key: sensor, then time in seconds.
type Series = Table<(u32, u64), String>;

/// Returns the number of a sensor's measurements in a period, and the newest one.
fn look(
    reader: &impl Readable,
    series: &Series,
    sensor: u32,
    from: u64,
) -> Result<(usize, String)> {
    let range = || reader.range(series, (sensor, from)..(sensor + 1, 0));
    let newest = range()?.next_back().transpose()?;
    Ok((
        range()?.count(),
        newest.map_or_else(String::new, |(_, value)| value),
    ))
}

// Not private, so that a test can run it.
pub(crate) fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // A simulated clock, so that the example does not take a week.
    let now = Arc::new(AtomicU64::new(1_000 * DAY));
    let clock = now.clone();
    let db = Database::builder()
        .clock(move || UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::Relaxed)))
        .background_threads(false)
        .open(directory.path())?;

    let options = TableOptions {
        compression: Compression::Lz4,
        time_to_live: Some(Duration::from_secs(7 * DAY)),
    };
    // Existing measurements of a day, loaded in order without the log.
    let began = now.load(Ordering::Relaxed);
    let mut loader = db.bulk_load_with::<(u32, u64), String>("series", options)?;
    for sensor in 0..20 {
        for minute in 0..24 * 60 / 10 {
            let value = format!(
                "{{\"celsius\": {}, \"status\": \"good good good\"}}",
                minute % 30
            );
            loader.insert(&(sensor, began + 600 * minute), &value)?;
        }
    }
    let series = loader.finish()?;
    println!(
        "loaded: {} measurements",
        db.snapshot().iter(&series)?.count()
    );

    // Three days later, one more measurement of each sensor.
    now.fetch_add(3 * DAY, Ordering::Relaxed);
    db.transact(|tx| {
        (0..20).try_for_each(|sensor| {
            tx.insert(&series, &(sensor, began + 3 * DAY), "{\"celsius\": 21}")
        })
    })?;
    let (count, newest) = look(&db.snapshot(), &series, 7, began + 12 * HOUR)?;
    assert_eq!((count, &newest[..]), (73, "{\"celsius\": 21}"));

    // After a week, the first measurements have expired.
    now.fetch_add(5 * DAY, Ordering::Relaxed);
    assert_eq!(look(&db.snapshot(), &series, 7, 0)?.0, 1);
    let removed = db.remove_expired()?;
    assert_eq!(removed, 20 * 144);
    println!("removed: {removed}");
    Ok(())
}
