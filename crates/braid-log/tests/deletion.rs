//! Released log is deleted piece by piece, alongside commits and crashes.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{log_records, payload, recover, sim, small};
use braid_io::{Device, File, Layer, LayeredDevice, SimDevice};
use braid_log::{CheckpointPosition, FlushMode, Log, LogOptions};

/// Bytes of a released segment that are freed at once.
const PIECE: u64 = 1 << 20;

const RECORD: usize = 6_000;

fn options(discard: bool) -> LogOptions {
    LogOptions {
        strands: 1,
        segment_bytes: 4 << 20,
        discard,
        ..small(FlushMode::Callers)
    }
}

/// What happened to the files of a log.
#[derive(Debug, Default)]
struct Seen {
    /// By how many bytes a file was shortened, each time.
    cuts: Vec<u64>,
    /// How many bytes each deleted file had.
    deleted: Vec<u64>,
    /// The medium after a crash and after a kill at each of these moments.
    media: Vec<SimDevice>,
}

#[derive(Clone, Debug)]
struct Watch {
    medium: SimDevice,
    seen: Arc<Mutex<Seen>>,
}

impl Watch {
    fn new(medium: &SimDevice) -> Self {
        Self {
            medium: medium.clone(),
            seen: Arc::default(),
        }
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(LayeredDevice::over(sim(&self.medium), self.clone()))
    }

    fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    fn note_media(&self) {
        let media = [self.medium.after_crash(), self.medium.after_kill()];
        self.seen.lock().unwrap().media.extend(media);
    }
}

impl Layer for Watch {
    fn set_len(&self, file: &dyn File, len: u64) -> io::Result<()> {
        let bytes = file.len()?.saturating_sub(len);
        file.set_len(len)?;
        self.seen.lock().unwrap().cuts.push(bytes);
        self.note_media();
        Ok(())
    }

    fn remove(&self, device: &dyn Device, name: &str) -> io::Result<()> {
        let entries = device.list()?;
        let entry = entries.iter().find(|entry| entry.name == name);
        let len = entry.map_or(0, |entry| entry.len);
        device.remove(name)?;
        self.seen.lock().unwrap().deleted.push(len);
        self.note_media();
        Ok(())
    }
}

/// Writes `records` durable records, which are numbered from `from` on.
fn write(log: &Log, from: u64, records: u64) {
    for number in from..from + records {
        let ticket = log.append(&[&payload(number, RECORD)]).unwrap();
        assert_eq!(ticket.seqno().get(), number);
        ticket.wait().unwrap();
    }
}

/// Makes a position durable, after which the log before it may be released.
fn position(log: &Log) -> CheckpointPosition {
    let position = log.quiesce(|position| position);
    log.ticket(position.seqno).wait().unwrap();
    position
}

/// Writes a log and releases most of it. Returns the position before which it is released, and what happened
/// to the files. `after` further records follow that position.
fn released(watch: &Watch, options: &LogOptions, after: u64) -> (CheckpointPosition, Seen) {
    let log = Log::create(watch.device(), options.clone()).unwrap();
    write(&log, 1, 2_000);
    let earlier = position(&log);
    write(&log, 2_001, 1_000);
    let start = position(&log);
    write(&log, 3_001, after);
    // As many files as are released at once are kept for use.
    watch.take();
    log.release(&earlier).unwrap();
    log.release(&start).unwrap();
    (start, watch.take())
}

/// I6: what a crash leaves of a file that is being deleted is released log, whatever its length. The
/// next opening finds everything after the position, and uses or deletes the file.
#[test]
fn a_crash_leaves_any_part_of_a_released_segment() {
    for discard in [false, true] {
        let options = options(discard);
        let watch = Watch::new(&SimDevice::new(1));
        // The segment of the position is not the last one.
        let (start, seen) = released(&watch, &options, 1_000);
        let Seen {
            cuts,
            deleted,
            media,
        } = seen;
        assert!(cuts.len() > 3, "{discard}: {cuts:?}");
        assert!(cuts.iter().chain(&deleted).all(|&bytes| bytes <= PIECE));
        // A crash and a kill at every third moment.
        for medium in media.chunks(2).step_by(3).flatten() {
            let device = sim(medium);
            for round in 0..2 {
                let recovered = recover(&device, &options, &start);
                let found: Vec<u64> = log_records(&recovered).into_keys().collect();
                let last = 4_000 + 50 * round;
                assert_eq!(found, (3_001..=last).collect::<Vec<_>>());
                let log = recovered.into_log().unwrap();
                write(&log, last + 1, 50);
                log.close().unwrap();
            }
        }
    }
}

