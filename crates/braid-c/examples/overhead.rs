//! Measures the cost of the C interface: the same work through the Rust interface and through the
//! functions that C calls, alternating in one process, as medians of the rounds.
//!
//! ```text
//! cargo run --profile fat -p braid-c --example overhead                 # times, side by side
//! cargo run --profile fat -p braid-c --example overhead -- DIRECTORY    # durable writes to a disk, too
//!
//! cargo build --profile fat -p braid-c --example overhead
//! for n in 0 100000; do for by in rust c; do                        # instructions
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!         target/fat/examples/overhead count $by table-get $n
//! done; done
//! ```
//!
//! The functions are called through pointers that the compiler cannot see through, as a C program
//! calls them. Both sides have the same records and keys, alternate in going first, and get bytes
//! whose number the compiler does not know. For keys of eight bytes and values of a hundred whose
//! sizes it knows, Rust's reads take some 60 instructions less and its writes 20. The work is not
//! always identical: a value is a counted reference in Rust, and bytes that belong to C in C; an
//! entry of a scan is a reference in Rust, and is valid until the next call in C; and C's tickets
//! are freed one by one, with a call each.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use braid::device::MemoryDevice;
use braid::{Bytes, Database, Readable};
use braid_c::*;

const RECORDS: u64 = 65_536;
const VALUE: [u8; 100] = [7; 100];
const IN_FLIGHT: usize = 1_000;
const ROUNDS: usize = 51;

type Table = braid::Table<Bytes, Bytes>;

/// A database of each interface with the same records.
struct Both {
    db: Database,
    table: Table,
    c_db: *mut braid_db,
    c_table: *mut braid_table,
    rng: fastrand::Rng,
}

fn ok(status: braid_status) {
    assert_eq!(status, braid_status::BRAID_OK);
}

/// Returns a handle that a function of the C interface sets.
fn opened<H>(open: impl FnOnce(*mut *mut H) -> braid_status) -> *mut H {
    let mut handle = std::ptr::null_mut();
    ok(open(&mut handle));
    handle
}

impl Both {
    /// Opens the databases in memory without background threads, or in directories.
    fn open(dir: Option<&Path>) -> braid::Result<Self> {
        let db = match dir {
            Some(dir) => Database::open(dir.join("rust"))?,
            None => Database::builder()
                .background_threads(false)
                .open_on(Arc::new(MemoryDevice::new()))?,
        };
        let table: Table = db.open_table("records")?;
        for first in (0..RECORDS).step_by(1_024) {
            let mut tx = db.begin();
            (first..first + 1_024)
                .try_for_each(|key| tx.insert(&table, &key.to_be_bytes(), &VALUE))?;
            tx.commit()?;
        }
        let options = opened(|out| {
            // SAFETY: `out` is writable memory for the handle.
            unsafe { braid_options_new(out) }
        });
        let mut path = Vec::new();
        match dir {
            Some(dir) => path = format!("{}\0", dir.join("c").display()).into_bytes(),
            None => {
                use braid_option::*;
                let memory = braid_device::BRAID_DEVICE_MEMORY as u64;
                ok(braid_options_set(
                    options,
                    BRAID_OPTION_DEVICE as i32,
                    memory,
                ));
                ok(braid_options_set(
                    options,
                    BRAID_OPTION_BACKGROUND_THREADS as i32,
                    0,
                ));
            }
        }
        // SAFETY: the path ends with a NUL, or is ignored; `out` is writable memory for the handle.
        let c_db = opened(|out| unsafe { braid_db_open(path.as_ptr().cast(), options, out) });
        let name = c"records".as_ptr();
        // SAFETY: the same.
        let c_table = opened(|out| unsafe { braid_table_open(c_db, name, out) });
        for first in (0..RECORDS).step_by(1_024) {
            let tx = begin(c_db);
            (first..first + 1_024).for_each(|key| insert(tx, c_table, key));
            // SAFETY: NULL is allowed, as the sequence number is not needed.
            ok(unsafe { braid_tx_commit(tx, std::ptr::null_mut()) });
        }
        let rng = fastrand::Rng::with_seed(1);
        Ok(Self {
            db,
            table,
            c_db,
            c_table,
            rng,
        })
    }

