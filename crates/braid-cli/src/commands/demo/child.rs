//! The worker process, as its parent sees it.

use std::env;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::DemoArgs;
use super::acks::Feed;
use crate::failure::Failure;

/// Maximum time for a worker to open the database, or to end when asked to.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running worker and the thread that reads its acknowledgements.
pub(super) struct Worker {
    child: Child,
    reader: JoinHandle<io::Result<()>>,
    feed: Arc<Feed>,
}

impl Worker {
    /// Starts a worker on the database in `dir`.
    pub(super) fn spawn(
        args: &DemoArgs,
        dir: &std::path::Path,
        epoch: u32,
        seed: u64,
        feed: &Arc<Feed>,
    ) -> Result<Self, Failure> {
        let program = env::current_exe()
            .map_err(|error| Failure::io("cannot find this program's own file", &error))?;
        let mut command = Command::new(program);
        command.arg("demo-worker").arg("--dir").arg(dir);
        for (name, value) in [
            ("--protocol", args.protocol.to_string()),
            ("--device", args.device.to_string()),
            ("--threads", args.threads.to_string()),
            ("--accounts", args.accounts.to_string()),
            ("--epoch", epoch.to_string()),
            ("--seed", seed.to_string()),
        ] {
            command.arg(name).arg(value);
        }
        feed.lock().since = None;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::io("cannot start the worker process", &error))?;
        let Some(pipe) = child.stdout.take() else {
            return Err(Failure::Failed(
                "cannot read from the worker process: it has no pipe".into(),
            ));
        };
        let sink = Arc::clone(feed);
        let reader = thread::spawn(move || sink.read_all(io::BufReader::new(pipe)));
        Ok(Worker {
            child,
            reader,
            feed: Arc::clone(feed),
        })
    }

    /// Waits until the transfers begin.
    pub(super) fn wait_ready(&mut self) -> Result<(), Failure> {
        let step = Duration::from_millis(100);
        let mut waited = Duration::ZERO;
        while !self.feed.wait_ready(step) {
            self.check_alive()?;
            waited += step;
            if waited >= PATIENCE {
                return Err(Failure::Failed(
                    "the worker ended before it opened the database".into(),
                ));
            }
        }
        Ok(())
    }

    /// Fails if the worker has ended by itself.
    pub(super) fn check_alive(&mut self) -> Result<(), Failure> {
        match self.child.try_wait().map_err(|error| waiting(&error))? {
            None => Ok(()),
            Some(status) => Err(Failure::Failed(format!(
                "the worker ended before it was killed: {status}"
            ))),
        }
    }

    /// Kills the worker at once (SIGKILL on Unix) and collects its remaining reports.
    pub(super) fn kill(mut self) -> Result<(), Failure> {
        self.check_alive()?;
        self.child
            .kill()
            .map_err(|error| Failure::io("cannot kill the worker", &error))?;
        let status = self.collect()?;
        // A worker that failed a moment before must not pass for a killed one. Windows gives a killed
        // process the code 1.
        match status.code() {
            Some(code) if !cfg!(windows) || code != 1 => Err(Failure::Failed(format!(
                "the worker ended before it was killed: {status}"
            ))),
            _ => Ok(()),
        }
    }

    /// Asks the worker to end, and collects its remaining reports.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        // Closing the worker's input is the request.
        drop(self.child.stdin.take());
        let status = self.collect()?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("the worker failed: {status}")))
        }
    }

    fn collect(mut self) -> Result<ExitStatus, Failure> {
        let status = self.child.wait().map_err(|error| waiting(&error))?;
        match self.reader.join() {
            Ok(Ok(())) => Ok(status),
            Ok(Err(error)) => Err(Failure::io("cannot read the worker's reports", &error)),
            Err(_) => Err(Failure::Failed(
                "the thread reading the reports panicked".into(),
            )),
        }
    }
}

fn waiting(error: &io::Error) -> Failure {
    Failure::io("cannot wait for the worker", error)
}
