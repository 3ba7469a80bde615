//! Faults of the medium, the files and the caller: each fault has its own error, and no
//! acknowledged transaction is lost.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use braid::{Bytes, Database, Error, Health, Protocol, Readable, Table};
use braid_io::{AlignedBuf, Device, OpenMode, SimDevice};

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

#[test]
fn a_full_device_stops_writes_with_its_error_and_space_brings_them_back() {
    let device = SimDevice::new(1);
    let db = open_sim(&device).unwrap();
    device.set_capacity(Some(device.used() + (1 << 20)));
    let (acknowledged, error) = fill(&db, 1_000, 5_000);
    assert!(matches!(error, Some(Error::OutOfSpace { .. })), "{error:?}");
    assert!(!acknowledged.is_empty());
    assert_holds(&db, &acknowledged);
    device.set_capacity(None);
    let (more, error) = fill(&db, 1_000, 50);
    assert!(error.is_none() && more.len() == 50);
    drop(db);
    let db = open_sim(&device.after_crash()).unwrap();
    assert_holds(&db, &acknowledged);
}

/// Opens a database with the smallest possible pool and a log that needs no more space, limits the
/// device to `room` more bytes, and fills the data file.
fn fill_data_file(device: &SimDevice, room: u64) -> (Database, BTreeSet<u64>) {
    let db = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
        .strands(1)
        .preallocated_log_bytes(16 << 20)
        .checkpoint_log_bytes(8 << 20)
        .max_log_bytes(16 << 20)
        .open_on(Arc::new(device.clone()))
        .unwrap();
    fill(&db, 1_000, 1_000);
    db.checkpoint().unwrap();
    device.set_capacity(Some(device.used() + room));
    let (acknowledged, error) = fill(&db, 2_500, 5_000);
    let Some(Error::OutOfSpace { what }) = error else {
        panic!("{error:?}");
    };
    assert!(what.contains("data.braid"), "{what}");
    (db, acknowledged)
}

/// Reads everything several times; it does not fit into the pool.
fn assert_readable(db: &Database, keys: &BTreeSet<u64>) {
    assert!(
        matches!(db.health(), Health::OutOfSpace { .. }),
        "{:?}",
        db.health()
    );
    for _ in 0..3 {
        assert_holds(db, keys);
        let snapshot = db.snapshot();
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        assert_eq!(snapshot.range(&t, ..).unwrap().count(), 1_000);
    }
}

#[test]
fn a_full_data_file_with_a_small_pool_refuses_commits_and_is_read() {
    for room in [0, 100 << 10, 300 << 10, 1_000 << 10] {
        let device = SimDevice::new(room);
        let (db, acknowledged) = fill_data_file(&device, room);
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        assert_readable(&db, &acknowledged);
        // The commit is refused before it is logged, at every attempt.
        let before = db.snapshot().seqno();
        for _ in 0..3 {
            let large = vec![1; 100_000];
            let refused = db.transact(|tx| tx.insert(&t, &2_000, &large)).unwrap_err();
            assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
        }
        assert_eq!(db.snapshot().seqno(), before);
        assert_readable(&db, &acknowledged);
        // Space on the medium is enough to continue.
        device.set_capacity(None);
        let (more, error) = fill(&db, 2_500, 1_000);
        assert!(error.is_none() && more.len() == 1_000, "{error:?}");
        assert!(matches!(db.health(), Health::Good));
        drop(db);
        assert_holds(&open_sim(&device.after_crash()).unwrap(), &more);
    }
}

#[test]
fn removals_and_checkpoints_make_room_in_a_full_data_file() {
    let device = SimDevice::new(1);
    let (db, acknowledged) = fill_data_file(&device, 300 << 10);
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    // Fills the file until not even a checkpoint makes room for another entry.
    let mut key = 10_000;
    let mut in_vain = 0;
    while in_vain < 3 {
        in_vain += 1;
        db.checkpoint().unwrap();
        while db
            .transact(|tx| tx.insert(&t, &key, &vec![1; 1_000]))
            .is_ok()
        {
            (key, in_vain) = (key + 1, 0);
        }
    }
    // A checkpoint in between is enough: it frees the blocks of the one before.
    let with_checkpoints = |write: &dyn Fn() -> Result<(), Error>| {
        let is_done = |_| match write() {
            Ok(()) => true,
            Err(Error::OutOfSpace { .. }) => {
                db.checkpoint().unwrap();
                false
            }
            Err(error) => panic!("{error}"),
        };
        assert!((0..3).any(is_done), "there is room after checkpoints");
    };
    let removed: Vec<u64> = (10_000..key).chain(acknowledged).collect();
    for keys in removed.chunks(10) {
        with_checkpoints(&|| {
            db.transact(|tx| keys.iter().try_for_each(|key| tx.remove(&t, key).map(drop)))
        });
    }
    for key in 0..1_000 {
        with_checkpoints(&|| db.transact(|tx| tx.insert(&t, &key, &vec![1; 300])));
    }
    assert_eq!(db.snapshot().range(&t, ..).unwrap().count(), 1_000);
}

