//! `braid`, the command line of the Braid storage engine.

mod commands;
mod datum;
mod failure;
mod numbers;
mod output;
mod records;
mod scratch;
mod signals;
mod suggest;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    backup, bench, changes, compact, demo, dump, export, import, manual, shell, simulate, stat,
    upgrade, verify,
};
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
    ///
    /// With --repair --into DIR, save what can be read of a damaged one into a new one, and tell what is lost.
    Verify(verify::VerifyArgs),
    /// List the log and the pages of a closed database for people to read
    Dump(dump::DumpArgs),
    /// Make a backup of a database, full or on top of an earlier one
    Backup(backup::BackupArgs),
    /// Restore backups into a new database, up to any point that an archive of the log reaches
    Restore(backup::RestoreArgs),
    /// Bring the archive of a database's log up to date
    ///
    /// A program that is to be archived while it runs opens its database with `Builder::archive`; this command
    /// archives a database that no process has open. Exits with 1 and names what is missing if the archive and the
    /// newest backup do not lead to every transaction: make a new backup then. The database keeps log for the archive
    /// from the first time on; --end stops that.
    Archive(backup::ArchiveArgs),
    /// Print committed transactions in their order, as lines of JSON; keys and values are hexadecimal
    Changes(changes::ChangesArgs),
    /// Write tables as JSON lines or CSV, as they are in one snapshot
    Export(export::ExportArgs),
    /// Read tables from JSON lines or CSV, in large transactions
    ///
    /// Entries that are there already are overwritten. A line that makes no sense ends the import with an
    /// error that names it; the batches before it stay, nothing of its own batch does.
    Import(import::ImportArgs),
    /// Read and change a database by hand, or from a script
    ///
    /// At a terminal with history and completion; from a pipe or with -c it runs the commands given and ends
    /// with 1 at the first that fails. Begin with `help`.
    Shell(shell::ShellArgs),
    /// Make the data file as short as it can be
    ///
    /// Moves pages into free space before them, by checkpoints, and cuts the file. A crash at any moment
    /// costs nothing.
    Compact(compact::CompactArgs),
    /// Bring a database of an older version to the present format
    Upgrade(upgrade::UpgradeArgs),
    /// Print a script that completes this command in a shell
    ///
    /// For bash: braid completions bash > ~/.local/share/bash-completion/completions/braid
    Completions(manual::CompletionsArgs),
    /// Write manual pages of this command and its subcommands into a directory
    Man(manual::ManArgs),
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
        Command::Export(args) => export::run(&args, &mut output),
        Command::Import(args) => import::run(&args, &mut output),
        Command::Shell(args) => shell::run(&args, &mut output),
        Command::Compact(args) => compact::run(&args, &mut output),
        Command::Upgrade(args) => upgrade::run(&args, &mut output),
        Command::Completions(args) => manual::completions(&args, Cli::command(), &mut output),
        Command::Man(args) => manual::man(&args, Cli::command(), &mut output),
        Command::DemoWorker(args) => demo::run_worker(&args),
    };
    let result = result.and_then(|()| output.flush());
    signals::wait_if_interrupted();
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
