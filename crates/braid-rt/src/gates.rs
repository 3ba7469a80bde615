//! What a thread holds that others wait for, and what it must not do meanwhile.
//!
//! A thread that waits, or calls a device, while it holds a *gate* makes every thread wait that needs
//! the gate: for as long as the device takes, which no measurement bounds. So the holder of a gate is
//! marked ([`Mark`], [`Held`](crate::Held)), and whatever may take long calls
//! [`expect_no_gate`]: in debug builds, and so in all tests and simulations, it fails and names the
//! gate and the call. An exception says why ([`excused`]). Release builds contain none of this.

use std::marker::PhantomData;

/// A guard for which background work may wait; see [`is_holding`].
#[derive(Debug)]
pub struct Marked<G> {
    // Dropped before the guard.
    _mark: Mark,
    _guard: G,
}

impl<G> Marked<G> {
    /// Marks the thread as a holder of `guard`, a share of the gate of this name, until the result is
    /// dropped, which releases it.
    pub fn new(gate: &'static str, guard: G) -> Self {
        Self {
            _mark: Mark::of(gate, list::Kind::Share),
            _guard: guard,
        }
    }
}

/// Marks its thread as the holder of a gate until it is dropped; see [`expect_no_gate`].
#[derive(Debug)]
#[must_use]
pub struct Mark {
    _entry: list::Entry,
    /// The list of gates is that of a thread.
    _thread: PhantomData<*const ()>,
}

impl Mark {
    /// Marks the thread as the holder of the gate of this name.
    #[inline]
    pub fn new(gate: &'static str) -> Self {
        Self::of(gate, list::Kind::Gate)
    }

    /// Marks nothing.
    #[inline]
    pub fn none() -> Self {
        Self {
            _entry: list::Entry::none(),
            _thread: PhantomData,
        }
    }

    #[inline]
    fn of(gate: &'static str, kind: list::Kind) -> Self {
        Self {
            _entry: list::Entry::new(gate, kind),
            _thread: PhantomData,
        }
    }
}

/// Whether the thread holds a gate or a share of one, so that it should not pause. Always `false` in
/// release builds.
pub fn is_holding() -> bool {
    list::is_holding()
}

/// Checks that the thread holds no gate while it makes a call that may take long.
///
/// # Panics
/// In debug builds, if it holds one and has no [excuse](excused).
#[inline]
#[track_caller]
pub fn expect_no_gate(call: &str) {
    if let Some(gate) = list::newest_gate()
        && !std::thread::panicking()
    {
        fail(call, gate);
    }
}

#[cold]
#[track_caller]
fn fail(call: &str, gate: &str) -> ! {
    panic!("{call} while the thread holds what others wait for: {gate}");
}

/// The gate that a commit holds which has its sequence number and holds back the acknowledgement of
/// others.
pub const SEQUENCE_NUMBER: &str = "a sequence number";

/// Stands for all gates in [`excused`].
pub const ANY_GATE: &str = "any gate";

/// Calls `f`, which may take long although the thread holds `gate`, for the reason given. Gates that
/// `f` acquires itself are checked.
#[inline]
pub fn excused<R>(gate: &'static str, _reason: &str, f: impl FnOnce() -> R) -> R {
    let _entry = list::Entry::new(gate, list::Kind::Excuse);
    f()
}

/// The gates and excuses of each thread, or of each task of a simulation.
#[cfg(all(debug_assertions, not(loom)))]
mod list {
    use std::cell::{Cell, RefCell};

    use crate::simulation;

    /// What an entry stands for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Kind {
        Gate,
        /// Those who need the gate alone wait, which is background work that leaves commits alone
        /// meanwhile.
        Share,
        /// Gates before it that have its name do not count.
        Excuse,
    }

    #[derive(Debug)]
    struct Listed {
        number: u64,
        task: Option<simulation::TaskId>,
        name: &'static str,
        kind: Kind,
    }

    thread_local! {
        static LIST: RefCell<Vec<Listed>> = const { RefCell::new(Vec::new()) };
        static NUMBERS: Cell<u64> = const { Cell::new(0) };
    }

    fn task() -> Option<simulation::TaskId> {
        simulation::is_on().then(simulation::task)
    }

    /// An entry of the list, until it is dropped. The number of none is 0.
    #[derive(Debug)]
    pub(super) struct Entry(u64);

    impl Entry {
        pub(super) fn none() -> Self {
            Self(0)
        }

        pub(super) fn new(name: &'static str, kind: Kind) -> Self {
            let number = NUMBERS.get() + 1;
            NUMBERS.set(number);
            let listed = Listed {
                number,
                task: task(),
                name,
                kind,
            };
            // A thread that ends has no list any more: nothing is checked then.
            let _ = LIST.try_with(|list| list.borrow_mut().push(listed));
            Self(number)
        }
    }

    impl Drop for Entry {
        fn drop(&mut self) {
            if self.0 == 0 {
                return;
            }
            let _ = LIST.try_with(|list| {
                let mut list = list.borrow_mut();
                if let Some(at) = list.iter().rposition(|listed| listed.number == self.0) {
                    list.remove(at);
                }
            });
        }
    }

    /// Calls `f` with each entry of the thread, the newest first, until that returns something.
    fn find<R>(f: impl FnMut(&Listed) -> Option<R>) -> Option<R> {
        let found = LIST.try_with(|list| {
            let list = list.borrow();
            if list.is_empty() {
                return None;
            }
            let task = task();
            let own = list.iter().rev().filter(|listed| listed.task == task);
            own.into_iter().find_map(f)
        });
        found.ok().flatten()
    }

    pub(super) fn is_holding() -> bool {
        find(|listed| (listed.kind != Kind::Excuse).then_some(())).is_some()
    }

    /// The gate that the thread acquired last, of those for which it has no excuse since.
    pub(super) fn newest_gate() -> Option<&'static str> {
        let mut excused = Vec::new();
        find(|listed| {
            match listed.kind {
                Kind::Excuse => excused.push(listed.name),
                Kind::Gate
                    if ![listed.name, super::ANY_GATE]
                        .iter()
                        .any(|name| excused.contains(name)) =>
                {
                    return Some(listed.name);
                }
                Kind::Gate | Kind::Share => {}
            }
            None
        })
    }

    /// Forgets what tasks of an earlier simulation held when it was abandoned.
    #[cfg(feature = "simulation")]
    pub(crate) fn forget_tasks() {
        LIST.with_borrow_mut(|list| list.retain(|listed| listed.task.is_none()));
    }
}

