//! Side lanes on devices of their own: transactions with a fragment in each of several lanes, crashes
//! in which each device loses what it may lose, and lanes that begin and end.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{bounded, sim, small};
use braid_io::{Device, File, Layer, LayeredDevice, RoutedDevice, SimDevice};
use braid_log::{
    CheckpointPosition, FlushMode, Fragment, Log, LogError, LogOptions, ProtocolKind, Recovered,
    SeqNo, lane_of_name,
};

/// Lanes that all strands share, before the side lanes.
const MAIN: usize = 2;
const SIDES: usize = 2;

/// The main device, and one for each side lane.
#[derive(Clone)]
struct Devices(Vec<SimDevice>);

impl Devices {
    fn new(seed: u64) -> Self {
        let device = |index| SimDevice::new(seed * 7 + index as u64);
        Self((0..=SIDES).map(device).collect())
    }

    fn all(&self) -> Arc<dyn Device> {
        let routes = (0..SIDES).map(|side| (MAIN + side, sim(&self.0[side + 1])));
        let main = sim(&self.0[0]);
        Arc::new(RoutedDevice::new(main, routes.collect(), lane_of_name))
    }

    fn crash(&mut self) {
        self.0.iter().for_each(SimDevice::power_off);
        self.0
            .iter_mut()
            .for_each(|device| *device = device.after_crash());
    }
}

fn options(protocol: ProtocolKind, flush_mode: FlushMode) -> LogOptions {
    LogOptions {
        protocol,
        lanes: MAIN,
        side_lanes: SIDES,
        ..small(flush_mode)
    }
}

/// The protocols that have side lanes.
fn protocols() -> Vec<ProtocolKind> {
    let all = ProtocolKind::ALL.iter().copied();
    all.filter(|protocol| protocol.has_side_lanes()).collect()
}

/// Whether a protocol keeps prefixes of the numbers.
fn keeps_prefixes(protocol: ProtocolKind) -> bool {
    matches!(protocol, ProtocolKind::Glsn | ProtocolKind::Epoch)
}

/// What must hold after a crash.
#[derive(Default)]
struct Model {
    /// The bytes of each transaction's log records, by its number; none of an aborted one.
    written: BTreeMap<u64, Vec<Vec<u8>>>,
    /// The transaction that each depends on, if the protocol wants to know.
    on: BTreeMap<u64, u64>,
    /// Transactions of which a ticket said that they are durable.
    waited: Vec<u64>,
    /// Everything up to here was acknowledged.
    acknowledged: u64,
    next: u32,
    start: Option<CheckpointPosition>,
    /// An older position, from which the log is kept.
    kept_from: Option<CheckpointPosition>,
    /// The side lanes that a durable position has.
    usable: [bool; SIDES],
}

impl Model {
    fn start(&self) -> CheckpointPosition {
        self.start.clone().unwrap()
    }

    /// Checks that recovery keeps what was acknowledged, each transaction whole, and, if the protocol
    /// keeps prefixes, every transaction up to the cut.
    fn check(&mut self, recovered: &Recovered, protocol: ProtocolKind) {
        let (start, cut) = (self.start().seqno.get(), recovered.cut.get());
        assert!(
            cut >= self.acknowledged,
            "I1: cut {cut} < {}",
            self.acknowledged
        );
        let mut found: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        let add = recovered.for_each(|log_record| {
            let of = found.entry(log_record.seqno.get()).or_default();
            of.push(log_record.payload.to_vec());
        });
        add.unwrap();
        found.values_mut().for_each(|fragments| fragments.sort());
        let must = |seqno: &u64| *seqno <= self.acknowledged || self.waited.contains(seqno);
        self.written.retain(|seqno, _| {
            found.contains_key(seqno)
                || *seqno <= start
                || must(seqno)
                || keeps_prefixes(protocol) && *seqno <= cut
        });
        let expected = self.written.range(start + 1..);
        let expected: BTreeMap<_, _> = expected
            .filter(|(_, fragments)| !fragments.is_empty())
            .map(|(seqno, fragments)| (*seqno, fragments.clone()))
            .collect();
        // I3
        let is_closed = |seqno: &u64| {
            let on = self.on.get(seqno);
            on.is_none_or(|on| *on <= start || found.contains_key(on))
        };
        assert!(found.keys().all(is_closed), "{:?}", found.keys());
        // I2, I15
        assert!(
            found == expected,
            "{:?} {:?}",
            found.keys(),
            expected.keys()
        );
        self.acknowledged = cut;
        self.waited.clear();
    }
}

