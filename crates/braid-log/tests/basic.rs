//! The log on a device in memory: acknowledged transactions are recovered.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use braid_log::{FlushMode, Log, LogError, LogOptions, ProtocolKind, SeqNo};
use common::{log_records, memory, payload, recover, small};

#[test]
fn append_wait_reopen() {
    for mode in [FlushMode::Background, FlushMode::Callers] {
        for &protocol in ProtocolKind::ALL {
            let device = memory();
            let options = LogOptions {
                protocol,
                ..small(mode)
            };
            let log = Log::create(device.clone(), options.clone()).unwrap();
            let start = log.quiesce(|start| start);
            assert_eq!(start.seqno.get(), 0);
            for seqno in 1..=500 {
                let ticket = log.append(&[b"n", &payload(seqno, 100)]).unwrap();
                assert_eq!(ticket.seqno().get(), seqno);
                ticket.wait().unwrap();
                assert!(ticket.is_durable());
                assert_eq!(log.durable_seqno().get(), seqno);
            }
            let stats = log.stats();
            assert_eq!((stats.flushes, stats.records), (500, 500));
            assert!(stats.segments > 10);
            log.close().unwrap();
            let recovered = recover(&device, &options, &start);
            assert_eq!(recovered.cut.get(), 500);
            let found = log_records(&recovered);
            assert_eq!(found.len(), 500);
            assert_eq!(found[&77][1..], payload(77, 100));
            let log = recovered.into_log().unwrap();
            assert_eq!(
                (log.durable_seqno().get(), log.last_seqno().get()),
                (500, 500)
            );
            log.append(&[b"more"]).unwrap().wait().unwrap();
            drop(log);
            let recovered = recover(&device, &options, &start);
            assert_eq!(
                (
                    recovered.cut.get(),
                    log_records(&recovered)[&501].as_slice()
                ),
                (501, &b"more"[..])
            );
            assert_eq!(Log::recovery_position(&*device).unwrap(), start);
        }
    }
}

