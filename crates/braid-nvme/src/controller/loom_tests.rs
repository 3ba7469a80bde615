//! The rings in every order that the memory model allows, with a thread as the controller.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use braid_loom::{AtomicU32, spawn, yield_now};

use super::Host;
use super::rings::Rings;
use crate::{DmaBuffer, DriveError, DrivePath};

/// Two doorbells: that of submissions, and that of completions.
#[derive(Clone)]
struct Doorbells(Arc<[AtomicU32; 2]>);

impl Host for Doorbells {
    fn read(&self, _offset: usize) -> u32 {
        0
    }

    fn write(&self, offset: usize, value: u32) {
        // Relaxed: the barrier before it must be enough.
        self.0[offset].store(value, Relaxed);
    }

    fn registers(&self) -> usize {
        2
    }

    fn allocate(&self, _len: usize) -> Result<DmaBuffer, DriveError> {
        unimplemented!("the rings are loom's")
    }

    fn contains(&self, _address: usize, _len: usize) -> bool {
        true
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn pause(&self, _round: u32) {
        yield_now();
    }

    fn quiesce(&self) {}

    fn path(&self) -> DrivePath {
        DrivePath::Model
    }
}

/// Entries of each ring.
const ENTRIES: u16 = 2;

/// Fetches as many commands as there are, checks them, and completes them, as a controller does.
fn control(doorbells: &Doorbells, rings: [super::words::Words; 2], commands: u32) {
    let [submission, completion] = rings;
    let (mut head, mut tail, mut phase) = (0, 0, 1u32);
    for number in 1..=commands {
        // The controller reads the entry after the doorbell.
        while doorbells.0[0].load(Acquire) == head {
            yield_now();
        }
        for i in [0, 15] {
            let word = submission.load(head as usize * 16 + i);
            assert_eq!(
                word,
                number << 16,
                "an entry is complete before its doorbell"
            );
        }
        head = (head + 1) % u32::from(ENTRIES);
        // A full ring of completions: the last one was taken only if the doorbell says so.
        while (tail + 1) % u32::from(ENTRIES) == doorbells.0[1].load(Acquire) {
            yield_now();
        }
        let start = tail as usize * 4;
        completion.store(start, number);
        completion.store(start + 2, number << 16);
        completion.publish(start + 3, number | phase << 16);
        tail = (tail + 1) % u32::from(ENTRIES);
        phase ^= u32::from(tail == 0);
    }
}

/// Each command is complete when the controller sees its doorbell, and each completion when the driver
/// sees its phase; neither ring is overwritten before its entry was read.
///
/// Needs the barriers `before_doorbell` (mutant `nvme_doorbell_before_entry`) and `after_phase` (mutant
/// `nvme_completion_before_phase`). Loom moves no load after a later store, so `before_reuse` is argued
/// only.
#[test]
fn loom_rings_publish_entries_and_completions() {
    braid_loom::explore(3, || {
        let doorbells = Doorbells(Arc::new([AtomicU32::new(0), AtomicU32::new(0)]));
        let mut rings = Rings::new(&doorbells, ENTRIES).unwrap();
        let shared = [rings.submission.clone(), rings.completion.clone()];
        let commands = 3;
        let controller = spawn({
            let doorbells = doorbells.clone();
            move || control(&doorbells, shared, commands)
        });
        for number in 1..=commands {
            rings.push(&[number << 16; 16]);
            rings.ring(&doorbells, 0);
            let answer = loop {
                match rings.next() {
                    Some(answer) => break answer,
                    None => yield_now(),
                }
            };
            assert_eq!(
                answer.result, number,
                "a completion is complete before its phase"
            );
            assert_eq!(u32::from(answer.queue), number);
            assert_eq!(u32::from(answer.id), number);
            rings.answer(&doorbells, 1);
        }
        controller.join().unwrap();
    });
}
