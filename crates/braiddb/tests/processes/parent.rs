//! The parent process: starts the child, reads its output, and checks the database that it leaves.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use braid::device::DeviceChoice;
use braid::{Database, Protocol};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::child::VARIABLE;
use crate::workload::{THREADS, builder, check};

/// Returns the devices that this machine supports for a directory, and prints which ones are left
/// out.
pub(crate) fn devices(dir: &Path) -> Vec<DeviceChoice> {
    let both = [DeviceChoice::File, DeviceChoice::Uring];
    let works = |&choice: &DeviceChoice| match braid_io::open_directory(dir, choice) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("left out: the device {choice}: {error}");
            false
        }
    };
    both.into_iter().filter(works).collect()
}

/// A directory on the build's disk: `/tmp` is often in memory.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A generator seeded by the environment or at random; prints the seed.
pub(crate) fn rng(what: &str) -> fastrand::Rng {
    let seed = std::env::var("BRAID_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("{what}: BRAID_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// A database, and the transactions that it must contain.
pub(crate) struct Trial<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) protocol: Protocol,
    pub(crate) device: DeviceChoice,
    /// For each thread of the child, the newest transaction that was acknowledged or read.
    pub(crate) promised: Vec<u64>,
    /// Acknowledged transactions that were found again, over all openings.
    pub(crate) verified: u64,
    /// Number of transactions that were verified earlier.
    before: u64,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(dir: &'a Path, protocol: Protocol, device: DeviceChoice) -> Self {
        Self {
            dir,
            protocol,
            device,
            promised: vec![0; THREADS as usize],
            verified: 0,
            before: 0,
        }
    }

    pub(crate) fn what(&self) -> String {
        format!("{} on {}", self.protocol, self.device)
    }

    pub(crate) fn open(&self) -> Result<Database, braid::Error> {
        builder(self.protocol, self.device).open(self.dir)
    }

    /// Opens the database in this process and checks that it contains everything promised.
    pub(crate) fn verify(&mut self) {
        let opened = self.open();
        self.verify_in(opened.unwrap_or_else(|error| panic!("{}: {error}", self.what())));
    }

    pub(crate) fn verify_in(&mut self, db: Database) {
        let found = check(&db, &self.promised, &self.what());
        let promised: u64 = self.promised.iter().sum();
        self.verified += promised - self.before;
        // Transactions that were read must survive from now on.
        self.promised = found;
        self.before = self.promised.iter().sum();
    }

    pub(crate) fn start(&self) -> Running {
        Running::start(self, "")
    }

    /// Starts a child whose system calls are refused from the beginning; see
    /// [`crate::syscalls::deny`].
    pub(crate) fn start_denied(&self, order: &str) -> Running {
        Running::start(self, order)
    }
}

/// This program, run by the emulator if there is one: the kernel does not know about emulators.
fn this_program() -> Command {
    let runner = std::env::var("BRAID_RUNNER").unwrap_or_default();
    let program = std::env::current_exe().unwrap();
    let mut words = runner.split_whitespace();
    let Some(emulator) = words.next() else {
        return Command::new(program);
    };
    let mut command = Command::new(emulator);
    command.args(words).arg(program);
    command
}

/// A running child.
pub(crate) struct Running {
    child: Child,
    orders: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
    pub(crate) failures: Vec<String>,
    pub(crate) checkpoints: u64,
    /// Threads that have ended.
    pub(crate) ended: u64,
}

impl Running {
    fn start(trial: &Trial<'_>, order: &str) -> Self {
        let dir = trial.dir.to_str().unwrap();
        let mut child = this_program()
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(
                VARIABLE,
                format!("{dir}\n{}\n{}\n{order}", trial.protocol, trial.device),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            orders: child.stdin.take(),
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
            failures: Vec::new(),
            checkpoints: 0,
            ended: 0,
        }
    }

    /// Returns the child's next line, after recording its contents; `None` at the end. A line that
    /// a kill cut short does not count.
    pub(crate) fn line(&mut self, trial: &mut Trial<'_>) -> Option<String> {
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            if !line.ends_with('\n') {
                return None;
            }
            let Some(line) = line.trim_end().strip_prefix('@') else {
                continue;
            };
            let mut words = line.split(' ');
            match words.next() {
                Some("ack") => {
                    let mut word = || words.next().unwrap().parse::<u64>().unwrap();
                    let (thread, sequence) = (word() as usize, word());
                    trial.promised[thread] = trial.promised[thread].max(sequence);
                }
                Some("failed" | "refused") => self.failures.push(line.to_owned()),
                Some("checkpoint") => self.checkpoints += 1,
                Some("ended") => self.ended += 1,
                Some("violated:") => panic!("{}: {line}", trial.what()),
                _ => {}
            }
            return Some(line.to_owned());
        }
    }

    /// Reads up to the first line with a property; panics if the child ends before.
    pub(crate) fn until(&mut self, trial: &mut Trial<'_>, is_it: impl Fn(&str) -> bool) -> String {
        loop {
            match self.line(trial) {
                Some(line) if is_it(&line) => return line,
                Some(_) => {}
                None => panic!("{}: the child ended; {:?}", trial.what(), self.failures),
            }
        }
    }

    /// Reads until a property holds for everything read so far.
    pub(crate) fn until_all(&mut self, trial: &mut Trial<'_>, is_it: impl Fn(&Self) -> bool) {
        while !is_it(self) {
            self.until(trial, |_| true);
        }
    }

    pub(crate) fn has_failed(&self, how: &str) -> bool {
        self.failures.iter().any(|line| line.starts_with(how))
    }

    /// Reads a number of acknowledgements.
    pub(crate) fn acknowledgements(&mut self, trial: &mut Trial<'_>, count: u64) {
        for _ in 0..count {
            self.until(trial, |line| line.starts_with("ack "));
        }
    }

    pub(crate) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().unwrap();
        orders.write_all(format!("{order}\n").as_bytes()).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops the child; returns after it has stopped.
    pub(crate) fn stop(&mut self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED)
            .unwrap()
            .unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn resume(&mut self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Sends SIGKILL and does not wait for anything.
    pub(crate) fn shoot(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
    }

    /// Kills the child and reads the rest of its output.
    pub(crate) fn kill(mut self, trial: &mut Trial<'_>) {
        self.shoot();
        self.collect(trial);
    }

    /// Reads the rest of the output of a child that was [shot](Self::shoot). The child must have run
    /// until then, because a child that panicked before would pass for a killed one otherwise.
    pub(crate) fn collect(&mut self, trial: &mut Trial<'_>) {
        while self.line(trial).is_some() {}
        let status = self.child.wait().unwrap();
        let what = trial.what();
        assert_eq!(
            status.signal(),
            Some(9),
            "{what}: it ended before: {status}"
        );
    }

    /// Lets the child end normally; returns its last line.
    pub(crate) fn finish(&mut self, trial: &mut Trial<'_>) -> String {
        drop(self.orders.take());
        let mut last = String::new();
        while let Some(line) = self.line(trial) {
            last = line;
        }
        assert!(self.child.wait().unwrap().success(), "{}", trial.what());
        last
    }
}

impl Drop for Running {
    /// A failed test leaves no child running.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
