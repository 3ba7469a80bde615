//! Reports of durable transfers: messages of the worker on a pipe, and the parent's tally.
//!
//! A message consists of the thread (4 bytes), a count (4 bytes), the sequence number up to which
//! all transfers of that thread are durable (8 bytes), and as many latencies in nanoseconds (4
//! bytes each), little-endian. The kill may truncate the last message; its transfers are then not
//! known to be acknowledged.

use std::io::{self, Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Stands for a thread number: the database is open and transfers begin.
const READY: u32 = u32::MAX;

/// Maximum number of latencies in one message; further ones go into the next message.
pub(super) const MAX_BATCH: usize = 256;

/// The worker's end of the pipe. Its threads share it, one message at a time.
pub(super) struct Reporter<W> {
    pipe: Mutex<W>,
}

impl<W: Write> Reporter<W> {
    pub(super) fn new(pipe: W) -> Self {
        Reporter {
            pipe: Mutex::new(pipe),
        }
    }

    pub(super) fn ready(&self) -> io::Result<()> {
        self.send(READY, 0, &[])
    }

    /// Reports that all transfers of `thread` up to `sequence` are durable; `latencies` are those
    /// of the newest ones.
    pub(super) fn durable(&self, thread: u32, sequence: u64, latencies: &[u32]) -> io::Result<()> {
        self.send(thread, sequence, latencies)
    }

    fn send(&self, thread: u32, sequence: u64, latencies: &[u32]) -> io::Result<()> {
        debug_assert!(latencies.len() <= MAX_BATCH);
        let mut message = [0; 16 + 4 * MAX_BATCH];
        message[..4].copy_from_slice(&thread.to_le_bytes());
        message[4..8].copy_from_slice(&(latencies.len() as u32).to_le_bytes());
        message[8..16].copy_from_slice(&sequence.to_le_bytes());
        for (place, latency) in message[16..].chunks_exact_mut(4).zip(latencies) {
            place.copy_from_slice(&latency.to_le_bytes());
        }
        let mut pipe = unpoisoned(&self.pipe);
        pipe.write_all(&message[..16 + 4 * latencies.len()])?;
        pipe.flush()
    }
}

/// Transfers that the parent knows to be durable.
pub(super) struct Acknowledged {
    /// Newest durable sequence number of each thread.
    pub(super) threads: Vec<u64>,
    /// Number of acknowledged transfers of all workers so far.
    pub(super) transfers: u64,
    /// Nanoseconds from the call of `commit` to durability.
    pub(super) latency: Histogram<u64>,
    /// Start of the current worker.
    pub(super) since: Option<Instant>,
}

/// The parent's end of the pipe: one thread reads the pipe, another displays the tally.
pub(super) struct Feed {
    state: Mutex<Acknowledged>,
    changed: Condvar,
}

impl Feed {
    pub(super) fn new(threads: u32) -> Self {
        let latency = Histogram::new_with_bounds(1_000, 1_000_000_000_000, 3)
            .expect("the bounds are in order");
        Feed {
            state: Mutex::new(Acknowledged {
                threads: vec![0; threads as usize],
                transfers: 0,
                latency,
                since: None,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Acknowledged> {
        unpoisoned(&self.state)
    }

    /// Waits until the worker reports that it is ready; returns false after the timeout.
    pub(super) fn wait_ready(&self, timeout: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, |state| state.since.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.since.is_some()
    }

    /// Reads messages until the pipe ends.
    ///
    /// # Errors
    /// A message that no worker sends, or an error of the pipe.
    pub(super) fn read_all(&self, mut pipe: impl Read) -> io::Result<()> {
        let mut body = [0; 4 * MAX_BATCH];
        let mut head = [0; 16];
        while read_whole(&mut pipe, &mut head)? {
            let word = |at: usize| u32::from_le_bytes(field(&head, at));
            let (thread, count) = (word(0), word(4) as usize);
            let sequence = u64::from_le_bytes(field(&head, 8));
            if count > MAX_BATCH {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the message is too long",
                ));
            }
            let body = &mut body[..4 * count];
            if !read_whole(&mut pipe, body)? {
                return Ok(());
            }
            let mut state = self.lock();
            if thread == READY {
                state.since = Some(Instant::now());
                self.changed.notify_all();
                continue;
            }
            let Some(newest) = state.threads.get_mut(thread as usize) else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the message is of an unknown thread",
                ));
            };
            *newest = sequence.max(*newest);
            state.transfers += count as u64;
            for latency in body.chunks_exact(4) {
                state
                    .latency
                    .saturating_record(u64::from(u32::from_le_bytes(field(latency, 0))));
            }
        }
        Ok(())
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// Fills `buf`; returns false if the pipe ends before it is full.
fn read_whole(pipe: &mut impl Read, buf: &mut [u8]) -> io::Result<bool> {
    match pipe.read_exact(buf) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// A thread that panicked holding one of these locks left counters that are still usable.
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<u8> {
        let mut bytes = Vec::new();
        let reporter = Reporter::new(&mut bytes);
        reporter.ready().unwrap();
        reporter
            .durable(1, 3, &[1_000_000, 2_000_000, 3_000_000])
            .unwrap();
        reporter.durable(0, 1, &[4_000_000]).unwrap();
        bytes
    }

    #[test]
    fn sent_records_are_tallied() {
        let feed = Feed::new(2);
        feed.read_all(&messages()[..]).unwrap();
        assert!(feed.wait_ready(Duration::ZERO));
        let state = feed.lock();
        assert_eq!(state.threads, [1, 3]);
        assert_eq!(state.transfers, 4);
        assert!(state.latency.max() >= 4_000_000);
    }

    #[test]
    fn a_message_cut_short_acknowledges_nothing() {
        let bytes = messages();
        for cut in 1..20 {
            let feed = Feed::new(2);
            feed.read_all(&bytes[..bytes.len() - cut]).unwrap();
            assert_eq!(feed.lock().threads, [0, 3], "{cut} bytes are missing");
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let mut bytes = Vec::new();
        Reporter::new(&mut bytes).durable(2, 1, &[1]).unwrap();
        assert!(Feed::new(2).read_all(&bytes[..]).is_err());
        assert!(Feed::new(2).read_all(&[0x55; 64][..]).is_err());
    }
}
