//! Crashes, failed writes and a full device: generated histories on a device that loses all data
//! that it may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{
    bounded, check_one_pass, log_records, memory, payload, recover, sim, small, try_recover,
};
use braid_io::{Device, OpenMode, SimDevice};
use braid_log::{
    CheckpointPosition, FlushMode, LockRelease, Log, LogError, LogOptions, PendingCommit,
    ProtocolKind, SeqNo, Ticket,
};

const BLOCK: usize = 4096;

/// The test's knowledge of one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    Appended(usize),
    Abort,
}

/// The state that must hold after a crash.
#[derive(Default)]
struct Model {
    /// By sequence number.
    known: BTreeMap<u64, Known>,
    /// The greatest number up to which everything was acknowledged.
    acknowledged: u64,
    /// Greater numbers that were acknowledged.
    alone: BTreeSet<u64>,
    /// The dependencies of a number.
    depends: BTreeMap<u64, Vec<u64>>,
    /// The last checkpoint that was made durable.
    start: Option<CheckpointPosition>,
}

impl Model {
    fn start(&self) -> CheckpointPosition {
        self.start.clone().unwrap()
    }

    /// Compares the recovered transactions with the expected ones, and removes those that the crash
    /// lost.
    fn check(&mut self, cut: u64, found: &BTreeMap<u64, Vec<u8>>, protocol: ProtocolKind) {
        // I1
        assert!(
            cut >= self.acknowledged,
            "{} was acknowledged, cut {cut}",
            self.acknowledged
        );
        let start = self.start().seqno.get();
        for (seqno, bytes) in found {
            assert!(*seqno > start && *seqno <= cut);
            // I2
            match self.known.get(seqno) {
                Some(&Known::Appended(len)) => assert!(*bytes == payload(*seqno, len), "{seqno}"),
                other => panic!("number {seqno} was {other:?}, and found"),
            }
        }
        // I1, I3: transactions acknowledged out of order, and all transactions found, are recovered
        // with their dependencies.
        for seqno in &self.alone {
            let abort = self.known.get(seqno) == Some(&Known::Abort);
            assert!(
                *seqno <= start || abort || found.contains_key(seqno),
                "{seqno} was acknowledged and is missing"
            );
        }
        for seqno in found.keys() {
            for on in self.depends.get(seqno).into_iter().flatten() {
                assert!(
                    *on <= start || found.contains_key(on),
                    "{seqno} is there without {on}, on which it depends"
                );
            }
        }
        // With early lock release and no recorded dependencies, nothing before the cut may be
        // missing.
        for (seqno, known) in self
            .known
            .range((Bound::Excluded(start), Bound::Included(cut)))
        {
            let prefix = matches!(protocol, ProtocolKind::Glsn | ProtocolKind::Epoch);
            let must = prefix || *seqno <= self.acknowledged;
            if must && matches!(known, Known::Appended(_)) {
                assert!(
                    found.contains_key(seqno),
                    "number {seqno} is missing, cut {cut}"
                );
            }
        }
        self.known
            .retain(|seqno, _| found.contains_key(seqno) || *seqno <= start);
        // A lost transaction never happened, and does not reappear.
        self.alone.clear();
        self.acknowledged = cut;
    }
}