/// Nothing.
#[cfg(not(all(debug_assertions, not(loom))))]
mod list {
    #[derive(Clone, Copy)]
    pub(super) enum Kind {
        Gate,
        Share,
        Excuse,
    }

    #[derive(Debug)]
    pub(super) struct Entry;

    impl Entry {
        #[inline(always)]
        pub(super) fn new(_: &'static str, _: Kind) -> Self {
            Self
        }

        #[inline(always)]
        pub(super) fn none() -> Self {
            Self
        }
    }

    #[inline(always)]
    pub(super) fn is_holding() -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn newest_gate() -> Option<&'static str> {
        None
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn forget_tasks() {}
}

#[cfg(feature = "simulation")]
pub(crate) use list::forget_tasks;

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;
    use crate::user::message;
    use crate::{Condvar, LongestHold, Mutex};

    /// The message of the failure that `call` must end with.
    fn failure(call: impl FnOnce()) -> String {
        message(&*catch_unwind(AssertUnwindSafe(call)).unwrap_err())
    }

    #[test]
    fn a_thread_holds_something_until_its_last_guard_is_dropped() {
        let (longest, mutex) = (LongestHold::new("first"), Mutex::new(7));
        assert!(!is_holding());
        let held = longest.of(mutex.lock());
        let marked = Marked::new("second", ());
        assert!(is_holding());
        excused(ANY_GATE, "a test", || assert!(is_holding()));
        assert!(!std::thread::spawn(is_holding).join().unwrap());
        drop(held);
        assert!(is_holding());
        expect_no_gate("a write, under a share");
        drop(marked);
        assert!(!is_holding());
        expect_no_gate("a write");
    }

    #[test]
    fn a_call_that_may_take_long_fails_under_a_gate() {
        let gate = Mark::new("the gate");
        let waits: [(&str, &dyn Fn()); 5] = [
            ("a write", &|| expect_no_gate("a write")),
            ("a pause", &|| crate::sleep(Duration::ZERO)),
            ("a wait", &|| {
                crate::wait(&crate::atomic::AtomicU32::new(0), 1);
            }),
            ("a wait", &|| {
                let deadline = crate::now();
                Condvar::new().wait_until(&mut Mutex::new(()).lock(), deadline);
            }),
            ("a wait for a thread", &|| {
                crate::thread::spawn("short", || ())
                    .unwrap()
                    .join()
                    .unwrap();
            }),
        ];
        for (call, wait) in waits {
            let expected = format!("{call} while the thread holds what others wait for: the gate");
            assert_eq!(failure(wait), expected);
        }
        drop(gate);
        waits.into_iter().for_each(|(_, wait)| wait());
    }

    #[test]
    fn an_excuse_covers_the_gates_before_it() {
        let _outer = Mark::new("outer");
        excused("outer", "a reason", || {
            expect_no_gate("a write");
            let _inner = Mark::new("inner");
            assert!(failure(|| expect_no_gate("a write")).ends_with(": inner"));
            excused(ANY_GATE, "another", || expect_no_gate("a write"));
        });
        let outcome = excused("inner", "a reason", || {
            failure(|| expect_no_gate("a write"))
        });
        assert!(outcome.ends_with(": outer"), "{outcome}");
        assert!(failure(|| expect_no_gate("a read")).ends_with(": outer"));
    }

    #[test]
    #[cfg(feature = "simulation")]
    fn each_task_of_a_simulation_has_its_own_gates() {
        use crate::simulation::{Failure, Options, run};
        let options = Options {
            seed: 1,
            steps_max: 10_000,
            stalls: 0,
        };
        let body = |breaks: bool| {
            move || {
                let mark = Mark::new("the gate");
                let other =
                    crate::thread::spawn("other", || crate::sleep(Duration::from_millis(1)));
                excused(ANY_GATE, "a test", || other.unwrap().join().unwrap());
                if breaks {
                    crate::sleep(Duration::from_millis(1));
                }
                drop(mark);
                crate::sleep(Duration::from_millis(1));
            }
        };
        let broken = run(&options, body(true)).0;
        let Err(Failure::Panic { message, .. }) = broken else {
            panic!("{broken:?}");
        };
        assert!(message.starts_with("a pause while"), "{message}");
        assert_eq!(run(&options, body(false)).0, Ok(()));
    }
}