    fn key(&mut self) -> u64 {
        self.rng.u64(..RECORDS)
    }
}

/// Hides the number of bytes from the compiler, as in a function that C calls, or in a program
/// whose keys come from elsewhere.
fn unknown(bytes: &[u8]) -> &[u8] {
    black_box(bytes)
}

fn begin(db: *mut braid_db) -> *mut braid_tx {
    // SAFETY: NULL means no options; `out` is writable memory for the handle.
    opened(|out| unsafe { black_box(braid_tx_begin as Begin)(db, std::ptr::null(), out) })
}

type Begin = unsafe extern "C" fn(
    *mut braid_db,
    *const braid_tx_options,
    *mut *mut braid_tx,
) -> braid_status;
type Insert = unsafe extern "C" fn(
    *mut braid_tx,
    *mut braid_table,
    *const c_void,
    usize,
    *const c_void,
    usize,
) -> braid_status;
type Get<H> = unsafe extern "C" fn(
    *mut H,
    *mut braid_table,
    *const c_void,
    usize,
    *mut braid_value,
) -> braid_status;
type TableGet =
    unsafe extern "C" fn(*mut braid_table, *const c_void, usize, *mut braid_value) -> braid_status;
type Next = unsafe extern "C" fn(*mut braid_cursor, *mut braid_entry) -> braid_status;
type Fetch = unsafe extern "C" fn(
    *mut braid_cursor,
    i32,
    *mut braid_entry,
    usize,
    *mut usize,
) -> braid_status;
type Commit = unsafe extern "C" fn(*mut braid_tx, *mut u64) -> braid_status;
type CommitAsync = unsafe extern "C" fn(*mut braid_tx, *mut *mut braid_ticket) -> braid_status;
type WriteAsync = unsafe extern "C" fn(
    *mut braid_db,
    *const braid_write,
    usize,
    *mut *mut braid_ticket,
) -> braid_status;
type Submit =
    unsafe extern "C" fn(*mut braid_db, *const braid_write, usize, *mut u64) -> braid_status;
type Wait = extern "C" fn(*mut braid_db, u64) -> braid_status;
type OfTicket = extern "C" fn(*mut braid_ticket) -> braid_status;

fn insert(tx: *mut braid_tx, table: *mut braid_table, key: u64) {
    let key = key.to_be_bytes();
    let (data, value) = (key.as_ptr().cast(), VALUE.as_ptr().cast());
    // SAFETY: key and value are valid during the call.
    ok(unsafe { black_box(braid_tx_insert as Insert)(tx, table, data, 8, value, VALUE.len()) });
}

/// Reads in one of the three ways, and frees the value.
fn read(get: impl FnOnce(*const c_void, *mut braid_value) -> braid_status, key: u64) {
    let mut value = std::mem::MaybeUninit::<braid_value>::uninit();
    ok(get(key.to_be_bytes().as_ptr().cast(), value.as_mut_ptr()));
    type Free = unsafe extern "C" fn(*mut braid_value);
    // SAFETY: the call that succeeded has set it.
    unsafe { black_box(braid_value_free as Free)(value.as_mut_ptr()) }
}

/// A kind of work through either interface, repeated a number of times.
struct Work {
    name: &'static str,
    what: &'static str,
    times: u64,
    rust: fn(&mut Both, u64) -> braid::Result<()>,
    c: fn(&mut Both, u64),
}

const READS_OF_A_TRANSACTION: u64 = 10;

