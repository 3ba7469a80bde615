//! Drives the driver through the faults of the model of a controller.
//!
//!     cargo run --release -p braid-nvme --example controller_model -- 0..100000

use std::process::ExitCode;

use braid_nvme::model::exercise;

fn main() -> ExitCode {
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
