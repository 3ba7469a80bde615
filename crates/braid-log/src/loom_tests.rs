//! The lock-free parts in every order that the memory model allows, up to a number of preemptions.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p braid-log --lib --profile loom loom`; see
//! docs/testing.md. Each test names the orderings it was seen to need: it fails if one of them is
//! weakened, `SeqCst` to acquire and release, others to `Relaxed`. A wake-up that is lost shows as
//! loom's "deadlock".

#![allow(
    clippy::arc_with_non_send_sync,
    reason = "loom's cells are not Sync: loom itself checks who touches them"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use braid_io::MemoryDevice;
use braid_loom::{Condvar, JoinHandle, explore, spawn};

use crate::base::callbacks::{Action, Callbacks};
use crate::base::event::{Event, GroupWords};
use crate::base::numbers::{AtomicSeqNo, GroupNo, LaneId, SeqNo};
use crate::base::sync::{AtomicBool, AtomicU64, Mutex, UnsafeCell};
use crate::buffer::commit_slots::{CommitSlots, MAX_COMMIT_SLOTS};
use crate::buffer::consolidation::Consolidation;
use crate::commit::pending::PendingCommit;
use crate::commit::ticket::Ticket;
use crate::flush::lane::FlushGroup;
use crate::flush::threads::flush_loop;
use crate::log::Log;
use crate::options::{FlushMode, LogOptions, SLOTS_PER_STRAND};
use crate::protocol::gsn::Hardening;
use crate::protocol::gwsn::{FlushOrder, Ready};
use crate::protocol::kind::ProtocolKind;

/// No thread computes a frontier at or above an unfinished pending commit, and the effects of the
/// commits below the frontier are visible.
///
/// Needs Release (as part of SeqCst) in `leave`.
#[test]
fn a_frontier_lies_below_every_pending_commit() {
    explore(3, || {
        let commit_slots = Arc::new(CommitSlots::new(SeqNo::NONE, 1, None));
        let finished = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let committers: Vec<_> = (0..2)
            .map(|_| {
                let (commit_slots, finished) = (commit_slots.clone(), finished.clone());
                spawn(move || {
                    // Both try the same slot first, so that one may take it after the other.
                    let slot = commit_slots.enter(0).unwrap();
                    let (seqno, _) = commit_slots.assign(slot, 1, LaneId::new(0), 1);
                    finished[seqno.get() as usize - 1].store(true, Relaxed);
                    commit_slots.leave(slot);
                })
            })
            .collect();
        let assigned = commit_slots.last_seqno();
        let frontier = assigned.min(commit_slots.pending().unfinished.prev());
        for seqno in 1..=frontier.get() {
            assert!(finished[seqno as usize - 1].load(Relaxed), "{seqno}");
        }
        for committer in committers {
            committer.join().unwrap();
        }
        assert_eq!(
            (commit_slots.last_seqno(), commit_slots.pending().unfinished),
            (SeqNo::new(2), SeqNo::MAX)
        );
    });
}

/// A thread that waits for writes in one place does not wait for commits that write elsewhere, but
/// misses no other commit, even if several commits use one slot in turn.
///
/// Needs Release for the signature in `assign` and Acquire for it in `are_finished`.
#[test]
fn no_thread_passes_a_pending_commit_whose_signature_matches() {
    explore(3, || {
        let commit_slots = Arc::new(CommitSlots::new(SeqNo::NONE, 1, None));
        let (here, elsewhere) = (1, 2);
        let finished = Arc::new(AtomicBool::new(false));
        let committer = {
            let (commit_slots, finished) = (commit_slots.clone(), finished.clone());
            spawn(move || {
                for signature in [here, elsewhere] {
                    let slot = commit_slots.enter(0).unwrap();
                    commit_slots.assign(slot, 1, LaneId::new(0), signature);
                    finished.store(true, Relaxed);
                    commit_slots.leave(slot);
                }
            })
        };
        let below = commit_slots.last_seqno().next();
        if commit_slots.are_finished(below, here) {
            assert!(finished.load(Relaxed) || below.get() == 1);
        }
        committer.join().unwrap();
        assert!(commit_slots.are_finished(SeqNo::new(3), here | elsewhere));
    });
}