/// Distinct bytes: the number of the fragment, and as many more as `len` says.
fn bytes(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(4 + len, number as u8);
    bytes
}

fn run(log: &Log, model: &mut Model, rng: &mut fastrand::Rng, steps: u32) -> Result<(), LogError> {
    for _ in 0..steps {
        let mut lanes: Vec<Option<usize>> = vec![None];
        lanes.extend((0..SIDES).filter(|&side| model.usable[side]).map(Some));
        rng.shuffle(&mut lanes);
        lanes.truncate(rng.usize(1..=lanes.len()));
        let mut fragments = Vec::new();
        for side in lanes {
            let len = if rng.u8(..12) == 0 {
                rng.usize(..40_000)
            } else {
                rng.usize(..300)
            };
            model.next += 1;
            fragments.push(Fragment {
                side,
                records: rng.u32(1..4),
                payload: bytes(model.next, len),
            });
        }
        let records = fragments.iter().map(|fragment| fragment.records).sum();
        let mut payloads: Vec<_> = fragments.iter().map(|f| f.payload.clone()).collect();
        let mut pending = match (&fragments[..], rng.bool()) {
            ([Fragment { side: None, .. }], true) => log.enter(&[&payloads[0]])?,
            (
                [
                    Fragment {
                        side: Some(side), ..
                    },
                ],
                true,
            ) => log.enter_in(*side, &[&payloads[0]])?,
            _ => log.enter_fragments(fragments)?,
        };
        let seqno = pending.assign(records).get();
        // The number may be that of a transaction that a crash has undone.
        model.on.remove(&seqno);
        if log.wants_dependencies()
            && let Some((&on, _)) = model.written.iter().rfind(|(_, parts)| !parts.is_empty())
            && rng.bool()
        {
            pending.depends_on(&[SeqNo::new(on)]);
            model.on.insert(seqno, on);
        }
        if rng.u8(..8) == 0 {
            pending.abort();
            payloads.clear();
        } else {
            pending.append(&[&payloads.concat()]);
        }
        payloads.sort();
        model.written.insert(seqno, payloads);
        let ticket = pending.finish();
        if rng.u8(..3) == 0 {
            ticket.wait()?;
            model.waited.push(seqno);
            // With `gsn`, lanes are acknowledged by themselves.
            if log.options().protocol != ProtocolKind::Gsn {
                model.acknowledged = seqno;
            }
        } else {
            ticket.detach();
        }
        if rng.u8(..10) == 0 {
            checkpoint(log, model)?;
        }
    }
    Ok(())
}

fn checkpoint(log: &Log, model: &mut Model) -> Result<(), LogError> {
    log.begin()?;
    let start = log.quiesce(|start| start);
    log.sync()?;
    model.acknowledged = model.acknowledged.max(start.seqno.get());
    for side in 0..SIDES {
        model.usable[side] = log.has_side_lane(side);
    }
    model.start = Some(start.clone());
    log.release(model.kept_from.as_ref().unwrap_or(&start))
}

/// Cuts the power, recovers the log, and checks what it has.
fn crash(devices: &mut Devices, log: Log, model: &mut Model) -> Recovered {
    devices.crash();
    let options = log.options().clone();
    let protocol = options.protocol;
    drop(log);
    let recovered = Log::recover(devices.all(), options, &model.start(), &|_| {}).unwrap();
    model.check(&recovered, protocol);
    recovered
}

