//! Log files that are cut, removed or replaced by earlier copies: recovery finds everything, or
//! returns an error that names the file.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use crate::common::{log_records, payload, small, try_recover};
use braid_io::{Device, MemoryDevice, OpenMode};
use braid_log::{CheckpointPosition, FlushMode, Log, LogError, LogOptions, ProtocolKind, SeqNo};

type Files = BTreeMap<String, Vec<u8>>;

const BLOCK: usize = 4096;

/// The place in a segment's header of the successor mark, which records that the next segment was
/// begun.
const MARK: std::ops::Range<usize> = 512..1024;

fn files(device: &Arc<dyn Device>) -> Files {
    let entries = device.list().unwrap().into_iter();
    let read = entries.map(|entry| {
        let file = device.open(&entry.name, OpenMode::Existing).unwrap();
        let mut bytes = vec![0; entry.len as usize];
        file.read_at(&mut bytes, 0).unwrap();
        (entry.name, bytes)
    });
    read.collect()
}

fn device(files: &Files) -> Arc<dyn Device> {
    let device = MemoryDevice::new();
    for (name, bytes) in files {
        let file = device.open(name, OpenMode::CreateNew).unwrap();
        file.write_at(&[bytes], 0).unwrap();
    }
    Arc::new(device)
}

fn name(sequence: u64) -> String {
    format!("log-00-{sequence:08}.seg")
}

fn options(protocol: ProtocolKind) -> LogOptions {
    LogOptions {
        protocol,
        strands: 1,
        lanes: 1,
        ..small(FlushMode::Callers)
    }
}

/// Appends transactions, each alone in its chunk.
fn append(log: &Log, numbers: std::ops::RangeInclusive<u64>) {
    for seqno in numbers {
        let ticket = log.append(&[&payload(seqno, 500)]).unwrap();
        ticket.wait().unwrap();
    }
}