/// A commit that finds no free slot sleeps, and wakes when one is left.
///
/// Needs the notification in `leave`. An exchange that fails reads the newest value here, so this
/// does not show that the fence in `wait_for_a_slot` is needed.
#[test]
fn a_commit_waits_for_a_slot() {
    explore(usize::MAX, || {
        let commit_slots = Arc::new(CommitSlots::new(SeqNo::NONE, 1, None));
        let enter = |thread| commit_slots.enter(thread).unwrap();
        let taken: Vec<_> = (0..MAX_COMMIT_SLOTS).map(enter).collect();
        let waiter = {
            let commit_slots = commit_slots.clone();
            spawn(move || commit_slots.leave(commit_slots.enter(0).unwrap()))
        };
        commit_slots.leave(taken[1]);
        waiter.join().unwrap();
    });
}

/// While the gate is closed and the commits have left, no thread is inside.
///
/// Needs SeqCst for `closed` in `enter` and `quiesce`; in `take_slot` for `used` and the slot, and
/// in `oldest` for both.
#[test]
fn quiesce_excludes_commits() {
    explore(3, || {
        let commit_slots = Arc::new(CommitSlots::new(SeqNo::NONE, 1, None));
        let inside = Arc::new(UnsafeCell::new(0));
        let committer = {
            let (commit_slots, inside) = (commit_slots.clone(), inside.clone());
            spawn(move || {
                let slot = commit_slots.enter(0).unwrap();
                // SAFETY: exclusive if the gate works, which loom checks.
                inside.with_mut(|value| unsafe { *value += 1 });
                commit_slots.leave(slot);
            })
        };
        // SAFETY: as above.
        let enter = || inside.with_mut(|value| unsafe { *value += 1 });
        // The first try may open the gate again.
        if commit_slots.try_quiesce(false, enter).is_none() {
            commit_slots.quiesce(enter);
        }
        committer.join().unwrap();
        // SAFETY: all threads are joined.
        assert_eq!(inside.with(|value| unsafe { *value }), 2);
    });
}

