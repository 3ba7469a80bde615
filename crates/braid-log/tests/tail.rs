//! Reading the log in order while it is written, through crashes and across incarnations.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::common::{bounded, log_records, payload, sim, small, try_recover};
use braid_io::SimDevice;
use braid_log::{
    CheckpointPosition, FlushMode, Log, LogError, LogOptions, ProtocolKind, SeqNo, TailReader,
};

/// Continues reading, in portions of a random size; checks that the transactions are in order, and
/// not beyond the durable seqno.
fn read(tail: &mut TailReader, log: &Log, rng: &mut fastrand::Rng, into: &mut Vec<(u64, Vec<u8>)>) {
    loop {
        let room = rng.usize(1..60_000);
        let before = into.len();
        let to = tail
            .read(room, &mut |log_record| {
                let last = into.last().map_or(0, |&(seqno, _)| seqno);
                assert!(
                    log_record.seqno.get() > last,
                    "{} after {last}",
                    log_record.seqno.get()
                );
                into.push((log_record.seqno.get(), log_record.payload.to_vec()));
            })
            .unwrap();
        assert!(to <= log.durable_seqno());
        assert!(into.last().is_none_or(|&(seqno, _)| seqno <= to.get()));
        if into.len() == before {
            return;
        }
    }
}

/// Commits until the power fails, with aborts, large log records and several pending commits.
fn step(log: &Log, rng: &mut fastrand::Rng) -> Result<(), LogError> {
    let mut commits = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let len = match rng.u8(..40) {
            0 => rng.usize(8_000..60_000),
            1..4 => rng.usize(3_000..9_000),
            _ => rng.usize(..400),
        };
        let mut pending = log.enter(&[&payload(0, len)])?;
        let seqno = pending.assign(rng.u32(1..4)).get();
        commits.push((pending, seqno, len));
    }
    rng.shuffle(&mut commits);
    let mut tickets = Vec::new();
    for (mut pending, seqno, len) in commits {
        match rng.u8(..10) {
            0 => pending.abort(),
            _ => pending.append(&[&payload(seqno, len)]),
        }
        tickets.push(pending.finish());
    }
    match rng.u8(..4) {
        0 => rng.choice(&tickets).map_or(Ok(()), |ticket| ticket.wait()),
        _ => Ok(()),
    }
}

