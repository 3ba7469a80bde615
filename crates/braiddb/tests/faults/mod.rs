//! Faults of the medium, the files and the caller: each fault has its own error, and no
//! acknowledged transaction is lost.

mod creations;
mod directories;
mod full_devices;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use braid::{Bytes, Database, Error, Health, Table};
use braid_io::{Device, SimDevice};

fn open_sim(device: &SimDevice) -> Result<Database, Error> {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
        .open_on(Arc::new(device.clone()))
}

/// Commits numbered keys until one fails; returns those acknowledged, and the error.
fn fill(db: &Database, value_len: usize, most: u64) -> (BTreeSet<u64>, Option<Error>) {
    fill_range(db, value_len, 0..most)
}

fn fill_range(
    db: &Database,
    value_len: usize,
    keys: std::ops::Range<u64>,
) -> (BTreeSet<u64>, Option<Error>) {
    let mut acknowledged = BTreeSet::new();
    let t: Table<u64, Bytes> = match db.open_table("t") {
        Ok(t) => t,
        Err(error) => return (acknowledged, Some(error)),
    };
    for k in keys {
        let mut tx = db.begin();
        if let Err(error) = tx
            .insert(&t, &k, &vec![k as u8; value_len])
            .and_then(|()| tx.commit())
        {
            return (acknowledged, Some(error));
        }
        acknowledged.insert(k);
    }
    (acknowledged, None)
}

fn assert_holds(db: &Database, keys: &BTreeSet<u64>) {
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    for k in keys {
        assert!(
            db.get(&t, k).unwrap().is_some(),
            "key {k} was acknowledged and is lost"
        );
    }
}

fn directory_with_database() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let db = Database::builder()
        .pool_bytes(4 << 20)
        .segment_bytes(256 << 10)
        .open(dir.path())
        .unwrap();
    fill(&db, 100, 300);
    db.close().unwrap();
    dir
}

#[test]
fn a_failed_log_write_poisons_and_loses_nothing() {
    let mut made_longer = 0;
    for n in 1..120 {
        let device = SimDevice::new(n);
        let db = open_sim(&device).unwrap();
        device.fail_write_after(n);
        let (acknowledged, error) = fill(&db, 50, 200);
        let Some(error) = error else {
            // The failed write reserved space in the data file, which is then attempted in another
            // way.
            made_longer += 1;
            continue;
        };
        assert!(
            matches!(error, Error::Poisoned { .. } | Error::Io { .. }),
            "{error}"
        );
        if matches!(error, Error::Poisoned { .. }) {
            // I8: nothing more is acknowledged; reads continue.
            assert!(matches!(db.health(), Health::Poisoned { .. }));
            let (more, error) = fill(&db, 50, 1);
            assert!(more.is_empty() && matches!(error, Some(Error::Poisoned { .. })));
            match db.open_table::<u64, Bytes>("t") {
                Ok(_) => assert_holds(&db, &acknowledged),
                // A table whose creation failed is not visible.
                Err(Error::Poisoned { .. }) => assert!(acknowledged.is_empty()),
                Err(error) => panic!("{error}"),
            }
        }
        drop(db);
        assert_holds(&open_sim(&device.after_crash()).unwrap(), &acknowledged);
    }
    assert!(made_longer <= 2, "{made_longer}");
}

/// The bytes of a large transaction are written before it has a sequence number.
#[test]
fn a_sync_after_a_failed_large_commit_reports_the_failure() {
    let mut failed = 0;
    for n in 1..30 {
        let device = SimDevice::new(n);
        let db = open_sim(&device).unwrap();
        let (acknowledged, error) = fill(&db, 50, 3);
        assert!(error.is_none());
        db.sync().unwrap();
        let durable = db.stats().durable_seqno;
        device.fail_write_after(n);
        let (_, error) = fill_range(&db, 100_000, 3..4);
        if matches!(error, Some(Error::Poisoned { .. })) && db.stats().durable_seqno == durable {
            failed += 1;
            assert!(matches!(db.sync(), Err(Error::Poisoned { .. })));
            assert!(matches!(db.close(), Err(Error::Poisoned { .. })));
        }
        assert_holds(&open_sim(&device.after_crash()).unwrap(), &acknowledged);
    }
    assert!(failed > 3, "{failed}");
}