#[test]
fn a_log_limit_is_lifted_by_a_checkpoint() {
    let device = SimDevice::new(1);
    let db = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
        .strands(1)
        .checkpoint_log_bytes(1 << 20)
        .max_log_bytes(8 << 20)
        .open_on(Arc::new(device.clone()))
        .unwrap();
    let (acknowledged, error) = fill(&db, 8_000, 5_000);
    assert!(matches!(error, Some(Error::OutOfSpace { .. })), "{error:?}");
    assert_holds(&db, &acknowledged);
    db.checkpoint().unwrap();
    let (more, error) = fill(&db, 8_000, 100);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(more.len(), 100);
}

#[test]
fn log_files_are_preallocated_if_there_is_room() {
    let device = SimDevice::new(1);
    let open = |preallocated, most| {
        Database::builder()
            .background_threads(false)
            .pool_bytes(1 << 20)
            .segment_bytes(1 << 20)
            .strands(1)
            .checkpoint_log_bytes(1 << 20)
            .max_log_bytes(most)
            .preallocated_log_bytes(preallocated)
            .open_on(Arc::new(device.clone()))
    };
    let log_bytes = || {
        let entries = device.list().unwrap();
        let segments = entries.iter().filter(|e| e.name.ends_with(".seg"));
        segments.map(|e| e.len).sum::<u64>()
    };
    // In addition to the requested ones there are small ones from before.
    let are_there = || (8 << 20..9 << 20).contains(&log_bytes());
    let error = open(9 << 20, 8 << 20).unwrap_err();
    assert!(
        error.to_string().contains("preallocated_log_bytes"),
        "{error}"
    );
    let db = open(0, 0).unwrap();
    let (acknowledged, _) = fill(&db, 100, 50);
    db.close().unwrap();
    let before = log_bytes();
    // The open neither fills the medium nor harms the files there.
    device.set_capacity(Some(5 << 20));
    let error = open(8 << 20, 0).unwrap_err();
    assert!(matches!(error, Error::OutOfSpace { .. }), "{error:?}");
    assert!(
        log_bytes() <= before + (1 << 20),
        "{} of {before}",
        log_bytes()
    );
    device.set_capacity(None);
    let db = open(8 << 20, 0).unwrap();
    assert!(are_there(), "{}", log_bytes());
    assert_holds(&db, &acknowledged);
    // The log uses the preallocated files, and they outlive the checkpoint after which they are not
    // needed.
    for _ in 0..3 {
        let (_, error) = fill(&db, 8_000, 400);
        assert!(error.is_none(), "{error:?}");
        db.checkpoint().unwrap();
        assert!(are_there(), "{}", log_bytes());
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
fn other_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("letter.txt"), "Dear engine").unwrap();
    let error = Database::open(dir.path()).unwrap_err();
    assert!(matches!(&error, Error::NotADatabase { reason, .. } if reason.contains("letter")));
    assert_eq!(
        fs::read(dir.path().join("letter.txt")).unwrap(),
        b"Dear engine"
    );
    let missing = dir.path().join("missing");
    let error = Database::builder()
        .create_if_missing(false)
        .open(&missing)
        .unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }));
    assert!(!missing.exists());
    let error = Database::open(dir.path().join("letter.txt")).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
}

#[test]
fn a_second_opener_is_refused() {
    let dir = directory_with_database();
    let db = Database::open(dir.path()).unwrap();
    assert!(matches!(
        Database::open(dir.path()),
        Err(Error::Locked { .. })
    ));
    // Readers, `verify` among them, work alongside the writer.
    let mut damage = Vec::new();
    braid::offline::verify(dir.path(), &mut |found| damage.push(found)).unwrap();
    assert_eq!(damage, Vec::<String>::new());
    drop(db);
    Database::open(dir.path()).unwrap();
}