const WORK: &[Work] = &[
    Work {
        name: "table-get",
        what: "a durable read",
        times: 10_000,
        rust: |both, n| {
            for _ in 0..n {
                let key = both.key().to_be_bytes();
                black_box(both.db.get(&both.table, unknown(&key))?);
            }
            Ok(())
        },
        c: |both, n| {
            for _ in 0..n {
                let (key, table) = (both.key(), both.c_table);
                let get = black_box(braid_table_get as TableGet);
                // SAFETY: `read` passes a key of 8 bytes and writable memory for a value.
                read(|key, value| unsafe { get(table, key, 8, value) }, key);
            }
        },
    },
    Work {
        name: "snapshot-get",
        what: "a read from a snapshot",
        times: 10_000,
        rust: |both, n| {
            let snapshot = both.db.snapshot();
            for _ in 0..n {
                let key = both.key().to_be_bytes();
                black_box(snapshot.get(&both.table, unknown(&key))?);
            }
            Ok(())
        },
        c: |both, n| {
            let table = both.c_table;
            // SAFETY: `out` is writable memory for the handle.
            let snapshot = opened(|out| unsafe { braid_snapshot_open(both.c_db, out) });
            for _ in 0..n {
                let get = black_box(braid_snapshot_get as Get<braid_snapshot>);
                // SAFETY: as above.
                read(
                    |key, value| unsafe { get(snapshot, table, key, 8, value) },
                    both.key(),
                );
            }
            ok(braid_snapshot_free(snapshot));
        },
    },
    Work {
        name: "tx-get",
        what: "a read, ten to a transaction",
        times: 10_000,
        rust: |both, n| {
            for _ in 0..n / READS_OF_A_TRANSACTION {
                let tx = both.db.begin();
                for _ in 0..READS_OF_A_TRANSACTION {
                    let key = both.key().to_be_bytes();
                    black_box(tx.get(&both.table, unknown(&key))?);
                }
                tx.commit()?;
            }
            Ok(())
        },
        c: |both, n| {
            let table = both.c_table;
            for _ in 0..n / READS_OF_A_TRANSACTION {
                let tx = begin(both.c_db);
                for _ in 0..READS_OF_A_TRANSACTION {
                    let get = black_box(braid_tx_get as Get<braid_tx>);
                    // SAFETY: as above.
                    read(
                        |key, value| unsafe { get(tx, table, key, 8, value) },
                        both.key(),
                    );
                }
                // SAFETY: NULL is allowed, as the sequence number is not needed.
                ok(unsafe { black_box(braid_tx_commit as Commit)(tx, std::ptr::null_mut()) });
            }
        },
    },
    Work {
        name: "scan",
        what: "an entry of a scan, one by one",
        times: 65_536,
        rust: |both, n| {
            let snapshot = both.db.snapshot();
            let mut left = n;
            while left > 0 {
                for entry in snapshot.iter(&both.table)?.take(left as usize) {
                    black_box(entry?);
                    left -= 1;
                }
            }
            Ok(())
        },
        c: |both, n| {
            scan(both, n, |cursor, entries, _| {
                let next = black_box(braid_cursor_next as Next);
                // SAFETY: `entries` is writable memory for an entry.
                match unsafe { next(cursor, entries.as_mut_ptr().cast()) } {
                    braid_status::BRAID_OK => 1,
                    _ => 0,
                }
            });
        },
    },
    Work {
        name: "scan-64",
        what: "an entry of a scan, 64 at once",
        times: 65_536,
        rust: |both, n| (WORK[3].rust)(both, n),
        c: |both, n| {
            scan(both, n, |cursor, entries, left| {
                let fetch = black_box(braid_cursor_fetch as Fetch);
                let room = entries.len().min(left);
                let mut count = 0;
                // SAFETY: `entries` is writable memory for this many entries.
                unsafe { fetch(cursor, 0, entries.as_mut_ptr().cast(), room, &mut count) };
                count
            });
        },
    },
    Work {
        name: "commit-async",
        what: "a write in a transaction, 1,000 in flight",
        times: 10_000,
        rust: |both, n| {
            let mut tickets = VecDeque::with_capacity(IN_FLIGHT);
            for _ in 0..n {
                let mut tx = both.db.begin();
                let key = both.key().to_be_bytes();
                tx.insert(&both.table, unknown(&key), unknown(&VALUE))?;
                tickets.push_back(tx.commit_async()?);
                if tickets.len() == IN_FLIGHT {
                    tickets
                        .back()
                        .map_or(Ok(()), |last| last.wait().map(drop))?;
                    tickets.clear();
                }
            }
            both.db.sync()
        },
        c: |both, n| {
            in_flight(both, n, |both| {
                let tx = begin(both.c_db);
                insert(tx, both.c_table, both.key());
                let commit = black_box(braid_tx_commit_async as CommitAsync);
                // SAFETY: `out` is writable memory for the handle.
                opened(|out| unsafe { commit(tx, out) })
            });
        },
    },
    Work {
        name: "write-async",
        what: "the same by one call, braid_db_write_async",
        times: 10_000,
        rust: |both, n| (WORK[5].rust)(both, n),
        c: |both, n| write_async::<1>(both, n),
    },
    Work {
        name: "submit",
        what: "the same by its number, braid_db_submit",
        times: 10_000,
        rust: |both, n| (WORK[5].rust)(both, n),
        c: submit,
    },
    Work {
        name: "write-async-10",
        what: "a transaction of 10 writes, 1,000 in flight, by one call",
        times: 2_000,
        rust: |both, n| {
            let mut tickets = VecDeque::with_capacity(IN_FLIGHT);
            for _ in 0..n {
                let mut tx = both.db.begin();
                for _ in 0..10 {
                    let key = both.key().to_be_bytes();
                    tx.insert(&both.table, unknown(&key), unknown(&VALUE))?;
                }
                tickets.push_back(tx.commit_async()?);
                if tickets.len() == IN_FLIGHT {
                    tickets
                        .back()
                        .map_or(Ok(()), |last| last.wait().map(drop))?;
                    tickets.clear();
                }
            }
            both.db.sync()
        },
        c: |both, n| write_async::<10>(both, n),
    },
];

