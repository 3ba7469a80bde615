//! Every target with mutated inputs, and with all inputs that once exposed a defect.
//!
//! `BRAID_FUZZ_SECONDS=n` runs each target for n seconds, and `BRAID_SEED=n` sets the seed.
//! `BRAID_FUZZ_INPUT=hex` repeats one input, as a failure prints it; run the test of its target.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use braid_fuzz::{TARGETS, Target, mutate};
use fastrand::Rng;

/// More memory than any target needs for its small files: exceeding it means that a length was
/// trusted.
const BYTES_MAX: isize = 48 << 20;

/// An input that takes longer hangs. Most take milliseconds.
const HANG: Duration = Duration::from_secs(60);

thread_local! {
    /// Bytes that this thread has allocated and not freed, and their peak.
    static LIVE: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, with a count of allocated bytes.
struct Counting;

fn count(bytes: isize) {
    LIVE.with(|live| {
        let (now, peak) = live.get();
        live.set((now + bytes, peak.max(now + bytes)));
    });
}

// SAFETY: all calls are passed to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: this function's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: this function's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: this function's contract.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: this function's contract.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().expect("the variable holds a number"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("ASCII digits");
        u8::from_str_radix(pair, 16).expect("hexadecimal digits")
    };
    digits.map(byte).collect()
}

/// Runs one input; returns the failure, if any.
fn run_one(target: &Target, input: &[u8]) -> Result<(), String> {
    let before = LIVE.with(|live| {
        let (now, _) = live.get();
        live.set((now, now));
        now
    });
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|_| "it panicked".to_owned())?;
    let peak = LIVE.with(|live| live.get().1) - before;
    if peak > BYTES_MAX {
        return Err(format!("it took {peak} bytes of memory"));
    }
    Ok(())
}

/// Runs inputs while a watchdog checks that each one ends.
fn watched(target: &Target, inputs: &mut dyn FnMut() -> Option<Vec<u8>>) -> u64 {
    let (send, receive) = mpsc::channel::<Vec<u8>>();
    let name = target.name;
    let watchdog = std::thread::spawn(move || {
        let mut last = Vec::new();
        loop {
            match receive.recv_timeout(HANG) {
                Ok(input) => last = input,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("{name} hangs with the input {}", hex(&last));
                    std::process::abort();
                }
            }
        }
    });
    let mut count = 0;
    while let Some(input) = inputs() {
        send.send(input.clone()).expect("the watchdog lives");
        if let Err(what) = run_one(target, &input) {
            panic!("{name}: {what}; the input is {}", hex(&input));
        }
        count += 1;
    }
    drop(send);
    watchdog.join().expect("the watchdog ends");
    count
}

fn regressions(target: &Target) -> Vec<Vec<u8>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("regressions")
        .join(target.name);
    let Ok(files) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let read = |file: std::io::Result<std::fs::DirEntry>| {
        std::fs::read(file.expect("a file").path()).expect("the file is read")
    };
    files.map(read).collect()
}

fn fuzz(name: &str) {
    let is_it = |target: &&Target| target.name == name;
    let target = TARGETS.iter().find(is_it).expect("there is such a target");
    if let Ok(input) = std::env::var("BRAID_FUZZ_INPUT") {
        let mut once = Some(unhex(&input));
        watched(target, &mut || once.take());
        return;
    }
    let mut corpus = (target.corpus)();
    corpus.extend(regressions(target));
    let mut known = corpus.clone().into_iter();
    watched(target, &mut || known.next());

    let seed = number("BRAID_SEED").unwrap_or(1);
    println!("{name}: BRAID_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let began = Instant::now();
    let seconds = number("BRAID_FUZZ_SECONDS").map(Duration::from_secs);
    let mut left = target.runs;
    let count = watched(target, &mut || {
        let continues = match seconds {
            Some(seconds) => began.elapsed() < seconds,
            None => left > 0,
        };
        left = left.saturating_sub(1);
        continues.then(|| mutate::input(&mut rng, &corpus))
    });
    println!("{name}: {count} inputs in {:?}", began.elapsed());
}

macro_rules! fuzz_tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                fuzz(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let names = [$(stringify!($name)),*];
            let missing = TARGETS.iter().find(|target| !names.contains(&target.name));
            assert_eq!(missing.map(|target| target.name), None);
        }
    };
}

fuzz_tests! {
    segment_header chunk log_records checkpoint_position redo meta root tablespaces node log store database salvage backup operations
    server_requests server_session server_arguments
    server_restore server_config server_acl
}