#[test]
fn lanes_that_do_not_fit_or_a_newer_format_are_named() {
    let dir = directory_with_database();
    let error = Database::builder().strands(2).lanes(2).open(dir.path());
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { what } if what.contains("lanes")),
        "{error}"
    );
    let several = tempfile::tempdir().unwrap();
    let builder = Database::builder().strands(3).lanes(3);
    builder.open(several.path()).unwrap().close().unwrap();
    let error = Database::builder().protocol(Protocol::Serial);
    let error = error.open(several.path()).unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { what } if what.contains("3 lanes")),
        "{error}"
    );
    // Both superblocks claim a newer format, with good checksums.
    let path = dir.path().join("data.braid");
    let mut bytes = fs::read(&path).unwrap();
    for block in bytes.chunks_mut(8192).take(2) {
        block[16] = 9;
        let crc = crc32c::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&path, bytes).unwrap();
    let error = Database::open(dir.path()).unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { what } if what.contains("format 9")),
        "{error}"
    );
}

/// Each open requests another protocol; everything written under earlier ones is there, even if the
/// process ended without closing.
#[test]
fn every_protocol_can_be_switched_to_every_other() {
    let device = SimDevice::new(3);
    let mut expected = 0u64;
    for (round, (from, to)) in Protocol::ALL
        .iter()
        .flat_map(|from| Protocol::ALL.iter().map(move |to| (from, to)))
        .enumerate()
    {
        for protocol in [from, to] {
            let builder = Database::builder()
                .background_threads(round % 3 == 0)
                .segment_bytes(128 << 10)
                .pool_bytes(1 << 20)
                .strands(if protocol.forced_strands().is_some() {
                    1
                } else {
                    3
                })
                .protocol(*protocol);
            let db = builder.open_on(Arc::new(device.clone())).unwrap();
            let t: Table<u64, Bytes> = db.open_table("t").unwrap();
            assert_eq!(db.snapshot().iter(&t).unwrap().count() as u64, expected);
            for _ in 0..5 {
                let mut tx = db.begin();
                tx.insert(&t, &expected, b"value").unwrap();
                tx.commit().unwrap();
                expected += 1;
            }
            if round % 2 == 0 {
                db.close().unwrap();
            }
        }
    }
    // Without a request, the last protocol stays.
    let db = Database::builder().open_on(Arc::new(device)).unwrap();
    let last = *Protocol::ALL.last().unwrap();
    assert_eq!(db.stats().protocol, last);
}