/// Reads the log as it is written, and checks that the fragments come as one transaction.
fn check_tail(log: &Log, model: &Model, start: &CheckpointPosition) {
    let mut tail = log.tail(start).unwrap();
    let mut found = BTreeMap::new();
    let to = tail.read(usize::MAX, &mut |log_record| {
        found.insert(log_record.seqno.get(), log_record.payload.len());
    });
    let to = to.unwrap().get();
    assert_eq!(to, log.durable_seqno().get());
    let expected = model.written.range(start.seqno.get() + 1..=to);
    let expected: BTreeMap<_, _> = expected
        .filter(|(_, fragments)| !fragments.is_empty())
        .map(|(seqno, fragments)| (*seqno, fragments.iter().map(Vec::len).sum()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn transactions_in_several_lanes_survive_crashes_whole_or_not_at_all() {
    let (mut torn, protocols) = (0, protocols());
    for seed in 0..bounded(400) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut devices = Devices::new(seed);
        let protocol = protocols[seed as usize % protocols.len()];
        let options = options(protocol, FlushMode::Callers);
        let mut model = Model::default();
        let log = Log::create(devices.all(), options.clone()).unwrap();
        checkpoint(&log, &mut model).unwrap();
        let mut log = Some(log);
        for _ in 0..3 {
            let from = model.start();
            let running = log.take().unwrap();
            if rng.bool() {
                devices.0[rng.usize(..=SIDES)].crash_after(rng.u64(1..60));
            }
            let outcome = run(&running, &mut model, &mut rng, 40);
            // The power may fail in these, too.
            if outcome.is_ok() && model.start() == from && running.sync().is_ok() {
                model.acknowledged = running.last_seqno().get();
                check_tail(&running, &model, &from);
                let _ = run(&running, &mut model, &mut rng, 5);
            }
            println!("seed {seed}");
            let recovered = crash(&mut devices, running, &mut model);
            torn += recovered.discarded_records();
            log = Some(recovered.into_log().unwrap());
        }
    }
    assert!(torn > 20, "{torn}");
}

#[test]
fn a_side_lane_begins_and_ends_between_crashes_at_any_step() {
    let (mut begun, protocols) = (0, protocols());
    for step in 1..bounded(120) {
        let mut devices = Devices::new(step);
        // Steps 3 by 3: each crashes another device.
        let protocol = protocols[step as usize / 3 % protocols.len()];
        let all = options(protocol, FlushMode::Callers);
        let none = LogOptions {
            side_lanes: 0,
            ..all.clone()
        };
        let (mut model, mut rng) = (Model::default(), fastrand::Rng::with_seed(step));
        let log = Log::create(devices.all(), none).unwrap();
        checkpoint(&log, &mut model).unwrap();
        // A position without the lane, from which a reader reads.
        let before = model.start();
        model.kept_from = Some(before.clone());
        run(&log, &mut model, &mut rng, 3).unwrap();
        drop(log);
        // The lane begins; the power fails at some step until a checkpoint has it.
        let begin = |devices: &Devices, model: &mut Model| {
            let start = model.start();
            let mut recovered = Log::recover(devices.all(), all.clone(), &start, &|_| {})?;
            model.check(&recovered, protocol);
            recovered.retain(model.kept_from.clone().unwrap())?;
            recovered.begin_side_lane(1);
            let log = recovered.into_idle_log()?;
            checkpoint(&log, model)?;
            Ok::<_, LogError>(log)
        };
        devices.0[step as usize % 3].crash_after(step / 6);
        drop(begin(&devices, &mut model));
        devices.crash();
        let log = begin(&devices, &mut model).unwrap_or_else(|e| panic!("step {step}: {e}"));
        assert_eq!(model.usable, [false, true]);
        run(&log, &mut model, &mut rng, 20).unwrap();
        log.sync().unwrap();
        check_tail(&log, &model, &before);
        model.kept_from = None;
        begun += 1;
        // It is recovered next to a lane without log.
        run(&log, &mut model, &mut rng, 20).unwrap();
        let recovered = crash(&mut devices, log, &mut model);
        let log = recovered.into_log().unwrap();
        // It ends; no position has it any more, and its files are not needed.
        log.retire_side_lane(1).unwrap();
        assert!(!log.has_side_lane(1));
        let pending = log.enter_in(1, &[b"late"]).unwrap();
        drop(pending);
        checkpoint(&log, &mut model).unwrap();
        for entry in sim(&devices.0[2]).list().unwrap() {
            sim(&devices.0[2]).remove(&entry.name).unwrap();
        }
        sim(&devices.0[2]).sync_directory().unwrap();
        run(&log, &mut model, &mut rng, 20).unwrap();
        let recovered = crash(&mut devices, log, &mut model);
        assert!(!recovered.has_side_lane(1));
        let main = recovered.into_log().unwrap();
        run(&main, &mut model, &mut rng, 3).unwrap();
        let written = sim(&devices.0[2]).list().unwrap();
        assert!(written.is_empty(), "{written:?}");
    }
    assert!(begun > 0);
}

#[test]
fn a_lane_that_a_position_has_is_never_taken_for_one_without_log() {
    let devices = Devices::new(3);
    let options = options(ProtocolKind::Glsn, FlushMode::Callers);
    let (mut model, mut rng) = (Model::default(), fastrand::Rng::with_seed(3));
    let log = Log::create(devices.all(), options.clone()).unwrap();
    checkpoint(&log, &mut model).unwrap();
    run(&log, &mut model, &mut rng, 3).unwrap();
    drop(log);
    for entry in sim(&devices.0[1]).list().unwrap() {
        sim(&devices.0[1]).remove(&entry.name).unwrap();
    }
    let error = Log::recover(devices.all(), options, &model.start(), &|_| {}).unwrap_err();
    let is_named =
        matches!(&error, LogError::Corrupted { file, .. } if file.starts_with("log-02-"));
    assert!(is_named, "{error}");
}

#[test]
fn waiters_in_the_background_are_acknowledged_when_all_lanes_are_durable() {
    for protocol in protocols() {
        wait_in_the_background(protocol);
    }
}

fn wait_in_the_background(protocol: ProtocolKind) {
    let devices = Devices::new(9);
    let log = Log::create(devices.all(), options(protocol, FlushMode::Background));
    let log = log.unwrap();
    let newest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (log, newest) = (&log, &newest);
            scope.spawn(move || {
                for number in 0..50 {
                    let sides = [None, Some(0), Some(1)];
                    let fragments = sides.map(|side| Fragment {
                        side,
                        records: 1,
                        payload: bytes(number, 20),
                    });
                    let skip = (thread + number) as usize % 3;
                    let fragments = fragments.into_iter().skip(skip).collect::<Vec<_>>();
                    let records = fragments.len() as u32;
                    let all: Vec<u8> = fragments.iter().flat_map(|f| f.payload.clone()).collect();
                    let mut pending = log.enter_fragments(fragments).unwrap();
                    let seqno = pending.assign(records);
                    // A transaction of any thread, which has been appended.
                    let on = newest.load(Ordering::SeqCst);
                    if log.wants_dependencies() && on < seqno.get() {
                        pending.depends_on(&[SeqNo::new(on)]);
                    }
                    pending.append(&[&all]);
                    newest.fetch_max(seqno.get(), Ordering::SeqCst);
                    let ticket = pending.finish();
                    ticket.wait().unwrap();
                    assert!(ticket.is_durable());
                    // With `gsn`, lanes are acknowledged by themselves.
                    assert!(log.durable_seqno() >= seqno || protocol == ProtocolKind::Gsn);
                }
            });
        }
    });
    log.close().unwrap();
}

