//! Repeated `kill -9`, under every protocol and on every device.

use braid::device::DeviceChoice;
use braid::tablespace::TablespaceOptions;
use braid::{Protocol, TableOptions};

use crate::parent::{Trial, devices, directory, rng};
use crate::workload::COUNTERS;

/// Kills of each protocol on each device.
const KILLS: u32 = 3;

/// Maximum number of acknowledgements before the child is killed.
const LONGEST_RUN: u64 = 150;

/// Kills writers, some of them during recovery, which must do no harm, either, and verifies the database
/// after each. Returns the number of their checkpoints.
fn kill_and_verify(trial: &mut Trial, rng: &mut fastrand::Rng) -> u64 {
    let mut checkpoints = 0;
    for kill in 0..KILLS {
        if kill > 0 && rng.bool() {
            let mut child = trial.start();
            child.until(trial, |line| line == "recovering");
            child.kill(trial);
        }
        let mut child = trial.start();
        child.acknowledgements(trial, rng.u64(10..LONGEST_RUN));
        checkpoints += child.checkpoints;
        child.kill(trial);
        trial.verify();
    }
    checkpoints
}

#[test]
fn nothing_acknowledged_is_lost_to_kills() {
    let mut rng = rng("storms");
    for &protocol in Protocol::ALL {
        let dir = directory();
        let mapped = [
            DeviceChoice::PmemFile,
            DeviceChoice::PmemEmulated { line_latency: 0 },
        ];
        for device in devices(dir.path()).into_iter().chain(mapped) {
            let dir = dir.path().join(device.to_string());
            let mut trial = Trial::new(&dir, protocol, device);
            let checkpoints = kill_and_verify(&mut trial, &mut rng);
            let mut child = trial.start();
            child.acknowledgements(&mut trial, 1);
            assert_eq!(child.finish(&mut trial), "closed", "{}", trial.what());
            trial.verify();
            println!(
                "{}: {} transactions verified, {checkpoints} checkpoints",
                trial.what(),
                trial.verified
            );
            assert!(trial.verified > u64::from(KILLS), "{}", trial.what());
        }
    }
}

/// Each transaction writes to tables of two tablespaces: after a kill, both have it, or none has.
#[test]
fn nothing_acknowledged_in_two_tablespaces_is_lost_to_kills() {
    let mut rng = rng("tablespaces");
    for &protocol in Protocol::ALL {
        let dir = directory();
        let (main, other) = (dir.path().join("main"), dir.path().join("other"));
        let device = rng.choice(devices(dir.path())).unwrap();
        let mut trial = Trial::new(&main, protocol, device);
        {
            let db = trial.open().unwrap();
            let options = TablespaceOptions::in_directory(&other).pool_bytes(1 << 20);
            db.create_tablespace("other", options).unwrap();
            let counters = db.open_table_in("other", COUNTERS, TableOptions::default());
            let counters: braid::Table<u64, u64> = counters.unwrap();
            assert!(db.tablespace_of(&counters).unwrap().is_some());
        }
        kill_and_verify(&mut trial, &mut rng);
        let db = trial.open().unwrap();
        let counters: braid::Table<u64, u64> = db.open_table(COUNTERS).unwrap();
        assert_eq!(
            db.tablespace_of(&counters).unwrap().as_deref(),
            Some("other")
        );
        assert!(trial.verified > u64::from(KILLS), "{}", trial.what());
    }
}

/// A creation that is killed at any of its steps can be repeated from scratch.
#[test]
fn a_killed_creation_starts_over() {
    let mut rng = rng("creations");
    let dir = directory();
    let device = *devices(dir.path()).last().unwrap();
    let mut verified = 0;
    for round in 0..6 {
        let dir = dir.path().join(round.to_string());
        let mut trial = Trial::new(&dir, *rng.choice(Protocol::ALL).unwrap(), device);
        let mut child = trial.start();
        child.until(&mut trial, |line| line == "started");
        // In some rounds, the kill comes before the database exists.
        (0..rng.u32(0..100_000)).for_each(|_| std::hint::spin_loop());
        child.kill(&mut trial);
        let mut child = trial.start();
        child.acknowledgements(&mut trial, 20);
        child.kill(&mut trial);
        trial.verify();
        verified += trial.verified;
    }
    assert!(verified > 0);
}