/// A switch of the protocol takes effect when the database is opened, even if the process ends
/// before it closes the database.
#[test]
fn a_switched_protocol_lasts_when_the_process_is_killed() {
    let mut device = SimDevice::new(5);
    let small = || {
        let builder = Database::builder().pool_bytes(1 << 20).strands(3);
        builder.segment_bytes(128 << 10).background_threads(false)
    };
    let switches = [
        Protocol::Glsn,
        Protocol::Gwsn,
        Protocol::Gsn,
        Protocol::Epoch,
    ];
    for (round, protocol) in (0u64..).zip(switches.into_iter().chain(switches)) {
        let builder = small().protocol(protocol);
        let db = builder.open_on(Arc::new(device.clone())).unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        // In the first half of the rounds, the process ends without a commit.
        if round >= 4 {
            db.transact(|tx| tx.insert(&t, &round, &round)).unwrap();
        }
        let killed = device.after_kill();
        drop((t, db));
        device = killed;
        let db = small().open_on(Arc::new(device.clone())).unwrap();
        assert_eq!(db.stats().protocol, protocol);
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        assert_eq!(
            db.snapshot().iter(&t).unwrap().count() as u64,
            (round + 1).saturating_sub(4)
        );
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

#[test]
fn an_interrupted_creation_starts_over() {
    for n in 1..40 {
        let device = SimDevice::new(n);
        device.crash_after(n);
        if open_sim(&device).is_ok() {
            continue;
        }
        let image = device.after_crash();
        let db = open_sim(&image).unwrap_or_else(|e| panic!("crash at step {n}: {e}"));
        assert_eq!(fill(&db, 10, 5).0.len(), 5);
    }
}

/// The names and contents of all files.
fn contents(device: &SimDevice) -> Vec<(String, Vec<u8>)> {
    let entries = device.list().unwrap();
    let read = |entry: braid_io::Entry| {
        let len = entry.len as usize;
        let mut bytes = AlignedBuf::new(len.max(1));
        let file = device.open(&entry.name, OpenMode::Existing).unwrap();
        file.read_at(&mut bytes[..len], 0).unwrap();
        (entry.name, bytes[..len].to_vec())
    };
    entries.into_iter().map(read).collect()
}

fn put_file(device: &SimDevice, name: &str, bytes: &[u8]) {
    let file = device.open(name, OpenMode::CreateNew).unwrap();
    let mut aligned = AlignedBuf::new(bytes.len().max(1));
    aligned[..bytes.len()].copy_from_slice(bytes);
    file.write_at(&[&aligned[..bytes.len()]], 0).unwrap();
    file.sync().unwrap();
    device.sync_directory().unwrap();
}

/// Returns the files that a creation leaves if the power fails after `steps` steps; `None` if the
/// creation was complete.
fn interrupted_creation(steps: u64) -> Option<SimDevice> {
    let device = SimDevice::new(steps);
    device.crash_after(steps);
    match open_sim(&device) {
        Ok(_) => None,
        Err(_) => Some(device.after_crash()),
    }
}

/// Returns the marker of any creation.
fn some_marker() -> Vec<u8> {
    let images = (1..40).filter_map(interrupted_creation);
    let mut markers = images.flat_map(|image| contents(&image));
    let is_marker =
        |(name, bytes): &(String, Vec<u8>)| name == "CREATING" && bytes.starts_with(b"BRAIDNEW");
    markers.find(is_marker).expect("a marker that is whole").1
}

/// Markers that match no file in the directory: blank, random, torn, damaged, of another creation.
fn markers() -> Vec<Vec<u8>> {
    let whole = some_marker();
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    let mut torn = whole.clone();
    torn[16..].fill(0);
    vec![
        vec![],
        vec![0; 4096],
        vec![b'x'; 4096],
        torn,
        damaged,
        whole,
    ]
}

#[test]
fn opening_removes_no_document_next_to_a_marker() {
    for marker in markers() {
        for name in [
            "letter.txt",
            "data.braid",
            "log-00-00000001.seg",
            "log-diary.new",
        ] {
            let device = SimDevice::new(1);
            put_file(&device, name, &[b'd'; 16 << 10]);
            put_file(&device, "CREATING", &marker);
            let before = contents(&device);
            let error = open_sim(&device).unwrap_err();
            assert!(
                matches!(&error, Error::NotADatabase { reason, .. } if reason.contains("CREATING")),
                "{name}: {error}"
            );
            assert!(contents(&device) == before, "{name}: {error}");
        }
    }
}

#[test]
fn opening_removes_no_database_next_to_a_marker() {
    for marker in markers() {
        let device = SimDevice::new(1);
        let db = open_sim(&device).unwrap();
        let (acknowledged, _) = fill(&db, 100, 50);
        drop(db);
        let image = device.after_crash();
        put_file(&image, "CREATING", &marker);
        let before = contents(&image);
        let error = open_sim(&image).unwrap_err();
        assert!(
            matches!(&error, Error::NotADatabase { reason, .. } if reason.contains("CREATING")),
            "{error}"
        );
        assert!(contents(&image) == before, "{error}");
        image.remove("CREATING").unwrap();
        assert_holds(&open_sim(&image).unwrap(), &acknowledged);
    }
}

/// A database that was copied with the marker of its own unfinished creation is complete.
#[test]
fn a_finished_database_with_its_own_marker_is_opened() {
    let device = SimDevice::new(1);
    let mut marker = None;
    for steps in 1..100 {
        let device = SimDevice::new(1);
        device.crash_after(steps);
        drop(open_sim(&device));
        let image = device.after_crash();
        let found = contents(&image)
            .into_iter()
            .find(|(name, bytes)| name == "CREATING" && bytes.starts_with(b"BRAIDNEW"));
        marker = marker.or(found);
    }
    let (_, marker) = marker.expect("a marker that is whole");
    // The same seed yields the same identity only under a simulation, so the marker is adapted
    // here.
    let db = open_sim(&device).unwrap();
    let (acknowledged, _) = fill(&db, 100, 50);
    drop(db);
    let image = device.after_crash();
    let mut own = marker;
    let data = &contents(&image)[0];
    assert_eq!(data.0, "data.braid");
    own[16..32].copy_from_slice(&data.1[8192 + 48..8192 + 64]);
    let crc = crc32c::crc32c(&own[16..32]);
    own[8..12].copy_from_slice(&crc.to_le_bytes());
    put_file(&image, "CREATING", &own);
    let is_marked = |image: &SimDevice| contents(image).iter().any(|(name, _)| name == "CREATING");
    // The marker stays until the checkpoint that was found is durable.
    let failing = image.after_crash();
    failing.fail_write_after(0);
    assert!(matches!(open_sim(&failing), Err(Error::Io { .. })));
    assert!(is_marked(&failing));
    let db = open_sim(&image).unwrap();
    assert_holds(&db, &acknowledged);
    assert!(!is_marked(&image));
}

/// A foreign file appears in the directory of an interrupted creation: the creation's files stay as
/// well, because it is unknown which of them are still wanted.
#[test]
fn foreign_files_in_an_interrupted_creation_stay() {
    let mut refused = 0;
    for image in (1..40).filter_map(interrupted_creation) {
        put_file(&image, "letter.txt", &[b'd'; 4096]);
        let before = contents(&image);
        match open_sim(&image) {
            Err(error) => {
                assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
                assert!(contents(&image) == before, "{error}");
                refused += 1;
            }
            // Either only the marker remained, or nothing.
            Ok(_) => {
                assert!(contents(&image).contains(&("letter.txt".into(), vec![b'd'; 4096])));
            }
        }
        image.remove("letter.txt").unwrap();
        open_sim(&image).unwrap();
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn opening_removes_no_statistics_of_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("STATS"), "goals per season").unwrap();
    Database::open(dir.path()).unwrap_err();
    let read = fs::read(dir.path().join("STATS")).unwrap();
    assert_eq!(read, b"goals per season");
}

/// A creation with an archive writes one more file.
#[test]
fn an_interrupted_creation_with_an_archive_starts_over() {
    let mut interrupted = 0;
    for n in 1..60 {
        let (device, archive) = (SimDevice::new(n), SimDevice::new(n));
        let open = |device: &SimDevice, archive: &SimDevice| {
            Database::builder()
                .background_threads(false)
                .pool_bytes(1 << 20)
                .segment_bytes(64 << 10)
                .archive_on(Arc::new(archive.clone()))
                .open_on(Arc::new(device.clone()))
        };
        device.crash_after(n);
        if open(&device, &archive).is_ok() {
            continue;
        }
        interrupted += 1;
        let image = device.after_crash();
        let db = open(&image, &SimDevice::new(n));
        let db = db.unwrap_or_else(|e| panic!("crash at step {n}: {e}"));
        assert_eq!(fill(&db, 10, 5).0.len(), 5);
    }
    assert!(interrupted > 20, "{interrupted}");
}

#[test]
fn files_of_an_open_database_are_few_and_known() {
    let device = SimDevice::new(1);
    let db = open_sim(&device).unwrap();
    fill(&db, 100, 10);
    for entry in device.list().unwrap() {
        assert!(
            entry.name == "data.braid" || entry.name.ends_with(".seg"),
            "{entry:?}"
        );
        device.open(&entry.name, OpenMode::Existing).unwrap();
    }
}

/// A read-only bind mount of a directory onto itself, unmounted on drop.
#[cfg(target_os = "linux")]
struct ReadOnlyMount(std::path::PathBuf);

#[cfg(target_os = "linux")]
impl ReadOnlyMount {
    /// Returns `None` if this process may not mount.
    fn over(path: &std::path::Path) -> Option<Self> {
        let mount = |args: &[&str]| {
            let ran = std::process::Command::new("mount")
                .args(args)
                .arg(path)
                .output();
            ran.is_ok_and(|output| output.status.success())
        };
        if !mount(&["--bind", path.to_str()?]) {
            return None;
        }
        let this = Self(path.to_owned());
        mount(&["-o", "remount,ro,bind"]).then_some(this)
    }
}

#[cfg(target_os = "linux")]
impl Drop for ReadOnlyMount {
    fn drop(&mut self) {
        // If unmounting fails, removing the directory fails as well, which fails the test.
        let _ = std::process::Command::new("umount").arg(&self.0).output();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_read_only_file_system_is_named_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Database::builder().open(&path).unwrap();
    let (acknowledged, error) = fill(&db, 100, 50);
    assert!(error.is_none(), "{error:?}");
    // Not closed, so that opening has something to recover.
    drop(db);
    let Some(mount) = ReadOnlyMount::over(dir.path()) else {
        eprintln!("skipped: this process may not mount a file system");
        return;
    };
    for place in [&path, &dir.path().join("new")] {
        let error = Database::builder().open(place).unwrap_err();
        assert!(
            matches!(&error, Error::ReadOnly { path } if path == place),
            "{error}"
        );
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    drop(mount);
    let db = Database::builder().open(&path).unwrap();
    assert_holds(&db, &acknowledged);
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
