//! The scheduler, and the calls that its tasks make.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use generator::Gn;

use super::TaskId;
use super::tasks::{Stack, State, Tasks};
use crate::nonblocking::set_must_not_wait;
use crate::user::message;

/// Words in a task's stack: enough for unoptimized builds. Untouched pages cost nothing.
const STACK_WORDS: usize = 64 << 10;

/// Stacks kept for later tasks of this thread.
const STACKS_MAX: usize = 64;

/// Simulated nanoseconds after which a run counts as endless: only clocks still wake its tasks.
const TIME_MAX: u64 = 300_000_000_000;

/// Number of waits that a panicking task may make before the process aborts: the tasks that it
/// waits for no longer run.
const WAITS_IN_PANIC: u32 = 100_000;

/// Options of a simulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all decisions.
    pub seed: u64,
    /// Number of steps after which the run counts as endless.
    pub steps_max: u64,
    /// One in this many [yield points](yield_point) leaves its task without a processor for up to
    /// two milliseconds; 0 for none.
    pub stalls: u32,
}

/// Statistics of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of points, waits and ends of tasks.
    pub steps: u64,
    /// Number of switches to another task.
    pub switches: u64,
    /// Number of tasks started.
    pub tasks: usize,
    /// Simulated time that passed.
    pub time: Duration,
    /// Fingerprint of the schedule: equal for identical runs.
    pub trace: u64,
    /// Number of times that each place that calls [`coverage_point`] was reached.
    pub reached: BTreeMap<&'static str, u64>,
}

/// Why a simulation did not finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A task panicked.
    Panic {
        /// The task's name.
        task: String,
        /// The panic's message.
        message: String,
    },
    /// These tasks wait forever.
    Deadlock {
        /// The tasks' names, and where they wait.
        tasks: Vec<String>,
    },
    /// The run exceeded its number of steps or its simulated time; these tasks had not ended.
    Endless {
        /// The tasks' names, and where they are.
        tasks: Vec<String>,
    },
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Panic { task, message } => write!(f, "{task} panicked: {message}"),
            Failure::Deadlock { tasks } => write!(f, "wait forever: {}", tasks.join("; ")),
            Failure::Endless { tasks } => write!(f, "do not end: {}", tasks.join("; ")),
        }
    }
}

/// How the next task is chosen.
#[derive(Clone, Copy, Debug)]
enum Policy {
    /// Any task, at one in this many points on average.
    Uniform(u32),
    /// The task with the highest priority, which loses it at one in this many points on average.
    /// (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs",
    /// ASPLOS 2010.)
    Priority(u32),
}

struct Scheduler {
    rng: RefCell<Rng>,
    policy: Policy,
    /// One in this many steps, on average, wakes a sleeper spuriously; 0 for never.
    spurious: u32,
    /// One in this many points stalls its task; 0 for none.
    stalls: u32,
    base: Instant,
    /// Nanoseconds since `base`.
    now: Cell<u64>,
    current: Cell<usize>,
    tasks: RefCell<Tasks>,
    /// Whether a task has done anything but spin since the tasks that gave way came back.
    progress: Cell<bool>,
    /// The task that runs after the current one has yielded the processor, if already chosen.
    next: Cell<Option<Option<usize>>>,
    panic: RefCell<Option<Failure>>,
    steps: Cell<u64>,
    steps_max: u64,
    switches: Cell<u64>,
    trace: Cell<u64>,
    waits_in_panic: Cell<u32>,
    reached: RefCell<BTreeMap<&'static str, u64>>,
    /// Whether tasks are resumed only to report where they are.
    autopsy: Cell<bool>,
    stacks: RefCell<Vec<String>>,
}

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static SCHEDULER: RefCell<Option<Rc<Scheduler>>> = const { RefCell::new(None) };
    static STACKS: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

/// Whether the caller is a task of a simulation.
#[inline]
pub fn is_on() -> bool {
    ON.get()
}

/// Yield point: a place where a simulation may switch to another task.
#[inline]
pub fn yield_point() {
    if is_on() {
        at_yield_point();
    }
}

