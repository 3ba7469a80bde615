//! `braid bench recovery`: measures how fast a database opens after a kill.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use braid::device::DeviceChoice;
use braid::stats::RecoveryReport;
use braid::{Database, Protocol};
use braid_bench::{PROFILE, Usage, Workload};
use braid_io::{OpenMode, ReadOp};

use crate::failure::Failure;
use crate::numbers::{grouped, mib, parse};
use crate::output::{self, Output};
use crate::scratch::Scratch;

/// Interval at which the size of the log is checked.
const TICK: Duration = Duration::from_millis(20);

/// The buffer pool of both processes, which holds all data of the workloads.
const POOL_MIB: usize = 2048;

#[derive(Debug, clap::Args)]
pub(crate) struct RecoveryArgs {
    /// Amount of log to recover
    #[arg(long, value_name = "MIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    log_mib: u64,

    /// Workload that writes the log
    #[arg(long, value_name = "NAME", default_value = "u1", value_parser = parse::<Workload>)]
    workload: Workload,

    /// Commit protocol: serial, aether, epoch, glsn, gwsn-strict, gwsn or gsn
    #[arg(long, value_name = "NAME", default_value_t, value_parser = parse::<Protocol>)]
    protocol: Protocol,

    /// Device to store on: auto, uring or file
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse::<DeviceChoice>)]
    device: DeviceChoice,

    /// Directory of the database, which must be new [default: one in TMPDIR or here, removed
    /// afterwards]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Print one JSON object on one line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RecoveryArgs, output: &mut Output) -> Result<(), Failure> {
    if args.workload.is_read_only() || args.device == DeviceChoice::Memory {
        return Err(Failure::Usage(
            "cannot measure recovery with a workload that only reads, or a device in memory".into(),
        ));
    }
    let scratch = Scratch::new(args.dir.as_deref(), "braid-bench-")?;
    if log_bytes(scratch.path())? > 0 {
        return Err(Failure::Usage(format!(
            "cannot create a database in {}: it already contains one; name a new directory",
            scratch.path().display()
        )));
    }
    let mut writer = Writer(start_writer(args, scratch.path())?);
    fill(&mut writer, args.log_mib, scratch.path())?;
    drop(writer);
    let before = Usage::now();
    let db = Database::builder()
        .device(args.device)
        .pool_bytes(POOL_MIB << 20)
        .checkpoint_log_bytes(checkpoint_mib(args.log_mib) << 20)
        .create_if_missing(false)
        .open(scratch.path())?;
    let report = *db.recovery();
    let cpu = Usage::now().cpu.saturating_sub(before.cpu);
    let device = device_mib_per_s(args.device, scratch.path())?;
    db.close()?;
    print(args, &report, cpu, device, output)?;
    scratch.remove()
}

/// Bytes of one batch of reads, and of one read.
const BATCH: usize = 8 << 20;
const READ: usize = 512 << 10;

/// Reads all log files in order, and nothing else.
fn device_mib_per_s(kind: DeviceChoice, dir: &Path) -> Result<f64, Failure> {
    let failed = |error: io::Error| {
        Failure::io(
            format_args!("cannot read the log in {}", dir.display()),
            &error,
        )
    };
    let device = braid_io::open_directory(dir, kind).map_err(failed)?;
    let mut buf = device.allocate(BATCH);
    let (began, mut bytes) = (Instant::now(), 0);
    let mut entries = device.list().map_err(failed)?;
    entries.retain(|entry| entry.name.starts_with("log-"));
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in entries {
        let file = device
            .open(&entry.name, OpenMode::Existing)
            .map_err(failed)?;
        for offset in (0..entry.len).step_by(BATCH) {
            let len = (entry.len - offset).min(BATCH as u64) as usize;
            let reads = buf[..len].chunks_mut(READ).zip((offset..).step_by(READ));
            let mut reads: Vec<_> = reads.map(|(buf, offset)| ReadOp { offset, buf }).collect();
            file.read_batch(&mut reads).map_err(failed)?;
            bytes += len;
        }
    }
    Ok(bytes as f64 / f64::from(1 << 20) / began.elapsed().as_secs_f64())
}