#[test]
fn a_failed_sync_of_a_checkpoint_keeps_the_one_before() {
    for n in 1..8 {
        let device = SimDevice::new(n);
        let db = open_sim(&device).unwrap();
        let (acknowledged, _) = fill(&db, 300, 60);
        device.fail_sync_after(n);
        let failed = db.checkpoint();
        if let Err(error) = failed {
            assert!(matches!(error, Error::Io { .. }), "{error}");
            assert!(
                matches!(db.checkpoint(), Err(Error::Poisoned { .. })),
                "no second try"
            );
        }
        drop(db);
        assert_holds(&open_sim(&device.after_crash()).unwrap(), &acknowledged);
    }
}

/// Every byte range of the data file, damaged, gives a typed error or is found by `verify`; nothing
/// panics, nothing wrong is returned.
#[test]
fn damaged_pages_and_superblocks_are_typed_errors() {
    let dir = directory_with_database();
    let path = dir.path().join("data.braid");
    let intact = fs::read(&path).unwrap();
    let mut found = 0;
    for block in 0..intact.len() / 8192 {
        let mut bytes = intact.clone();
        bytes[block * 8192 + 4_000..][..512].fill(0xa5);
        fs::write(&path, &bytes).unwrap();
        let mut damages = 0;
        match braid::offline::verify(dir.path(), &mut |_| damages += 1) {
            Ok(report) => assert_eq!(report.damages, damages),
            Err(error) => panic!("block {block}: {error}"),
        }
        found += usize::from(damages > 0);
        let read = Database::open(dir.path()).and_then(|db| {
            let t: Table<u64, Bytes> = db.open_table("t")?;
            let keys: BTreeSet<u64> = (0..300).collect();
            keys.iter().try_for_each(|k| {
                assert_eq!(db.get(&t, k)?, Some(vec![*k as u8; 100].into()));
                Ok(())
            })
        });
        if let Err(error) = read {
            assert!(
                matches!(error, Error::Corrupted { .. }),
                "block {block}: {error}"
            );
        }
        fs::write(&path, &intact).unwrap();
    }
    assert!(found > 5, "only {found} damages found");
}

#[test]
fn a_damaged_log_never_yields_unwritten_records() {
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = SimDevice::new(seed);
        let db = open_sim(&device).unwrap();
        let (acknowledged, _) = fill(&db, 60, 40);
        let image = device.after_crash();
        drop(db);
        let names: Vec<_> = image.list().unwrap();
        let log = names
            .iter()
            .filter(|e| e.name.starts_with("log-"))
            .collect::<Vec<_>>();
        let entry = rng.choice(&log).unwrap();
        let at = rng.usize(..(entry.len as usize).min(40 * 4096));
        assert!(image.flip_bit(&entry.name, at, rng.u32(..8)));
        match open_sim(&image) {
            Err(error) => assert!(
                matches!(error, Error::Corrupted { .. }),
                "seed {seed}: {error}"
            ),
            Ok(db) => {
                // Damage at the very end cannot be distinguished from a torn write; what remains is
                // right.
                let t: Table<u64, Bytes> = db.open_table("t").unwrap();
                for k in &acknowledged {
                    if let Some(value) = db.get(&t, k).unwrap() {
                        assert_eq!(value, vec![*k as u8; 60], "seed {seed}");
                    }
                }
            }
        }
    }
}

/// The next process finds a checkpoint whose superblock was written, but not made durable. Before
/// that process reuses log files that only older checkpoints need, it must make the superblock
/// durable; otherwise a loss of power destroys the database.
#[test]
fn a_superblock_that_is_not_durable_frees_no_log() {
    let mut failed = 0;
    for seed in 0..4 {
        for step in 1..100 {
            let device = SimDevice::new(seed);
            let db = open_sim(&device).unwrap();
            let (mut acknowledged, _) = fill(&db, 3000, 60);
            db.checkpoint().unwrap();
            let (more, _) = fill_range(&db, 3000, 60..120);
            acknowledged.extend(more);
            device.fail_write_after(step);
            failed += u32::from(db.checkpoint().is_err());
            device.repair();
            drop(db);
            // The next process finds what the system's cache still has, which is not durable.
            let device = device.after_kill();
            let db = open_sim(&device).unwrap();
            let (more, error) = fill_range(&db, 3000, 120..180);
            assert!(error.is_none(), "{error:?}");
            acknowledged.extend(more);
            let device = device.after_crash();
            drop(db);
            let db = open_sim(&device).unwrap_or_else(|error| panic!("{seed} {step}: {error}"));
            assert_holds(&db, &acknowledged);
        }
    }
    assert!(failed > 0);
}
