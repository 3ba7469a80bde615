//! `braid`, the command line of the Braid storage engine.

mod commands;
mod failure;
mod numbers;
mod output;
mod scratch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{backup, bench, changes, demo, dump, simulate, stat, verify};
use crate::failure::Failure;
use crate::output::Output;

/// The command line of the Braid storage engine.
#[derive(Debug, Parser)]
#[command(name = "braid", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Move money between accounts, kill the process again and again, and check what is recovered
    ///
    /// A child process runs concurrent durable transfers. It is killed with SIGKILL at random
    /// moments; each time the database is recovered and checked: no acknowledged transfer is lost,
    /// none is doubled or half done, and the sum of all balances is unchanged. Exits with 1 if any
    /// check fails.
    Demo(demo::DemoArgs),
    /// Measure a workload, the device, or recovery
    Bench(Box<bench::BenchArgs>),
    /// Run the engine through simulated crashes and check what it does
    ///
    /// Concurrent clients, the engine's own threads, the medium, its faults and the moments of crashes are
    /// decided by seeds, so whatever goes wrong can be had again. Exits with 1 and the seed if a
    /// rule is broken: an acknowledged transaction lost, one half there, reads that fit no order, a wait
    /// without end.
    Simulate(simulate::SimulateArgs),
    /// Show a database's tables, sizes and counters
    ///
    /// Opens the database, which recovers it if it was not closed cleanly.
    Stat(stat::StatArgs),
    /// Check every checksum and structure of a closed database; exit with 1 and a list on damage
    Verify(verify::VerifyArgs),
    /// List the log and the pages of a closed database for people to read
    Dump(dump::DumpArgs),
    /// Make a backup of a database, full or on top of an earlier one
    Backup(backup::BackupArgs),
    /// Restore backups into a new database, up to any point that an archive of the log reaches
    Restore(backup::RestoreArgs),
    /// Bring the archive of a database's log up to date
    ///
    /// A program that is to be archived while it runs opens its database with `Builder::archive`; this does
    /// the rest of the work when it could not.
    Archive(backup::ArchiveArgs),
    /// Print committed transactions in their order, as lines of JSON; keys and values are hexadecimal
    Changes(changes::ChangesArgs),
    /// The child process of `demo`
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
}

fn main() -> ExitCode {
    // Clap prints its own errors and exits with 2.
    let cli = Cli::parse();
    let mut output = Output::stdout();
    let result = match cli.command {
        Command::Demo(args) => demo::run(&args, &mut output),
        Command::Bench(args) => bench::run(&args, &mut output),
        Command::Simulate(args) => simulate::run(&args, &mut output),
        Command::Stat(args) => stat::run(&args, &mut output),
        Command::Verify(args) => verify::run(&args, &mut output),
        Command::Dump(args) => dump::run(&args, &mut output),
        Command::Backup(args) => backup::backup(&args, &mut output),
        Command::Restore(args) => backup::restore(&args, &mut output),
        Command::Archive(args) => backup::archive(&args, &mut output),
        Command::Changes(args) => changes::run(&args, &mut output),
        Command::DemoWorker(args) => demo::run_worker(&args),
    };
    let result = result.and_then(|()| output.flush());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has had enough of it: not an error.
        Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(failure) => {
            // If even standard error is gone there is nobody left to tell.
            let _ = output.flush();
            output::complain(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}