fn history(seed: u64, protocol: ProtocolKind, lanes: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let options = LogOptions {
        protocol,
        lanes,
        strands: lanes + 1,
        segment_bytes: 132 << 10,
        ..small(FlushMode::Callers)
    };
    let mut medium = SimDevice::new(seed);
    let mut log = Log::create(sim(&medium), options.clone()).unwrap();
    let first = log.quiesce(|start| start);
    let mut newest = first.clone();
    let mut shown: Vec<(u64, Vec<u8>)> = Vec::new();
    for _ in 0..4 {
        let mut tail = log.tail(&first).unwrap();
        let mut again = Vec::new();
        read(&mut tail, &log, &mut rng, &mut again);
        // The transactions read are still present, and so are durable ones that were not read yet.
        assert!(again.starts_with(&shown), "after a crash");
        shown = again;
        medium.crash_after(1 + rng.u64(..250));
        for _ in 0..60 {
            // Another thread, another strand, another lane.
            let mut fork = rng.fork();
            let stepped = std::thread::scope(|scope| {
                let step = scope.spawn(|| step(&log, &mut fork));
                step.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            if stepped.is_err() {
                break;
            }
            if rng.u8(..3) == 0 && !medium.has_crashed() {
                read(&mut tail, &log, &mut rng, &mut shown);
            }
            if rng.u8(..20) == 0 {
                let start = log.quiesce(|start| start);
                if log.sync().is_ok() {
                    newest = CheckpointPosition::decode(&start.encode()).unwrap();
                }
            }
        }
        drop(tail);
        drop(log);
        medium = medium.after_crash();
        let all = try_recover(&sim(&medium), &options, &first).unwrap();
        let expected: Vec<_> = log_records(&all).into_iter().collect();
        let mut recovered = try_recover(&sim(&medium), &options, &newest).unwrap();
        recovered.retain(first.clone()).unwrap();
        log = recovered.into_log().unwrap();
        let mut tail = log.tail(&first).unwrap();
        let mut found = Vec::new();
        read(&mut tail, &log, &mut rng, &mut found);
        assert!(found == expected, "what recovery keeps is what is shown");
    }
    // From the middle.
    let mut tail = log.tail(&newest).unwrap();
    let mut found = Vec::new();
    read(&mut tail, &log, &mut rng, &mut found);
    let mut all = Vec::new();
    read(&mut log.tail(&first).unwrap(), &log, &mut rng, &mut all);
    all.retain(|&(seqno, _)| seqno > newest.seqno.get());
    assert!(found == all);
}

#[test]
fn shown_changes_are_in_order_and_last() {
    let base = std::env::var("BRAID_SEED").ok();
    let base = base.and_then(|seed| seed.parse().ok());
    let seeds = base.map_or(0..bounded(12), |seed: u64| seed..seed + 1);
    for seed in seeds {
        for &protocol in ProtocolKind::ALL {
            for lanes in [1, 3] {
                if protocol
                    .forced_strands()
                    .is_some_and(|strands| strands < lanes)
                {
                    continue;
                }
                let done = std::panic::catch_unwind(|| history(seed, protocol, lanes));
                if let Err(panic) = done {
                    eprintln!("failed with BRAID_SEED={seed}, {protocol}, {lanes} lanes");
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// Writers on several threads, and a reader that sleeps until there is a transaction to read.
#[test]
fn a_reader_is_woken_and_misses_nothing() {
    const EACH: u64 = 300;
    for &protocol in ProtocolKind::ALL {
        let lanes = if protocol.forced_strands().is_some() {
            1
        } else {
            2
        };
        let options = LogOptions {
            protocol,
            lanes,
            strands: 2 * lanes,
            segment_bytes: 132 << 10,
            ..small(FlushMode::Background)
        };
        let log = Log::create(sim(&SimDevice::new(1)), options).unwrap();
        let start = log.quiesce(|start| start);
        let mut tail = log.tail(&start).unwrap();
        let known = Mutex::new(BTreeMap::new());
        let total = AtomicU64::new(0);
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (log, known, total) = (&log, &known, &total);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread);
                    for i in 0..EACH {
                        let len = if rng.u8(..50) == 0 {
                            30_000
                        } else {
                            rng.usize(..300)
                        };
                        let mut pending = log.enter(&[&payload(0, len)]).unwrap();
                        let seqno = pending.assign(rng.u32(1..3)).get();
                        let bytes = payload(seqno, len);
                        pending.append(&[&bytes]);
                        let ticket = pending.finish();
                        known.lock().unwrap().insert(seqno, bytes);
                        total.fetch_add(1, Ordering::SeqCst);
                        if i % 3 == 0 || i == EACH - 1 {
                            ticket.wait().unwrap();
                        }
                    }
                });
            }
            let signal = Arc::new((Mutex::new(false), Condvar::new()));
            let ring: Arc<dyn Fn() + Send + Sync> = {
                let signal = Arc::clone(&signal);
                Arc::new(move || {
                    *signal.0.lock().unwrap() = true;
                    signal.1.notify_all();
                })
            };
            while (found.len() as u64) < 3 * EACH {
                let mut signaled = signal.0.lock().unwrap();
                *signaled = false;
                drop(signaled);
                let mut take = |log_record: braid_log::LogRecord<'_>| {
                    found.push((log_record.seqno.get(), log_record.payload.to_vec()));
                };
                let to = tail.read(10_000, &mut take).unwrap();
                if to < log.acknowledged() {
                    // More to read, or acknowledged ahead of the durable seqno.
                    log.ticket(log.acknowledged()).wait().unwrap();
                    continue;
                }
                if found.len() as u64 == 3 * EACH {
                    break;
                }
                for kind in 0..log.progress_kinds() {
                    let ring = Arc::clone(&ring);
                    log.on_progress(kind, to, move || ring());
                }
                signaled = signal.0.lock().unwrap();
                while !*signaled {
                    signaled = signal.1.wait(signaled).unwrap();
                }
            }
        });
        let known: Vec<_> = known.into_inner().unwrap().into_iter().collect();
        assert!(found == known, "{protocol}");
    }
}

#[test]
fn released_log_is_reported() {
    let options = small(FlushMode::Callers);
    let log = Log::create(sim(&SimDevice::new(1)), options).unwrap();
    let first = log.quiesce(|start| start);
    let mut slow = log.tail(&first).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..200 {
        step(&log, &mut rng).unwrap();
    }
    log.sync().unwrap();
    let later = log.quiesce(|start| start);
    assert!(later.lanes[0].segment > 2, "{later:?}");
    log.release(&later).unwrap();
    for _ in 0..200 {
        step(&log, &mut rng).unwrap();
    }
    log.sync().unwrap();
    let gone = |outcome: Result<SeqNo, LogError>| matches!(outcome, Err(LogError::Released { .. }));
    assert!(gone(slow.read(usize::MAX, &mut |_| {})));
    assert!(matches!(log.tail(&first), Err(LogError::Released { .. })));
    let mut found = 0;
    let mut tail = log.tail(&later).unwrap();
    let to = tail.read(usize::MAX, &mut |_| found += 1).unwrap();
    assert!(found > 0 && to == log.durable_seqno());
}

#[test]
fn damage_is_reported_and_not_skipped() {
    for seed in 0..bounded(30) {
        let medium = SimDevice::new(seed);
        let log = Log::create(sim(&medium), small(FlushMode::Callers)).unwrap();
        let first = log.quiesce(|start| start);
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..30 {
            step(&log, &mut rng).unwrap();
            log.sync().unwrap();
        }
        let end = log.quiesce(|start| start);
        let segment = 1 + rng.u64(..end.lanes[0].segment);
        // In front of the end, and not in the padding: the beginning of a block of the first
        // chunks.
        let byte = 4096 + rng.usize(..72);
        let name = format!("log-00-{segment:08}.seg");
        assert!(medium.flip_bit(&name, byte, rng.u32(..8)), "{name}");
        let mut tail = log.tail(&first).unwrap();
        let outcome = tail.read(usize::MAX, &mut |_| {});
        assert!(
            matches!(outcome, Err(LogError::Corrupted { .. })),
            "seed {seed}: {outcome:?}"
        );
    }
}