/// With gsn, each lane makes progress of its own kind, whichever strands it has.
#[test]
fn progress_in_a_side_lane_is_noticed() {
    let options = LogOptions {
        strands: 3,
        lanes: 1,
        segment_bytes: 256 << 10,
        ..options(ProtocolKind::Gsn, FlushMode::Callers)
    };
    let log = Log::create(sim(&SimDevice::new(10)), options).unwrap();
    let append = |side: Option<usize>| {
        let pending = match side {
            None => log.enter(&[b"bytes"]),
            Some(side) => log.enter_in(side, &[b"bytes"]),
        };
        let mut pending = pending.unwrap();
        pending.assign(1);
        pending.append(&[b"bytes"]);
        pending.finish()
    };
    for side in [0, 1, 0, 1] {
        // Nobody flushes the other lanes, so they make no progress.
        append(None).detach();
        append(Some(1 - side)).detach();
        let calls = Arc::new(AtomicU32::new(0));
        for kind in 0..log.progress_kinds() {
            let calls = calls.clone();
            log.on_progress(kind, log.last_seqno(), move || {
                calls.fetch_add(1, Ordering::SeqCst);
            });
        }
        append(Some(side)).wait().unwrap();
        assert!(calls.load(Ordering::SeqCst) > 0, "side lane {side}");
        log.sync().unwrap();
    }
    log.close().unwrap();
}

