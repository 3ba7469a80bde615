//! Readers alongside a writer that commits, checkpoints, is killed and restarts; and killed
//! readers.

use braid::{Database, Protocol};
use braid_io::ReaderNeeds::{Log, Pages};

use crate::child::READ;
use crate::parent::{Trial, devices, directory, rng};
use crate::workload::check;

fn open(trial: &Trial<'_>) -> Database {
    let opened = Database::builder()
        .pool_bytes(1 << 20)
        .open_read_only(trial.dir);
    opened.unwrap_or_else(|error| panic!("{}: {error}", trial.what()))
}

/// Checks that a reader shows a consistent state with everything acknowledged before, not older
/// than the state that it showed last.
fn look(reader: &mut Database, trial: &mut Trial<'_>) {
    let what = format!("a reader, {}", trial.what());
    let (before, promised) = (reader.durable_seqno(), trial.promised.clone());
    let moved = reader
        .refresh()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(moved, reader.durable_seqno() > before, "{what}");
    // `gsn` acknowledges transactions before readers see them.
    let promised = match trial.protocol {
        Protocol::Gsn => vec![0; promised.len()],
        _ => promised,
    };
    let shown = check(reader, &promised, &what);
    // From here on everything shown must exist, whichever process is killed.
    for (promised, shown) in trial.promised.iter_mut().zip(shown) {
        *promised = shown.max(*promised);
    }
}

#[test]
fn readers_follow_a_writer_that_is_killed() {
    let mut rng = rng("readers");
    let dir = directory();
    for (round, &protocol) in Protocol::ALL.iter().enumerate() {
        let devices = devices(dir.path());
        let device = devices[round % devices.len()];
        let dir = dir.path().join(round.to_string());
        let mut trial = Trial::new(&dir, protocol, device);
        let mut child = trial.start();
        child.acknowledgements(&mut trial, 10);
        let mut readers = [open(&trial), open(&trial)];
        let first = readers[0].snapshot();
        let table = readers[0].open_table::<u64, u64>("counters").unwrap();
        let seen: Vec<_> = braid::Readable::iter(&first, &table).unwrap().collect();
        for life in 0..3 {
            for _ in 0..4 {
                child.acknowledgements(&mut trial, rng.u64(20..80));
                let reader = &mut readers[rng.usize(..2)];
                look(reader, &mut trial);
            }
            let verified = braid::offline::verify(&dir, &mut |damage| panic!("{damage}"));
            assert_eq!(verified.unwrap().damages, 0);
            match life {
                0 => child.kill(&mut trial),
                _ => assert_eq!(child.finish(&mut trial), "closed"),
            }
            // Without a writer.
            look(&mut readers[0], &mut trial);
            child = trial.start();
            child.until(&mut trial, |line| line == "ready");
        }
        // The data of the first snapshot has been replaced many times.
        let still: Vec<_> = braid::Readable::iter(&first, &table).unwrap().collect();
        assert_eq!(
            format!("{still:?}"),
            format!("{seen:?}"),
            "{}",
            trial.what()
        );
        assert_eq!(child.finish(&mut trial), "closed");
        drop((first, readers));
        trial.verify();
    }
}

#[test]
fn a_killed_reader_pins_nothing() {
    let mut rng = rng("killed readers");
    let dir = directory();
    let mut trial = Trial::new(dir.path(), Protocol::Glsn, devices(dir.path())[0]);
    let mut child = trial.start();
    child.acknowledgements(&mut trial, 10);
    let device = braid_io::open_directory_read_only(dir.path()).unwrap();
    let table = device.reader_table(false).unwrap().unwrap();
    let is_pinned = |needs| table.is_pinned(0..u64::MAX, needs).unwrap();
    for _ in 0..3 {
        let mut readers = [trial.start_denied(READ), trial.start_denied(READ)];
        for reader in &mut readers {
            for _ in 0..rng.u32(1..5) {
                reader.until(&mut trial, |line| line == "shown");
            }
        }
        child.acknowledgements(&mut trial, 50);
        assert!(is_pinned(Pages));
        for reader in readers {
            reader.kill(&mut trial);
        }
        assert!(!is_pinned(Pages) && !is_pinned(Log));
        let checkpoints = child.checkpoints;
        child.until_all(&mut trial, |child| child.checkpoints > checkpoints + 1);
    }
    assert_eq!(child.finish(&mut trial), "closed");
    assert_eq!(child.failures, Vec::<String>::new());
    trial.verify();
}
