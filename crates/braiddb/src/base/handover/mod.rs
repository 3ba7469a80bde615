//! Hand-over of work to an agent: a thread that does work for others and returns the results.
//!
//! A request owns all that its work needs, and its result. So no buffer of the caller is ever in the
//! agent's hands, and a caller that no longer waits leaves the request to the agent. Whoever takes the
//! work out of the request does it, so it is done once: by the agent, or by the caller if the ring is
//! full, if the agent has ended, or if the agent has not begun for a while. A caller therefore sleeps
//! only for an agent that is doing its work.

#[cfg(all(test, loom))]
mod loom_tests;
mod queue;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;

use self::queue::Queue;
use crate::base::sync::{
    AtomicU32, Backoff, Counter, Latch, fence, spin_loop, wait, wake_all, wake_one, yield_now,
};

/// Most requests that wait for an agent.
const RING: usize = if cfg!(all(test, loom)) { 2 } else { 64 };

/// Looks of an idle agent before it yields.
const SPINS: u32 = if cfg!(all(test, loom)) { 1 } else { 256 };

/// Looks with which an idle agent lets others run before it sleeps: some hundred microseconds where nobody
/// else wants the processor. Waking it takes tens.
fn patience() -> u32 {
    if cfg!(all(test, loom)) {
        0
    } else if braid_rt::simulation::is_on() {
        // Every look is a step of the scheduler.
        32
    } else {
        1_000
    }
}

/// States of an agent.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const STOPPED: u32 = 2;

/// States of a request.
const OPEN: u32 = 0;
const AWAITED: u32 = 1;
const DONE: u32 = 2;

/// The thread that does the work of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Agent,
    Caller,
}

type Work<R> = Box<dyn FnOnce(By) -> R + Send>;

/// Work, and its result.
struct Request<R> {
    /// Present until the agent or the caller begins.
    work: Latch<Option<Work<R>>>,
    result: Latch<Option<std::thread::Result<R>>>,
    state: AtomicU32,
}

/// A request without the type of its result, as the agent knows it.
trait Run: Send + Sync {
    /// Does the work if nobody has begun it, and counts it before the caller has its result.
    fn run(&self, count: &Counter);
}

impl<R: Send> Run for Request<R> {
    fn run(&self, count: &Counter) {
        let Some(work) = self.work.lock().take() else {
            return;
        };
        if braid_rt::mutant!("answer_before_the_result") {
            self.state.swap(DONE, Ordering::AcqRel);
        }
        // Unwind safe: the caller, who alone uses what the work has changed, continues to unwind.
        let result = catch_unwind(AssertUnwindSafe(|| work(By::Agent)));
        *self.result.lock() = Some(result);
        // Relaxed: ordered before the result by the exchange.
        count.fetch_add(1, Ordering::Relaxed);
        // AcqRel: pairs with the loads of the caller that takes the result, and with its exchange.
        if self.state.swap(DONE, Ordering::AcqRel) == AWAITED
            && !braid_rt::mutant!("forget_who_waits_for_an_agent")
        {
            wake_one(&self.state);
        }
    }
}

/// Requests to one agent. Its thread calls [`Ring::serve`].
pub(crate) struct Ring {
    requests: Queue<Arc<dyn Run>>,
    agent: CachePadded<AtomicU32>,
    by_agent: CachePadded<Counter>,
    by_callers: CachePadded<Counter>,
}

impl Ring {
    pub(crate) fn new() -> Self {
        Self {
            requests: Queue::new(RING),
            agent: CachePadded::default(),
            by_agent: CachePadded::default(),
            by_callers: CachePadded::default(),
        }
    }

    /// Returns the number of requests that the agent has done, and of those that callers did.
    pub(crate) fn counts(&self) -> (u64, u64) {
        // Relaxed: the counts order nothing.
        let read = |count: &Counter| count.load(Ordering::Relaxed);
        (read(&self.by_agent), read(&self.by_callers))
    }

    /// Does work of others until [`Ring::stop`].
    pub(crate) fn serve(&self) {
        let (mut looks, awake) = (0, SPINS + patience());
        loop {
            if let Some(request) = self.requests.pop() {
                looks = 0;
                request.run(&self.by_agent);
                continue;
            }
            // Acquire: pairs with the exchange in `stop`.
            if self.agent.load(Ordering::Acquire) == STOPPED {
                return;
            }
            looks += 1;
            if looks < SPINS {
                spin_loop();
            } else if looks < awake {
                yield_now();
            } else {
                looks = 0;
                self.sleep();
            }
        }
    }

    /// Sleeps until a request arrives or the agent is to end.
    fn sleep(&self) {
        let change = |from, to| {
            let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
            self.agent.compare_exchange(from, to, success, failure)
        };
        if change(AWAKE, ASLEEP).is_err() {
            return;
        }
        // SeqCst: pairs with the fence in `ask`. Either this thread sees the request, or the caller
        // sees that the agent sleeps.
        fence(Ordering::SeqCst);
        if self.requests.is_empty() || braid_rt::mutant!("sleep_without_a_look") {
            wait(&self.agent, ASLEEP);
        }
        let _ = change(ASLEEP, AWAKE);
    }

    /// Ends the agent after the work that it has begun. Callers do the rest themselves.
    pub(crate) fn stop(&self) {
        // Release: pairs with the load in `serve`.
        self.agent.swap(STOPPED, Ordering::AcqRel);
        if !braid_rt::mutant!("end_an_agent_in_its_sleep") {
            wake_all(&self.agent);
        }
    }

