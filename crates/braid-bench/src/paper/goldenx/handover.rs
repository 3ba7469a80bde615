//! What it takes to hand accesses over to another thread and back, next to what an agent saves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::super::Diagram;
use super::model::Access;

/// Accesses of a request.
const SIZES: [usize; 5] = [1, 4, 16, 64, 256];

/// Bytes of an access.
const UNIT: usize = 256;

/// A place for one request and its answer.
#[derive(Default)]
struct Mailbox {
    asked: CachePadded<AtomicU64>,
    answered: CachePadded<AtomicU64>,
    is_over: AtomicBool,
}

/// The time of a request by its number of accesses, through a mailbox to a thread that spins or sleeps,
/// and what an agent saves for as many remote accesses by the paper's times.
pub(super) fn by_size(each: Duration, progress: &mut dyn FnMut(&str)) -> Diagram {
    let title =
        "GoldenX: hand-over to an agent and back (measured), and what it saves (the paper's times)";
    let x = "accesses of 256 bytes in a request";
    let mut diagram = Diagram::new("goldenx-handover", title, x, "ns").with_log_y();
    for (series, sleeps) in [
        ("an agent that spins", false),
        ("an agent that sleeps", true),
    ] {
        for size in SIZES {
            progress(&format!("{series}, {size} accesses"));
            diagram.add(series, size as f64, round_trip(size, sleeps, each / 4));
        }
    }
    for (series, access) in [
        ("saved by reads", Access::Read),
        ("saved by writes", Access::Write),
    ] {
        for size in SIZES {
            diagram.add(series, size as f64, (size as u64 * access.saved()) as f64);
        }
    }
    diagram
}

/// Nanoseconds of a request that copies so many accesses, the copy included.
fn round_trip(size: usize, sleeps: bool, time: Duration) -> f64 {
    let mailbox = Mailbox::default();
    thread::scope(|scope| {
        let agent = scope.spawn(|| serve(&mailbox, size, sleeps));
        let began = Instant::now();
        let mut requests = 0;
        while requests < 10 || began.elapsed() < time {
            requests += 1;
            // Release: pairs with the agent's load.
            mailbox.asked.store(requests, Ordering::Release);
            if sleeps {
                agent.thread().unpark();
            }
            wait_until(|| mailbox.answered.load(Ordering::Acquire) == requests);
        }
        let took = began.elapsed();
        mailbox.is_over.store(true, Ordering::Release);
        agent.thread().unpark();
        took.as_nanos() as f64 / requests as f64
    })
}

/// Answers requests until the end.
fn serve(mailbox: &Mailbox, size: usize, sleeps: bool) {
    let from = vec![1_u8; size * UNIT];
    let mut to = vec![0_u8; size * UNIT];
    let mut answered = 0;
    loop {
        let mut is_over = false;
        let mut look = || {
            is_over = mailbox.is_over.load(Ordering::Acquire);
            // Acquire: pairs with the store of the one who asks.
            is_over || mailbox.asked.load(Ordering::Acquire) > answered
        };
        if sleeps {
            while !look() {
                thread::park();
            }
        } else {
            wait_until(look);
        }
        if is_over {
            return;
        }
        to.copy_from_slice(&from);
        std::hint::black_box(&mut to);
        answered += 1;
        // Release: pairs with the load of the one who waits.
        mailbox.answered.store(answered, Ordering::Release);
    }
}

/// Spins; on a machine whose processors are busy, others run from time to time.
fn wait_until(mut is_there: impl FnMut() -> bool) {
    loop {
        for _ in 0..1_000 {
            if is_there() {
                return;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
}