#[cold]
fn at_yield_point() {
    let scheduler = scheduler();
    scheduler.step();
    scheduler.progress.set(true);
    if let Some(until) = scheduler.stall() {
        coverage_point("a thread gets no processor for a while");
        let deadline = Some(until);
        scheduler.switch(State::Blocked { key: 0, deadline });
    } else if scheduler.wants_switch() {
        scheduler.switch(State::Ready);
    }
}

/// Coverage point: counts that a rare branch was reached, so that a test suite can report the
/// branches that it never tried.
#[inline]
pub fn coverage_point(place: &'static str) {
    if is_on() {
        *scheduler().reached.borrow_mut().entry(place).or_default() += 1;
    }
}

fn scheduler() -> Rc<Scheduler> {
    let scheduler = SCHEDULER.with_borrow(Clone::clone);
    scheduler.expect("the caller is a task")
}

/// Lets other tasks run first: those that have not given way since a task last did anything else.
pub(crate) fn give_way() {
    let scheduler = scheduler();
    scheduler.step();
    scheduler.switch(State::GaveWay);
}

/// Sleeps until another task wakes `key`, or spuriously; returns `false` if the deadline came
/// first.
pub(crate) fn block(key: usize, deadline: Option<Instant>) -> bool {
    let scheduler = scheduler();
    scheduler.step();
    scheduler.progress.set(true);
    let nanos = |at: Instant| {
        let nanos = at.saturating_duration_since(scheduler.base).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX)
    };
    let deadline = deadline.map(nanos);
    scheduler.switch(State::Blocked { key, deadline });
    let current = scheduler.current.get();
    scheduler.tasks.borrow_mut().get(current).woken
}

/// Wakes up to `most` tasks that sleep on `key`.
pub(crate) fn wake(key: usize, most: usize) {
    let scheduler = scheduler();
    let mut tasks = scheduler.tasks.borrow_mut();
    let mut sleepers = tasks.sleepers(key);
    if most < sleepers.len() {
        scheduler.rng.borrow_mut().shuffle(&mut sleepers);
        sleepers.truncate(most);
    }
    for task in sleepers {
        tasks.wake(task);
    }
}

pub(crate) fn now() -> Instant {
    let scheduler = scheduler();
    scheduler.base + Duration::from_nanos(scheduler.now.get())
}

/// Simulated time since the start of the simulation.
pub(crate) fn elapsed() -> Duration {
    Duration::from_nanos(scheduler().now.get())
}

pub(crate) fn random() -> u64 {
    scheduler().rng.borrow_mut().u64(..)
}

/// Returns the calling task.
///
/// # Panics
/// If the caller is not a task of a simulation.
pub fn task() -> TaskId {
    TaskId(scheduler().current.get())
}

pub(crate) fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> TaskId {
    let task = scheduler().start(name, Box::new(f));
    yield_point();
    task
}

/// The key on which tasks sleep until `task` ends.
fn end_of(task: TaskId) -> usize {
    usize::MAX - task.0
}

pub(crate) fn join(task: TaskId) {
    let scheduler = scheduler();
    while scheduler.tasks.borrow().state(task.0) != State::Done {
        block(end_of(task), None);
    }
}

pub(crate) fn scatter<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let results: Vec<Mutex<Option<T>>> = (0..threads).map(|_| Mutex::new(None)).collect();
    let each = |i: usize| {
        let result = work(i);
        *results[i].lock().expect("nobody panics while it is locked") = Some(result);
    };
    let each: &(dyn Fn(usize) + Sync) = &each;
    // SAFETY: the tasks that call it are joined below, and nothing in between unwinds: `spawn` and
    // `join` do not panic for a task. (If a task panics, the simulation ends and never resumes this
    // code.)
    let each: &'static (dyn Fn(usize) + Sync) =
        unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), _>(each) };
    let tasks: Vec<TaskId> = (0..threads)
        .map(|i| spawn(&format!("scattered-{i}"), move || each(i)))
        .collect();
    tasks.into_iter().for_each(join);
    let result = |cell: Mutex<Option<T>>| cell.into_inner().ok().flatten();
    results
        .into_iter()
        .map(|cell| result(cell).expect("the task has ended"))
        .collect()
}