/// Commits in one thread, with some pending commits at once, until the power fails.
fn run(log: &Log, model: &mut Model, rng: &mut fastrand::Rng, steps: u32) -> Result<(), LogError> {
    let mut tickets: Vec<Ticket> = Vec::new();
    for _ in 0..steps {
        // Another thread, another strand, another lane.
        std::thread::scope(|scope| {
            let step = scope.spawn(|| step(log, model, rng, &mut tickets));
            step.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
    }
    Ok(())
}

fn step(
    log: &Log,
    model: &mut Model,
    rng: &mut fastrand::Rng,
    tickets: &mut Vec<Ticket>,
) -> Result<(), LogError> {
    {
        let mut commits: Vec<(PendingCommit<'_>, u64, usize)> = Vec::new();
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
        let batch = commits.iter().map(|&(_, seqno, _)| seqno).min();
        // Appended in another order than assigned.
        rng.shuffle(&mut commits);
        for (mut pending, seqno, len) in commits {
            if rng.u8(..10) == 0 {
                model.known.insert(seqno, Known::Abort);
                pending.abort();
            } else {
                if log.wants_dependencies() {
                    let appended = model.known.iter().rev().take(12);
                    let appended = appended.filter(|(_, k)| matches!(k, Known::Appended(_)));
                    let mut on: Vec<u64> = appended.map(|(seqno, _)| *seqno).collect();
                    // Not on the others in flight, for which this thread would wait forever.
                    on.retain(|&on| Some(on) < batch && rng.u8(..4) == 0);
                    let named: Vec<_> = on.iter().copied().map(SeqNo::new).collect();
                    pending.depends_on(&named);
                    model.depends.insert(seqno, on);
                }
                model.known.insert(seqno, Known::Appended(len));
                pending.append(&[&payload(seqno, len)]);
            }
            tickets.push(pending.finish());
        }
        if rng.u8(..3) == 0 {
            let ticket = tickets.swap_remove(rng.usize(..tickets.len()));
            ticket.wait()?;
            model.alone.insert(ticket.seqno().get());
        }
        for ticket in tickets.iter().filter(|ticket| ticket.is_durable()) {
            assert!(ticket.seqno().get() <= log.acknowledged().get());
            model.alone.insert(ticket.seqno().get());
        }
        tickets.retain(|ticket| !ticket.is_durable());
        model.acknowledged = model.acknowledged.max(log.durable_seqno().get());
        if rng.u8(..20) == 0 {
            let start = log.quiesce(|start| start);
            log.sync()?;
            model.acknowledged = model.acknowledged.max(log.durable_seqno().get());
            model.start = Some(CheckpointPosition::decode(&start.encode())?);
            log.release(&start)?;
        }
    }
    Ok(())
}

/// One history with several crashes, also during recovery.
fn history(seed: u64, protocol: ProtocolKind, lanes: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let options = LogOptions {
        protocol,
        lanes,
        strands: lanes + 1,
        discard: rng.bool(),
        segment_bytes: 132 << 10,
        ..small(FlushMode::Callers)
    };
    let mut medium = SimDevice::new(seed);
    let mut model = Model::default();
    let mut log = Log::create(sim(&medium), options.clone()).unwrap();
    model.start = Some(log.quiesce(|start| start));
    for _ in 0..4 {
        medium.crash_after(1 + rng.u64(..150));
        let ended = run(&log, &mut model, &mut rng, 200);
        if ended.is_err() && log.poisoned().is_some() {
            assert!(matches!(
                log.enter(&[&[0; 1]]),
                Err(LogError::Poisoned { .. })
            ));
            // Also if everything that has a number is durable: a failed flush may have had only parts
            // of a large transaction.
            assert!(matches!(log.sync(), Err(LogError::Poisoned { .. })));
        }
        model.acknowledged = model.acknowledged.max(log.durable_seqno().get());
        drop(log);
        medium = medium.after_crash();
        log = loop {
            // The power may fail again during recovery.
            if rng.u8(..3) > 0 {
                medium.crash_after(1 + rng.u64(..12));
            }
            let recovered = try_recover(&sim(&medium), &options, &model.start()).unwrap();
            let found = log_records(&recovered);
            check_one_pass(&sim(&medium), &options, &model.start(), &found);
            let cut = recovered.cut.get();
            model.check(cut, &found, protocol);
            match recovered.into_log() {
                Ok(log) => {
                    assert_eq!(
                        (log.durable_seqno().get(), log.last_seqno().get()),
                        (cut, cut)
                    );
                    break log;
                }
                Err(_) => {
                    medium = medium.after_crash();
                }
            }
        };
    }
}

#[test]
fn acknowledged_transactions_survive() {
    let base = std::env::var("BRAID_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = base.map_or(0..bounded(100), |seed: u64| seed..seed + 1);
    for seed in seeds {
        for (protocol, lanes) in [
            (ProtocolKind::Glsn, 1),
            (ProtocolKind::Glsn, 2),
            (ProtocolKind::Serial, 1),
            (ProtocolKind::Aether, 1),
            (ProtocolKind::Epoch, 2),
            (ProtocolKind::GwsnStrict, 1),
            (ProtocolKind::GwsnStrict, 2),
            (ProtocolKind::Gwsn, 1),
            (ProtocolKind::Gwsn, 3),
            (ProtocolKind::Gsn, 1),
            (ProtocolKind::Gsn, 3),
        ] {
            let done = std::panic::catch_unwind(|| history(seed, protocol, lanes));
            if let Err(panic) = done {
                eprintln!("failed with BRAID_SEED={seed}, {protocol}, {lanes} lanes");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Threads, several flushes in flight, and a loss of power.
#[test]
fn concurrent_commits_survive() {
    for seed in 0..bounded(60) {
        for (lanes, in_flight) in [(1, 1), (1, 4), (2, 2)] {
            let medium = SimDevice::new(seed);
            let options = LogOptions {
                strands: 4,
                lanes,
                flushes_in_flight: in_flight,
                ..small(FlushMode::Background)
            };
            let log = Log::create(sim(&medium), options.clone()).unwrap();
            let start = log.quiesce(|start| start);
            medium.crash_after(1 + fastrand::Rng::with_seed(seed).u64(10..400));
            let acknowledged = Arc::new(AtomicU64::new(0));
            std::thread::scope(|scope| {
                for thread in 0..5u64 {
                    let (log, acknowledged) = (&log, &acknowledged);
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed * 10 + thread);
                        loop {
                            let len = if rng.u8(..50) == 0 {
                                30_000
                            } else {
                                rng.usize(..500)
                            };
                            let Ok(mut pending) = log.enter(&[&payload(0, len)]) else {
                                return;
                            };
                            let seqno = pending.assign(rng.u32(1..3)).get();
                            pending.append(&[&payload(seqno, len)]);
                            // Small groups, so that several are in flight.
                            if thread % 2 == 0 || in_flight == 4 {
                                if pending.finish().wait().is_err() {
                                    return;
                                }
                                acknowledged.fetch_max(seqno, Ordering::SeqCst);
                            } else {
                                let acknowledged = Arc::clone(acknowledged);
                                pending.finish_async().on_durable(move |outcome| {
                                    if outcome.is_ok() {
                                        acknowledged.fetch_max(seqno, Ordering::SeqCst);
                                    }
                                });
                            }
                        }
                    });
                }
            });
            drop(log);
            let device = sim(&medium.after_crash());
            let recovered = try_recover(&device, &options, &start).unwrap();
            let acknowledged = acknowledged.load(Ordering::SeqCst);
            assert!(
                recovered.cut.get() >= acknowledged,
                "seed {seed}: {} {acknowledged}",
                recovered.cut.get()
            );
            for (seqno, bytes) in log_records(&recovered) {
                assert_eq!(bytes, payload(seqno, bytes.len()), "seed {seed}");
            }
            recovered.into_log().unwrap().close().unwrap();
        }
    }
}

/// A register whose lock is held for as long as the protocol requires. Reading needs no lock, as in
/// a database with optimistic reads.
#[derive(Default)]
struct Register {
    locked: AtomicBool,
    /// The number of the transaction that wrote it last.
    writer: AtomicU64,
}

/// Threads that read some registers and overwrite one, each log record naming the versions that it
/// read and overwrote, under every protocol, until the power fails. I3: a log record is recovered
/// only with all records that it names.
#[test]
fn concurrent_dependencies_survive() {
    for &protocol in ProtocolKind::ALL {
        for lanes in [1, 3] {
            if lanes > 1 && protocol.forced_strands().is_some() {
                continue;
            }
            for seed in 0..bounded(25) {
                let done = std::panic::catch_unwind(|| dependencies(seed, protocol, lanes));
                if let Err(panic) = done {
                    eprintln!("failed with seed {seed}, {protocol}, {lanes} lanes");
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

fn dependencies(seed: u64, protocol: ProtocolKind, lanes: usize) {
    let medium = SimDevice::new(seed);
    let options = LogOptions {
        protocol,
        lanes,
        strands: 4,
        segment_bytes: 132 << 10,
        ..small(FlushMode::Background)
    };
    let log = Log::create(sim(&medium), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    medium.crash_after(fastrand::Rng::with_seed(seed).u64(20..300));
    let registers: Arc<[Register]> = (0..6).map(|_| Register::default()).collect();
    let acknowledged = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for thread in 0..5u64 {
            let (log, registers, acknowledged) = (&log, &registers, &acknowledged);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed * 10 + thread);
                while let Some(durable) = write(log, registers, &mut rng) {
                    acknowledged.lock().unwrap().extend(durable);
                }
            });
        }
    });
    drop(log);
    let recovered = try_recover(&sim(&medium.after_crash()), &options, &start).unwrap();
    let found = log_records(&recovered);
    for seqno in acknowledged.into_inner().unwrap() {
        assert!(found.contains_key(&seqno), "I1: {seqno} is lost");
    }
    for (seqno, log_record) in &found {
        for on in log_record
            .as_chunks::<8>()
            .0
            .iter()
            .map(|on| u64::from_le_bytes(*on))
        {
            assert!(
                on == 0 || found.contains_key(&on),
                "I3: {seqno} is there without {on}"
            );
        }
    }
    recovered.into_log().unwrap().close().unwrap();
}

/// One transaction. `None` if the log has failed; otherwise its number, if it is known to be
/// durable.
fn write(log: &Log, registers: &Arc<[Register]>, rng: &mut fastrand::Rng) -> Option<Option<u64>> {
    let mine = rng.usize(..registers.len());
    let register = &registers[mine];
    while register.locked.swap(true, Ordering::Acquire) {
        if log.poisoned().is_some() {
            return None;
        }
        log.request_flush();
        std::thread::yield_now();
    }
    let unlock = {
        let registers = Arc::clone(registers);
        move || registers[mine].locked.store(false, Ordering::Release)
    };
    let Ok(mut pending) = log.enter(&[&[0; 64]]) else {
        unlock();
        return None;
    };
    let seqno = pending.assign(1).get();
    // Reads of versions with a greater number would fail validation.
    let reads = (0..2).map(|_| &registers[rng.usize(..registers.len())]);
    let mut on: Vec<u64> = reads
        .chain([register])
        .map(|register| register.writer.load(Ordering::Acquire))
        .filter(|&on| on < seqno)
        .collect();
    on.sort_unstable();
    if log.wants_dependencies() {
        let named: Vec<_> = on.iter().copied().map(SeqNo::new).collect();
        pending.depends_on(&named);
    }
    let payload: Vec<u8> = on.iter().flat_map(|on| on.to_le_bytes()).collect();
    pending.append(&[&payload]);
    register.writer.store(seqno, Ordering::Release);
    let release = log.options().protocol.lock_release();
    if release == LockRelease::Precommit {
        unlock();
        let ticket = pending.finish();
        return Some((rng.bool() && ticket.wait().is_ok()).then_some(seqno));
    }
    let ticket = pending.finish_async();
    log.when_unlockable(ticket.unlock_point(), unlock);
    Some((rng.bool() && ticket.wait().is_ok()).then_some(seqno))
}

/// Whether the lane of the name holds a chunk.
fn has_chunk(device: &Arc<dyn Device>, name: &str) -> bool {
    let mut bytes = [0; 4];
    let file = device.open(name, OpenMode::Existing).unwrap();
    file.read_at(&mut bytes, BLOCK as u64).unwrap();
    bytes != [0; 4]
}

/// A large transaction is on the medium in several flushes, and with `gwsn` it belongs to the flush
/// of its commit record. If a flush of another lane before that is lost, the transaction is lost
/// too, although its parts lie before the gap.
#[test]
fn a_large_transaction_counts_with_the_flush_of_its_commit_record() {
    const LANES: [&str; 2] = ["log-00-00000001.seg", "log-01-00000001.seg"];
    let device = memory();
    let options = LogOptions {
        protocol: ProtocolKind::Gwsn,
        lanes: 2,
        segment_bytes: 260 << 10,
        // `finish_async` flushes by itself.
        group_size: 1,
        ..small(FlushMode::Callers)
    };
    let log = Arc::new(Log::create(Arc::clone(&device), options.clone()).unwrap());
    let start = log.quiesce(|start| start);
    // Acknowledged with the first parts of the large transaction: the other lane has then flushed.
    let before = log.append(&[&payload(1, 100)]).unwrap();
    // Keeps all others from being acknowledged.
    let mut first = log.enter(&[&[0; 100]]).unwrap();
    let unfinished = first.assign(1).get();
    let beside = Arc::new(Mutex::new((None, Vec::new())));
    let (of_callback, seen, medium) = (Arc::clone(&log), Arc::clone(&beside), Arc::clone(&device));
    before.on_durable(move |outcome| {
        outcome.unwrap();
        let empty = LANES.iter().find(|name| !has_chunk(&medium, name));
        let empty = *empty.expect("one lane has the first part");
        let mut seen = seen.lock().unwrap();
        seen.0 = Some(empty);
        while !has_chunk(&medium, empty) {
            // Another thread, another strand.
            let log = Arc::clone(&of_callback);
            let commit = move || {
                let mut pending = log.enter(&[&[0; 100]]).unwrap();
                let seqno = pending.assign(1).get();
                pending.append(&[&payload(seqno, 100)]);
                drop(pending.finish_async());
                seqno
            };
            seen.1.push(std::thread::spawn(commit).join().unwrap());
        }
    });
    let mut large = log.enter(&[&[0; 60_000]]).unwrap();
    let seqno = large.assign(1).get();
    large.append(&[&payload(seqno, 60_000)]);
    drop(large.finish_async());
    first.append(&[&payload(unfinished, 100)]);
    drop(first.finish_async());
    drop(log);
    let (lost, mut small) = std::mem::take(&mut *beside.lock().unwrap());
    let everything = log_records(&recover(&device, &options, &start));
    assert_eq!(everything.len(), 3 + small.len());
    assert!(everything.contains_key(&seqno));
    let file = device.open(lost.unwrap(), OpenMode::Existing).unwrap();
    let len = file.len().unwrap() as usize - BLOCK;
    file.write_at(&[&vec![0; len]], BLOCK as u64).unwrap();
    // All except those of the lost flush and of later ones.
    small.pop();
    small.insert(0, 1);
    let found = log_records(&recover(&device, &options, &start));
    assert!(found.keys().eq(&small), "{:?} and {small:?}", found.keys());
}

#[test]
fn a_failed_write_poisons() {
    for mode in [FlushMode::Background, FlushMode::Callers] {
        let medium = SimDevice::new(1);
        let options = small(mode);
        let log = Log::create(sim(&medium), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        log.append(&[b"good"]).unwrap().wait().unwrap();
        let called = Arc::new(AtomicU64::new(0));
        let ticket = log.append(&[b"bad"]).unwrap();
        let (seen, pending) = (called.clone(), log.ticket(ticket.seqno()));
        // Every write from here on fails.
        medium.crash_after(1);
        pending.on_durable(move |outcome| {
            seen.store(1 + u64::from(outcome.is_err()), Ordering::SeqCst);
        });
        let error = ticket.wait().unwrap_err();
        assert!(
            matches!(&error, LogError::Poisoned { cause } if cause.contains("simulated crash")),
            "{error}"
        );
        while called.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(called.load(Ordering::SeqCst), 2);
        assert!(log.ticket(SeqNo::new(1)).wait().is_ok());
        assert!(matches!(
            ticket.try_wait(),
            Some(Err(LogError::Poisoned { .. }))
        ));
        assert!(matches!(
            log.append(&[b"more"]),
            Err(LogError::Poisoned { .. })
        ));
        assert!(log.poisoned().unwrap().contains("log-00-"));
        assert!(log.close().is_err());
        let recovered = try_recover(&sim(&medium.after_crash()), &options, &start).unwrap();
        assert!(log_records(&recovered).contains_key(&1));
    }
}

#[test]
fn out_of_space_and_back() {
    for mode in [FlushMode::Background, FlushMode::Callers] {
        for device_full in [false, true] {
            let medium = SimDevice::new(1);
            let limit = 20 * (68 << 10);
            let options = LogOptions {
                max_log_bytes: if device_full { 0 } else { limit },
                ..small(mode)
            };
            if device_full {
                medium.set_capacity(Some(limit));
            }
            let log = Log::create(sim(&medium), options.clone()).unwrap();
            let first = log.quiesce(|start| start);
            let mut seqno = 0;
            let fill = |seqno: &mut u64| loop {
                match log.append(&[&payload(*seqno + 1, 2000)]) {
                    Ok(ticket) => {
                        ticket.wait().unwrap();
                        *seqno += 1;
                        assert!(*seqno < 10_000);
                    }
                    Err(LogError::OutOfSpace {
                        device_full: full,
                        used,
                        ..
                    }) => {
                        assert_eq!(full, device_full);
                        assert!(used <= limit);
                        return;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            fill(&mut seqno);
            assert!(seqno > 50, "{seqno}");
            assert!(medium.used() <= limit);
            assert_eq!(
                log.last_seqno().get(),
                seqno,
                "nothing is assigned without space"
            );
            // A full log can be opened, and a checkpoint frees it.
            let start = log.quiesce(|start| start);
            log.release(&start).unwrap();
            let before = seqno;
            fill(&mut seqno);
            assert!(seqno > before + 50, "{seqno} after {before}");
            assert!(log.poisoned().is_none());
            log.close().unwrap();
            let recovered = try_recover(&sim(&medium), &options, &start).unwrap();
            assert_eq!(recovered.cut.get(), seqno);
            assert!(
                try_recover(&sim(&medium), &options, &first).is_err(),
                "it was released"
            );
            if !device_full {
                let log = recovered.into_log().unwrap();
                let start = log.quiesce(|start| start);
                log.release(&start).unwrap();
                log.append(&[b"again"]).unwrap().wait().unwrap();
            }
        }
    }
}

/// A damaged middle is an error, not a shorter log.
#[test]
fn damage_differs_from_a_torn_end() {
    let medium = SimDevice::new(1);
    let options = small(FlushMode::Callers);
    let log = Log::create(sim(&medium), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    for seqno in 1..=100 {
        log.append(&[&payload(seqno, 500)]).unwrap().wait().unwrap();
    }
    log.close().unwrap();
    assert!(medium.flip_bit("log-00-00000002.seg", 5 * 4096 + 100, 0));
    let error = try_recover(&sim(&medium), &options, &start).unwrap_err();
    assert!(matches!(error, LogError::Corrupted { .. }), "{error}");
    assert!(error.to_string().contains("log-00-"), "{error}");
}

/// Creates a log of `count` transactions, each alone in its chunk.
fn chunks_of_one(
    protocol: ProtocolKind,
    count: u64,
) -> (SimDevice, LogOptions, CheckpointPosition) {
    let medium = SimDevice::new(1);
    let options = LogOptions {
        protocol,
        strands: 1,
        lanes: 1,
        ..small(FlushMode::Callers)
    };
    let log = Log::create(sim(&medium), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    for seqno in 1..=count {
        let ticket = log.append(&[&payload(seqno, 500)]).unwrap();
        ticket.wait().unwrap();
    }
    (medium, options, start)
}

/// Damage in the last segment is also an error, if the log continues far enough after it.
#[test]
fn damage_in_the_last_segment_differs_from_a_torn_end() {
    let mut reported = 0;
    for &protocol in ProtocolKind::ALL {
        for bad in 1..=12 {
            let (medium, options, start) = chunks_of_one(protocol, 12);
            assert!(medium.flip_bit("log-00-00000001.seg", bad * 4096 + 100, 0));
            match try_recover(&sim(&medium), &options, &start) {
                Err(LogError::Corrupted { .. }) => reported += 1,
                Err(error) => panic!("{protocol}, chunk {bad}: {error}"),
                // The chunks after the last two could have been in flight with them.
                Ok(recovered) => {
                    assert!(
                        bad > 10,
                        "{protocol}: {bad} of 12 chunks is damaged, cut {}",
                        recovered.cut.get()
                    );
                }
            }
        }
    }
    assert!(reported >= 10 * ProtocolKind::ALL.len());
}

/// A damaged header is also an error: of the first segment, the last or one between.
#[test]
fn a_damaged_segment_header_is_no_end() {
    for &protocol in ProtocolKind::ALL {
        let (medium, options, start) = chunks_of_one(protocol, 40);
        let used = 40_u64.div_ceil(options.segment_bytes / 4096 - 1);
        assert!(used > 2);
        for sequence in 1..=used {
            let name = format!("log-00-{sequence:08}.seg");
            assert!(medium.flip_bit(&name, 40, 0));
            let error = try_recover(&sim(&medium), &options, &start).err();
            assert!(
                matches!(error, Some(LogError::Corrupted { .. })),
                "{protocol}, {name}: {error:?}"
            );
            assert!(medium.flip_bit(&name, 40, 0));
        }
        let recovered = try_recover(&sim(&medium), &options, &start).unwrap();
        assert_eq!(log_records(&recovered).len(), 40, "{protocol}");
        // The first header of another incarnation, too.
        let log = recovered.into_log().unwrap();
        for seqno in 41..=45 {
            let ticket = log.append(&[&payload(seqno, 500)]).unwrap();
            ticket.wait().unwrap();
        }
        drop(log);
        let name = format!("log-00-{:08}.seg", used + 1);
        assert!(medium.flip_bit(&name, 40, 0));
        let error = try_recover(&sim(&medium), &options, &start).err();
        assert!(
            matches!(error, Some(LogError::Corrupted { .. })),
            "{protocol}, {name}: {error:?}"
        );
    }
}

/// A process that ends, or a write that fails, may leave a chunk in a volatile cache. Once recovery
/// has kept it, a power failure must not lose it.
#[test]
fn counts_of_recovery_stay() {
    let mut counted = 0;
    for seed in 0..64 {
        let medium = SimDevice::new(seed);
        let options = small(FlushMode::Callers);
        let log = Log::create(sim(&medium), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        log.append(&[b"durable"]).unwrap().wait().unwrap();
        medium.fail_write_after(1);
        assert!(log.append(&[b"failed"]).unwrap().wait().is_err());
        drop(log);
        let recovered = try_recover(&sim(&medium), &options, &start).unwrap();
        let before = log_records(&recovered);
        counted += usize::from(before.len() == 2);
        drop(recovered.into_log().unwrap());
        let recovered = try_recover(&sim(&medium.after_crash()), &options, &start);
        let after = log_records(&recovered.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
        assert_eq!(after, before, "seed {seed}");
    }
    assert!(counted > 10, "the failed write arrived {counted} times");
}