/// Transactions of one write, with sequence numbers instead of tickets.
fn submit(both: &mut Both, n: u64) {
    let mut numbers = VecDeque::with_capacity(IN_FLIGHT);
    for _ in 0..n {
        let key = both.key().to_be_bytes();
        let write = write_of(both, &key);
        let submit = black_box(braid_db_submit as Submit);
        let mut number = 0;
        // SAFETY: `write` is one write, whose bytes are valid during the call.
        ok(unsafe { submit(both.c_db, &raw const write, 1, &raw mut number) });
        numbers.push_back(number);
        if numbers.len() == IN_FLIGHT {
            ok(black_box(braid_db_wait as Wait)(
                both.c_db,
                numbers[IN_FLIGHT - 1],
            ));
            numbers.clear();
        }
    }
    ok(braid_db_sync(both.c_db));
}

/// Returns the write of a value under a key.
fn write_of(both: &Both, key: &[u8; 8]) -> braid_write {
    let slice = |bytes: &[u8]| braid_slice {
        data: bytes.as_ptr().cast(),
        len: bytes.len(),
    };
    braid_write {
        table: both.c_table,
        operation: braid_operation::BRAID_PUT as i32,
        key: slice(key),
        value: slice(&VALUE),
    }
}

/// Transactions of this many writes, with one call each.
fn write_async<const WRITES: usize>(both: &mut Both, n: u64) {
    in_flight(both, n, |both| {
        let keys: [_; WRITES] = std::array::from_fn(|_| both.key().to_be_bytes());
        let writes = keys.each_ref().map(|key| write_of(both, key));
        let write_async = black_box(braid_db_write_async as WriteAsync);
        // SAFETY: `out` is writable memory for the handle.
        opened(|out| unsafe { write_async(both.c_db, writes.as_ptr(), WRITES, out) })
    });
}

/// Keeps this many transactions in flight, for which `commit` returns tickets.
fn in_flight(both: &mut Both, n: u64, commit: impl Fn(&mut Both) -> *mut braid_ticket) {
    let mut tickets = VecDeque::with_capacity(IN_FLIGHT);
    for _ in 0..n {
        tickets.push_back(commit(both));
        if tickets.len() == IN_FLIGHT {
            ok(black_box(braid_ticket_wait as OfTicket)(
                tickets[IN_FLIGHT - 1],
            ));
            let free = black_box(braid_ticket_free as OfTicket);
            tickets.drain(..).for_each(|ticket| ok(free(ticket)));
        }
    }
    tickets
        .into_iter()
        .for_each(|ticket| ok(braid_ticket_free(ticket)));
    ok(braid_db_sync(both.c_db));
}

