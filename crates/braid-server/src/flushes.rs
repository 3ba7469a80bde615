//! The flushes that the connections of one thread wait for.
//!
//! A reply waits until everything that its command read and wrote is durable. The connections of a
//! thread leave the sequence numbers for which they wait here. When the thread has executed
//! everything that arrived, it requests one flush for all of it, and at its end answers all whose
//! numbers are durable. Before it requests one, it looks at its sockets once more: while it executed,
//! clients have sent requests that the same flush can carry.
//!
//! During that flush the thread sleeps, for [`GATHER`] at most, although requests may arrive: the
//! thread then finds many of them at once. A thread that woke for each would execute one, request a
//! flush for it, and sleep again, so that its connections would share few flushes and the processor
//! would mostly change between threads. `docs/server.md` has measurements.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use braid::{Database, Ticket};
use braid_rt::mutant;

/// Longest time that a thread sleeps while requests may have arrived. A longer flush than this costs
/// each request that much once.
const GATHER: Duration = Duration::from_micros(250);

/// Connections for which it is worth to sleep until the flush ends.
const GATHER_MIN: usize = 4;

/// Requests after which a thread requests a flush for the commits among them, although it has more to
/// execute. A thread that clients keep busy, with reads or writes, never has nothing else to do.
const REQUESTS_MAX: usize = 512;

/// Wakes a thread at the end of a flush.
#[derive(Debug)]
struct Alarm {
    thread: Thread,
    /// Whether the flush has ended.
    has_rung: AtomicBool,
    /// Whether the thread sleeps in [`Flushes::gather`].
    is_gathering: AtomicBool,
    /// Wakes the thread's runtime otherwise.
    runtime: Waker,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SeqCst on both: the thread clears the second flag before it looks at the first for the last
        // time.
        self.has_rung.store(true, Ordering::SeqCst);
        if self.is_gathering.load(Ordering::SeqCst) {
            self.thread.unpark();
        } else {
            self.runtime.wake_by_ref();
        }
    }
}

/// State of one thread.
#[derive(Debug)]
struct Flushes {
    db: Database,
    alarm: Arc<Alarm>,
    waker: Waker,
    /// Sequence number of the newest commit since the last request; 0 if there is none.
    newest: u64,
    /// Requests executed since the first commit that `newest` stands for.
    requests: usize,
    /// Ticket for the commits whose flush is requested.
    requested: Option<Ticket>,
    /// Whether the thread has executed or read writes since it looked at its sockets for further ones.
    has_news: bool,
    /// Whether the thread has slept for `requested`.
    has_gathered: bool,
    /// Whether the log has failed, or the database is closed.
    has_failed: bool,
    /// Connections that wait, and for which sequence number.
    waiting: Vec<(u64, Waker)>,
    /// Whether some of them may have ended: waking them does nothing.
    has_forsaken: bool,
}

thread_local! {
    static FLUSHES: RefCell<Option<Flushes>> = const { RefCell::new(None) };
}

/// Lets connections of this thread wait for flushes. `runtime` wakes the thread.
pub(crate) fn begin(db: &Database, runtime: &Waker) {
    let alarm = Arc::new(Alarm {
        thread: std::thread::current(),
        has_rung: AtomicBool::new(false),
        is_gathering: AtomicBool::new(false),
        runtime: runtime.clone(),
    });
    FLUSHES.set(Some(Flushes {
        db: db.clone(),
        waker: Waker::from(Arc::clone(&alarm)),
        alarm,
        newest: 0,
        requests: 0,
        requested: None,
        has_news: false,
        has_gathered: false,
        has_failed: false,
        waiting: Vec::new(),
        has_forsaken: false,
    }));
}

/// Ends what [`begin`] began.
pub(crate) fn end() {
    FLUSHES.set(None);
}

/// Calls `body` with the state of this thread, and wakes the connections that it returns.
fn with(body: impl FnOnce(&mut Flushes) -> Vec<Waker>) {
    let woken = FLUSHES.with_borrow_mut(|flushes| flushes.as_mut().map_or_else(Vec::new, body));
    for waker in woken {
        waker.wake();
    }
}

