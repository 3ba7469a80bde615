//! A killed process leaves written but unsynced data in the system's cache. The next process reads
//! that data; everything that it shows, or relies on, must survive a later power loss (I1, I4).

use std::collections::BTreeSet;
use std::sync::Arc;

use braid::backup::Restore;
use braid::device::Device;
use braid::{Builder, Bytes, Database, Error, Health, Readable, Table};
use braid_io::SimDevice;

type Keys = Result<BTreeSet<u64>, Error>;

const SEEDS: u64 = 6;

/// More steps than any of the operations takes.
const STEPS_MAX: u64 = 400;

fn builder() -> Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

fn shared(device: &SimDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

fn open(device: &SimDevice) -> Result<Database, Error> {
    builder().open_on(shared(device))
}

fn put(db: &Database, key: u64) -> Result<(), Error> {
    let table: Table<u64, Bytes> = db.open_table("t")?;
    db.transact(|tx| tx.insert(&table, &key, &vec![key as u8; 300]))
}

fn keys(db: &Database) -> Keys {
    let Some(table) = db.existing_table::<u64, Bytes>("t")? else {
        return Ok(BTreeSet::new());
    };
    let snapshot = db.snapshot();
    let rows = snapshot.iter(&table)?;
    rows.map(|row| row.map(|(key, _)| key)).collect()
}

/// The keys that can be read despite the damage.
fn readable_keys(db: &Database) -> Keys {
    let table: Table<u64, Bytes> = db.open_table("t")?;
    let is_there = |key: &u64| matches!(db.get(&table, key), Ok(Some(_)));
    Ok((0..103).filter(is_there).collect())
}

/// Runs `work` on the result of `prepare`, and kills it in the middle of each step in turn. After a
/// loss of power, `read` must find all keys that `look` has shown. Returns how often `look` could
/// open the database.
fn kill_everywhere(
    prepare: impl Fn(&SimDevice),
    work: impl Fn(&SimDevice) -> Result<(), Error>,
    look: impl Fn(&SimDevice) -> Keys,
    read: impl Fn(&Database) -> Keys,
) -> u32 {
    let mut opened = 0;
    for seed in 0..SEEDS {
        for step in 1..STEPS_MAX {
            let device = SimDevice::new(seed << 32 | step);
            prepare(&device);
            device.crash_after(step);
            let _ = work(&device);
            if !device.has_crashed() {
                break;
            }
            let killed = device.after_kill();
            let Ok(shown) = look(&killed) else {
                continue;
            };
            opened += 1;
            let lost = killed.after_crash();
            let found = open(&lost).and_then(|db| read(&db));
            let found = found.unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
            assert!(
                found.is_superset(&shown),
                "seed {seed}, step {step}: {shown:?} was shown, {found:?} is left"
            );
        }
    }
    opened
}

fn look_to_write(device: &SimDevice) -> Keys {
    keys(&open(device)?)
}

fn look_read_only(device: &SimDevice) -> Keys {
    keys(&builder().open_read_only_on(shared(device))?)
}

/// A process that continues with the state that it found.
fn look_and_write(device: &SimDevice) -> Keys {
    let db = open(device)?;
    put(&db, 1_000)?;
    keys(&db)
}

const LOOKS: [fn(&SimDevice) -> Keys; 3] = [look_to_write, look_read_only, look_and_write];

#[test]
fn a_creation_that_the_next_process_finds_finished_lasts() {
    for look in LOOKS {
        let opened = kill_everywhere(|_| (), |device| open(device).map(drop), look, keys);
        assert!(opened > 0);
    }
}

#[test]
fn keys_that_the_next_process_shows_last() {
    let prepare = |device: &SimDevice| {
        let db = open(device).unwrap();
        (0..40).for_each(|key| put(&db, key).unwrap());
        db.close().unwrap();
    };
    let work = |device: &SimDevice| {
        let db = open(device)?;
        (40..60).try_for_each(|key| put(&db, key))?;
        db.checkpoint()?;
        (60..70).try_for_each(|key| put(&db, key))
    };
    for look in LOOKS {
        assert!(kill_everywhere(prepare, work, look, keys) > 0);
    }
}

#[test]
fn a_restore_that_the_next_process_finds_finished_lasts() {
    let mut backup = Vec::new();
    let db = open(&SimDevice::new(0)).unwrap();
    (0..20).for_each(|key| put(&db, key).unwrap());
    db.backup_to(&mut backup).unwrap();
    let work = |device: &SimDevice| {
        let restore = Restore::new().pool_bytes(1 << 20).stream(&backup[..]);
        restore.run_on(shared(device)).map(drop)
    };
    for look in LOOKS {
        assert!(kill_everywhere(|_| (), work, look, keys) > 0);
    }
}

/// The same holds for a database that opens read-only because the log wants to change a damaged
/// page.
#[test]
fn keys_that_a_damaged_database_shows_last() {
    const PAGE: usize = 8192;
    let prepare = |device: &SimDevice| {
        let db = open(device).unwrap();
        (0..100).for_each(|key| put(&db, key).unwrap());
        db.close().unwrap();
    };
    let mut damaged = 0;
    // Not every page is a leaf.
    for page in 4..12 {
        let work = |device: &SimDevice| {
            let db = open(device)?;
            (0..100).step_by(10).try_for_each(|key| put(&db, key))?;
            assert!(device.flip_bit("data.braid", page * PAGE + 100, 1));
            (100..103).try_for_each(|key| put(&db, key))
        };
        let look = |device: &SimDevice| {
            let db = open(device)?;
            match db.health() {
                Health::Damaged { .. } => readable_keys(&db),
                _ => Ok(BTreeSet::new()),
            }
        };
        damaged += kill_everywhere(prepare, work, look, readable_keys);
    }
    assert!(damaged > 0);
}

fn open_archived(device: &SimDevice, archive: &SimDevice) -> Result<Database, Error> {
    let builder = builder().checkpoint_log_bytes(64 << 10);
    builder.archive_on(shared(archive)).open_on(shared(device))
}

/// The next process finds a batch in the archive that a killed process never synced, and releases
/// the log before the batch's end. After a loss of power, the archive still has the batch.
#[test]
fn a_batch_that_the_next_process_finds_archived_lasts() {
    let mut killed = 0;
    for seed in 0..SEEDS {
        for step in 1..STEPS_MAX {
            let what = format!("seed {seed}, step {step}");
            let (device, archive) = (SimDevice::new(seed << 32 | step), SimDevice::new(step));
            let db = open_archived(&device, &archive).unwrap();
            (0..10).for_each(|key| put(&db, key).unwrap());
            let mut backup = Vec::new();
            db.backup_to(&mut backup).unwrap();
            db.archive_now().unwrap();
            archive.crash_after(step);
            (10..20).for_each(|key| put(&db, key).unwrap());
            let _ = db.archive_now();
            if !archive.has_crashed() {
                break;
            }
            killed += 1;
            let (device, archive) = (device.after_kill(), archive.after_kill());
            drop(db);
            let db = open_archived(&device, &archive).unwrap();
            for key in 20..30 {
                (0..30).for_each(|_| put(&db, key).unwrap());
                db.checkpoint().unwrap();
            }
            let (device, archive) = (device.after_crash(), archive.after_crash());
            drop(db);
            let db = open_archived(&device, &archive).unwrap();
            db.archive_now()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let restored = SimDevice::new(0);
            let restore = Restore::new().pool_bytes(1 << 20).stream(&backup[..]);
            let restore = restore.archive_on(shared(&archive));
            restore
                .run_on(shared(&restored))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = keys(&open(&restored).unwrap()).unwrap();
            assert_eq!(found, (0..30).collect(), "{what}");
        }
    }
    assert!(killed > 0);
}