const DURABLE: Work = Work {
    name: "commit",
    what: "a write, durable when its commit returns, on the disk",
    times: 200,
    rust: |both, n| {
        for _ in 0..n {
            let mut tx = both.db.begin();
            let key = both.key().to_be_bytes();
            tx.insert(&both.table, unknown(&key), unknown(&VALUE))?;
            tx.commit()?;
        }
        Ok(())
    },
    c: |both, n| {
        for _ in 0..n {
            let tx = begin(both.c_db);
            insert(tx, both.c_table, both.key());
            // SAFETY: NULL is allowed, as the sequence number is not needed.
            ok(unsafe { black_box(braid_tx_commit as Commit)(tx, std::ptr::null_mut()) });
        }
    },
};

type Entries = [std::mem::MaybeUninit<braid_entry>; 64];

fn scan(both: &Both, n: u64, step: impl Fn(*mut braid_cursor, &mut Entries, usize) -> usize) {
    let mut entries: Entries = [const { std::mem::MaybeUninit::uninit() }; 64];
    let mut left = n as usize;
    // SAFETY: `out` is writable memory for the handle.
    let snapshot = opened(|out| unsafe { braid_snapshot_open(both.c_db, out) });
    while left > 0 {
        let all = std::ptr::null();
        // SAFETY: the same.
        let cursor =
            opened(|out| unsafe { braid_snapshot_range(snapshot, both.c_table, all, out) });
        loop {
            let given = step(cursor, &mut entries, left);
            left -= given;
            if given == 0 || left == 0 {
                break;
            }
        }
        ok(braid_cursor_free(cursor));
    }
    ok(braid_snapshot_free(snapshot));
}

/// Returns the time in nanoseconds: of this thread's processor if it does all the work, because the
/// machine may have other work, too.
fn nanoseconds(waits: bool) -> f64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    #[cfg(unix)]
    if !waits {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `now` is writable memory for the time.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
        assert_eq!(status, 0);
        return now.tv_sec as f64 * 1e9 + now.tv_nsec as f64;
    }
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the nanoseconds per operation through Rust and through C, and the median of the rounds'
/// ratios.
fn compare(both: &mut Both, work: &Work, waits: bool) -> braid::Result<(f64, f64, f64)> {
    let (mut rust, mut c) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let mut times = [0.0; 2];
        // Both go first equally often, and have the same keys.
        for by in [round % 2, 1 - round % 2] {
            both.rng = fastrand::Rng::with_seed(round as u64);
            let began = nanoseconds(waits);
            match by {
                0 => (work.rust)(both, work.times)?,
                _ => (work.c)(both, work.times),
            }
            times[by] = (nanoseconds(waits) - began) / work.times as f64;
        }
        // The first round warms up.
        if round > 0 {
            rust.push(times[0]);
            c.push(times[1]);
        }
    }
    let ratios = rust.iter().zip(&c).map(|(rust, c)| c / rust).collect();
    Ok((median(rust), median(c), median(ratios)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [count, by, name, times] = &args[..]
        && count == "count"
    {
        let work = WORK
            .iter()
            .find(|work| work.name == name)
            .ok_or("no such work")?;
        let mut both = Both::open(None)?;
        match &by[..] {
            "rust" => (work.rust)(&mut both, times.parse()?)?,
            _ => (work.c)(&mut both, times.parse()?),
        }
        return Ok(());
    }
    println!(
        "{:<56} {:>9} {:>9} {:>7}",
        "nanoseconds", "Rust", "C", "ratio"
    );
    let show = |work: &Work, (rust, c, ratio): (f64, f64, f64)| {
        println!("{:<56} {rust:>9.1} {c:>9.1} {ratio:>7.3}", work.what);
    };
    let mut both = Both::open(None)?;
    for work in WORK {
        show(work, compare(&mut both, work, false)?);
    }
    if let Some(dir) = args.first() {
        std::fs::create_dir_all(dir)?;
        let mut both = Both::open(Some(Path::new(dir)))?;
        show(&DURABLE, compare(&mut both, &DURABLE, true)?);
    }
    Ok(())
}