/// Fails if commits wait for a write, and commits during the first one.
#[derive(Clone, Debug, Default)]
struct Watch(Arc<Mutex<Option<Log>>>);

impl Watch {
    fn check() {
        assert!(!braid_rt::is_holding(), "commits wait for this");
    }
}

impl Layer for Watch {
    fn before_write(&self, _: &str, _: Range<u64>) {
        Self::check();
        if let Some(log) = self.0.lock().unwrap().take() {
            let commit = || {
                let mut pending = log.enter(&[b"late"]).unwrap();
                pending.assign(1);
                pending.append(&[b"late"]);
                pending.finish().detach();
            };
            std::thread::scope(|scope| scope.spawn(commit).join().unwrap());
        }
    }

    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.before_write("", offset..offset);
        file.write_durable_at(bufs, offset)
    }

    fn sync(&self, file: &dyn File) -> io::Result<()> {
        Self::check();
        file.sync()
    }
}

/// A lane that is given up makes its own bytes durable, and nobody waits for those of other lanes.
#[test]
fn a_lane_is_given_up_while_commits_go_on_in_others() {
    for protocol in protocols() {
        let options = LogOptions {
            // Of one epoch, which ends when a thread waits.
            epoch: Duration::from_secs(3600),
            ..options(protocol, FlushMode::Callers)
        };
        let watch = Watch::default();
        let device = LayeredDevice::over(sim(&SimDevice::new(11)), watch.clone());
        let log = Log::create(Arc::new(device), options).unwrap();
        let mut pending = log.enter_in(0, &[b"bytes"]).unwrap();
        pending.assign(1);
        pending.append(&[b"bytes"]);
        let ticket = pending.finish();
        *watch.0.lock().unwrap() = Some(log.clone());
        log.retire_side_lane(0).unwrap();
        assert!(!log.has_side_lane(0) && ticket.is_durable(), "{protocol:?}");
        assert!(log.durable_seqno() < log.last_seqno(), "{protocol:?}");
        log.close().unwrap();
    }
}

#[test]
fn protocols_without_side_lanes_say_so() {
    for &protocol in ProtocolKind::ALL {
        let options = LogOptions {
            lanes: 1,
            ..options(protocol, FlushMode::Callers)
        };
        let created = Log::create(Devices::new(1).all(), options);
        match created {
            Ok(_) => assert!(protocol.has_side_lanes(), "{protocol}"),
            Err(LogError::Options { option, reason }) => {
                assert!(
                    !protocol.has_side_lanes() && option == "side_lanes",
                    "{reason}"
                );
            }
            Err(error) => panic!("{protocol}: {error}"),
        }
    }
}