#[test]
fn create_refuses_existing_files_and_wrong_options() {
    let device = memory();
    let options = small(FlushMode::Callers);
    let log = Log::create(device.clone(), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    drop(log);
    assert!(matches!(
        Log::create(device.clone(), options.clone()),
        Err(LogError::Incompatible { .. })
    ));
    for wrong in [
        LogOptions {
            strands: 0,
            ..options.clone()
        },
        LogOptions {
            lanes: 3,
            ..options.clone()
        },
        LogOptions {
            slot_bytes: 5000,
            ..options.clone()
        },
        LogOptions {
            segment_bytes: 16 << 10,
            ..options.clone()
        },
        LogOptions {
            flushes_in_flight: 0,
            ..options.clone()
        },
        LogOptions {
            max_log_bytes: 1,
            ..options.clone()
        },
    ] {
        let error = Log::create(memory(), wrong.clone());
        assert!(matches!(error, Err(LogError::Options { .. })), "{wrong:?}");
    }
    let lanes = LogOptions {
        lanes: 2,
        ..options
    };
    assert!(matches!(
        Log::recover(device, lanes, &start, &|_| {}),
        Err(LogError::Incompatible { .. })
    ));
}

#[test]
fn streams_records_larger_than_all_buffers() {
    for mode in [FlushMode::Background, FlushMode::Callers] {
        let device = memory();
        let options = small(mode);
        let log = Log::create(device.clone(), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        let large = payload(9, 300_000);
        let edge = payload(4, 8 * 1024 - 64 - 32);
        for round in 0..3 {
            log.append(&[b"small"]).unwrap().wait().unwrap();
            let ticket = log.append(&[&large[..100_000], &large[100_000..]]).unwrap();
            assert_eq!(ticket.seqno().get(), round * 4 + 2);
            log.append(&[&edge]).unwrap().wait().unwrap();
            log.append(&[&edge, b"!"]).unwrap().wait().unwrap();
            assert!(ticket.is_durable());
        }
        drop(log);
        let recovered = recover(&device, &options, &start);
        let found = log_records(&recovered);
        assert_eq!((recovered.cut.get(), found.len()), (12, 12));
        assert_eq!(
            (&found[&6], found[&7].len(), found[&8].len()),
            (&large, 8096, 8097)
        );
    }
}

/// A commit that takes long to be applied holds back what is visible, not what is acknowledged.
#[test]
fn others_are_acknowledged_while_a_long_commit_is_applied() {
    for &protocol in ProtocolKind::ALL {
        for mode in [FlushMode::Callers, FlushMode::Background] {
            let options = LogOptions {
                protocol,
                strands: protocol.forced_strands().unwrap_or(2),
                ..small(mode)
            };
            let log = Log::create(memory(), options).unwrap();
            let mut long = log.enter(&[&[0; 10]]).unwrap();
            long.assign(2);
            long.append(&[b"long"]);
            long.begin_long_apply();
            let (done, acknowledged) = mpsc::channel();
            let other = log.clone();
            let small = std::thread::spawn(move || {
                other.append(&[b"small"]).unwrap().wait().unwrap();
                done.send(()).unwrap();
            });
            let outcome = acknowledged.recv_timeout(Duration::from_secs(60));
            outcome.expect("it does not wait for the long commit");
            small.join().unwrap();
            assert_eq!(log.visible_seqno().get(), 0, "{protocol}");
            assert_eq!(log.applied_before().get(), 1);
            std::thread::scope(|scope| {
                let sees = scope.spawn(|| {
                    log.wait_finished(log.acknowledged());
                    log.applied_before().get()
                });
                std::thread::yield_now();
                long.finish().wait().unwrap();
                assert_eq!(sees.join().unwrap(), log.last_seqno().next().get());
            });
            log.sync().unwrap();
            assert_eq!(log.visible_seqno(), log.last_seqno(), "{protocol}");
        }
    }
}

/// Callbacks may wait for a snapshot, and so for the commit whose thread would call them.
#[test]
fn a_thread_runs_no_callback_while_its_own_commit_is_applied() {
    let log = Log::create(memory(), small(FlushMode::Callers)).unwrap();
    let mut long = log.enter(&[&[0; 10]]).unwrap();
    let (called, calls) = mpsc::channel();
    let other = log.clone();
    log.append(&[b"small"]).unwrap().on_durable(move |_| {
        other.wait_finished(other.acknowledged());
        called.send(other.visible_seqno().get()).unwrap();
    });
    long.assign(1);
    long.append(&[b"long"]);
    // The other commit waited for this one to be logged.
    long.begin_long_apply();
    assert!(calls.try_recv().is_err());
    drop(long.finish());
    assert_eq!(calls.recv_timeout(Duration::from_secs(60)), Ok(2));
}

/// A commit that was logged and could not be applied never becomes visible, though it may be
/// durable, and nobody waits for it.
#[test]
fn a_commit_that_fails_late_stays_invisible() {
    for is_dropped in [false, true] {
        let log = Log::create(memory(), small(FlushMode::Callers)).unwrap();
        log.append(&[b"before"]).unwrap().wait().unwrap();
        let mut long = log.enter(&[&[0; 10]]).unwrap();
        long.assign(1);
        long.append(&[b"long"]);
        long.begin_long_apply();
        log.append(&[b"after"]).unwrap().wait().unwrap();
        if is_dropped {
            drop(long);
        } else {
            long.fail("out of order");
        }
        assert!(log.is_poisoned());
        assert_eq!(log.durable_seqno().get(), 3);
        log.wait_finished(log.acknowledged());
        assert_eq!(log.visible_seqno().get(), 1);
    }
}

/// A snapshot that lacks what is acknowledged is one of a log that is known to have failed.
#[test]
fn nobody_gives_up_waiting_for_a_commit_before_the_log_is_poisoned() {
    let log = Log::create(memory(), small(FlushMode::Callers)).unwrap();
    let mut long = log.enter(&[&[0; 10]]).unwrap();
    long.assign(1);
    long.append(&[b"long"]);
    long.begin_long_apply();
    log.append(&[b"after"]).unwrap().wait().unwrap();
    let (called, calls) = mpsc::channel();
    let other = log.clone();
    log.append(&[b"later"]).unwrap().on_durable(move |_| {
        other.wait_finished(other.acknowledged());
        called.send(other.is_poisoned()).unwrap();
    });
    long.fail("out of order");
    assert_eq!(calls.recv_timeout(Duration::from_secs(60)), Ok(true));
}

#[test]
fn aborted_and_dropped_commits_leave_no_gap() {
    let device = memory();
    let options = small(FlushMode::Callers);
    let log = Log::create(device.clone(), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    let mut pending = log.enter(&[&[0; 10]]).unwrap();
    assert_eq!(pending.assign(3).get(), 3);
    pending.append(&[b"kept"]);
    let kept = pending.finish();
    let mut pending = log.enter(&[&[0; 10]]).unwrap();
    assert_eq!(pending.assign(2).get(), 5);
    pending.abort();
    let aborted = pending.finish();
    let mut pending = log.enter(&[&[0; 10]]).unwrap();
    pending.assign(1);
    drop(pending);
    drop(log.enter(&[&[0; 10]]).unwrap());
    assert_eq!(log.applied_before().get(), 7);
    log.wait_applied(SeqNo::new(7), u64::MAX);
    // Commits that write elsewhere are not waited for.
    let mut pending = log.enter(&[&[0; 10]]).unwrap();
    pending.set_signature(0b10);
    assert_eq!(pending.assign(1).get(), 7);
    log.wait_applied(SeqNo::new(8), 0b01);
    pending.append(&[b"elsewhere"]);
    drop(pending.finish());
    log.wait_applied(SeqNo::new(8), u64::MAX);
    let last = log.append(&[b"last"]).unwrap();
    last.wait().unwrap();
    assert!(kept.is_durable() && aborted.is_durable());
    drop(log);
    let recovered = recover(&device, &options, &start);
    assert_eq!(recovered.cut.get(), 8);
    assert_eq!(
        log_records(&recovered).into_keys().collect::<Vec<_>>(),
        [3, 7, 8]
    );
}

/// A blocked commit holds the durable seqno back, and its end moves it.
#[test]
fn a_pending_commit_holds_the_durable_seqno_back() {
    let log = Log::create(memory(), small(FlushMode::Background)).unwrap();
    let mut pending = log.enter(&[&[0; 10]]).unwrap();
    assert_eq!(pending.assign(1).get(), 1);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let ticket = log.append(&[b"later"]).unwrap();
            send.send(()).unwrap();
            ticket.wait().unwrap();
            ticket.seqno().get()
        });
        receive.recv().unwrap();
        while log.stats().flushes == 0 {
            std::thread::yield_now();
        }
        assert_eq!(
            (log.durable_seqno().get(), log.applied_before().get()),
            (0, 1)
        );
        pending.append(&[b"first"]);
        // The ticket is kept and not used: the other ticket's wait must flush this one's bytes.
        let ticket = pending.finish();
        assert_eq!(other.join().unwrap(), 2);
        assert!(ticket.is_durable());
    });
    assert_eq!(log.durable_seqno().get(), 2);
}