    /// Passes work to the agent, if it has room. Waits for nothing.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        work: impl FnOnce(By) -> R + Send + 'static,
    ) -> Asked<'_, R> {
        let request = Arc::new(Request {
            work: Latch::new(Some(Box::new(work) as Work<R>)),
            result: Latch::new(None),
            state: AtomicU32::new(OPEN),
        });
        // Relaxed: an agent that ends meanwhile leaves the work to the caller.
        let is_there = self.agent.load(Ordering::Relaxed) != STOPPED;
        let is_passed = is_there && self.requests.push(request.clone());
        if is_passed {
            // SeqCst: pairs with the fence in `sleep`.
            fence(Ordering::SeqCst);
            let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
            let agent = &self.agent;
            if agent.load(Ordering::Relaxed) == ASLEEP
                && agent
                    .compare_exchange(ASLEEP, AWAKE, success, failure)
                    .is_ok()
                && !braid_rt::mutant!("forget_to_wake_an_agent")
            {
                wake_one(agent);
            }
        }
        Asked {
            ring: self,
            request,
            is_passed,
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

/// Work that an agent was asked to do. Dropping it leaves the work to the agent.
#[must_use]
pub(crate) struct Asked<'a, R> {
    ring: &'a Ring,
    request: Arc<Request<R>>,
    /// Whether the agent has the request.
    is_passed: bool,
}

impl<R> Asked<'_, R> {
    /// Waits for the result. If the agent does not begin, this thread does the work.
    ///
    /// The caller must hold no latch.
    ///
    /// # Panics
    /// If the work panics, with its panic.
    pub(crate) fn wait(self) -> R {
        debug_assert!(
            !braid_rt::is_holding(),
            "a thread that waits for an agent holds what others wait for"
        );
        if let Some(work) = self.wait_awake() {
            // Relaxed: the count orders nothing.
            self.ring.by_callers.fetch_add(1, Ordering::Relaxed);
            return work(By::Caller);
        }
        let state = &self.request.state;
        // Acquire: pairs with the agent's exchange, after it stored the result.
        let sleeps = state.compare_exchange(OPEN, AWAITED, Ordering::AcqRel, Ordering::Acquire);
        if sleeps.is_ok() {
            while state.load(Ordering::Acquire) != DONE {
                wait(state, AWAITED);
            }
        }
        let result = self.request.result.lock().take();
        match result.expect("an agent stores the result before it says that the work is done") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Waits awake while the agent may be quick. Returns the work if the agent has not begun it.
    fn wait_awake(&self) -> Option<Work<R>> {
        let mut backoff = Backoff::default();
        while self.is_passed && backoff.is_awake() {
            // Acquire: as in `wait`.
            if self.request.state.load(Ordering::Acquire) == DONE {
                return None;
            }
            backoff.wait();
        }
        self.request.work.lock().take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Runs `work` with an agent, which ends afterwards.
    fn with_agent<T>(ring: &Ring, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| ring.serve());
            let outcome = catch_unwind(AssertUnwindSafe(work));
            ring.stop();
            agent.join().unwrap();
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Each piece of work is done once, and its caller has its result, by whichever thread.
    #[test]
    fn work_is_done_once() {
        let (ring, rounds) = (Ring::new(), if cfg!(miri) { 20 } else { 2_000 });
        let done = Arc::new(AtomicU64::new(0));
        with_agent(&ring, || {
            braid_rt::thread::scatter(4, |thread| {
                for round in 0..rounds {
                    let done = done.clone();
                    let asked = ring.ask(move |_| {
                        done.fetch_add(1, Ordering::Relaxed);
                        vec![thread as u64, round]
                    });
                    assert_eq!(asked.wait(), [thread as u64, round]);
                }
            });
        });
        assert_eq!(done.load(Ordering::Relaxed), 4 * rounds);
        let (by_agent, by_callers) = ring.counts();
        assert_eq!(by_agent + by_callers, 4 * rounds);
    }

    /// Without an agent, and with more requests than the ring has room for, callers do the work.
    #[test]
    fn callers_do_what_no_agent_does() {
        let ring = Ring::new();
        let asked: Vec<_> = (0..2 * RING).map(|i| ring.ask(move |by| (by, i))).collect();
        for (i, asked) in asked.into_iter().enumerate() {
            assert_eq!(asked.wait(), (By::Caller, i));
        }
        with_agent(&ring, || ());
        assert_eq!(ring.ask(|by| by).wait(), By::Caller, "the agent has ended");
        assert_eq!(ring.counts(), (0, 2 * RING as u64 + 1));
    }

    /// An agent falls asleep when nobody asks, and does the next request.
    #[test]
    fn an_idle_agent_falls_asleep() {
        let ring = Ring::new();
        with_agent(&ring, || {
            for _ in 0..if cfg!(miri) { 2 } else { 20 } {
                let _ = ring.ask(|by| by).wait();
                while ring.agent.load(Ordering::Acquire) != ASLEEP {
                    yield_now();
                }
            }
        });
    }

    /// An agent does requests whose callers have left, and goes on after a panic.
    #[test]
    fn an_agent_outlives_callers_and_panics() {
        let ring = Ring::new();
        let done = Arc::new(AtomicU64::new(0));
        with_agent(&ring, || {
            let left = done.clone();
            drop(ring.ask(move |_| left.store(1, Ordering::Release)));
            // Until the agent has done a request that was asked later.
            while ring.ask(|by| by).wait() != By::Agent {}
            assert_eq!(done.load(Ordering::Acquire), 1);
            let panics = || {
                ring.ask::<()>(|_| resume_unwind(Box::new("deliberately")))
                    .wait()
            };
            let panic = catch_unwind(AssertUnwindSafe(panics));
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"deliberately"));
            while ring.ask(|by| by).wait() != By::Agent {}
        });
    }
}
