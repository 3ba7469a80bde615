//! Full file systems, and a full device below one: typed errors, nothing lost, and writes continue
//! once there is room. Needs the right to mount; otherwise prints so and passes.

use std::collections::BTreeSet;
use std::path::Path;

use braid::device::DeviceChoice;
use braid::{Bytes, Database, Error, Health, Protocol, Table};

use crate::mounts::{Ballast, Mount};
use crate::parent::{Running, Trial, devices, directory};
use crate::workload::{THREADS, builder};

/// Size of the small file systems, in KiB.
const SMALL: u64 = 20 << 10;
const BALLAST: usize = 12 << 10;

/// Runs a test on each file system that can be created here, small and empty.
fn each(test: impl Fn(&str, &Path)) {
    let mut count = 0;
    for kind in ["tmpfs", "ext4", "btrfs"] {
        let dir = directory();
        // In memory, where syncs are free: only space matters here.
        let Some(below) = Mount::tmpfs(&dir.path().join("below"), 160 << 10) else {
            continue;
        };
        let (image, place) = (below.path.join("image"), dir.path().join("mount"));
        let mount = match kind {
            "tmpfs" => Mount::tmpfs(&place, SMALL),
            // btrfs needs at least this size.
            "btrfs" => Mount::image(kind, &image, &place, 128 << 10),
            _ => Mount::image(kind, &image, &place, SMALL),
        };
        let Some(mount) = mount else { continue };
        test(kind, &mount.path);
        drop((mount, below));
        count += 1;
    }
    println!("{count} file systems");
}

/// Bytes of a value: with small values, the pages take less space than the log; with large ones,
/// more.
const SMALL_VALUE: usize = 1_000;
const LARGE_VALUE: usize = 3_000;

/// Commits new keys until a commit fails.
fn fill(db: &Database, value: usize, keys: &mut BTreeSet<u64>) -> Error {
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    loop {
        let key = keys.len() as u64;
        let mut tx = db.begin();
        let inserted = tx.insert(&t, &key, &vec![key as u8; value]);
        if let Err(error) = inserted.and_then(|()| tx.commit()) {
            return error;
        }
        keys.insert(key);
    }
}

fn assert_holds(what: &str, db: &Database, len: usize, keys: &BTreeSet<u64>) {
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    for key in keys {
        let value = db.get(&t, key).unwrap();
        let value = value.unwrap_or_else(|| panic!("{what}: {key} was acknowledged and is lost"));
        assert_eq!(value, vec![*key as u8; len], "{what}: {key}");
    }
}

