//! Replay of the log records that recovery keeps.

use braid_rt::atomic::{AtomicBool, AtomicUsize, Ordering};

use braid_rt::Mutex;

use crate::LogError;
use crate::base::numbers::{FlushNo, SeqNo};
use crate::recovery::items::{Item, LogRecord, Streamed};
use crate::recovery::recovered::Recovered;

impl Recovered {
    /// Calls `f` for every log record that recovery keeps, whose number is greater than
    /// `start.seqno`, and that was not accepted [during the scan](crate::DuringScan). Uses up to
    /// `threads` threads and no particular order: the caller's replay must let the newer version
    /// win. Stops at the first error. May be called more than once.
    ///
    /// # Errors
    /// Errors of `f`; [`LogError::Io`] and [`LogError::Corrupted`] if the log can no longer be
    /// read.
    pub fn for_each_parallel<E, F>(&self, threads: usize, f: F) -> Result<(), E>
    where
        E: From<LogError> + Send,
        F: Fn(LogRecord<'_>) -> Result<(), E> + Sync,
    {
        let left = self.lanes.iter().flat_map(|lane| &lane.items);
        let items: Vec<&Item> = left.chain(&self.replayed.left).collect();
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let failure = Mutex::new(None);
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                // Relaxed: the items were created before the threads.
                let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                let done = self.replay(item, &f);
                if let Err(error) = done {
                    braid_rt::coverage_point("recovery: replay fails");
                    stop.store(true, Ordering::Relaxed);
                    failure.lock().get_or_insert(error);
                }
            }
        };
        braid_rt::thread::scatter(threads.clamp(1, items.len().max(1)), |_| work());
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Calls `f` for every log record on this thread, see [`Recovered::for_each_parallel`].
    ///
    /// # Errors
    /// As [`Recovered::for_each_parallel`].
    pub fn for_each(&self, f: impl FnMut(LogRecord<'_>) + Send) -> Result<(), LogError> {
        let f = Mutex::new(f);
        self.for_each_parallel(1, |log_record| {
            (f.lock())(log_record);
            Ok(())
        })
    }

    fn counts(&self, incarnation: u32, seqno: SeqNo, flush: FlushNo) -> bool {
        if braid_rt::mutant!("resurrect_the_dead") {
            return seqno > self.start.seqno;
        }
        let kept = self.kept.get(&incarnation);
        let is_new = seqno > self.start.seqno && seqno <= self.ceiling;
        is_new && kept.is_some_and(|kept| kept.holds(seqno, flush))
    }

    fn replay<E, F>(&self, item: &Item, f: &F) -> Result<(), E>
    where
        E: From<LogError>,
        F: Fn(LogRecord<'_>) -> Result<(), E>,
    {
        if self.is_replaying && !item.is_kept() {
            braid_rt::coverage_point("recovery: replay reads again what did not fit in memory");
        }
        let incarnation = item.incarnation();
        if let Item::Streamed(Streamed { newest, .. }) = item {
            // Read only if it counts.
            if !self.counts(incarnation, newest.seqno, newest.flush) {
                braid_rt::coverage_point("recovery: a large log record that does not count");
                return Ok(());
            }
            braid_rt::coverage_point("recovery: a large log record");
        }
        item.for_each(&self.windows, |flush, found| {
            let mut found = found.into_iter();
            found.try_for_each(|log_record| {
                let counts = self.counts(incarnation, log_record.seqno, flush);
                if counts { f(log_record) } else { Ok(()) }
            })
        })
    }
}