/// Takes the ticket of a commit, whose flush the thread requests soon. Returns the commit's sequence
/// number.
pub(crate) fn add(ticket: Ticket) -> u64 {
    // Requests no flush.
    let seqno = ticket.into_seqno();
    FLUSHES.with_borrow_mut(|flushes| {
        if let Some(flushes) = flushes {
            flushes.newest = flushes.newest.max(seqno);
            flushes.has_news = true;
        }
    });
    seqno
}

/// Notes that a connection of this thread has read writes that the thread executes later.
pub(crate) fn expect() {
    FLUSHES.with_borrow_mut(|flushes| {
        if let Some(flushes) = flushes {
            flushes.has_news = true;
        }
    });
}

/// Wakes a connection of this thread when a commit is durable, or will not become so.
pub(crate) fn wait(seqno: u64, waker: Waker) {
    FLUSHES.with_borrow_mut(|flushes| {
        if let Some(flushes) = flushes {
            flushes.waiting.push((seqno, waker));
        }
    });
}

/// Notes that a connection of this thread that may be waiting ends.
pub(crate) fn forsake() {
    FLUSHES.with_borrow_mut(|flushes| {
        if let Some(flushes) = flushes {
            flushes.has_forsaken = true;
        }
    });
}

/// Counts requests that a connection of this thread has executed.
pub(crate) fn executed(requests: usize) {
    with(|flushes| flushes.executed(requests));
}

/// Requests a flush for what this thread has executed, unless one is requested, and wakes the connections
/// whose sequence numbers are durable: the device writes while the thread executes more.
pub(crate) fn request() {
    with(|flushes| {
        flushes.look();
        flushes.request();
        flushes.take_durable()
    });
}

/// Wakes the connections whose sequence numbers are durable.
pub(crate) fn answer() {
    with(Flushes::answer);
}

/// Wakes the connections whose sequence numbers are durable, or has the runtime look for further
/// requests if the thread has not done so since the last write. Returns whether the thread has
/// something to do. To be called when the thread has nothing else to do.
pub(crate) fn looks_first() -> bool {
    let mut looks = false;
    with(|flushes| {
        let woken;
        (looks, woken) = flushes.looks_first();
        woken
    });
    looks
}

/// Requests a flush for what this thread has executed, and waits a while for its end. To be called when
/// [`looks_first`] has found nothing to do.
pub(crate) fn gather() {
    with(Flushes::gather);
}

/// Waits until a commit of this thread is durable, or will not become so. `registered` is the sequence
/// number for which the same task waited last.
pub(crate) fn poll_durable(
    db: &Database,
    seqno: u64,
    registered: &mut u64,
    context: &Context<'_>,
) -> Poll<()> {
    if db.durable_seqno() >= seqno || has_failed() {
        return Poll::Ready(());
    }
    if *registered != seqno {
        *registered = seqno;
        FLUSHES.with_borrow_mut(|flushes| {
            if let Some(flushes) = flushes {
                flushes.waiting.push((seqno, context.waker().clone()));
            }
        });
    }
    Poll::Pending
}

/// Returns whether the log has failed, or the database is closed: what is not durable will not become
/// so.
pub(crate) fn has_failed() -> bool {
    FLUSHES.with_borrow(|flushes| flushes.as_ref().is_none_or(|flushes| flushes.has_failed))
}

impl Flushes {
    fn executed(&mut self, requests: usize) -> Vec<Waker> {
        if self.newest == 0 || mutant!("server_flush_only_when_idle") {
            return Vec::new();
        }
        self.requests += requests;
        // Relaxed: a hint.
        let has_ended = || self.alarm.has_rung.load(Ordering::Relaxed);
        if self.requests >= REQUESTS_MAX && (self.requested.is_none() || has_ended()) {
            return self.answer();
        }
        Vec::new()
    }

