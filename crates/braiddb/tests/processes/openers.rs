//! Processes that are stopped and continued, and several processes that open one database.

use braid::{Database, Error, Protocol};

use crate::parent::{Trial, devices, directory, rng};
use crate::workload::builder;

/// A second open, in this process or another one, is refused and changes nothing.
fn assert_locked(trial: &mut Trial<'_>) {
    let what = trial.what();
    let error = trial.open().map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::Locked { path, .. } if path == trial.dir),
        "{what}: {error}"
    );
    let verified = braid::offline::verify(trial.dir, &mut |damage| panic!("{what}: {damage}"));
    assert_eq!(verified.unwrap().damages, 0, "{what}");
    let mut second = trial.start();
    second.until(trial, |line| line.starts_with("refused Locked"));
    second.finish(trial);
}

#[test]
fn a_process_stopped_amid_commits_continues() {
    let mut rng = rng("stops");
    let dir = directory();
    for (round, &protocol) in Protocol::ALL.iter().enumerate() {
        let devices = devices(dir.path());
        let device = devices[round % devices.len()];
        let dir = dir.path().join(round.to_string());
        let mut trial = Trial::new(&dir, protocol, device);
        let mut child = trial.start();
        child.acknowledgements(&mut trial, rng.u64(10..50));
        for _ in 0..3 {
            child.stop();
            child.resume();
            // More than the pipe held when the child was stopped.
            child.acknowledgements(&mut trial, 300);
        }
        child.stop();
        assert_locked(&mut trial);
        if round % 2 == 0 {
            child.resume();
            assert_eq!(child.finish(&mut trial), "closed");
            assert_eq!(child.failures, Vec::<String>::new());
        } else {
            // The child is killed while it is stopped.
            child.kill(&mut trial);
        }
        trial.verify();
        assert!(trial.verified > 0);
    }
}

/// A process opens the database in a loop while its owner is being killed: it is refused until the
/// owner is gone, and then finds everything.
#[test]
fn a_second_opener_waits_out_a_kill() {
    let mut rng = rng("openers");
    let dir = directory();
    for round in 0..6 {
        let devices = devices(dir.path());
        let device = devices[round % devices.len()];
        let dir = dir.path().join(round.to_string());
        let protocol = *rng.choice(Protocol::ALL).unwrap();
        let mut trial = Trial::new(&dir, protocol, device);
        let mut child = trial.start();
        child.acknowledgements(&mut trial, rng.u64(10..100));
        assert_locked(&mut trial);
        child.shoot();
        let mut refusals = 0u64;
        let db: Database = loop {
            match builder(protocol, device).open(&dir) {
                Ok(db) => break db,
                Err(Error::Locked { .. }) => refusals += 1,
                Err(error) => panic!("{}: {error}", trial.what()),
            }
        };
        // Everything that the child printed was printed before the lock was free.
        child.collect(&mut trial);
        println!("{}: refused {refusals} times", trial.what());
        trial.verify_in(db);
        assert!(trial.verified > 0);
    }
}
