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
    backup, bench, changes, compact, demo, dump, export, import, manual, nvme, pmem, serve, shell,
    simulate, stat, upgrade, verify,
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
    /// Measure a workload, a device, recovery, or stalls
    Bench(Box<bench::BenchArgs>),
    /// Run the engine through simulated crashes and check what it does
    ///
    /// Seeds decide everything: clients, the engine's threads, the medium, its faults, and the
    /// moments of crashes. So every failure can be reproduced. Exits with 1 and names the seed if a
    /// rule is violated: an acknowledged transaction is lost, a transaction is recovered in part,
    /// reads match no serial order, or a thread waits forever.
    Simulate(simulate::SimulateArgs),
    /// Show a database's tables, sizes and counters
    ///
    /// Reads only, so it needs read permission only and works while another process writes.
    Stat(stat::StatArgs),
    /// Check all checksums and structures of a database, and list any damage
    ///
    /// Works while another process writes: it then checks the newest checkpoint and the durable
    /// log. Exits with 1 if anything is damaged. With --repair --into DIR, salvages what can be
    /// read into a new database and lists what is lost; no other process may have the database open
    /// then.
    Verify(verify::VerifyArgs),
    /// Print the log records and pages of a database as text
    Dump(dump::DumpArgs),
    /// Make a full or incremental backup of a database
    Backup(backup::BackupArgs),
    /// Restore backups, and optionally an archive of the log, into a new database
    Restore(backup::RestoreArgs),
    /// Bring the archive of a database's log up to date
    ///
    /// A program archives its own log while it runs if it opens the database with
    /// `Builder::archive`; this command archives a database that no process has open. Exits with 1
    /// and names what is missing if the archive and the newest backup do not cover every
    /// transaction: make a new backup then. From the first time on, the database keeps the log that
    /// the archive still needs; --end stops that.
    Archive(backup::ArchiveArgs),
    /// Print committed transactions in commit order as JSON lines, keys and values in hexadecimal
    Changes(changes::ChangesArgs),
    /// Write a snapshot of tables as JSON lines or CSV
    Export(export::ExportArgs),
    /// Read entries from JSON lines or CSV into tables
    ///
    /// Overwrites existing entries. Commits large batches. A malformed line ends the import with an
    /// error that names the line: earlier batches stay committed, the batch of the line is rolled
    /// back.
    Import(import::ImportArgs),
    /// Read and change a database interactively or from a script
    ///
    /// At a terminal it offers history and completion; from a pipe or with -c it runs the given
    /// commands and exits with 1 at the first that fails. Begin with `help`.
    Shell(shell::ShellArgs),
    /// Serve a database to Redis clients
    ///
    /// Every answered write is durable. Ends after SHUTDOWN, SIGINT or SIGTERM, when everything in
    /// progress is answered.
    Serve(serve::ServeArgs),
    /// Make the data file as small as possible
    ///
    /// Moves pages into free blocks closer to the start, takes checkpoints, and truncates the file.
    /// A crash at any moment loses nothing.
    Compact(compact::CompactArgs),
    /// Convert a database of an older version to the current format
    Upgrade(upgrade::UpgradeArgs),
    /// Create, show and check regions of persistent memory
    Pmem(pmem::PmemArgs),
    /// List NVMe drives, and create, show and check volumes on them
    ///
    /// A volume holds databases without a file system: nvme:/dev/nvme0n1/NAME,
    /// nvme:/dev/ng0n1/NAME or vfio:0000:00:04.0/NAME in place of a directory. A file of fixed length
    /// stands in for a drive: nvme:FILE/NAME.
    Nvme(nvme::NvmeArgs),
    /// Print a shell completion script
    ///
    /// For bash: braid completions bash > ~/.local/share/bash-completion/completions/braid
    Completions(manual::CompletionsArgs),
    /// Write the manual pages of this command and its subcommands into a directory
    Man(manual::ManArgs),
    /// Run the child process of `demo`
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
        Command::Serve(args) => serve::run(&args, &mut output),
        Command::Compact(args) => compact::run(&args, &mut output),
        Command::Upgrade(args) => upgrade::run(&args, &mut output),
        Command::Pmem(args) => pmem::run(&args, &mut output),
        Command::Nvme(args) => nvme::run(&args, &mut output),
        Command::Completions(args) => manual::completions(&args, Cli::command(), &mut output),
        Command::Man(args) => manual::man(&args, Cli::command(), &mut output),
        Command::DemoWorker(args) => demo::run_worker(&args),
    };
    let result = result.and_then(|()| output.flush());
    signals::wait_if_interrupted();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe because it has read enough: not an error.
        Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(failure) => {
            // An error of standard error cannot be reported anywhere.
            let _ = output.flush();
            output::complain(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}