/// A waiter that announced itself and saw the condition false is woken by the thread that makes it
/// true.
///
/// Needs SeqCst for `sleepers` in `listen` and `notify`.
#[test]
fn an_event_loses_no_wake_up() {
    explore(3, || {
        let shared = Arc::new((Event::default(), AtomicBool::new(false)));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                spawn(move || {
                    let (event, condition) = &*shared;
                    loop {
                        let listener = event.listen();
                        if condition.load(SeqCst) {
                            break;
                        }
                        listener.wait();
                    }
                })
            })
            .collect();
        shared.1.store(true, SeqCst);
        shared.0.notify();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// The flush group that the tests of [`GroupWords`] wait for.
const GROUP: GroupNo = GroupNo::new(1);

/// The end of a group wakes all of its waiters.
///
/// Needs SeqCst in `listen` and in the first load of `finish`.
#[test]
fn the_end_of_a_group_wakes_its_waiters() {
    explore(3, || {
        let shared = Arc::new((GroupWords::new(), AtomicU64::new(0)));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                spawn(move || {
                    let (words, acknowledged) = &*shared;
                    while acknowledged.load(SeqCst) < 1 {
                        let key = words.listen(GROUP);
                        if acknowledged.load(SeqCst) < 1 {
                            words.wait(GROUP, key);
                        }
                    }
                })
            })
            .collect();
        shared.1.store(1, SeqCst);
        shared.0.finish(GROUP);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// A free permit wakes a waiter, as long as one waits.
///
/// Needs SeqCst in `listen` and in the first load of `wake_one`.
#[test]
fn a_free_permit_is_handed_on() {
    explore(3, || {
        let shared = Arc::new((GroupWords::new(), AtomicBool::new(true)));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                spawn(move || {
                    let (words, taken) = &*shared;
                    loop {
                        let key = words.listen(GROUP);
                        if !taken.load(SeqCst) && !taken.swap(true, SeqCst) {
                            taken.store(false, SeqCst);
                            words.wake_one(GROUP);
                            break;
                        }
                        words.wait(GROUP, key);
                    }
                })
            })
            .collect();
        shared.1.store(false, SeqCst);
        shared.0.wake_one(GROUP);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// An action that is registered while the durable seqno moves runs once.
///
/// Needs SeqCst for `least` in `add` and in the first load of `run`.
#[test]
fn an_action_runs_once() {
    explore(usize::MAX, || {
        let callbacks = Arc::new(Callbacks::new(1));
        let durable_seqno = Arc::new(AtomicSeqNo::new(SeqNo::NONE));
        let runs = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let advance = {
            let (callbacks, durable_seqno) = (callbacks.clone(), durable_seqno.clone());
            spawn(move || {
                for seqno in [1, 2].map(SeqNo::new) {
                    durable_seqno.fetch_max(seqno, SeqCst);
                    callbacks.run(seqno, &Ok(()));
                }
            })
        };
        let call = {
            let runs = runs.clone();
            move |_: Result<(), crate::LogError>| {
                runs.fetch_add(1, Relaxed);
            }
        };
        callbacks.add(0, SeqNo::new(2), Action::Call(Box::new(call)));
        let seen = durable_seqno.load(SeqCst);
        if seen >= SeqNo::new(2) {
            callbacks.run(seen, &Ok(()));
        }
        advance.join().unwrap();
        assert_eq!(runs.load(Relaxed), 1);
    });
}

fn log(flush_mode: FlushMode, strands: usize) -> Log {
    log_of(ProtocolKind::Glsn, flush_mode, strands)
}

fn log_of(protocol: ProtocolKind, flush_mode: FlushMode, strands: usize) -> Log {
    let options = LogOptions {
        protocol,
        strands,
        segment_bytes: 128 << 10,
        slot_bytes: 8 << 10,
        flushes_in_flight: 1,
        flush_mode,
        ..LogOptions::default()
    };
    Log::create(Arc::new(MemoryDevice::new()), options).unwrap()
}

/// [`Log::append`] on a strand of the test's choice.
fn append(log: &Log, strand: usize) -> Ticket {
    append_bytes(log, strand, b"x")
}

fn append_bytes(log: &Log, strand: usize, bytes: &[u8]) -> Ticket {
    let core = log.core();
    let lane = &core.lanes[strand % core.lanes.len()];
    let reservation = core.reserve(lane, bytes.len()).unwrap();
    let slot = core.commit_slots.enter(strand).unwrap();
    let strand_handles = &log.inner().strand_handles;
    let mut pending = PendingCommit::new(
        &strand_handles[strand % strand_handles.len()],
        slot,
        reservation,
        None,
    );
    pending.assign(1);
    pending.append(&[bytes]);
    pending.finish()
}

/// Two threads that block on their tickets flush for each other, and the one that finishes its
/// commit last advances the durable seqno.
///
/// Needs SeqCst for `stalled` in `publish` and `left_slot`, for the slot in `CommitSlots::leave`
/// and `CommitSlots::oldest`, for `dirty` in `put` and `is_dirty`, and in `Lane::release`.
#[test]
fn blocked_committers_are_acknowledged() {
    explore(2, || {
        let log = log(FlushMode::Callers, 2);
        let other = {
            let log = log.clone();
            spawn(move || append(&log, 1).wait().unwrap())
        };
        append(&log, 0).wait().unwrap();
        other.join().unwrap();
        assert_eq!(log.durable_seqno().get(), 2);
    });
}

/// `epoch`: two threads that block on their tickets end the epochs themselves, each also for the
/// other.
///
/// Needs `wait_stalled` to listen before it ends an epoch: the epoch that prevents the end of
/// another may be acknowledged in between.
#[test]
fn blocked_committers_end_epochs() {
    explore(1, || {
        let log = log_of(ProtocolKind::Epoch, FlushMode::Callers, 2);
        let other = {
            let log = log.clone();
            spawn(move || append(&log, 1).wait().unwrap())
        };
        append(&log, 0).wait().unwrap();
        other.join().unwrap();
        assert_eq!(log.durable_seqno().get(), 2);
    });
}

/// A thread that finds no room in the strand's buffers flushes, or is woken by the thread that
/// does.
///
/// Needs SeqCst for `stalled` in `publish` and `left_slot`, for `dirty` in `put` and `is_dirty`,
/// and in `Lane::release`.
#[test]
fn a_thread_that_needs_buffer_space_gets_it() {
    // Not on the small stacks of loom's threads.
    static LARGE: [u8; 7_000] = [7; 7_000];
    explore(2, || {
        let log = log(FlushMode::Callers, 1);
        for _ in 1..SLOTS_PER_STRAND {
            drop(append_bytes(&log, 0, &LARGE));
        }
        let other = {
            let log = log.clone();
            spawn(move || append_bytes(&log, 0, &LARGE).wait().unwrap())
        };
        append_bytes(&log, 0, &LARGE).wait().unwrap();
        other.join().unwrap();
        assert_eq!(log.durable_seqno().get(), SLOTS_PER_STRAND as u64 + 1);
    });
}

/// A committer that does not wait holds the durable seqno back while it is in flight; a thread that
/// waits for a later number is woken when the committer leaves.
///
/// Needs SeqCst for the slot in `CommitSlots::leave` and `CommitSlots::oldest`.
fn last_one_wakes(protocol: ProtocolKind) {
    explore(2, move || {
        let log = log_of(protocol, FlushMode::Callers, 2);
        let waiting = {
            let log = log.clone();
            spawn(move || {
                let ticket = append(&log, 1);
                ticket.wait().unwrap();
                assert!(log.acknowledged() >= ticket.seqno());
            })
        };
        drop(append(&log, 0));
        waiting.join().unwrap();
        log.sync().unwrap();
        assert_eq!(log.durable_seqno().get(), 2);
    });
}

#[test]
fn the_last_to_leave_wakes_waiters() {
    last_one_wakes(ProtocolKind::Glsn);
}

/// `gsn` acknowledges by its lanes: their numbers and the durable seqno come from one scan of the
/// commits in flight, otherwise a commit that leaves between two scans wakes no thread.
#[test]
fn the_last_to_leave_wakes_waiters_of_its_lane() {
    last_one_wakes(ProtocolKind::Gsn);
}

/// A pending commit whose own commit needs no flush flushes, when it leaves, for a thread that
/// waits for everything.
#[test]
fn a_leaving_thread_flushes_for_waiters_of_everything() {
    explore(2, || {
        let log = log(FlushMode::Callers, 2);
        let waiting = {
            let log = log.clone();
            spawn(move || log.sync().unwrap())
        };
        // Its ticket requests no flush: only leaving can wake a waiter.
        let core = log.core();
        let reservation = core.reserve(&core.lanes[0], 1).unwrap();
        let slot = core.commit_slots.enter(0).unwrap();
        let mut pending =
            PendingCommit::new(&log.inner().strand_handles[0], slot, reservation, None);
        pending.assign(1);
        pending.append(&[b"x"]);
        pending.finish().detach();
        waiting.join().unwrap();
        log.sync().unwrap();
        assert_eq!(log.durable_seqno().get(), 1);
    });
}

/// No thread blocks on the log: each ticket that requests a flush wakes the flusher, and the
/// callbacks run once.
///
/// Needs SeqCst for the durable seqno in `advance` and `Core::durable_seqno`, for `stalled`, for
/// the slot in `CommitSlots::leave` and `CommitSlots::oldest`, in `is_dirty`, for `stopping`, and
/// the fence in `request_flush`.
#[test]
fn the_flusher_serves_threads_that_do_not_block() {
    explore(2, || {
        let log = log(FlushMode::Background, 2);
        let flusher = {
            let core = log.core().clone();
            spawn(move || flush_loop(&core, &core.lanes[0]))
        };
        let runs = Arc::new((Mutex::new(0), Condvar::new()));
        let call = |ticket: Ticket| {
            let runs = runs.clone();
            ticket.on_durable(move |outcome| {
                outcome.unwrap();
                *runs.0.lock() += 1;
                runs.1.notify_all();
            });
        };
        for strand in 0..2 {
            call(append(&log, strand));
        }
        let mut seen = runs.0.lock();
        while *seen < 2 {
            runs.1.wait(&mut seen);
        }
        drop(seen);
        stop(&log, flusher);
        assert_eq!(*runs.0.lock(), 2);
    });
}

/// Dropping a ticket is enough to flush its transaction before the flusher stops.
///
/// Needs `stopping` to be read before the checks for unflushed bytes.
#[test]
fn the_flusher_and_a_committer_that_blocks() {
    explore(1, || {
        let log = log(FlushMode::Background, 2);
        let flusher = {
            let core = log.core().clone();
            spawn(move || flush_loop(&core, &core.lanes[0]))
        };
        let other = {
            let log = log.clone();
            spawn(move || drop(append(&log, 1)))
        };
        append(&log, 0).wait().unwrap();
        other.join().unwrap();
        stop(&log, flusher);
        assert_eq!(log.durable_seqno().get(), 2);
    });
}

fn stop(log: &Log, flusher: JoinHandle<()>) {
    log.core().stopping.store(true, SeqCst);
    log.core().lanes[0].flusher.notify();
    flusher.join().unwrap();
}

/// Appends through a consolidation array to a buffer whose latch guards the place of the next byte.
fn append_together(
    array: &Consolidation<usize, usize>,
    latch: &Mutex<usize>,
    buffer: &[UnsafeCell<usize>],
    name: usize,
) {
    let reserve = |bytes: usize| {
        let mut next = latch.lock();
        *next += bytes;
        *next - bytes
    };
    let place = match array.join(0, name, 1, 9) {
        Err(_) => reserve(1),
        Ok(member) => {
            if member.leads() {
                let requests = member.close();
                let at = reserve(requests.len());
                member.serve((0..requests.len()).map(|i| at + i));
            }
            member.share()
        }
    };
    // SAFETY: a place belongs to one thread, which loom checks.
    buffer[place].with_mut(|byte| unsafe { *byte = name });
}

/// Each member of a group gets its own part of the leader's reservation; a reused group starts from
/// scratch.
///
/// Needs Release for the last store of `state` in `share`, and Acquire for its exchange in `join`.
#[test]
fn consolidated_appends_do_not_overlap() {
    explore(2, || {
        let shared = Arc::new((
            Consolidation::new(),
            Mutex::new(0),
            [0; 4].map(UnsafeCell::new),
        ));
        let appenders: Vec<_> = [1, 2]
            .into_iter()
            .map(|name| {
                let shared = shared.clone();
                spawn(move || append_together(&shared.0, &shared.1, &shared.2, name))
            })
            .collect();
        append_together(&shared.0, &shared.1, &shared.2, 3);
        append_together(&shared.0, &shared.1, &shared.2, 4);
        for appender in appenders {
            appender.join().unwrap();
        }
        assert_eq!(*shared.1.lock(), 4);
        // SAFETY: all threads are joined.
        let mut names = shared.2.each_ref().map(|byte| byte.with(|b| unsafe { *b }));
        names.sort_unstable();
        assert_eq!(names, [1, 2, 3, 4]);
    });
}

/// Explores two leaders, of which each flushes the number of its lane and then notices what is
/// hardened. `register` says for a number what it waits for, and `check` looks meanwhile, at the
/// hardening and at what lane 1 has flushed.
fn explore_hardening(
    numbers: [u64; 2],
    register: fn(&Hardening, u64),
    check: fn([u64; 2], &AtomicSeqNo),
) {
    explore(2, move || {
        let flushed = [(), ()].map(|()| AtomicSeqNo::new(SeqNo::NONE));
        let shared = Arc::new((Hardening::new(2, SeqNo::NONE), flushed));
        // Only what `register` names is missing.
        assert!(shared.0.advance(&[3, 2].map(SeqNo::new)));
        let leaders = numbers.map(|seqno| {
            let shared = shared.clone();
            spawn(move || {
                let (hardening, flushed) = &*shared;
                register(hardening, seqno);
                flushed[seqno as usize % 2].store(SeqNo::new(seqno), SeqCst);
                let durable = flushed.each_ref().map(|lane| lane.load(SeqCst));
                hardening.advance(&durable);
            })
        });
        let hardened = || [0, 1].map(|lane| shared.0.hardened(LaneId::new(lane)).get());
        check(hardened(), &shared.1[1]);
        for leader in leaders {
            leader.join().unwrap();
        }
        assert_eq!(hardened(), numbers);
    });
}

/// `gsn`: nothing counts as hardened before what it depends on in the other lane, though each
/// lane's leader knows only the part of the other's flush that it observes; and in the end no
/// transaction is left waiting.
///
/// Needs Release and Acquire (as part of SeqCst) for `hardened`, in `advance` and in its load, and
/// that a leader continues from the numbers that others saw as durable.
#[test]
fn nothing_is_hardened_before_its_dependencies() {
    let register = |hardening: &Hardening, seqno| {
        if seqno == 4 {
            // It read a write of 3, which belongs to the other lane.
            hardening.add(SeqNo::new(4), vec![SeqNo::new(3)]);
        }
    };
    explore_hardening([4, 3], register, |hardened, _| {
        if hardened[0] >= 4 {
            assert!(hardened[1] >= 3, "4 is acknowledged without 3");
        }
    });
}

/// `gsn`, I13: a transaction with a part in another lane hardens when both lanes are durable up to its
/// number, whichever leader notices, and in the end it does not wait.
#[test]
fn nothing_is_hardened_before_its_parts() {
    let register = |hardening: &Hardening, seqno| {
        if seqno == 4 {
            hardening.add_parts(SeqNo::new(4), vec![LaneId::new(1)]);
        }
    };
    explore_hardening([4, 5], register, |hardened, other| {
        if hardened[0] >= 4 {
            assert!(
                other.load(SeqCst).get() >= 5,
                "4 is acknowledged before its part in the other lane"
            );
        }
    });
}

/// `gwsn`: a flush is acknowledged only when all flushes with smaller numbers are durable, in any
/// order of finishing, and in the end all are acknowledged.
#[test]
fn flushes_are_acknowledged_by_their_numbers() {
    explore(3, || {
        let shared = Arc::new((
            FlushOrder::new(2),
            [(); 4].map(|()| AtomicBool::new(false)),
            AtomicU64::new(0),
        ));
        let lead = |lane: usize| {
            let shared = shared.clone();
            move || {
                let (order, durable, acknowledged) = &*shared;
                for group in 1..=2 {
                    let flush = order.assign();
                    durable[flush.get() as usize - 1].store(true, Relaxed);
                    let mut group = FlushGroup::empty(GroupNo::new(group), flush);
                    group.lane = LaneId::new(lane);
                    for group in order.finish(Ready::from([group])) {
                        let below = &durable[..group.flush.get() as usize];
                        assert!(below.iter().all(|durable| durable.load(Relaxed)));
                        acknowledged.fetch_add(1, Relaxed);
                    }
                }
            }
        };
        let other = spawn(lead(1));
        lead(0)();
        other.join().unwrap();
        assert_eq!(shared.2.load(Relaxed), 4);
    });
}