/// Extracts Braid's own calls from a backtrace.
fn frames(backtrace: &str) -> String {
    let lines: Vec<&str> = backtrace.lines().map(str::trim).collect();
    let calls = lines.windows(2).filter(|pair| {
        pair[1].starts_with("at ")
            && pair[1].contains("crates/braid")
            && !pair[1].contains("braid-rt")
    });
    let place = |pair: &[&str]| {
        let file = pair[1].rsplit("crates/").next().unwrap_or_default();
        file.rsplit_once(':')
            .map_or(file, |(line, _)| line)
            .to_owned()
    };
    let calls: Vec<String> = calls.map(place).take(8).collect();
    calls.join(" < ")
}

impl Scheduler {
    fn new(options: &Options) -> Self {
        let mut rng = Rng::with_seed(options.seed);
        let every = [1, 2, 8, 32, 128][rng.usize(..5)];
        let policy = match rng.u32(..3) {
            // A task that waits for a lock spins, and uses up all steps while the holder is
            // stalled. Priorities could then keep the holder from running at all, so stalls exclude
            // priorities.
            0 if options.stalls == 0 => Policy::Priority(every * 8),
            _ => Policy::Uniform(every),
        };
        let spurious = if rng.u32(..8) == 0 { 50 } else { 0 };
        Self {
            rng: RefCell::new(rng),
            policy,
            spurious,
            stalls: options.stalls,
            base: Instant::now(),
            now: Cell::new(0),
            current: Cell::new(0),
            tasks: RefCell::default(),
            progress: Cell::new(true),
            next: Cell::new(None),
            panic: RefCell::default(),
            steps: Cell::new(0),
            steps_max: options.steps_max,
            switches: Cell::new(0),
            trace: Cell::new(0),
            waits_in_panic: Cell::new(0),
            reached: RefCell::default(),
            autopsy: Cell::new(false),
            stacks: RefCell::default(),
        }
    }

    fn start(&self, name: &str, f: Box<dyn FnOnce() + Send>) -> TaskId {
        let mut tasks = self.tasks.borrow_mut();
        let task = TaskId(tasks.len());
        let body = move || {
            let outcome = catch_unwind(AssertUnwindSafe(f));
            let scheduler = scheduler();
            if let Err(panic) = outcome {
                let message = message(&*panic);
                let task = scheduler.tasks.borrow_mut().get(task.0).name.clone();
                *scheduler.panic.borrow_mut() = Some(Failure::Panic { task, message });
            }
            scheduler.tasks.borrow_mut().set(task.0, State::Done);
            scheduler.progress.set(true);
            wake(end_of(task), usize::MAX);
        };
        let stack = match STACKS.with_borrow_mut(Vec::pop) {
            Some(mut stack) => {
                stack.init_code(body);
                stack
            }
            None => Gn::<()>::new_opt(STACK_WORDS, body),
        };
        let priority = self.rng.borrow_mut().u64(1 << 32..);
        tasks.add(name, priority, stack);
        task
    }