#[test]
fn a_full_file_system_stops_writes_and_room_brings_them_back() {
    each(|kind, place| {
        for device in devices(place) {
            let what = format!("{kind}, {device}");
            let dir = place.join(device.to_string());
            let db = builder(Protocol::Glsn, device).open(&dir).unwrap();
            let ballast = Ballast::new(place, BALLAST);
            let mut keys = BTreeSet::new();
            let error = fill(&db, SMALL_VALUE, &mut keys);
            assert!(matches!(error, Error::OutOfSpace { .. }), "{what}: {error}");
            assert!(!keys.is_empty());
            assert!(!matches!(db.health(), Health::Poisoned { .. }), "{what}");
            assert_holds(&what, &db, SMALL_VALUE, &keys);
            // The device is still probed correctly on a full file system.
            let rest = Ballast::rest(place);
            assert!(devices(place).contains(&device), "{what}");
            rest.remove();
            ballast.remove();
            db.checkpoint().unwrap();
            let before = keys.len();
            let error = fill(&db, SMALL_VALUE, &mut keys);
            assert!(matches!(error, Error::OutOfSpace { .. }), "{what}: {error}");
            assert!(keys.len() > before, "{what}: nothing was committed");
            assert_holds(&what, &db, SMALL_VALUE, &keys);
            drop(db);
            let db = builder(Protocol::Glsn, device).open(&dir).unwrap();
            assert_holds(&what, &db, SMALL_VALUE, &keys);
            println!("{what}: {before} transactions, {} in the end", keys.len());
            drop(db);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    });
}

/// With more data than memory, a commit evicts other pages into the space that was reserved for
/// them: commits are refused before they are logged, everything can be read, and once there is
/// space, writes succeed without reopening. A copy-on-write file system cannot reserve space. There
/// the engine may stop, but loses nothing.
#[test]
fn a_full_file_system_with_a_small_pool_stops_writes_only() {
    each(|kind, place| {
        for device in devices(place) {
            let what = format!("{kind}, {device}");
            let dir = place.join(device.to_string());
            let open = || {
                builder(Protocol::Glsn, device)
                    .pool_bytes(1 << 20)
                    .open(&dir)
            };
            let db = open().unwrap();
            let ballast = Ballast::new(place, BALLAST);
            let mut keys = BTreeSet::new();
            let error = fill(&db, LARGE_VALUE, &mut keys);
            match error {
                Error::OutOfSpace { .. } => {
                    assert!(!matches!(db.health(), Health::Poisoned { .. }), "{what}");
                    assert_holds(&what, &db, LARGE_VALUE, &keys);
                    ballast.remove();
                    let before = keys.len();
                    db.checkpoint().unwrap();
                    fill(&db, LARGE_VALUE, &mut keys);
                    assert!(keys.len() > before, "{what}: nothing was committed");
                }
                Error::Poisoned { .. } if kind == "btrfs" => ballast.remove(),
                error => panic!("{what}: {error}"),
            }
            drop(db);
            let db = open().unwrap();
            assert!(!keys.is_empty());
            assert_holds(&what, &db, LARGE_VALUE, &keys);
            println!("{what}: {} transactions; {error}", keys.len());
            drop(db);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    });
}

/// Lets a child commit until all its threads have stopped.
fn give_up(trial: &mut Trial<'_>) -> Running {
    let mut child = trial.start();
    child.until_all(trial, |child| child.ended == THREADS);
    child
}

#[test]
fn a_kill_on_a_full_file_system_loses_nothing() {
    each(|kind, place| {
        let choices = devices(place);
        for (round, &protocol) in Protocol::ALL.iter().enumerate() {
            if (round % 2 == 0) != (kind == "tmpfs") {
                continue;
            }
            let device = choices[round / 2 % choices.len()];
            let dir = place.join(round.to_string());
            let mut trial = Trial::new(&dir, protocol, device);
            trial.open().unwrap().close().unwrap();
            let ballast = Ballast::new(place, BALLAST);
            let child = give_up(&mut trial);
            let what = format!("{kind}, {}: {:?}", trial.what(), child.failures);
            assert!(child.has_failed("failed commit OutOfSpace"), "{what}");
            assert!(!child.has_failed("failed commit Io"), "{what}");
            assert!(!child.has_failed("failed commit Poisoned"), "{what}");
            child.kill(&mut trial);
            // Still full: the database opens, or the error says why not.
            match trial.open() {
                Ok(db) => trial.verify_in(db),
                Err(Error::OutOfSpace { .. }) => println!("{what}: did not open"),
                Err(error) => panic!("{what}: {error}"),
            }
            ballast.remove();
            trial.verify();
            let mut child = trial.start();
            child.acknowledgements(&mut trial, 10);
            child.kill(&mut trial);
            trial.verify();
            assert!(trial.verified > 10, "{what}");
            std::fs::remove_dir_all(&dir).unwrap();
        }
    });
}

/// The file system has space, but its device has none, as under thin provisioning: write errors at
/// any operation that needs a new block, of the engine or of the file system itself.
#[test]
fn a_device_without_its_promised_space_loses_nothing() {
    let dir = directory();
    let Some(below) = Mount::tmpfs(&dir.path().join("below"), 24 << 10) else {
        return;
    };
    let mut verified = 0;
    for (round, device) in [DeviceChoice::File, DeviceChoice::Uring]
        .into_iter()
        .enumerate()
    {
        let image = below.path.join(format!("image-{round}"));
        let place = dir.path().join("mount");
        let Some(mount) = Mount::image("ext4", &image, &place, 256 << 10) else {
            return;
        };
        if !devices(&place).contains(&device) {
            continue;
        }
        let db = place.join("db");
        let mut trial = Trial::new(&db, Protocol::ALL[round], device);
        trial.open().unwrap().close().unwrap();
        let ballast = Ballast::new(&below.path, 8 << 10);
        let child = give_up(&mut trial);
        println!("{}: {:?}", trial.what(), child.failures);
        assert!(!child.failures.is_empty());
        child.kill(&mut trial);
        ballast.remove();
        // The file system may have failed, too; mounting it again repairs it.
        drop(mount);
        let mount = Mount::again(image.to_str().unwrap(), &place).unwrap();
        trial.verify();
        let mut child = trial.start();
        child.acknowledgements(&mut trial, 10);
        child.kill(&mut trial);
        trial.verify();
        verified += trial.verified;
        drop(mount);
        std::fs::remove_file(image).unwrap();
    }
    println!("{verified} transactions verified");
    assert!(verified > 0);
}
