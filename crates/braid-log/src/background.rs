//! The log's threads: a flusher a lane for tickets that nobody blocks on, and one that prepares
//! segments. All sleep when there is nothing to do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use crate::core::Core;
use crate::lane::Lane;

/// Starts the threads. Not under loom, whose tests run the loops on threads of their own.
pub(crate) fn start(core: &Arc<Core>) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::with_capacity(core.lanes.len() + 1);
    if cfg!(all(test, loom)) {
        return Ok(threads);
    }
    let started = (0..core.lanes.len())
        .map(|index| {
            let core = Arc::clone(core);
            thread::Builder::new()
                .name(format!("braid-log-{index}"))
                .spawn(move || flush_loop(&core, &core.lanes[index]))
        })
        .chain(std::iter::once_with(|| {
            let core = Arc::clone(core);
            thread::Builder::new()
                .name("braid-log-prep".to_owned())
                .spawn(move || prepare_loop(&core))
        }));
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

/// Stops the threads and waits for them. The flushers flush what is there first.
pub(crate) fn stop(core: &Core, threads: Vec<JoinHandle<()>>) {
    // SeqCst: the condition of the events, read after `listen`.
    core.stopping.store(true, Ordering::SeqCst);
    core.lanes.iter().for_each(|lane| lane.flusher.notify());
    core.preparer.notify();
    for thread in threads {
        // A callback on a flusher may drop the last handle; a thread can't wait for itself.
        if thread.thread().id() != thread::current().id() {
            // It panics only if a callback did, which was reported.
            let _ = thread.join();
        }
    }
}

pub(crate) fn flush_loop(core: &Core, lane: &Lane) {
    loop {
        let listener = lane.flusher.listen();
        // Before the looks for unflushed bytes: what was appended before the stop is flushed. SeqCst:
        // pairs with `stop`, as the condition of the event.
        let stopping = core.stopping.load(Ordering::SeqCst);
        if core.lead(lane) {
            continue;
        }
        if core.is_dirty(lane) && core.poison().is_none() {
            // All permits are taken. Who gives one back sees `wanted` and wakes us.
            lane.wanted.store(true, Ordering::SeqCst);
            if core.may_lead(lane) {
                continue;
            }
        } else {
            // SeqCst: cleared before the last look for unflushed bytes, see `request_flush`.
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
