//! The log's threads: one flusher per lane for tickets that no thread blocks on, one thread that
//! prepares segments, one that ends epochs if the protocol has them, and one that ends groups if
//! there are any.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_rt::thread::{self, JoinHandle};
use braid_rt::{Condvar, Mutex, numa};

use crate::flush::core::Core;
use crate::flush::lane::Lane;
use crate::options::LogOptions;

/// Starts the threads. Not under loom, whose tests run the loops on their own threads.
pub(crate) fn start(core: &Arc<Core>) -> io::Result<Vec<JoinHandle>> {
    let mut threads = Vec::with_capacity(core.lanes.len() + 1);
    if cfg!(all(test, loom)) {
        return Ok(threads);
    }
    let started = (0..core.lanes.len())
        .map(|index| {
            let name = format!("braid-log-{index}");
            spawn(core, &name, move |core| {
                if let Some(node) = core.options.node_of_lane(index) {
                    numa::run_on(node);
                }
                flush_loop(core, &core.lanes[index])
            })
        })
        .chain(std::iter::once_with(|| {
            spawn(core, "braid-log-prep", prepare_loop)
        }))
        .chain(
            core.acknowledgement
                .epochs()
                .map(|_| spawn(core, "braid-log-epoch", epoch_loop)),
        )
        .chain((core.options.group_size > 0).then(|| spawn(core, "braid-log-group", group_loop)));
    for thread in started {
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                stop(core, threads);
                return Err(error);
            }
        }
    }
    Ok(threads)
}

/// Starts a thread. If the thread panics, it poisons the log, which is unreliable without it.
fn spawn(
    core: &Arc<Core>,
    name: &str,
    work: impl FnOnce(&Core) + Send + 'static,
) -> io::Result<JoinHandle> {
    let (own, watched, cause) = (Arc::clone(core), Arc::clone(core), name.to_owned());
    let died = move |panic: &str| {
        watched.set_poison(&format!("the thread {cause} panicked: {panic}"));
    };
    thread::spawn_watched(name, move || work(&own), died)
}

/// Stops the threads and waits for them. The flushers first flush all buffered bytes.
pub(crate) fn stop(core: &Core, threads: Vec<JoinHandle>) {
    // SeqCst: the condition of the events, read after `listen`.
    core.stopping.store(true, Ordering::SeqCst);
    core.lanes.iter().for_each(|lane| lane.flusher.notify());
    core.preparer.notify();
    core.ticker.stop();
    for thread in threads {
        // A callback on a flusher may drop the last handle; a thread can't wait for itself.
        if !thread.is_current() {
            // The panic hook has reported a panic; closing continues.
            let _ = thread.join();
        }
    }
}

pub(crate) fn flush_loop(core: &Core, lane: &Lane) {
    loop {
        let listener = lane.flusher.listen();
        // Before the checks for unflushed bytes: everything appended before the stop is flushed.
        // SeqCst: pairs with `stop`, as the condition of the event.
        let stopping = core.stopping.load(Ordering::SeqCst);
        if core.lead(lane) {
            continue;
        }
        if core.is_dirty(lane) && core.poison().is_none() {
            // All permits are taken. A leader that releases one sees `wanted` and wakes this
            // thread.
            lane.wanted.store(true, Ordering::SeqCst);
            if core.may_lead(lane) {
                continue;
            }
        } else {
            // SeqCst: cleared before the last check for unflushed bytes, see `request_flush`.
            if lane.wanted.swap(false, Ordering::SeqCst) {
                continue;
            }
            if stopping {
                return;
            }
        }
        listener.wait();
    }
}

fn prepare_loop(core: &Core) {
    loop {
        let listener = core.preparer.listen();
        if core.stopping.load(Ordering::SeqCst) {
            return;
        }
        core.prepare_ahead();
        listener.wait();
    }
}

fn epoch_loop(core: &Core) {
    while core.ticker.sleep(core.options.epoch) {
        core.end_epoch();
    }
}

fn group_loop(core: &Core) {
    while core.ticker.sleep(LogOptions::GROUP_WAIT) {
        core.request_flush_of_dirty();
    }
}

/// The sleep of the threads that end epochs and groups.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    stopped: Mutex<bool>,
    wake: Condvar,
}

impl Ticker {
    /// Sleeps for `time`. Returns `false` if the ticker was stopped.
    fn sleep(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.wake
            .wait_while_for(&mut stopped, |stopped| !*stopped, time);
        !*stopped
    }

    fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::resume_unwind;

    use braid_io::MemoryDevice;

    use super::*;
    use crate::{Log, LogError};

    #[test]
    fn a_thread_that_dies_stops_the_log() {
        let log = Log::create(Arc::new(MemoryDevice::new()), LogOptions::default()).unwrap();
        let ticket = log.append(&[b"x"]).unwrap();
        ticket.wait().unwrap();
        let died = spawn(log.core(), "braid-log-test", |_| {
            resume_unwind(Box::new("out of order"))
        });
        assert!(died.unwrap().join().is_err());
        let error = log.append(&[b"y"]).unwrap_err();
        let message = "the thread braid-log-test panicked: out of order";
        assert!(matches!(error, LogError::Poisoned { cause } if *cause == *message));
        assert_eq!(log.durable_seqno().get(), 1);
    }
}
