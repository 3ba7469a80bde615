//! Measures a bare log of 64 KiB records, with two threads and 16 commits in flight each, alone and
//! while every processor copies memory for a share of the time, as an engine does for the values
//! that it keeps:
//!
//! ```text
//! cargo run --profile fat -p braid-bench --example busy -- DIRECTORY SHARE
//! ```
//!
//! The two alternate every two seconds. The program prints each of nine rounds, or as many as a
//! third argument says, and the median of their ratios.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_bench::bare_log;
use braid_io::{DeviceChoice, open_directory};

const RECORD_BYTES: usize = 64 << 10;
const TURN: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_millis(1);

/// Larger than the processor's caches.
const MEMORY: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "busy DIRECTORY SHARE [ROUNDS]";
    let dir = PathBuf::from(args.next().ok_or(usage)?);
    let share: f64 = args.next().ok_or(usage)?.parse()?;
    if !(0.0..=1.0).contains(&share) {
        return Err("the share is from 0 to 1".into());
    }
    let rounds: usize = args.next().as_deref().unwrap_or("9").parse()?;
    std::fs::create_dir_all(&dir)?;
    let device = open_directory(&dir, DeviceChoice::default())?;
    let log = || bare_log(&device, 2, 16, RECORD_BYTES, TURN).map(|report| report.tx_per_s);
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let alone = log()?;
        let busy = with_copies(share, log)?;
        println!("{alone:8.0} a second alone, {busy:8.0} with copies");
        ratios.push(busy / alone);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    if let Some(median) = ratios.get(rounds / 2) {
        println!("median of the ratios {median:.2}");
    }
    Ok(())
}

/// Calls `work` while each processor copies memory for a share of each period.
fn with_copies<R>(share: f64, work: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..processors {
            scope.spawn(|| copy(share, &done));
        }
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

fn copy(share: f64, done: &AtomicBool) {
    let mut memory = vec![1_u8; 2 * MEMORY];
    let (from, to) = memory.split_at_mut(MEMORY);
    let mut parts = (0..MEMORY).step_by(RECORD_BYTES).cycle();
    let busy = PERIOD.mul_f64(share);
    while !done.load(Ordering::Relaxed) {
        let begun = Instant::now();
        while begun.elapsed() < busy {
            let part = parts.next().unwrap_or(0);
            let part = part..part + RECORD_BYTES;
            to[part.clone()].copy_from_slice(&from[part]);
        }
        std::hint::black_box(&mut *to);
        thread::sleep(PERIOD.saturating_sub(begun.elapsed()));
    }
}
