//! Processes with limits that do not depend on the load of the machine.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Signal that ends a process that has used up its processor time.
const SIGXCPU: i32 = 24;
const SIGKILL: i32 = 9;
/// Clock ticks per second in `/proc`.
const TICKS: u64 = 100;

pub enum Ended {
    Passed,
    Failed(String),
    /// No thread could run for longer than the limit.
    Hung,
}

/// A program in a process group of its own, with bounds on its address space and its processor time
/// in seconds: some mutants allocate or loop forever. It has the priority of the tool: at a lower
/// one, other work on the machine would stop it for minutes.
pub fn bounded(program: &Path, gibibytes: u64, seconds: u64) -> Command {
    let bounds = format!(
        "ulimit -c 0; ulimit -v {}; ulimit -t {seconds}",
        gibibytes << 20
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{bounds}; exec \"$0\" \"$@\"")])
        .arg(program)
        .process_group(0);
    command
}

/// Returns whether a thread of the group runs, could run, or waits for a device; and the processor
/// time of its processes.
fn usage(group: u32) -> (bool, Duration) {
    let mut busy = false;
    let mut ticks = 0;
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(fields) = stat(&process.path().join("stat")) else {
            continue;
        };
        // pgrp, utime, stime, cutime, cstime: fields 5 and 14 to 17.
        let number = |field: usize| fields.get(field - 3).and_then(|f| f.parse::<u64>().ok());
        if number(5) != Some(u64::from(group)) {
            continue;
        }
        ticks += (14..=17).filter_map(number).sum::<u64>();
        let threads = fs::read_dir(process.path().join("task"));
        busy |= threads.into_iter().flatten().flatten().any(|thread| {
            stat(&thread.path().join("stat")).is_some_and(|f| matches!(&f[0][..], "R" | "D"))
        });
    }
    (busy, Duration::from_millis(ticks * 1000 / TICKS))
}

/// Returns the fields of a `stat` file from the third on, the state.
fn stat(path: &Path) -> Option<Vec<String>> {
    let text = fs::read_to_string(path).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn kill(child: &mut Child) -> ExitStatus {
    let _ = Command::new("kill")
        .args(["-9", "--", &format!("-{}", child.id())])
        .status();
    child.wait().expect("the process is ours")
}

/// Waits for the end of a process, which has its own group, and returns its processor time. Ends
/// the group if no thread of it could run for `idle` in total, or once `failed` says that the
/// process will fail.
pub fn finish(mut child: Child, idle: Duration, failed: impl Fn() -> bool) -> (Ended, Duration) {
    let mut idled = Duration::ZERO;
    let mut used = Duration::ZERO;
    let mut pause = Duration::from_millis(2);
    let status = loop {
        if let Some(status) = child.try_wait().expect("the process is ours") {
            break status;
        }
        let before = Instant::now();
        std::thread::sleep(pause);
        let (busy, processor) = usage(child.id());
        used = used.max(processor);
        idled += if busy {
            Duration::ZERO
        } else {
            before.elapsed()
        };
        if failed() {
            break kill(&mut child);
        }
        if idled > idle {
            kill(&mut child);
            return (Ended::Hung, used);
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    };
    let mut text = String::new();
    if let Some(mut output) = child.stdout.take() {
        let _ = output.read_to_string(&mut text);
    }
    let ended = match status.success() {
        true => Ended::Passed,
        false => Ended::Failed(match text.trim() {
            "" if matches!(status.signal(), Some(SIGXCPU | SIGKILL)) => "loops".to_owned(),
            "" => status.to_string(),
            text => text.chars().take(160).collect(),
        }),
    };
    (ended, used)
}