    /// Counts a step and advances the time.
    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
        let nanos = self.rng.borrow_mut().u64(50..1_000);
        self.now.set(self.now.get() + nanos);
    }

    fn wants_switch(&self) -> bool {
        if std::thread::panicking() {
            return false;
        }
        let every = match self.policy {
            Policy::Uniform(every) => every,
            // A task with a higher priority may have been woken.
            Policy::Priority(_) => 1,
        };
        every == 1 || self.rng.borrow_mut().u32(..every) == 0
    }

    /// Yields the processor to the task that the scheduler chooses.
    fn switch(&self, state: State) {
        let current = self.current.get();
        if std::thread::panicking() {
            // A panicking task runs its destructors to the end before any other task runs;
            // otherwise the panics of several stacks would be mixed up.
            self.tasks.borrow_mut().get(current).woken = true;
            self.waits_in_panic.set(self.waits_in_panic.get() + 1);
            if self.waits_in_panic.get() > WAITS_IN_PANIC {
                eprintln!("a task that panicked waits for others; giving up");
                std::process::abort();
            }
            return;
        }
        {
            let mut tasks = self.tasks.borrow_mut();
            tasks.set(current, state);
            if state == State::GaveWay {
                // Two tasks that wait for a third would run forever if both had a higher priority
                // than the third.
                tasks.get(current).priority = self.rng.borrow_mut().u64(..1 << 32);
            }
        }
        let next = self.turn();
        if next == Some(current) && !self.is_endless() {
            return;
        }
        self.next.set(Some(next));
        // All tasks share the variables of one thread.
        let must_not_wait = set_must_not_wait(false);
        ON.set(false);
        #[expect(
            deprecated,
            reason = "the other way needs an argument in every function of the engine"
        )]
        generator::yield_with(());
        if self.autopsy.get() {
            let stack = std::backtrace::Backtrace::force_capture().to_string();
            self.stacks.borrow_mut().push(frames(&stack));
            #[expect(deprecated, reason = "as above; nobody comes back here")]
            generator::yield_with(());
        }
        ON.set(true);
        set_must_not_wait(must_not_wait);
    }

    /// Decides whether the task stalls here, and until when. Other tasks' I/O proceeds meanwhile.
    fn stall(&self) -> Option<u64> {
        if self.stalls == 0 {
            return None;
        }
        let mut rng = self.rng.borrow_mut();
        let stalls = rng.u32(..self.stalls) == 0;
        stalls.then(|| self.now.get() + rng.u64(1_000..2_000_000))
    }

    /// Chooses the task that runs next, if any can run.
    fn choose(&self) -> Option<usize> {
        let tasks = &mut *self.tasks.borrow_mut();
        let mut rng = self.rng.borrow_mut();
        if self.spurious > 0 && rng.u32(..self.spurious) == 0 {
            let any = rng.usize(..tasks.len());
            if matches!(tasks.state(any), State::Blocked { key, .. } if key != 0) {
                tasks.wake(any);
                let mut reached = self.reached.borrow_mut();
                *reached.entry("a thread wakes for no reason").or_default() += 1;
            }
        }
        tasks.fire(self.now.get());
        // A task that spins, such as one that waits for a lock, finds what it waits for only after
        // another task has done something. Without this, two of them would take turns for as long as
        // the holder of the lock sleeps, and use up the steps of the run.
        if self.progress.take() {
            tasks.come_back();
        }
        if tasks.ready().is_empty() {
            // Spinning tasks wait for sleeping tasks, so time must pass.
            if let Some(next) = tasks.next_deadline() {
                self.now.set(self.now.get().max(next));
                tasks.fire(self.now.get());
            }
            tasks.come_back();
        }
        if tasks.ready().is_empty() {
            return None;
        }
        // Several spinning tasks may never drop below the very low priority of the task that they
        // wait for.
        let policy = if self.steps.get() > self.steps_max / 10 {
            Policy::Uniform(1)
        } else {
            self.policy
        };
        let next = match policy {
            Policy::Uniform(_) => tasks.ready()[rng.usize(..tasks.ready().len())],
            Policy::Priority(every) => {
                if rng.u32(..every) == 0 {
                    // Lower than all priorities drawn at the start.
                    tasks.get(self.current.get()).priority = rng.u64(..1 << 32);
                }
                tasks.greatest()
            }
        };
        Some(next)
    }

    /// Chooses the next task and counts the switch.
    fn turn(&self) -> Option<usize> {
        let next = self.choose()?;
        let trace = (self.trace.get() ^ next as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace.set(trace.rotate_left(23));
        Some(next)
    }

    fn is_endless(&self) -> bool {
        self.steps.get() > self.steps_max || self.now.get() > TIME_MAX
    }

    fn run(&self) -> Option<Failure> {
        while let Some(next) = self.next.take().unwrap_or_else(|| self.turn()) {
            if self.is_endless() {
                let tasks = self.unfinished();
                return Some(Failure::Endless { tasks });
            }
            if self.current.replace(next) != next {
                self.switches.set(self.switches.get() + 1);
            }
            let stack = self.tasks.borrow_mut().get(next).stack.take();
            let mut stack = stack.expect("a task that is ready has a stack");
            ON.set(true);
            stack.resume();
            ON.set(false);
            if stack.is_done() {
                STACKS.with_borrow_mut(|stacks| {
                    if stacks.len() < STACKS_MAX {
                        stacks.push(stack);
                    }
                });
            } else {
                self.tasks.borrow_mut().get(next).stack = Some(stack);
            }
            if let Some(failure) = self.panic.take() {
                return Some(failure);
            }
        }
        let tasks = self.unfinished();
        (!tasks.is_empty()).then_some(Failure::Deadlock { tasks })
    }

    /// The tasks that have not ended, and where they are.
    fn unfinished(&self) -> Vec<String> {
        self.autopsy.set(true);
        let unfinished = self.tasks.borrow().unfinished();
        let reports = unfinished.into_iter().filter_map(|i| {
            let mut tasks = self.tasks.borrow_mut();
            let task = tasks.get(i);
            Some((task.name.clone(), task.stack.take()?))
        });
        let reports = reports.map(|(name, mut stack)| {
            stack.resume();
            std::mem::forget(stack);
            let place = self.stacks.borrow_mut().pop().unwrap_or_default();
            format!("{name} ({place})")
        });
        reports.collect()
    }
}

