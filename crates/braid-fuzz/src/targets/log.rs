//! Damaged logs: segment headers, chunks, log records, the checkpoint position.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use braid_io::MemoryDevice;
use braid_log::{
    CheckpointPosition, DuringScan, FlushMode, Log, LogError, LogOptions, LogRecord, ProtocolKind,
};

use super::Target;
use crate::edit::{Image, Input, Outcome};

const PROTOCOLS: [ProtocolKind; 7] = [
    ProtocolKind::Serial,
    ProtocolKind::Aether,
    ProtocolKind::Epoch,
    ProtocolKind::Glsn,
    ProtocolKind::Gwsn,
    ProtocolKind::GwsnStrict,
    ProtocolKind::Gsn,
];

/// Name under which an image contains the checkpoint position, so that scripts reach it.
const START: &str = "start";

type LogRecords = BTreeMap<u64, Vec<u8>>;

struct Base {
    options: LogOptions,
    image: Image,
    log_records: LogRecords,
}

pub(super) const LOG: Target = Target {
    name: "log",
    run,
    corpus: || {
        let protocols = 0..PROTOCOLS.len() as u8;
        let with = |protocol: u8| {
            super::scripts().into_iter().map(move |mut script| {
                script.insert(0, protocol);
                script
            })
        };
        protocols.flat_map(with).collect()
    },
    runs: 1_500,
};

/// Writes a log of two incarnations with small and streamed log records.
fn make(protocol: ProtocolKind) -> Result<Base, LogError> {
    let several = protocol.forced_strands().is_none();
    let options = LogOptions {
        protocol,
        strands: if several { 2 } else { 1 },
        lanes: if several { 2 } else { 1 },
        segment_bytes: 64 << 10,
        slot_bytes: 8192,
        flush_mode: FlushMode::Callers,
        ..LogOptions::default()
    };
    let device = Arc::new(MemoryDevice::new());
    let log = Log::create(device.clone(), options.clone())?;
    append(&log, 1)?;
    log.close()?;
    let start = Log::recovery_position(&*device)?;
    let log = Log::recover(device.clone(), options.clone(), &start, &|_| {})?.into_log()?;
    append(&log, 2)?;
    log.sync()?;
    let log_records = recovered(&device, &options, &start)?;
    assert_eq!(log_records.len(), 16, "all log records are there");
    let mut image = Image::of(&*device, 4096);
    let mut start = start.encode();
    start.resize(4096, 0);
    image.files.push((START.into(), start));
    Ok(Base {
        options,
        image,
        log_records,
    })
}

fn append(log: &Log, salt: u8) -> Result<(), LogError> {
    for i in 0..8u8 {
        let len = match i {
            5 => 20_000,
            _ => 10 + 400 * usize::from(i),
        };
        log.append(&[&vec![salt * 16 + i; len]])?.wait()?;
    }
    Ok(())
}

fn recovered(
    device: &Arc<MemoryDevice>,
    options: &LogOptions,
    start: &CheckpointPosition,
) -> Result<LogRecords, LogError> {
    let recovered = Log::recover(device.clone(), options.clone(), start, &|_| {})?;
    let mut log_records = LogRecords::new();
    recovered.for_each(|log_record| {
        log_records.insert(log_record.seqno.get(), log_record.payload.to_vec());
    })?;
    Ok(log_records)
}

/// As [`recovered`], but replays during the scan.
fn recovered_in_one_pass(
    device: &Arc<MemoryDevice>,
    options: &LogOptions,
    start: &CheckpointPosition,
) -> Result<LogRecords, LogError> {
    let log_records = Mutex::new(LogRecords::new());
    let add = |log_record: LogRecord<'_>| {
        let (seqno, bytes) = (log_record.seqno.get(), log_record.payload.to_vec());
        let mut log_records = log_records.lock().expect("no other thread panics");
        log_records.insert(seqno, bytes);
    };
    let accept = |log_records: &[LogRecord<'_>]| {
        log_records.iter().copied().for_each(add);
        true
    };
    let during = DuringScan {
        accept: &accept,
        threads: 0,
        waiting_bytes: 64 << 10,
    };
    let (device, options) = (device.clone(), options.clone());
    let recovered = Log::recover_and_replay(device, options, start, None, &|_| {}, &during)?;
    recovered.for_each(add)?;
    Ok(log_records.into_inner().expect("no thread panicked"))
}

fn bases() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    let make = |&protocol| make(protocol).expect("a log in memory");
    BASES.get_or_init(|| PROTOCOLS.iter().map(make).collect())
}

/// Repairs the checksums of a segment.
pub(super) fn seal(edited: &mut [u8], original: &[u8], relink: bool) {
    braid_log::fuzzing::seal_header(edited);
    let chunks = braid_log::fuzzing::chunks(original);
    braid_log::fuzzing::seal_chunks(
        edited,
        braid_log::fuzzing::identity(edited),
        &chunks,
        relink,
    );
}

fn run(bytes: &[u8]) {
    let Some((&protocol, script)) = bytes.split_first() else {
        return;
    };
    let base = &bases()[usize::from(protocol) % PROTOCOLS.len()];
    let mut image = base.image.clone();
    let mut outcome = image.edit(&mut Input(script));
    if outcome.seals() {
        for ((name, edited), (_, original)) in image.files.iter_mut().zip(&base.image.files) {
            if name != START {
                seal(edited, original, outcome.rebinds());
            }
        }
    }
    let (_, start) = image.files.pop().expect("the start position comes last");
    outcome.replaced |= start != base.image.files[image.files.len()].1;
    let len = 20 + 32 * base.options.lanes;
    let Ok(start) = CheckpointPosition::decode(start.get(..len).unwrap_or(&start)) else {
        return;
    };
    let _ = look(base, image.device(), &start, outcome);
}

fn look(
    base: &Base,
    device: Arc<MemoryDevice>,
    start: &CheckpointPosition,
    outcome: Outcome,
) -> Result<(), LogError> {
    let _ = Log::recovery_position(&*device);
    let recovered = Log::recover(device.clone(), base.options.clone(), start, &|_| {})?;
    let mut log_records = LogRecords::new();
    recovered.for_each(|log_record| {
        log_records.insert(log_record.seqno.get(), log_record.payload.to_vec());
    })?;
    let in_one_pass = recovered_in_one_pass(&device, &base.options, start);
    // Forged chunks may repeat numbers, or call durable what depends on missing log records.
    if !outcome.seals() {
        let found = in_one_pass.expect("two passes succeeded");
        assert!(found == log_records, "one pass finds other log records");
    }
    if outcome.must_be_noticed() {
        let is_true =
            |(number, log_record): (&u64, _)| base.log_records.get(number) == Some(log_record);
        assert!(
            log_records.iter().all(is_true),
            "damage was taken for a log record"
        );
    }
    if outcome.lost_file {
        assert!(
            log_records == base.log_records,
            "a lost file went unnoticed"
        );
    }
    // The log continues after what recovery accepted.
    let log = recovered.into_log()?;
    let ticket = log.append(&[b"later"])?;
    ticket.wait()?;
    // The last assigned number may differ: in `gsn`, numbers of other lanes may have been recovered
    // with it.
    let number = ticket.seqno().get();
    drop(ticket);
    log.close()?;
    let again = self::recovered(&device, &base.options, start)?;
    let later = again.get(&number).map(|log_record| &log_record[..]);
    assert_eq!(later, Some(&b"later"[..]), "what came later is there");
    Ok(())
}
