//! Threads, or tasks of a simulation.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::LocalKey;
use std::time::Duration;

use crate::gates::expect_no_gate;
use crate::numa::Numbering;
use crate::simulation;
use crate::user::message;

/// A handle to wait for the end of a thread.
#[derive(Debug)]
pub struct JoinHandle(Handle);

#[derive(Debug)]
enum Handle {
    Thread(std::thread::JoinHandle<()>),
    Task(simulation::TaskId),
}

thread_local! {
    /// Whether the engine started this thread.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread of the engine.
///
/// # Errors
/// If the system cannot create a thread.
pub fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    if simulation::is_on() {
        return Ok(JoinHandle(Handle::Task(simulation::spawn(name, f))));
    }
    let builder = std::thread::Builder::new().name(name.to_owned());
    let own = move || {
        IS_OWN.set(true);
        f();
    };
    Ok(JoinHandle(Handle::Thread(builder.spawn(own)?)))
}

/// Starts a thread that other threads depend on. If `f` panics, the thread calls `died` with the
/// panic's message before it ends.
///
/// # Errors
/// See [`spawn`].
pub fn spawn_watched(
    name: &str,
    f: impl FnOnce() + Send + 'static,
    died: impl FnOnce(&str) + Send + 'static,
) -> io::Result<JoinHandle> {
    // Unwind safe: `died` informs all dependents that the thread's state is in doubt.
    let watched = AssertUnwindSafe(f);
    spawn(name, move || {
        if let Err(panic) = catch_unwind(watched) {
            died(&message(&*panic));
            resume_unwind(panic);
        }
    })
}

impl JoinHandle {
    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// If it panicked.
    pub fn join(self) -> std::thread::Result<()> {
        expect_no_gate("a wait for a thread");
        match self.0 {
            Handle::Thread(thread) => thread.join(),
            Handle::Task(task) => {
                simulation::join(task);
                Ok(())
            }
        }
    }

    /// Whether this is the calling thread.
    pub fn is_current(&self) -> bool {
        match &self.0 {
            Handle::Thread(thread) => thread.thread().id() == std::thread::current().id(),
            Handle::Task(task) => simulation::is_on() && simulation::task() == *task,
        }
    }
}

/// Lets other threads run first.
pub fn yield_now() {
    if simulation::is_on() {
        simulation::give_way();
    } else {
        std::thread::yield_now();
    }
}

/// Pauses a transaction after a conflict, before it retries. An immediate retry could take its
/// locks again before the waiting thread wakes up, and collide with it forever. The pauses
/// therefore grow with the number of tries, differently for each thread.
pub fn back_off(tries: u32) {
    if tries < 3 {
        yield_now();
    } else {
        let steps = 1 + (index() as u64 * 7 + u64::from(tries)) % 8;
        crate::sleep(Duration::from_micros(steps << tries.min(9)));
    }
}

/// Waits for what another thread is about to do, without being told when it is done: first by
/// spinning, then by yielding, and then asleep. A holder that lost its core, or that does more than
/// expected, so costs the others at most a millisecond, and costs no core.
#[derive(Debug, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// Tries while it spins, and tries while it spins or yields.
    const SPINS: u32 = 64;
    const AWAKE: u32 = Self::SPINS + 32;

    /// Waits before the next try.
    pub fn wait(&mut self) {
        self.tries += 1;
        if self.tries < Self::SPINS {
            spin_loop();
        } else if self.is_awake() {
            yield_now();
        } else {
            let doublings = (self.tries - Self::AWAKE) / 4;
            crate::time::pause(Duration::from_micros((20 << doublings.min(6)).min(1_000)));
        }
    }

    /// Whether the next wait is short: it spins or yields.
    pub fn is_awake(&self) -> bool {
        self.tries < Self::AWAKE
    }
}

/// Tells the processor that this thread spins. Under a simulation, other tasks run first, since
/// spinning alone changes nothing.
#[inline]
pub fn spin_loop() {
    if simulation::is_on() {
        simulation::give_way();
    } else {
        std::hint::spin_loop();
    }
}

/// Returns a number for the calling thread, dense over the threads of the process that the engine
/// did not start, to spread threads over shared structures. On a machine with several memory nodes,
/// the number contains the thread's [node](crate::numa).
#[inline]
pub fn index() -> usize {
    static NUMBERS: Numbering = Numbering::new();
    thread_local! {
        static INDEX: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    number(&INDEX, &NUMBERS)
}

/// As [`index`], among the threads that commit. In the numbering of all threads, two threads that
/// commit at the same time could both have odd numbers, and share one of two strands.
#[inline]
pub fn committer() -> usize {
    static NUMBERS: Numbering = Numbering::new();
    thread_local! {
        static COMMITTER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    number(&COMMITTER, &NUMBERS)
}

/// Returns the calling thread's number, which it draws from `numbers` at its first call.
#[inline]
fn number(own: &'static LocalKey<Cell<usize>>, numbers: &Numbering) -> usize {
    if simulation::is_on() {
        return simulation::task().index();
    }
    if own.get() == usize::MAX {
        own.set(numbers.next(IS_OWN.get()));
    }
    own.get()
}

/// Number of threads that can run in parallel.
pub fn parallelism() -> usize {
    if simulation::is_on() {
        return 2;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `work` with each number below `threads`, each on its own thread, and returns the results
/// in order. A single call runs on the calling thread.
///
/// # Panics
/// If `work` panics.
pub fn scatter<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    if threads == 1 {
        return vec![work(0)];
    }
    expect_no_gate("a wait for threads");
    if simulation::is_on() {
        return simulation::scatter(threads, work);
    }
    std::thread::scope(|scope| {
        let work = &work;
        let own = |i| {
            move || {
                IS_OWN.set(true);
                work(i)
            }
        };
        let threads: Vec<_> = (0..threads).map(|i| scope.spawn(own(i))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_scattered_and_gathered() {
        assert_eq!(scatter(1, |i| i + 7), [7]);
        assert_eq!(scatter(3, |i| i * 2), [0, 2, 4]);
        let panics = std::panic::catch_unwind(|| scatter(2, |i| assert_eq!(i, 0)));
        assert!(panics.is_err());
        let handle = spawn("one", || ()).unwrap();
        assert!(!handle.is_current());
        handle.join().unwrap();
        assert_eq!(index(), index());
        assert_eq!(committer(), committer());
        let committers = scatter(4, |_| committer());
        assert!((1..4).all(|i| !committers[..i].contains(&committers[i])));
    }
}
