//! A log that is written at full speed for a long time, with its old parts discarded or
//! overwritten.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_log::{Log, LogError, LogOptions};

use super::{Diagram, PaperSpec};
use crate::BenchError;

const RECORD: usize = 4 << 10;

/// Amount of log after which everything before is released, as a checkpoint would.
const RELEASE_EVERY: u64 = 128 << 20;

/// Number of points of each curve.
const SAMPLES: u32 = 20;

/// P-WAL, Fig. 15: MiB per second over time.
pub(super) fn with_and_without_trim(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let title = "P-WAL Fig. 15: sustained log writes";
    let mut diagram = Diagram::new("pwal-15", title, "seconds", "MiB/s");
    for (series, discard) in [("with trim", true), ("without trim", false)] {
        progress(series);
        for (seconds, mib_per_s) in measure(spec, discard)? {
            diagram.add(series, seconds, mib_per_s);
        }
    }
    Ok(vec![diagram])
}

fn measure(spec: &PaperSpec, discard: bool) -> Result<Vec<(f64, f64)>, BenchError> {
    let dir = spec.dir.join(if discard { "trim" } else { "no-trim" });
    std::fs::create_dir_all(&dir).map_err(|e| BenchError::io("cannot create the directory", e))?;
    let device = braid_io::open_directory(&dir, spec.device)
        .map_err(|e| BenchError::io("cannot open a directory", e))?;
    let options = LogOptions {
        discard,
        ..LogOptions::default()
    };
    let log = Log::create(device, options).map_err(failed)?;
    let over = AtomicBool::new(false);
    let writers = spec.threads.iter().copied().max().unwrap_or(1);
    let samples = thread::scope(|scope| {
        for _ in 0..writers {
            let (log, over) = (&log, &over);
            scope.spawn(move || {
                let record = [0x5a; RECORD];
                // The sampler, which syncs the log, reports errors.
                while !over.load(Ordering::Relaxed)
                    && log.append(&[&record]).is_ok_and(|ticket| {
                        // Enough in flight that the device is never idle, but not more than the
                        // buffers hold.
                        ticket.seqno().get() % 64 != 0 || ticket.wait().is_ok()
                    })
                {}
            });
        }
        let samples = sample(&log, spec.each);
        over.store(true, Ordering::Relaxed);
        samples
    });
    let samples = samples.map_err(failed)?;
    log.close().map_err(failed)?;
    std::fs::remove_dir_all(&dir).map_err(|e| BenchError::io("cannot remove a log", e))?;
    Ok(samples)
}

fn sample(log: &Log, each: Duration) -> Result<Vec<(f64, f64)>, LogError> {
    let mut samples = Vec::new();
    let begun = Instant::now();
    let (mut at, mut bytes, mut released) = (begun, log.stats().written_bytes, 0);
    while samples.len() < SAMPLES as usize {
        thread::sleep(each / SAMPLES);
        let (now, written) = (Instant::now(), log.stats().written_bytes);
        let mib = (written - bytes) as f64 / f64::from(1 << 20);
        samples.push(((now - begun).as_secs_f64(), mib / (now - at).as_secs_f64()));
        (at, bytes) = (now, written);
        if written - released >= RELEASE_EVERY {
            let start = log.quiesce(|start| start);
            log.sync()?;
            log.release(&start)?;
            released = written;
        }
    }
    log.sync()?;
    Ok(samples)
}

fn failed(error: LogError) -> BenchError {
    BenchError::from(braid::Error::from(error))
}