/// I10: a kill leaves a file shorter than it is on the medium. The next opening uses it for new log, whose
/// header says how long the file is; a loss of power then brings back the end that was cut off, unless the
/// length was made durable before.
#[test]
fn the_length_of_a_file_that_a_kill_has_cut_is_durable_before_it_is_used() {
    let options = options(false);
    let watch = Watch::new(&SimDevice::new(7));
    let (start, seen) = released(&watch, &options, 0);
    assert!(seen.media.len() > 8);
    for medium in seen.media.into_iter().skip(1).step_by(2) {
        let recovered = recover(&sim(&medium), &options, &start);
        let log = recovered.into_log().unwrap();
        write(&log, 3_001, 2_500);
        drop(log);
        let recovered = recover(&sim(&medium.after_crash()), &options, &start);
        let found: Vec<u64> = log_records(&recovered).into_keys().collect();
        assert_eq!(found, (3_001..=5_500).collect::<Vec<_>>());
    }
}

/// A reader of the log may read released log to its end if it has the file.
#[test]
fn a_segment_that_is_read_is_not_cut() {
    let options = options(true);
    let watch = Watch::new(&SimDevice::new(2));
    let log = Log::create(watch.device(), options).unwrap();
    let first = position(&log);
    // In segments of the greatest length.
    write(&log, 1, 1_500);
    let from = position(&log);
    let mut tail = log.tail(&from).unwrap();
    write(&log, 1_501, 1_000);
    let start = position(&log);
    let whole = log.bytes_between(&first, &start);
    watch.take();
    log.release(&start).unwrap();
    let Seen { cuts, deleted, .. } = watch.take();
    assert_eq!(cuts.iter().chain(&deleted).sum::<u64>(), whole);
    assert!(!cuts.is_empty() && cuts.iter().all(|&bytes| bytes == PIECE));
    let read: Vec<_> = deleted.iter().filter(|&&len| len > PIECE).collect();
    assert_eq!(read, [&(4 << 20)]);
    let mut found = 0;
    // The tail does not have the later files, which are released, too.
    let end = tail.read(usize::MAX, &mut |_| found += 1);
    assert!(
        matches!(end, Err(braid_log::LogError::Released { .. })),
        "{end:?}"
    );
}

/// The room that a file gives up counts at once: the limit holds for what is left of it.
#[test]
fn each_piece_makes_room_under_the_limit() {
    for background in [false, true] {
        let options = LogOptions {
            max_log_bytes: 24 << 20,
            flush_mode: if background {
                FlushMode::Background
            } else {
                FlushMode::Callers
            },
            ..options(true)
        };
        let watch = Watch::new(&SimDevice::new(3));
        let log = Log::create(watch.device(), options).unwrap();
        // Three times the limit: the log fails if what was deleted counts.
        for round in 0..6 {
            write(&log, 1 + round * 2_000, 2_000);
            let start = position(&log);
            log.release(&start).unwrap();
        }
        log.close().unwrap();
        let cuts = watch.take().cuts;
        assert!(cuts.iter().all(|&bytes| bytes == PIECE));
        assert!(!cuts.is_empty());
    }
}

/// Released log that a killed process had not deleted keeps no commit of the next one waiting.
#[test]
fn what_a_killed_process_left_is_deleted_piece_by_piece() {
    let medium = SimDevice::new(5);
    let log = Log::create(sim(&medium), options(true)).unwrap();
    write(&log, 1, 3_000);
    let start = position(&log);
    let watch = Watch::new(&medium.after_kill());
    drop(log);
    let options = LogOptions {
        flush_mode: FlushMode::Background,
        ..options(true)
    };
    let log = recover(&watch.device(), &options, &start)
        .into_log()
        .unwrap();
    write(&log, 3_001, 1);
    let begun = Instant::now();
    while watch.seen.lock().unwrap().deleted.len() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{watch:?}");
        std::thread::yield_now();
    }
    log.close().unwrap();
    let Seen { cuts, deleted, .. } = watch.take();
    assert!(cuts.iter().chain(&deleted).all(|&bytes| bytes <= PIECE));
}

/// A file system may need long for each piece, during which the device serves no flush.
#[test]
fn deleting_released_log_pauses_for_commits() {
    for is_idle in [true, false] {
        let watch = Watch::new(&SimDevice::new(4));
        let log = Log::create(watch.device(), options(true)).unwrap();
        write(&log, 1, 3_000);
        let start = position(&log);
        if !is_idle {
            drop(log.append(&[b"not durable yet"]).unwrap());
        }
        watch.take();
        let before = log.stats().background_pauses;
        log.release(&start).unwrap();
        let pieces = watch.take().cuts.len() as u64;
        assert!(pieces > 6, "{pieces}");
        let pauses = log.stats().background_pauses - before;
        // The first piece notices the commits before it.
        assert!(
            if is_idle {
                pauses <= 1
            } else {
                pauses >= pieces
            },
            "{pauses}"
        );
    }
}
