//! A commit that finds the log full waits for a checkpoint of the log's owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::common::memory;
use braid_log::{Checkpointer, Log, LogError, LogOptions};

/// Passes each request on. Grants it while there is a receiver.
struct Requests(Sender<()>);

impl Checkpointer for Requests {
    fn request(&self) -> bool {
        self.0.send(()).is_ok()
    }

    fn half_full(&self) {}

    fn log_kept_for(&self) -> Option<String> {
        Some("the test".into())
    }
}

/// Counts announcements, and grants no request.
#[derive(Clone, Default)]
struct Announced(Arc<AtomicU64>);

impl Checkpointer for Announced {
    fn request(&self) -> bool {
        false
    }

    fn half_full(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn log_kept_for(&self) -> Option<String> {
        None
    }
}

fn small() -> Log {
    let options = LogOptions {
        strands: 1,
        segment_bytes: 256 << 10,
        slot_bytes: 32 << 10,
        max_log_bytes: 2 << 20,
        ..LogOptions::default()
    };
    Log::create(memory(), options).unwrap()
}

/// Appends until an append fails. Returns the error, and the number of appends before it.
fn fill(log: &Log) -> (LogError, u64) {
    let append = |_| log.append(&[&[1; 2_000]])?.wait();
    let mut appended = 0;
    let error = (0..).find_map(|at| append(at).inspect(|()| appended += 1).err());
    (error.unwrap(), appended)
}

fn checkpoint(log: &Log) {
    let _run = log.begin_checkpoint();
    let start = log.quiesce(|start| start);
    log.ticket(start.seqno).wait().unwrap();
    log.release(&start).unwrap();
}

#[test]
fn each_checkpoint_lets_waiting_commits_go_on() {
    let log = small();
    let (full, fits) = fill(&log);
    assert!(matches!(full, LogError::OutOfSpace { kept_for: None, .. }));
    checkpoint(&log);
    let (sender, requests) = channel();
    log.wait_for_checkpoints(Requests(sender));
    let (error, appended) = thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&log));
        requests.recv().unwrap();
        assert!(log.has_waiting_commits());
        checkpoint(&log);
        for _ in 0..5 {
            requests.recv().unwrap();
            checkpoint(&log);
        }
        requests.recv().unwrap();
        // No checkpoint runs any more, and none can be requested.
        drop(requests);
        drop(log.begin_checkpoint());
        writer.join().unwrap()
    });
    assert!(error.to_string().contains("kept for the test"), "{error}");
    assert!(appended > 2 * fits, "{appended}, {fits}");
    let stats = log.stats();
    assert!(!log.has_waiting_commits());
    assert!(stats.space_waits > 1 && !stats.delay_time.is_zero());
    assert!(stats.delayed_commits >= stats.space_waits);
    assert_eq!(log.last_seqno().get(), fits + appended);
}

#[test]
fn a_log_that_is_half_full_is_announced_once() {
    let log = small();
    let announced = Announced::default();
    log.wait_for_checkpoints(announced.clone());
    for round in 0..3 {
        loop {
            let before = announced.0.load(Ordering::Relaxed);
            let full = log.append(&[&[1; 2_000]]).and_then(|ticket| ticket.wait());
            let (stats, after) = (log.stats(), announced.0.load(Ordering::Relaxed));
            let (used, limit) = (stats.used_bytes, stats.limit_bytes);
            if full.is_err() {
                assert_eq!(after, round + 1);
                break;
            }
            if used < limit / 8 {
                assert_eq!(after, round, "{used} bytes");
            }
            // The flush that crosses the half announces it: what it used is durable only then.
            if used > limit / 2 {
                assert_eq!(before.max(after), round + 1, "{used} bytes");
            }
        }
        // A checkpoint that releases nothing changes nothing.
        drop(log.begin_checkpoint());
        assert!(log.append(&[&[1; 2_000]]).is_err());
        assert_eq!(announced.0.load(Ordering::Relaxed), round + 1);
        checkpoint(&log);
    }
}

#[test]
fn a_running_checkpoint_is_not_announced() {
    let log = small();
    let announced = Announced::default();
    log.wait_for_checkpoints(announced.clone());
    let append = || log.append(&[&[1; 2_000]]).unwrap().wait().unwrap();
    let run = log.begin_checkpoint();
    // Beyond the half that would be announced, and before commits wait for this checkpoint.
    while log.stats().used_bytes < log.stats().limit_bytes / 2 {
        append();
    }
    assert_eq!(announced.0.load(Ordering::Relaxed), 0);
    drop(run);
    append();
    assert_eq!(announced.0.load(Ordering::Relaxed), 1);
}

#[test]
fn checkpoints_in_vain_end_the_wait() {
    let log = small();
    let (sender, requests) = channel();
    log.wait_for_checkpoints(Requests(sender));
    let error = thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&log));
        for _ in 0..2 {
            requests.recv().unwrap();
            drop(log.begin_checkpoint());
        }
        writer.join().unwrap().0
    });
    assert!(matches!(error, LogError::OutOfSpace { .. }), "{error}");
    // Nothing is left reserved: a checkpoint is enough.
    checkpoint(&log);
    log.append(&[b"x"]).unwrap().wait().unwrap();
}

#[test]
fn a_failed_log_and_a_closed_one_end_the_wait() {
    for closes in [false, true] {
        let log = small();
        let (sender, requests) = channel();
        log.wait_for_checkpoints(Requests(sender));
        let error = thread::scope(|scope| {
            let writer = scope.spawn(|| fill(&log));
            requests.recv().unwrap();
            if closes {
                log.end_waiting();
            } else {
                log.poison("out of order");
            }
            writer.join().unwrap().0
        });
        match error {
            LogError::Closed => assert!(closes),
            LogError::Poisoned { cause } => assert!(!closes && *cause == *"out of order"),
            error => panic!("{error}"),
        }
    }
}

/// Two transactions of which the log has room for one at a time, and small ones.
#[test]
fn large_commits_wait_one_after_the_other() {
    let log = small();
    let log = &log;
    let (sender, requests) = channel();
    log.wait_for_checkpoints(Requests(sender));
    thread::scope(|scope| {
        let write = |(bytes, count): (usize, u32)| {
            let payload = vec![1; bytes];
            (0..count).try_for_each(|_| log.append(&[&payload])?.wait())
        };
        let (large, small) = ((400 << 10, 10), (2_000, 500));
        let writers = [large, large, small, small].map(|kind| scope.spawn(move || write(kind)));
        let writers = scope.spawn(move || writers.map(|writer| writer.join().unwrap()));
        while !writers.is_finished() {
            if requests.try_recv().is_ok() {
                checkpoint(log);
            }
            thread::yield_now();
        }
        for done in writers.join().unwrap() {
            done.unwrap();
        }
    });
}

/// One lane uses up the log. What a checkpoint releases is not left to that lane.
#[test]
fn a_checkpoint_frees_the_log_for_every_lane() {
    let options = LogOptions {
        strands: 2,
        lanes: 2,
        segment_bytes: 256 << 10,
        slot_bytes: 32 << 10,
        max_log_bytes: 8 << 20,
        ..LogOptions::default()
    };
    let log = &Log::create(memory(), options).unwrap();
    let rounds = [(); 2].map(|()| {
        let appended = thread::scope(|scope| scope.spawn(|| fill(log).1).join().unwrap());
        checkpoint(log);
        appended
    });
    assert!(rounds[0].abs_diff(rounds[1]) < rounds[0] / 4, "{rounds:?}");
}
