//! A queue whose commands an io_uring passes to the kernel.
//!
//! [`Encoding`] says how a command becomes an entry of the ring, and what a result means: plain reads
//! and writes, or NVMe commands.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use braid_rt::to_usize;
use io_uring::{IoUring, cqueue, squeue, types};

use crate::{Command, Completion, DriveError, Queue};

/// Consecutive temporary refusals by the kernel after which a queue fails: about a second.
const ATTEMPTS_MAX: u32 = 1_000;

/// Meaning of a result in the completion queue.
pub(crate) enum Outcome {
    Done(Result<(), DriveError>),
    /// So many bytes, from the start of the command on, are done, but not all.
    Partly(u64),
    /// The kernel refused for a moment.
    Refused(i32),
}

/// How commands become entries of the ring.
pub(crate) trait Encoding: Send {
    type Submission: squeue::EntryMarker;
    type Completion: cqueue::EntryMarker;

    /// Checks a command.
    fn check(&self, command: &Command) -> Result<(), DriveError>;

    /// Encodes a command, of which `done` bytes are done.
    fn entry(&self, command: &Command, done: u64, slot: u64) -> Self::Submission;

    fn outcome(&self, command: &Command, done: u64, result: i32) -> Outcome;

    /// Performs a command that the ring does not support; `None` if the ring supports it.
    fn call(&self, command: &Command) -> Option<Result<(), DriveError>>;
}

struct Slot {
    command: Command,
    done: u64,
    attempts: u32,
}

pub(crate) struct RingQueue<E: Encoding> {
    ring: IoUring<E::Submission, E::Completion>,
    encoding: E,
    depth: usize,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Slots that are not in the ring yet.
    waiting: VecDeque<usize>,
    /// Slots that are in the ring, and that the kernel has not taken yet.
    offered: VecDeque<usize>,
    /// Outcomes of commands that are not in the ring.
    finished: Vec<Completion>,
    refusals: u32,
    /// The system's error after which the ring accepts nothing.
    failure: Option<i32>,
    polled: bool,
}

impl<E: Encoding> RingQueue<E> {
    /// Creates a queue for `depth` commands. `polled` means that the kernel polls for completions
    /// (IOPOLL).
    pub(crate) fn new(encoding: E, depth: usize, polled: bool) -> io::Result<Self> {
        let mut builder = IoUring::<E::Submission, E::Completion>::builder();
        if polled {
            builder.setup_iopoll();
        }
        let entries = u32::try_from(depth.next_power_of_two()).unwrap_or(4096);
        Ok(Self {
            ring: builder.build(entries)?,
            encoding,
            depth,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            offered: VecDeque::new(),
            finished: Vec::new(),
            refusals: 0,
            failure: None,
            polled,
        })
    }