/// Until it assigns, a pending commit holds back all numbers assigned meanwhile. After its
/// assignment, it may wait for those numbers.
#[test]
fn a_pending_commit_can_wait_for_numbers_it_held_back() {
    let options = LogOptions {
        protocol: ProtocolKind::Gsn,
        ..small(FlushMode::Callers)
    };
    let log = Log::create(memory(), options).unwrap();
    let (done, over) = mpsc::channel();
    let waits = std::thread::spawn(move || {
        let mut pending = log.enter(&[&[0; 10]]).unwrap();
        let before = log.append(&[b"before"]).unwrap().seqno();
        // A thread that finds the buffer full flushes it.
        while log.stats().flushes == 0 {
            drop(log.append(&[&[7; 1000]]).unwrap());
        }
        assert_eq!(log.durable_seqno().get(), 0);
        pending.assign(1);
        log.ticket(before).wait().unwrap();
        pending.append(&[b"later"]);
        pending.finish().wait().unwrap();
        done.send(()).unwrap();
    });
    let over = over.recv_timeout(Duration::from_secs(60));
    over.expect("it does not wait for itself");
    waits.join().unwrap();
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn futures_and_callbacks() {
    let log = Log::create(memory(), small(FlushMode::Background)).unwrap();
    block_on(log.append(&[b"awaited"]).unwrap()).unwrap();
    let (send, receive) = mpsc::channel();
    for _ in 0..100 {
        let mut pending = log.enter(&[&[0; 10]]).unwrap();
        pending.assign(1);
        pending.append(&[b"called"]);
        let ticket = pending.finish_async();
        let (seqno, send) = (ticket.seqno().get(), send.clone());
        ticket.on_durable(move |outcome| send.send((seqno, outcome.is_ok())).unwrap());
    }
    let mut seen: Vec<_> = receive.iter().take(100).collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        (2..=101).map(|seqno| (seqno, true)).collect::<Vec<_>>()
    );
    // A ticket dropped without use: its transaction becomes durable nevertheless.
    drop(log.append(&[b"dropped"]).unwrap());
    while log.durable_seqno().get() < 102 {
        std::thread::yield_now();
    }
}

