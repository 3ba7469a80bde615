//! Drives the driver through the faults of the model of a controller.
//!
//!     cargo run --release -p braid-nvme --example controller_model -- 0..100000
//!
//! `controller_model writes COUNT BYTES drive|heap` performs durable writes instead, from memory that
//! the controller can access, or from the heap, which the driver copies: to count the instructions of
//! both under callgrind.

use std::process::ExitCode;
use std::sync::Arc;

use braid_nvme::model::{ModelHost, ModelOptions, exercise};
use braid_nvme::{Blocking, ControllerOptions, DmaBuffer, NvmeDrive};

fn writes(arguments: &[String]) -> Option<()> {
    let [count, bytes, memory] = arguments else {
        return None;
    };
    let (count, bytes): (u64, usize) = (count.parse().ok()?, bytes.parse().ok()?);
    let host = ModelHost::new(ModelOptions::default());
    let drive = NvmeDrive::open(host, ControllerOptions::default()).ok()?;
    let blocking = Blocking::new(Arc::new(drive));
    let buffer = match memory.as_str() {
        "drive" => blocking.allocate(bytes),
        "heap" => DmaBuffer::on_heap(bytes, 4096),
        _ => return None,
    };
    for _ in 0..count {
        blocking.write_durable(0, &buffer).ok()?;
    }
    Some(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .first()
        .is_some_and(|argument| argument == "writes")
    {
        let done = writes(&arguments[1..]);
        return done.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let argument = std::env::args().nth(1).unwrap_or_else(|| "0..1000".into());
    let range = argument
        .split_once("..")
        .and_then(|(from, to)| Some(from.parse::<u64>().ok()?..to.parse::<u64>().ok()?));
    let Some(range) = range else {
        eprintln!("expected a range of seeds, such as 0..1000");
        return ExitCode::FAILURE;
    };
    let (mut seeds, mut commands, mut failed, mut resets, mut removed) = (0u64, 0, 0, 0, 0u64);
    for seed in range {
        match exercise(seed) {
            Ok(one) => {
                seeds += 1;
                commands += one.commands;
                failed += one.failed;
                resets += one.resets;
                removed += u64::from(one.removed);
            }
            Err(violation) => {
                eprintln!("seed {seed}: {violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{seeds} seeds: {commands} commands, {failed} failed, {resets} resets, {removed} drives \
         gone; no violation"
    );
    ExitCode::SUCCESS
}
