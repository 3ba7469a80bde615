//! The ring in every order of its steps: requests and answers, a full ring, panics, callers that do not
//! wait, and the end of the agent. A lost wake-up shows as "deadlock".

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use braid_loom::{AtomicU32, JoinHandle, explore, spawn, wait, wake_all};

use super::*;

fn start(ring: &Arc<Ring>) -> JoinHandle<()> {
    let ring = ring.clone();
    spawn(move || ring.serve())
}

/// Ends an agent, which must be able to end.
fn end(ring: &Ring, agent: JoinHandle<()>) {
    ring.stop();
    agent.join().unwrap();
}

/// How often work was done, and the threads that wait for it.
#[derive(Default)]
struct Done(AtomicU32);

impl Done {
    /// Work that counts itself, and returns how often it was done.
    fn work(self: &Arc<Self>) -> impl FnOnce(By) -> u32 + Send + 'static {
        let done = self.clone();
        move |_| {
            let before = done.0.fetch_add(1, Release);
            wake_all(&done.0);
            before + 1
        }
    }

    fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }

    fn wait_until(&self, count: u32) {
        loop {
            let now = self.0.load(Acquire);
            if now == count {
                return;
            }
            wait(&self.0, now);
        }
    }
}

/// Asks for work and waits for its result, which shows that it was done once.
fn ask_once(ring: &Ring) {
    assert_eq!(ring.ask(Arc::new(Done::default()).work()).wait(), 1);
}

/// The number of requests that the agent or their callers have done.
fn requests_done(ring: &Ring) -> u64 {
    let (by_agent, by_callers) = ring.counts();
    by_agent + by_callers
}

/// Work of several callers is done once, by the agent or by its caller, who has the result.
#[test]
fn work_is_done_once() {
    explore(1, || {
        let ring = Arc::new(Ring::new());
        let agent = start(&ring);
        let other = {
            let ring = ring.clone();
            spawn(move || ask_once(&ring))
        };
        ask_once(&ring);
        other.join().unwrap();
        end(&ring, agent);
        assert_eq!(requests_done(&ring), 2);
    });
}

/// The agent does what its caller does not wait for, also if the agent is about to sleep.
///
/// Needs SeqCst for the fences in `ask` and `sleep`.
#[test]
fn an_agent_does_what_nobody_awaits() {
    explore(3, || {
        let ring = Arc::new(Ring::new());
        let agent = start(&ring);
        let done = Arc::new(Done::default());
        for round in 1..=2 {
            drop(ring.ask(done.work()));
            done.wait_until(round);
        }
        end(&ring, agent);
        assert_eq!((done.count(), ring.counts()), (2, (2, 0)));
    });
}

/// More requests than the ring has room for, of two threads: each is done once, and slots are used
/// again only when they are free.
#[test]
fn a_full_ring_loses_nothing() {
    explore(2, || {
        let ring = Arc::new(Ring::new());
        let done = Arc::new(Done::default());
        // Nobody waits for these, which fill the ring before the agent begins.
        for _ in 0..RING {
            drop(ring.ask(done.work()));
        }
        let agent = start(&ring);
        let other = {
            let ring = ring.clone();
            spawn(move || ask_once(&ring))
        };
        ask_once(&ring);
        other.join().unwrap();
        done.wait_until(RING as u32);
        end(&ring, agent);
        assert_eq!(requests_done(&ring), RING as u64 + 2);
    });
}

/// If the work panics, its caller receives the panic, and the agent does the next request.
#[test]
fn an_agent_goes_on_after_a_panic() {
    explore(2, || {
        let ring = Arc::new(Ring::new());
        let agent = start(&ring);
        let panics = AssertUnwindSafe(|| {
            let asked = ring.ask::<()>(|_| resume_unwind(Box::new("deliberately")));
            asked.wait();
        });
        let panic = catch_unwind(panics).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"deliberately"));
        let done = Arc::new(Done::default());
        drop(ring.ask(done.work()));
        done.wait_until(1);
        end(&ring, agent);
    });
}

/// The agent ends while a caller asks: the caller has its result, and the agent does not sleep on.
#[test]
fn callers_go_on_when_the_agent_ends() {
    explore(2, || {
        let ring = Arc::new(Ring::new());
        let agent = start(&ring);
        let caller = {
            let ring = ring.clone();
            spawn(move || {
                for _ in 0..2 {
                    ask_once(&ring);
                }
            })
        };
        end(&ring, agent);
        caller.join().unwrap();
        assert_eq!(requests_done(&ring), 2);
    });
}