#[test]
fn callers_mode_polls_inline() {
    let log = Log::create(memory(), small(FlushMode::Callers)).unwrap();
    let ticket = log.append(&[b"x"]).unwrap();
    assert!(ticket.try_wait().is_none());
    let called = Arc::new(AtomicU64::new(0));
    let seen = called.clone();
    log.append(&[b"y"])
        .unwrap()
        .on_durable(move |_| seen.store(1, Ordering::SeqCst));
    block_on(ticket).unwrap();
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

/// P-WAL's groups: the commit that fills a group flushes it; an incomplete group is flushed when a
/// thread waits, or after a while.
#[test]
fn a_full_group_is_flushed_by_the_thread_that_fills_it() {
    for mode in [FlushMode::Callers, FlushMode::Background] {
        let options = LogOptions {
            group_size: 4,
            ..small(mode)
        };
        let log = Log::create(memory(), options).unwrap();
        let commit = || {
            let mut pending = log.enter(&[&[0; 1]]).unwrap();
            pending.assign(1);
            pending.append(&[b"x"]);
            pending.finish_async()
        };
        let mut tickets = Vec::new();
        for _ in 0..3 {
            tickets.extend((0..3).map(|_| commit()));
            assert!(mode == FlushMode::Background || !tickets[tickets.len() - 1].is_durable());
            tickets.push(commit());
            let is_durable = || tickets.iter().all(|ticket| ticket.is_durable());
            while mode == FlushMode::Background && !is_durable() {
                std::thread::yield_now();
            }
            assert!(is_durable());
        }
        let rest = [commit(), commit()];
        if mode == FlushMode::Callers {
            assert_eq!(log.stats().flushes, 3);
            rest[1].wait().unwrap();
        }
        // No thread polls the ticket, and still the flush happens.
        while !rest[1].is_durable() {
            std::thread::yield_now();
        }
        log.close().unwrap();
    }
}

/// Everything at once: blocking, asynchronous and callback users, large log records, checkpoints
/// that release segments.
#[test]
#[allow(
    clippy::too_many_lines,
    reason = "one scene of several kinds of threads"
)]
fn many_threads_with_checkpoints() {
    for (lanes, in_flight, protocol) in [
        (1, 1, ProtocolKind::Glsn),
        (1, 3, ProtocolKind::Glsn),
        (2, 2, ProtocolKind::Glsn),
        (1, 2, ProtocolKind::Serial),
        (1, 2, ProtocolKind::Aether),
        (2, 2, ProtocolKind::Epoch),
    ] {
        let device = memory();
        let options = LogOptions {
            lanes,
            strands: 4,
            flushes_in_flight: in_flight,
            protocol,
            ..small(FlushMode::Background)
        };
        let log = Log::create(device.clone(), options.clone()).unwrap();
        let called = Arc::new(AtomicU64::new(0));
        let stop = AtomicU64::new(0);
        let start = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..6u64)
                .map(|thread| {
                    let (log, called) = (&log, &called);
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(thread);
                        for round in 0..800 {
                            let len = if round % 100 == 99 {
                                50_000
                            } else {
                                rng.usize(..300)
                            };
                            let mut pending = log.enter(&[&payload(0, len)]).unwrap();
                            let records = rng.u32(1..5);
                            let seqno = pending.assign(records).get();
                            if rng.u8(..20) == 0 {
                                pending.abort();
                            } else {
                                pending.append(&[&payload(seqno, len)]);
                            }
                            match thread % 3 {
                                0 => pending.finish().wait().unwrap(),
                                1 => {
                                    let called = called.clone();
                                    pending.finish_async().on_durable(move |outcome| {
                                        outcome.unwrap();
                                        called.fetch_add(1, Ordering::SeqCst);
                                    });
                                }
                                _ => {
                                    let ticket = pending.finish_async();
                                    if round % 16 == 0 {
                                        ticket.wait().unwrap();
                                    }
                                }
                            }
                        }
                    })
                })
                .collect();
            let checkpointer = scope.spawn(|| {
                let mut last = log.quiesce(|start| start);
                while stop.load(Ordering::SeqCst) == 0 {
                    let start = log.quiesce(|start| start);
                    assert!(start.seqno >= last.seqno);
                    log.sync().unwrap();
                    assert!(log.durable_seqno() >= start.seqno);
                    log.release(&start).unwrap();
                    last = start;
                    std::thread::yield_now();
                }
                last
            });
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
            stop.store(1, Ordering::SeqCst);
            checkpointer.join().unwrap()
        });
        log.sync().unwrap();
        let last = log.last_seqno().get();
        assert_eq!(log.durable_seqno().get(), last);
        log.close().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1600);
        let recovered = recover(&device, &options, &start);
        assert_eq!(recovered.cut.get(), last);
        for (seqno, bytes) in log_records(&recovered) {
            assert!(seqno > start.seqno.get());
            assert_eq!(bytes, payload(seqno, bytes.len()));
        }
        let count = AtomicU64::new(0);
        recovered
            .for_each_parallel(3, |log_record| {
                count.fetch_add(1, Ordering::SeqCst);
                assert!(log_record.seqno.get() <= last);
                Ok::<_, LogError>(())
            })
            .unwrap();
        assert_eq!(
            count.load(Ordering::SeqCst),
            log_records(&recovered).len() as u64
        );
    }
}