/// A log of 40 chunks, which take three segments and a few blocks of a fourth.
fn log(protocol: ProtocolKind) -> (Files, LogOptions, CheckpointPosition) {
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let options = options(protocol);
    let log = Log::create(Arc::clone(&medium), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    append(&log, 1..=40);
    (files(&medium), options, start)
}

/// The sequence numbers of segments that hold log, so that are not ready for use.
fn begun(files: &Files) -> Vec<u64> {
    let begun = files.iter().filter(|(_, bytes)| bytes[..8] != [0; 8]);
    begun
        .map(|(name, _)| name[7..15].parse().unwrap())
        .collect()
}

fn refused(files: &Files, options: &LogOptions, start: &CheckpointPosition, file: &str) {
    match try_recover(&device(files), options, start) {
        Err(LogError::Corrupted { file: named, .. }) => assert_eq!(named, file),
        other => panic!("{file}: {other:?}"),
    }
}

#[test]
fn a_truncated_file_is_named() {
    for &protocol in ProtocolKind::ALL {
        let (whole, options, start) = log(protocol);
        let begun = begun(&whole);
        assert!(begun.len() >= 3);
        for &sequence in &begun {
            let name = name(sequence);
            let len = whole[&name].len();
            for cut in [
                0,
                1,
                100,
                BLOCK - 1,
                BLOCK,
                BLOCK + 1,
                len / 2 + 100,
                len - 1,
            ] {
                let mut files = whole.clone();
                files.get_mut(&name).unwrap().truncate(cut);
                refused(&files, &options, &start, &name);
            }
            // An extra byte loses nothing.
            let mut files = whole.clone();
            files.get_mut(&name).unwrap().push(7);
            let recovered = try_recover(&device(&files), &options, &start).unwrap();
            assert_eq!(log_records(&recovered).len(), 40, "{protocol}, {name}");
        }
    }
}

#[test]
fn a_missing_file_is_named_and_everything_before_it_saved() {
    for &protocol in ProtocolKind::ALL {
        let (whole, options, start) = log(protocol);
        for sequence in begun(&whole) {
            let mut files = whole.clone();
            let name = name(sequence);
            files.remove(&name);
            refused(&files, &options, &start, &name);
            let Ok((saved, notes)) = Log::salvage(device(&files), options.clone(), &start) else {
                assert_eq!(sequence, 1, "nothing lies before the first");
                continue;
            };
            let before = (1..sequence).map(|before| whole[&self::name(before)].len() / BLOCK - 1);
            assert_eq!(
                log_records(&saved).len(),
                before.sum::<usize>(),
                "{protocol}, {name}"
            );
            assert!(notes[0].contains(&name), "{notes:?}");
        }
    }
}

/// A checkpoint's position that leads elsewhere shows that a file was replaced. Both kinds of
/// position: at the beginning of a segment and after a chunk, also after the last one of a segment.
#[test]
fn a_position_that_the_log_does_not_have_is_refused() {
    type Change = fn(&mut CheckpointPosition);
    let changes: [Change; 6] = [
        |position| position.lanes[0].incarnation += 1,
        |position| position.lanes[0].chunk += 1,
        |position| position.lanes[0].segment += 100,
        |position| position.lanes[0].offset += 1,
        |position| position.lanes[0].offset = 0,
        |position| position.lanes[0].offset = 1 << 40,
    ];
    for &protocol in ProtocolKind::ALL {
        let medium: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let options = options(protocol);
        let log = Log::create(Arc::clone(&medium), options.clone()).unwrap();
        let mut positions = vec![log.quiesce(|start| start)];
        for number in 1..=20 {
            append(&log, number..=number);
            positions.push(log.quiesce(|position| position));
        }
        append(&log, 21..=40);
        let whole = files(&medium);
        let is_last = |position: &CheckpointPosition| {
            let lane = &position.lanes[0];
            lane.offset == whole[&name(lane.segment)].len() as u64
        };
        assert!(positions.iter().any(is_last));
        for position in positions {
            let recovered = try_recover(&device(&whole), &options, &position).unwrap();
            let after = 40 - position.seqno.get() as usize;
            assert_eq!(log_records(&recovered).len(), after);
            for change in changes {
                let mut changed = position.clone();
                change(&mut changed);
                let named = name(changed.lanes[0].segment);
                refused(&whole, &options, &changed, &named);
            }
            if position.lanes[0].offset == BLOCK as u64 {
                let mut changed = position.clone();
                changed.lanes[0].link ^= 1;
                refused(&whole, &options, &changed, &name(position.lanes[0].segment));
            }
        }
    }
}

/// Flushes that are in flight together may be lost in any order, so a crash may leave a segment
/// without the one before it. Nothing in the segment was acknowledged: recovery discards it.
#[test]
fn a_segment_after_a_lost_flush_is_discarded() {
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let options = options(ProtocolKind::Serial);
    let log = Log::create(Arc::clone(&medium), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    // While it is in flight, no chunk records anything as durable.
    let mut open = log.enter(&[&[0; 0]]).unwrap();
    assert_eq!(open.assign(1).get(), 1);
    for seqno in 2..=40 {
        // Full buffers are flushed.
        drop(log.append(&[&payload(seqno, 4000)]).unwrap());
    }
    let mut files = files(&medium);
    assert_eq!(begun(&files), [1, 2, 3]);
    let recover = |files: &Files| {
        let recovered = try_recover(&device(files), &options, &start).unwrap();
        log_records(&recovered).len()
    };
    assert_eq!(recover(&files), 39);
    // The flush that begins the second segment, and the flushes after it.
    files.get_mut(&name(2)).unwrap().fill(0);
    files.get_mut(&name(1)).unwrap()[MARK].fill(0);
    let found = recover(&files);
    assert!(0 < found && found < 39, "{found}");
    drop(open);
}

/// The same files, but the last segment began when the lost flush was durable: no crash explains
/// this.
#[test]
fn a_segment_after_lost_acknowledged_log_is_damage() {
    for &protocol in ProtocolKind::ALL {
        let (mut files, options, start) = log(protocol);
        files.get_mut(&name(2)).unwrap().fill(0);
        files.get_mut(&name(1)).unwrap()[MARK].fill(0);
        refused(&files, &options, &start, &name(3));
    }
}

/// The file before its current use: zeroes, or the contents of another segment.
#[test]
fn a_file_from_before_its_use_is_named() {
    let (whole, options, start) = log(ProtocolKind::Glsn);
    let begun = begun(&whole);
    let last = *begun.last().unwrap();
    let mut files = whole.clone();
    files.get_mut(&name(last)).unwrap().fill(0);
    refused(&files, &options, &start, &name(last));
    let other = whole[&name(last - 1)].clone();
    files.insert(name(last), other);
    refused(&files, &options, &start, &name(last));
}

/// The file when it held less: detected by a position of a checkpoint, or by a later opening.
#[test]
fn a_file_without_its_last_chunks_is_detected_by_later_files() {
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let options = options(ProtocolKind::Glsn);
    let log = Log::create(Arc::clone(&medium), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    append(&log, 1..=3);
    let earlier = files(&medium);
    append(&log, 4..=6);
    let checkpoint = log.quiesce(|start| start);
    append(&log, 7..=8);
    drop(log);
    let older = |now: &Files| {
        let mut files = now.clone();
        files.insert(name(1), earlier[&name(1)].clone());
        files
    };
    let now = files(&medium);
    refused(&older(&now), &options, &checkpoint, &name(1));
    let (_, notes) = Log::salvage(device(&older(&now)), options.clone(), &checkpoint).unwrap();
    assert!(notes[0].contains("older copy"), "{notes:?}");
    // Nothing else reveals log after the last checkpoint or opening, see docs/durability.md.
    let recovered = try_recover(&device(&older(&now)), &options, &start).unwrap();
    assert_eq!(recovered.cut.get(), 3);
    let recovered = try_recover(&medium, &options, &start).unwrap();
    let log = recovered.into_log().unwrap();
    append(&log, 9..=9);
    drop(log);
    refused(&older(&files(&medium)), &options, &start, &name(2));
}

/// Concurrent flushes end in any order: the first flush of a segment may be durable, and the last
/// one of the previous segment torn. That is not damage.
#[test]
fn a_torn_flush_before_a_started_segment_is_no_damage() {
    let (whole, options, start) = log(ProtocolKind::Glsn);
    let chunks = whole[&name(1)].len() / BLOCK - 1;
    let mut files = whole.clone();
    // The last chunk of the first segment was in flight when the next one was begun, whose header
    // records the durable seqno of that time.
    let first = files.get_mut(&name(1)).unwrap();
    first[chunks * BLOCK..].fill(0);
    let second = files.get_mut(&name(2)).unwrap();
    second[512..].fill(0);
    second[64..72].copy_from_slice(&(chunks as u64 - 2).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&second[..84]), &second[88..96]);
    second[84..88].copy_from_slice(&crc.to_le_bytes());
    files.retain(|file, _| *file <= name(2));
    let medium = device(&files);
    let recovered = try_recover(&medium, &options, &start).unwrap();
    assert_eq!(recovered.cut.get() as usize, chunks - 1);
    // The next opening can't use the file of the second segment, which is too long for it: it
    // deletes the file. The process may end at any step.
    let shorter = LogOptions {
        segment_bytes: 40 << 10,
        ..options.clone()
    };
    for step in 1..12 {
        let medium = sim_of(&files);
        medium.crash_after(step);
        let sim: Arc<dyn Device> = Arc::new(medium.clone());
        let opened = try_recover(&sim, &shorter, &start).and_then(|found| found.into_log());
        drop(opened);
        for after in [medium.after_crash(), medium.after_kill()] {
            let after: Arc<dyn Device> = Arc::new(after);
            let again = try_recover(&after, &options, &start)
                .unwrap_or_else(|error| panic!("step {step}: {error}"));
            assert_eq!(again.cut.get() as usize, chunks - 1, "step {step}");
        }
    }
}

/// I3: a crash leaves only the first chunk of a flush with chunks of two strands. The transactions in
/// it may depend on those of the lost chunk, and none of the flush was acknowledged: recovery
/// discards all.
#[test]
fn a_flush_without_its_last_chunk_is_discarded() {
    const THREADS: usize = 8;
    for protocol in [
        ProtocolKind::Gwsn,
        ProtocolKind::GwsnStrict,
        ProtocolKind::Gsn,
    ] {
        let medium: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let options = LogOptions {
            strands: 2,
            ..options(protocol)
        };
        let log = Log::create(Arc::clone(&medium), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        // Threads that exist at the same time have different numbers, and so use both strands.
        let exist = Barrier::new(THREADS);
        let append = || {
            exist.wait();
            drop(log.append(&[&payload(1, 100)]).unwrap());
            exist.wait();
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(append))));
        log.sync().unwrap();
        let mut files = files(&medium);
        let found = |files: &Files| {
            let recovered = try_recover(&device(files), &options, &start).unwrap();
            log_records(&recovered).len()
        };
        assert_eq!(found(&files), THREADS, "{protocol}");
        let chunks = &mut files.get_mut(&name(1)).unwrap()[BLOCK..];
        let following = u16::from_le_bytes([chunks[10], chunks[11]]);
        assert_eq!(following, 1, "{protocol}");
        let magic: [u8; 4] = chunks[..4].try_into().unwrap();
        let is_last = |at: &usize| chunks[*at..].starts_with(&magic);
        let last = (1..chunks.len()).find(is_last).unwrap();
        chunks[last..].fill(0);
        assert_eq!(found(&files), 0, "{protocol}");
    }
}

/// A user may store log of another database as a value. If a crash tears the chunk of this value, its
/// bytes lie after the end of the log. They say nothing about this log.
#[test]
fn log_of_another_database_after_a_torn_chunk_is_no_damage() {
    for &protocol in ProtocolKind::ALL {
        let (own, options, start) = log(protocol);
        let (other, ..) = log(protocol);
        let torn_before = |chunk: &[u8]| {
            let mut files = own.clone();
            files.retain(|file, _| *file == name(1));
            let first = files.get_mut(&name(1)).unwrap();
            first[MARK].fill(0);
            first[4 * BLOCK..].fill(0);
            first[6 * BLOCK..7 * BLOCK].copy_from_slice(chunk);
            files
        };
        let chunk = |log: &Files| log[&name(1)][6 * BLOCK..7 * BLOCK].to_vec();
        let files = torn_before(&chunk(&other));
        let recovered = try_recover(&device(&files), &options, &start).unwrap();
        assert_eq!(recovered.cut.get(), 3, "{protocol}");
        // The log's own chunk, in the same place, says that more was durable.
        refused(&torn_before(&chunk(&own)), &options, &start, &name(1));
    }
}

/// The checksums of the chunks of an earlier version do not begin with the identity.
#[test]
fn a_log_of_an_earlier_version_is_read_and_continued() {
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let options = options(ProtocolKind::Gwsn);
    let log = Log::create(Arc::clone(&medium), options.clone()).unwrap();
    let start = log.quiesce(|start| start);
    append(&log, 1..=5);
    drop(log);
    let mut files = files(&medium);
    let first = files.get_mut(&name(1)).unwrap();
    let chunks = braid_log::fuzzing::chunks(first);
    assert_eq!(chunks.len(), 5);
    braid_log::fuzzing::make_earlier(first);
    braid_log::fuzzing::seal_header(first);
    assert_eq!(
        try_recover(&device(&files), &options, &start).unwrap().cut,
        SeqNo::NONE,
        "the checksums differ"
    );
    let first = files.get_mut(&name(1)).unwrap();
    braid_log::fuzzing::seal_chunks(first, None, &chunks, true);
    let medium = device(&files);
    let recovered = try_recover(&medium, &options, &start).unwrap();
    assert_eq!(log_records(&recovered).len(), 5);
    let log = recovered.into_log().unwrap();
    append(&log, 6..=20);
    drop(log);
    let recovered = try_recover(&medium, &options, &start).unwrap();
    assert_eq!(log_records(&recovered).len(), 20);
}

fn sim_of(files: &Files) -> braid_io::SimDevice {
    let medium = braid_io::SimDevice::new(1);
    for (name, bytes) in files {
        let file = medium.open(name, OpenMode::CreateNew).unwrap();
        let mut aligned = medium.allocate(bytes.len());
        aligned.copy_from_slice(bytes);
        file.write_at(&[&aligned], 0).unwrap();
        file.sync().unwrap();
    }
    medium.sync_directory().unwrap();
    medium
}

#[test]
fn an_error_of_the_replay_ends_it() {
    let (whole, options, start) = log(ProtocolKind::Gsn);
    let recovered = try_recover(&device(&whole), &options, &start).unwrap();
    for threads in [1, 4] {
        let calls = AtomicUsize::new(0);
        let failed = recovered.for_each_parallel(threads, |log_record| {
            calls.fetch_add(1, Ordering::Relaxed);
            let what = format!("a test refuses number {}", log_record.seqno);
            Err(LogError::Incompatible { what })
        });
        assert!(matches!(failed, Err(LogError::Incompatible { .. })));
        // Each thread may have begun a part of the log.
        assert!(calls.into_inner() <= threads);
    }
}

#[test]
fn log_is_kept_from_earlier_positions_of_the_same_log() {
    // With a protocol that has no side lanes, which may have been given up since.
    let (whole, options, start) = log(ProtocolKind::Serial);
    let mut recovered = try_recover(&device(&whole), &options, &start).unwrap();
    recovered.retain(start.clone()).unwrap();
    let mut later = start.clone();
    later.lanes[0].segment += 1;
    let mut wider = start.clone();
    wider.lanes.push(start.lanes[0]);
    for wrong in [later, wider] {
        let refused = recovered.retain(wrong);
        assert!(matches!(refused, Err(LogError::Incompatible { .. })));
    }
}

#[test]
fn a_reader_notices_segments_that_were_released() {
    let (whole, options, start) = log(ProtocolKind::Gsn);
    let recovered = try_recover(&device(&whole), &options, &start).unwrap();
    let is_there = |files: &Files| recovered.is_still_there(&*device(files)).unwrap();
    assert!(is_there(&whole));
    let (first, second) = (name(1), name(2));
    let mut removed = whole.clone();
    removed.remove(&first);
    assert!(!is_there(&removed));
    // Renamed for use, and prepared.
    let mut reused = whole.clone();
    reused.insert(first.clone(), whole[&second].clone());
    assert!(!is_there(&reused));
    let mut prepared = whole.clone();
    prepared.get_mut(&first).unwrap()[..BLOCK].fill(0);
    assert!(!is_there(&prepared));
    assert!(!is_there(&log(ProtocolKind::Gsn).0), "another log");
    // A file that cannot be opened may still be there.
    let off = sim_of(&whole);
    off.power_off();
    let unknown = recovered.is_still_there(&off);
    assert!(matches!(unknown, Err(LogError::Io { .. })), "{unknown:?}");
}

#[test]
fn a_reader_that_cannot_make_the_log_durable_says_so() {
    let (whole, options, start) = log(ProtocolKind::Gsn);
    let recovered = try_recover(&device(&whole), &options, &start).unwrap();
    recovered.make_durable(&sim_of(&whole)).unwrap();
    // The files of the log, and the directory.
    let syncs = begun(&whole).len() as u64 + 1;
    for failing in 1..=syncs {
        let device = sim_of(&whole);
        device.fail_sync_after(failing);
        let outcome = recovered.make_durable(&device);
        assert!(
            matches!(outcome, Err(LogError::Io { .. })),
            "sync {failing}"
        );
    }
}

#[test]
fn the_oldest_position_has_all_lanes() {
    for lanes in 1..=3 {
        let medium: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let empty = Log::recovery_position(&*medium);
        assert!(matches!(empty, Err(LogError::Incompatible { .. })));
        let options = LogOptions {
            strands: 3,
            lanes,
            segment_bytes: 256 << 10,
            ..options(ProtocolKind::Gsn)
        };
        let log = Log::create(Arc::clone(&medium), options.clone()).unwrap();
        append(&log, 1..=5);
        let position = Log::recovery_position(&*medium).unwrap();
        assert_eq!(position.lanes.len(), lanes);
        let recovered = try_recover(&medium, &options, &position).unwrap();
        assert_eq!(log_records(&recovered).len(), 5);
    }
}

/// A file of a lane that the log does not have, for example of another log.
#[test]
fn files_of_other_lanes_are_left_alone() {
    let (mut files, options, start) = log(ProtocolKind::Gsn);
    let first = files[&name(1)].clone();
    for other in ["log-01-00000001.seg", "log-07-00000001.seg"] {
        files.insert(other.to_owned(), first.clone());
    }
    let recovered = try_recover(&device(&files), &options, &start).unwrap();
    assert_eq!(log_records(&recovered).len(), 40);
}

/// A crash strikes after the first flush into a segment and before the mark that names it. Recovery keeps
/// what the flush wrote, and later log depends on it.
#[test]
fn a_mark_that_a_crash_prevented_is_written_before_the_log_continues() {
    for &protocol in ProtocolKind::ALL {
        let (mut files, options, start) = log(protocol);
        let begun = begun(&files);
        for sequence in &begun {
            files.get_mut(&name(*sequence)).unwrap()[MARK].fill(0);
        }
        let medium = device(&files);
        let log = try_recover(&medium, &options, &start)
            .unwrap()
            .into_idle_log()
            .unwrap();
        assert_eq!(self::files(&medium), files, "an opening writes nothing");
        append(&log, 41..=42);
        drop(log);
        let files = self::files(&medium);
        let last = *begun.last().unwrap();
        for first in 2..=last {
            let mut files = files.clone();
            files.retain(|file, _| *file < name(first));
            refused(&files, &options, &start, &name(first));
        }
    }
}