/// The process that writes; killed when it goes out of scope.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        // An error means that the process has already ended, which `fill` reports where it matters.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Large enough that no checkpoint shortens the log before the kill.
fn checkpoint_mib(log_mib: u64) -> u64 {
    log_mib * 4
}

fn start_writer(args: &RecoveryArgs, dir: &Path) -> Result<Child, Failure> {
    let program = env::current_exe()
        .map_err(|error| Failure::io("cannot find this program's own file", &error))?;
    Command::new(program)
        .args([
            "bench",
            args.workload.name(),
            "--threads",
            "2",
            "--in-flight",
            "1000",
        ])
        .args([
            "--seconds",
            "86400",
            "--protocol",
            &args.protocol.to_string(),
        ])
        .args([
            "--device",
            &args.device.to_string(),
            "--pool-mib",
            &POOL_MIB.to_string(),
        ])
        .args([
            "--checkpoint-mib",
            &checkpoint_mib(args.log_mib).to_string(),
        ])
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| Failure::io("cannot start the writing process", &error))
}

/// Waits until the writer has added enough log since its load, which ends with a checkpoint.
fn fill(writer: &mut Writer, log_mib: u64, dir: &Path) -> Result<(), Failure> {
    let bar = output::bar(log_mib, "writing");
    loop {
        let mib = log_bytes(dir)? >> 20;
        bar.set_position(mib.min(log_mib));
        if mib >= log_mib {
            bar.finish_and_clear();
            return Ok(());
        }
        if let Some(status) = writer
            .0
            .try_wait()
            .map_err(|error| Failure::io("cannot wait for the writing process", &error))?
        {
            return Err(Failure::Failed(format!(
                "the writing process ended before it was killed: {status}"
            )));
        }
        thread::sleep(TICK);
    }
}

/// Returns the size of all log files, which grow by whole segments.
fn log_bytes(dir: &Path) -> Result<u64, Failure> {
    let read =
        |error: &io::Error| Failure::io(format_args!("cannot list {}", dir.display()), error);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(read(&error)),
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry.map_err(|error| read(&error))?;
        if entry.file_name().to_string_lossy().starts_with("log-") {
            // A file may be renamed during the listing; the next call counts it.
            bytes += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    Ok(bytes)
}

fn print(
    args: &RecoveryArgs,
    report: &RecoveryReport,
    cpu: Duration,
    device: f64,
    output: &mut Output,
) -> Result<(), Failure> {
    let seconds = report.duration.as_secs_f64().max(1e-9);
    let scan = report.scan.as_secs_f64();
    let cpu = cpu.as_secs_f64();
    let mib_per_s = report.log_bytes as f64 / f64::from(1 << 20) / seconds;
    let tx_per_s = report.transactions as f64 / seconds;
    if args.json {
        return output.line(format_args!(
            "{{\"workload\":\"{}\",\"profile\":\"{PROFILE}\",\"protocol\":\"{}\",\"log_bytes\":{},\"transactions\":{},\
             \"seconds\":{seconds},\"scan_seconds\":{scan},\"cpu_seconds\":{cpu},\"mib_per_s\":{mib_per_s},\"tx_per_s\":{tx_per_s},\
             \"device_mib_per_s\":{device}}}",
            args.workload, args.protocol, report.log_bytes, report.transactions
        ));
    }
    output.line(format_args!(
        "{} ({}, profile {PROFILE}): opened in {seconds:.2} s ({scan:.2} s of it to find the log's end; {cpu:.2} s of processor time) after a kill: {} transactions from {} of log, \
         {mib_per_s:.0} MiB/s, {} transactions/s; a plain read of all log files: {device:.0} MiB/s",
        args.workload,
        args.protocol,
        grouped(report.transactions),
        mib(report.log_bytes),
        grouped(tx_per_s as u64)
    ))
}