/// Runs `main` as the first task of a simulation, until it and all tasks that it starts have ended.
///
/// # Errors
/// A [`Failure`], with the report up to that point. The stacks of unfinished tasks, and everything
/// that they own, are then leaked.
///
/// # Panics
/// If the caller is itself a task.
pub fn run<T: Send + 'static>(
    options: &Options,
    main: impl FnOnce() -> T + Send + 'static,
) -> (Result<T, Failure>, Report) {
    assert!(!is_on(), "a simulation in a simulation");
    crate::gates::forget_tasks();
    let scheduler = Rc::new(Scheduler::new(options));
    SCHEDULER.set(Some(scheduler.clone()));
    let result = Arc::new(Mutex::new(None));
    let place = result.clone();
    let main = move || {
        let value = main();
        *place.lock().expect("nobody panics while it is locked") = Some(value);
    };
    scheduler.start("main", Box::new(main));
    let failure = scheduler.run();
    SCHEDULER.set(None);
    let report = Report {
        steps: scheduler.steps.get(),
        switches: scheduler.switches.get(),
        tasks: scheduler.tasks.borrow().len(),
        time: Duration::from_nanos(scheduler.now.get()),
        trace: scheduler.trace.get(),
        reached: scheduler.reached.take(),
    };
    if let Some(failure) = failure {
        // Leak the tasks: unwinding them would run destructors that wait for each other.
        let mut tasks = scheduler.tasks.borrow_mut();
        for task in 0..tasks.len() {
            std::mem::forget(tasks.get(task).stack.take());
        }
        return (Err(failure), report);
    }
    let value = result
        .lock()
        .expect("nobody panics while it is locked")
        .take();
    (Ok(value.expect("main has ended")), report)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::*;
    use crate::{Condvar, Mutex, RwLock, sleep, thread, wait, wake_all};

    fn options(seed: u64) -> Options {
        Options {
            seed,
            steps_max: 100_000,
            stalls: 0,
        }
    }

    #[test]
    fn tasks_share_locks_and_the_seed_decides() {
        let run = |seed| {
            let (order, report) = run(&options(seed), || {
                let order = Arc::new((Mutex::new(Vec::new()), RwLock::new(0)));
                let handles: Vec<_> = (0..3)
                    .map(|i| {
                        let order = order.clone();
                        thread::spawn(&format!("t{i}"), move || {
                            for _ in 0..4 {
                                let mut list = order.0.lock();
                                // Interrupted while it holds the lock.
                                yield_point();
                                list.push(i);
                                *order.1.write() += 1;
                            }
                        })
                        .unwrap()
                    })
                    .collect();
                assert!(!handles[0].is_current());
                handles.into_iter().for_each(|h| h.join().unwrap());
                assert_eq!(*order.1.read(), 12);
                std::mem::take(&mut *order.0.lock())
            });
            assert_eq!(report.tasks, 4);
            (order.unwrap(), report)
        };
        assert_eq!(run(5), run(5));
        let orders: std::collections::HashSet<_> = (0..50).map(|seed| run(seed).0).collect();
        assert!(orders.len() > 20, "{}", orders.len());
    }

    #[test]
    fn time_passes_when_all_sleep() {
        let (elapsed, report) = run(&options(1), || {
            let begun = crate::now();
            let results = thread::scatter(3, |i| {
                sleep(Duration::from_secs(10 * (3 - i as u64)));
                (i, crate::now() - begun)
            });
            assert!(results.iter().map(|r| r.0).eq(0..3));
            assert!(results[2].1 < results[1].1 && results[1].1 < results[0].1);
            let (mutex, condvar) = (Mutex::new(()), Condvar::new());
            let end = crate::now() + Duration::from_secs(5);
            let mut guard = mutex.lock();
            while !condvar.wait_until(&mut guard, end).timed_out() {}
            crate::now() - begun
        });
        assert!((35..36).contains(&elapsed.unwrap().as_secs()));
        assert!(report.time >= Duration::from_secs(35));
    }

    #[test]
    fn a_wake_up_that_is_lost_is_a_deadlock() {
        // A sleeper checks first, but the waker may run between the check and the sleep.
        let sleeper = |careful: bool| {
            move || {
                let word = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
                let waker = word.clone();
                let waker = move || {
                    waker.1.store(1, Ordering::SeqCst);
                    if careful {
                        waker.0.fetch_add(1, Ordering::SeqCst);
                    }
                    wake_all(&waker.0);
                };
                let handle = thread::spawn("waker", waker).unwrap();
                let seen = word.0.load(Ordering::SeqCst);
                while word.1.load(Ordering::SeqCst) == 0 {
                    yield_point();
                    wait(
                        &word.0,
                        if careful {
                            word.0.load(Ordering::SeqCst).min(seen)
                        } else {
                            0
                        },
                    );
                }
                handle.join().unwrap();
            }
        };
        let outcomes = |careful| (0..200).map(move |seed| run(&options(seed), sleeper(careful)).0);
        assert!(outcomes(true).all(|outcome| outcome.is_ok()));
        let lost = outcomes(false).filter(|outcome| {
            matches!(outcome, Err(Failure::Deadlock { tasks }) if tasks.len() == 1 && tasks[0].starts_with("main"))
        });
        assert!(lost.count() > 10);
    }

    /// The holder of a lock sleeps for longer than the steps of the run last if its waiters spin.
    #[test]
    fn waiters_of_a_lock_leave_the_time_to_its_holder() {
        for seed in 0..20 {
            let (outcome, report) = run(&options(seed), || {
                let locks = Arc::new((Mutex::new(0), RwLock::new(0)));
                let handles: Vec<_> = (0..4)
                    .map(|i| {
                        let locks = locks.clone();
                        let body = move || {
                            let (mut first, mut second) = (locks.0.lock(), locks.1.write());
                            sleep(Duration::from_secs(10));
                            (*first, *second) = (*first + 1, *second + 1);
                        };
                        thread::spawn(&format!("t{i}"), body).unwrap()
                    })
                    .collect();
                handles
                    .into_iter()
                    .for_each(|handle| handle.join().unwrap());
                (*locks.0.lock(), *locks.1.read())
            });
            assert_eq!(outcome, Ok((4, 4)));
            assert!(report.steps < 1_000, "{}", report.steps);
        }
    }

    /// Tasks that take turns make progress although nearly all of them only give way at any time.
    #[test]
    fn tasks_that_give_way_go_on_without_others() {
        for seed in 0..20 {
            let (outcome, _) = run(&options(seed), || {
                let turn = AtomicU64::new(0);
                thread::scatter(4, |i| {
                    for round in 0..10 {
                        while turn.load(Ordering::SeqCst) != round * 4 + i as u64 {
                            thread::spin_loop();
                        }
                        turn.fetch_add(1, Ordering::SeqCst);
                    }
                });
                turn.into_inner()
            });
            assert_eq!(outcome, Ok(40));
        }
    }

    #[test]
    fn panics_and_endless_loops_are_reported() {
        let (outcome, _) = run(&options(3), || {
            let handle = thread::spawn("bad", || panic!("no {}", 7)).unwrap();
            handle.join().unwrap();
        });
        let panic = Failure::Panic {
            task: "bad".into(),
            message: "no 7".into(),
        };
        assert_eq!(outcome, Err(panic));
        let (outcome, report) = run(&options(3), || {
            let count = AtomicU64::new(0);
            while count.fetch_add(1, Ordering::Relaxed) < u64::MAX {
                thread::yield_now();
            }
        });
        assert!(matches!(outcome, Err(Failure::Endless { .. })));
        assert!(report.steps > 100_000);
        // A failed simulation does not affect the next one.
        assert_eq!(run(&options(3), || 5).0, Ok(5));
    }
}