/// Released segments are recycled, and their old contents are never taken for new.
#[test]
fn recycles_released_segments() {
    for discard in [false, true] {
        let device = memory();
        let options = LogOptions {
            discard,
            ..small(FlushMode::Callers)
        };
        let mut log = Log::create(device.clone(), options.clone()).unwrap();
        let mut start = log.quiesce(|start| start);
        let mut seqno = 0;
        for round in 0..20 {
            for _ in 0..50 {
                log.append(&[&payload(seqno + 1, 3000)])
                    .unwrap()
                    .wait()
                    .unwrap();
                seqno += 1;
            }
            if round % 3 == 2 {
                drop(log);
                let recovered = recover(&device, &options, &start);
                assert_eq!(recovered.cut.get(), seqno);
                let found = log_records(&recovered);
                assert_eq!(found.len() as u64, seqno - start.seqno.get());
                assert!(
                    found
                        .iter()
                        .all(|(&seqno, bytes)| *bytes == payload(seqno, 3000))
                );
                log = recovered.into_log().unwrap();
            } else {
                start = log.quiesce(|start| start);
                log.release(&start).unwrap();
                let stats = log.stats();
                assert!(stats.segments < 40, "{stats:?}");
                assert_eq!(
                    stats.segments_recycled > 0,
                    !discard && round % 3 == 1,
                    "{round}"
                );
            }
        }
    }
}

/// Options that may change between two openings: strands, sizes, the protocol.
#[test]
fn options_may_change_when_opening() {
    let device = memory();
    let mut options = small(FlushMode::Callers);
    let log = Log::create(device.clone(), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    drop(log);
    let mut seqno = 0;
    for round in 0..8 {
        options.strands = 1 + round % 3;
        options.segment_bytes = if round % 2 == 0 { 68 << 10 } else { 132 << 10 };
        options.slot_bytes = if round % 3 == 0 { 8 << 10 } else { 16 << 10 };
        options.protocol = ProtocolKind::ALL[round % ProtocolKind::ALL.len()];
        let recovered = recover(&device, &options, &start);
        assert_eq!(recovered.cut.get(), seqno);
        assert_eq!(log_records(&recovered).len() as u64, seqno);
        let log = recovered.into_log().unwrap();
        for _ in 0..60 {
            seqno += 1;
            log.append(&[&payload(seqno, 2500)])
                .unwrap()
                .wait()
                .unwrap();
        }
    }
}

/// Numbers discarded by one recovery stay discarded, although their chunks still exist.
#[test]
fn the_dead_stay_dead() {
    let device = memory();
    let options = small(FlushMode::Background);
    let log = Log::create(device.clone(), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    // Number 1 is assigned and never appended, so 2 is durable and is not kept.
    // Its thread ends in the middle of its commit.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lost = log.enter(&[&[0; 10]]).unwrap();
            lost.assign(1);
            std::mem::forget(lost);
        });
    });
    let ticket = log.append(&[b"old"]).unwrap();
    assert!(ticket.try_wait().is_none());
    while log.stats().notify_time.is_zero() {
        std::thread::yield_now();
    }
    drop((ticket, log));
    assert_eq!(recover(&device, &options, &start).discarded_records(), 1);
    for round in 0..3 {
        let recovered = recover(&device, &options, &start);
        assert_eq!(recovered.cut.get(), round);
        let log = recovered.into_log().unwrap();
        log.append(&[b"new"]).unwrap().wait().unwrap();
    }
    let recovered = recover(&device, &options, &start);
    assert!(
        log_records(&recovered)
            .values()
            .all(|bytes| bytes == b"new")
    );
}