    /// Requests a flush unless one is requested.
    fn request(&mut self) {
        if self.requested.is_some() || self.newest == 0 {
            return;
        }
        self.requests = 0;
        self.has_news = false;
        self.has_gathered = false;
        // For everything up to the newest commit: with some protocols, other lanes' flushes, too.
        match self.db.ticket(std::mem::take(&mut self.newest)) {
            Ok(ticket) => self.poll(ticket),
            Err(_) => self.has_failed = true,
        }
    }

    /// Asks for the outcome of a commit, and has the alarm ring when it is known.
    fn poll(&mut self, mut ticket: Ticket) {
        let mut context = Context::from_waker(&self.waker);
        match Pin::new(&mut ticket).poll(&mut context) {
            Poll::Ready(outcome) => self.has_failed |= outcome.is_err(),
            Poll::Pending => self.requested = Some(ticket),
        }
    }

    /// Looks whether the requested flush has ended.
    fn look(&mut self) {
        // SeqCst: pairs with the alarm.
        if !self.alarm.has_rung.swap(false, Ordering::SeqCst) {
            return;
        }
        if let Some(requested) = self.requested.take() {
            self.poll(requested);
        }
    }

    /// Removes the connections that need not wait any longer.
    fn take_durable(&mut self) -> Vec<Waker> {
        let (durable, has_failed) = (self.db.durable_seqno(), self.has_failed);
        let is_over = |(seqno, _): &mut (u64, Waker)| *seqno <= durable || has_failed;
        if !self.waiting.iter_mut().any(is_over) {
            return Vec::new();
        }
        // Nearly always a flush ends the waits of all, and a vector that grows moves them again and again.
        let mut woken = Vec::with_capacity(self.waiting.len());
        let over = self.waiting.extract_if(.., is_over);
        woken.extend(over.map(|(_, waker)| waker));
        woken
    }

    fn answer(&mut self) -> Vec<Waker> {
        self.look();
        if self.requests >= REQUESTS_MAX {
            self.request();
        }
        self.take_durable()
    }

    fn looks_first(&mut self) -> (bool, Vec<Waker>) {
        self.look();
        let woken = self.take_durable();
        if !woken.is_empty() {
            if self.has_forsaken {
                self.has_forsaken = !self.waiting.is_empty();
                if !mutant!("server_rely_on_ended_connections") {
                    // If all of them have ended, nothing else brings the runtime here once more.
                    self.alarm.runtime.wake_by_ref();
                }
            }
            return (true, woken);
        }
        let looks = self.has_news && self.requested.is_none();
        if looks {
            self.has_news = false;
            // A runtime that has something to do looks at its sockets, and does not wait for them.
            self.alarm.runtime.wake_by_ref();
        }
        (looks, woken)
    }

    fn gather(&mut self) -> Vec<Waker> {
        self.request();
        if self.requested.is_some() && self.waiting.len() >= GATHER_MIN && !self.has_gathered {
            self.has_gathered = true;
            self.sleep();
            self.look();
            if self.newest != 0
                && self.requested.is_none()
                && !mutant!("server_forget_commits_after_a_flush")
            {
                // The flush was requested before the newest commits. Its alarm has rung for this thread
                // alone, and no other alarm is set: the runtime has to come here once more. Meanwhile
                // it looks at the sockets.
                self.alarm.runtime.wake_by_ref();
            }
        }
        self.take_durable()
    }

    /// Sleeps until the requested flush has ended, for [`GATHER`] at most.
    fn sleep(&self) {
        let deadline = Instant::now() + GATHER;
        // SeqCst on both: from here on the alarm unparks this thread.
        self.alarm.is_gathering.store(true, Ordering::SeqCst);
        while !self.alarm.has_rung.load(Ordering::SeqCst) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && !mutant!("server_sleep_through_flushes") {
                break;
            }
            std::thread::park_timeout(left);
        }
        self.alarm.is_gathering.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::{Duration, Instant};

    use braid::device::MemoryDevice;
    use braid::{Database, Durability};