    /// Puts waiting commands into the ring.
    fn offer(&mut self) {
        while let Some(&index) = self.waiting.front() {
            let Some(slot) = &self.slots[index] else {
                unreachable!("a waiting slot is occupied")
            };
            let call = (slot.attempts == 0).then(|| self.encoding.call(&slot.command));
            if let Some(result) = call.flatten() {
                self.waiting.pop_front();
                self.finish(index, result);
                continue;
            }
            let entry = self.encoding.entry(&slot.command, slot.done, index as u64);
            // SAFETY: the submitter keeps the memory valid until the completion is returned or the
            // queue is dropped, and `drop` waits for the kernel.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                break;
            }
            self.waiting.pop_front();
            self.offered.push_back(index);
        }
    }

    /// Notes how many entries the kernel has left in the ring.
    fn settle(&mut self, result: io::Result<usize>) {
        let left = self.ring.submission().len();
        while self.offered.len() > left {
            self.offered.pop_front();
        }
        match result {
            Ok(_) => self.refusals = 0,
            Err(error) => match error.raw_os_error() {
                // A signal or the end of the patience say nothing about the kernel.
                Some(libc::EINTR | libc::ETIME) => {}
                Some(libc::EAGAIN | libc::EBUSY) if self.refusals < ATTEMPTS_MAX => {
                    self.refusals += 1;
                    std::thread::yield_now();
                }
                errno => self.fail(errno.unwrap_or(libc::EIO)),
            },
        }
    }

    /// Ends the commands that the kernel does not have. Their entries stay in the ring, which is
    /// never submitted again.
    fn fail(&mut self, errno: i32) {
        self.failure = Some(errno);
        for index in std::mem::take(&mut self.offered)
            .into_iter()
            .chain(std::mem::take(&mut self.waiting))
        {
            let target = self.slots[index].as_ref().map(|slot| slot.command.target());
            if let Some(target) = target {
                self.finish(index, Err(DriveError::of_errno(target, errno)));
            }
        }
    }

    fn finish(&mut self, index: usize, result: Result<(), DriveError>) {
        let Some(slot) = self.slots[index].take() else {
            unreachable!("the kernel completes a command once")
        };
        self.free.push(index);
        self.finished.push(Completion {
            user_data: slot.command.user_data,
            result,
        });
    }

    /// Takes the results that the kernel has put into the completion queue.
    fn reap(&mut self) {
        let results: Vec<(u64, i32)> = self
            .ring
            .completion()
            .map(|entry| {
                let entry: cqueue::Entry = entry.into();
                (entry.user_data(), entry.result())
            })
            .collect();
        for (user_data, result) in results {
            let index = to_usize(user_data);
            let Some(slot) = self.slots.get_mut(index).and_then(Option::as_mut) else {
                unreachable!("the kernel returns the data of an entry")
            };
            match self.encoding.outcome(&slot.command, slot.done, result) {
                Outcome::Done(result) => self.finish(index, result),
                Outcome::Partly(done) => {
                    slot.done = done;
                    slot.attempts = 1;
                    self.again(index);
                }
                Outcome::Refused(errno) => {
                    slot.attempts += 1;
                    let target = slot.command.target();
                    if slot.attempts > ATTEMPTS_MAX {
                        self.finish(index, Err(DriveError::of_errno(target, errno)));
                    } else {
                        std::thread::yield_now();
                        self.again(index);
                    }
                }
            }
        }
    }

    fn again(&mut self, index: usize) {
        match self.failure {
            None => self.waiting.push_back(index),
            Some(errno) => {
                let target = self.slots[index].as_ref().map(|slot| slot.command.target());
                if let Some(target) = target {
                    self.finish(index, Err(DriveError::of_errno(target, errno)));
                }
            }
        }
    }

    /// Enters the kernel, and waits for `want` completions, but not longer than `patience`.
    fn enter(&mut self, want: usize, patience: Duration) {
        let time = types::Timespec::from(patience);
        let arguments = types::SubmitArgs::new().timespec(&time);
        let result = if self.failure.is_some() {
            // Passes nothing to the kernel.
            let want = u32::try_from(want).unwrap_or(1);
            const GETEVENTS: u32 = 1;
            // SAFETY: without an argument, nothing is passed but numbers.
            unsafe { self.ring.submitter().enter::<()>(0, want, GETEVENTS, None) }
        } else if want == 0 || self.polled {
            self.ring.submitter().submit_and_wait(want)
        } else {
            self.ring.submitter().submit_with_args(want, &arguments)
        };
        if self.failure.is_none() {
            self.settle(result);
        }
    }

    /// Number of commands that the kernel has.
    fn in_kernel(&self) -> usize {
        self.depth - self.free.len() - self.waiting.len() - self.offered.len()
    }
}

impl<E: Encoding> Queue for RingQueue<E> {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        self.encoding.check(&command)?;
        let target = command.target();
        if let Some(errno) = self.failure {
            return Err(DriveError::of_errno(target, errno));
        }
        // Finished commands count, too: their outcomes were not returned yet.
        if self.in_flight() >= self.depth {
            return Err(DriveError::QueueFull { target });
        }
        let index = self.free.pop().expect("a slot for every command in flight");
        self.slots[index] = Some(Slot {
            command,
            done: 0,
            attempts: 0,
        });
        self.waiting.push_back(index);
        Ok(())
    }

    fn kick(&mut self) {
        if self.failure.is_some() || self.waiting.is_empty() && self.offered.is_empty() {
            return;
        }
        self.offer();
        if !self.offered.is_empty() {
            let result = self.ring.submitter().submit();
            self.settle(result);
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.reap();
        if self.finished.is_empty() && self.polled && self.in_kernel() > 0 {
            self.enter(0, Duration::ZERO);
            self.reap();
        }
        if !self.waiting.is_empty() || !self.offered.is_empty() {
            self.kick();
        }
        let count = self.finished.len();
        completions.append(&mut self.finished);
        count
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, patience: Duration) -> usize {
        let count = self.poll(completions);
        if count > 0 || self.in_flight() == 0 {
            return count;
        }
        if self.in_kernel() + self.offered.len() > 0 {
            self.enter(1, patience);
        }
        self.poll(completions)
    }

    fn in_flight(&self) -> usize {
        self.depth - self.free.len() + self.finished.len()
    }
}

impl<E: Encoding> Drop for RingQueue<E> {
    fn drop(&mut self) {
        // The kernel may use the memory of a command until it has completed.
        self.fail(libc::ECANCELED);
        while self.in_kernel() > 0 {
            self.enter(1, Duration::from_secs(1));
            self.reap();
        }
    }
}