    use super::*;

    /// Begins on a new database. Also returns the count of the runtime's wake-ups, and a function that
    /// commits without a flush.
    fn begin_on_new(background_threads: bool) -> (Database, Arc<Wakes>, impl Fn(u64) -> Ticket) {
        let db = Database::builder()
            .background_threads(background_threads)
            .open_on(Arc::new(MemoryDevice::new()))
            .unwrap();
        let table = db.open_table::<u64, u64>("t").unwrap();
        let wakes = Arc::new(Wakes::default());
        begin(&db, &Waker::from(Arc::clone(&wakes)));
        let write = {
            let db = db.clone();
            move |key| {
                let mut tx = db.begin();
                tx.set_durability(Durability::None);
                tx.insert(&table, &key, &1).unwrap();
                tx.commit_async().unwrap()
            }
        };
        (db, wakes, write)
    }

    /// The thread neither sleeps nor makes many commits.
    #[test]
    fn a_commit_is_flushed_although_reads_keep_its_thread_busy() {
        let (db, _, write) = begin_on_new(true);
        let seqno = add(write(1));
        assert!(db.durable_seqno() < seqno);
        let begun = Instant::now();
        while db.durable_seqno() < seqno {
            executed(1);
            assert!(begun.elapsed() < Duration::from_secs(60), "no flush");
        }
        end();
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The replies for which a flush was requested can be sent before its alarm rings: then the
    /// thread executes the next requests first, and sleeps for a flush that none of them waits for.
    #[test]
    fn commits_that_come_before_the_alarm_rings_are_flushed() {
        let (db, wakes, write) = begin_on_new(true);
        // A flush that has ended, and whose alarm rings where a thread that sleeps hears it: the
        // runtime is not woken.
        db.wait_durable(write(0).into_seqno()).unwrap();
        let ended = db.ticket(db.durable_seqno()).unwrap();
        FLUSHES.with_borrow_mut(|flushes| {
            let flushes = flushes.as_mut().unwrap();
            flushes.requested = Some(ended);
            flushes.alarm.is_gathering.store(true, Ordering::SeqCst);
            flushes.waker.wake_by_ref();
        });
        let seqno = add(write(1));
        for _ in 0..GATHER_MIN {
            wait(seqno, Waker::noop().clone());
        }
        let begun = Instant::now();
        let mut seen = 0;
        gather();
        while db.durable_seqno() < seqno {
            let now = wakes.0.load(Ordering::SeqCst);
            if now != seen {
                seen = now;
                answer();
                if !looks_first() {
                    gather();
                }
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no flush");
        }
        end();
    }

    /// Another thread's flush can end the wait of a connection that has ended. The thread must not sleep
    /// then, because it has more to do.
    #[test]
    fn a_connection_that_ended_is_not_relied_on() {
        let (db, wakes, write) = begin_on_new(true);
        let first = add(write(0));
        wait(first, Waker::noop().clone());
        forsake();
        let (looks, before) = (looks_first(), wakes.0.load(Ordering::SeqCst));
        assert!(looks);
        db.wait_durable(first).unwrap();
        add(write(1));
        assert!(looks_first());
        assert_eq!(wakes.0.load(Ordering::SeqCst), before + 1);
        end();
    }

    #[test]
    fn the_sockets_are_looked_at_before_each_flush() {
        let (db, wakes, write) = begin_on_new(false);
        let gather = || {
            if !looks_first() {
                gather();
            }
        };
        for key in 0..2 {
            let looks = wakes.0.load(Ordering::SeqCst);
            add(write(2 * key));
            gather();
            // As if the look had found a request.
            let seqno = add(write(2 * key + 1));
            gather();
            assert!(db.durable_seqno() < seqno);
            assert_eq!(wakes.0.load(Ordering::SeqCst), looks + 2);
            // It found none.
            gather();
            assert!(db.durable_seqno() >= seqno);
            assert_eq!(wakes.0.load(Ordering::SeqCst), looks + 2);
        }
        end();
    }
}
