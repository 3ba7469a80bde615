//! Panics in user code: the database continues, and no lock stays held.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, RwLock};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, SystemTime};

use braid::{
    AsKey, AsValue, Bytes, Database, Durability, Error, Health, Key, Readable, Result, Table,
    TableOptions, Ticket, TransactionOptions, Value,
};
use braid_io::{File, Layer, LayeredDevice, MemoryDevice, SimDevice};

/// Longer than anything here takes: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Panics without the panic hook, so that expected panics do not fill the test's output.
fn panic_deliberately() -> ! {
    resume_unwind(Box::new("on purpose"))
}

fn small() -> braid::Builder {
    Database::builder().pool_bytes(1 << 20).strands(2)
}

/// Runs `f`, which panics deliberately.
fn panics<R>(f: impl FnOnce() -> R) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else {
        panic!("the panic did not reach the caller");
    };
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
}

/// A layer whose durable writes wait while the gate is closed.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<RwLock<()>>);

impl Layer for Gate {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], at: u64) -> io::Result<()> {
        let _open = self.0.read().unwrap();
        file.write_durable_at(bufs, at)
    }
}

fn write(db: &Database, t: &Table<u32, u32>, key: u32) -> Ticket {
    let mut tx = db.begin();
    tx.insert(t, &key, &key).unwrap();
    tx.commit_async().unwrap()
}

/// Registers a callback that sends the outcome.
fn outcome_of(ticket: Ticket) -> Receiver<bool> {
    let (sender, done) = channel();
    ticket.on_durable(move |outcome| {
        let _ = sender.send(outcome.is_ok());
    });
    done
}

struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic_deliberately()
    }
}

/// The flusher survives callbacks and wakers that panic, and calls the remaining ones.
#[test]
fn callbacks_that_panic_do_not_end_the_flusher() {
    let gate = Gate::default();
    let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), gate.clone());
    let db = small().open_on(Arc::new(device)).unwrap();
    let t = db.open_table("t").unwrap();
    for round in 0..3 {
        let closed = gate.0.write().unwrap();
        write(&db, &t, round).on_durable(|_| panic_deliberately());
        let waker = Waker::from(Arc::new(PanickingWaker));
        let mut awaited = pin!(write(&db, &t, round));
        let polled = awaited.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let later = outcome_of(write(&db, &t, 10 + round));
        drop(closed);
        assert_eq!(later.recv_timeout(PATIENCE), Ok(true));
    }
    db.close().unwrap();
}

/// A commit that leads the flush runs the callbacks of others, and returns its own result.
#[test]
fn a_commit_that_leads_the_flush_returns_its_own_result() {
    let db = small()
        .background_threads(false)
        .open_on(Arc::new(MemoryDevice::new()))
        .unwrap();
    let t: Table<u32, u32> = db.open_table("t").unwrap();
    write(&db, &t, 1).on_durable(|_| panic_deliberately());
    let later = outcome_of(write(&db, &t, 2));
    let mut tx = db.begin();
    tx.insert(&t, &3, &3).unwrap();
    tx.commit().unwrap();
    assert_eq!(later.recv_timeout(PATIENCE), Ok(true));
}

/// If the outcome is known at registration, the caller's thread runs the callback; a panic is
/// handled in the same way.
#[test]
fn a_callback_that_is_called_at_once_panics_like_any_other() {
    let db = small().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t = db.open_table("t").unwrap();
    let ticket = write(&db, &t, 1);
    db.sync().unwrap();
    ticket.on_durable(|_| panic_deliberately());
}

/// The timer thread keeps `Buffered` bounds even if the listener and the clock panic.
#[test]
fn the_maintenance_thread_survives_the_health_listener_and_the_clock() {
    let panics = Arc::new(AtomicBool::new(false));
    let (sender, asked) = channel();
    let clock = panics.clone();
    let heard = Arc::new(AtomicUsize::new(0));
    let listener = heard.clone();
    let db = small()
        .on_health_change(move |health| {
            listener.fetch_add(1, Ordering::SeqCst);
            assert!(matches!(health, Health::Closed));
            panic_deliberately();
        })
        .clock(move || {
            if clock.load(Ordering::SeqCst) {
                let _ = sender.send(());
                panic_deliberately();
            }
            SystemTime::now()
        })
        .open_on(Arc::new(MemoryDevice::new()))
        .unwrap();
    let timed = TableOptions {
        time_to_live: Some(Duration::from_millis(1)),
        ..TableOptions::default()
    };
    let leases: Table<u32, u32> = db.open_table_with("leases", timed).unwrap();
    db.transact(|tx| tx.insert(&leases, &1, &1)).unwrap();
    panics.store(true, Ordering::SeqCst);
    // The sweeper thread reads the clock, and only once.
    asked.recv_timeout(PATIENCE).unwrap();
    let t: Table<u32, u32> = db.open_table("t").unwrap();
    for key in 0..3 {
        let mut tx = db.begin_with(TransactionOptions {
            durability: Durability::Buffered(Duration::from_millis(1)),
            ..TransactionOptions::default()
        });
        tx.insert(&t, &key, &key).unwrap();
        let commit = tx.commit().unwrap();
        // No thread waits for the commit: only the timer thread requests the flush.
        let begun = std::time::Instant::now();
        while db.durable_seqno() < commit.seqno() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    }
    assert!(asked.try_recv().is_err());
    db.close().unwrap();
    assert_eq!(heard.load(Ordering::SeqCst), 1);
}

/// A failed commit calls the listener on its own thread, and returns its own error.
#[test]
fn a_listener_that_panics_does_not_change_the_result_of_a_commit() {
    #[derive(Clone, Debug, Default)]
    struct Fails(Arc<AtomicBool>);
    impl Layer for Fails {
        fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], at: u64) -> io::Result<()> {
            if self.0.load(Ordering::SeqCst) {
                // A device of the user may panic, too.
                panic_deliberately()
            } else {
                file.write_durable_at(bufs, at)
            }
        }
    }
    let fails = Fails::default();
    let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), fails.clone());
    let (sender, heard) = channel();
    let db = small()
        .on_health_change(move |health| {
            let _ = sender.send(health.clone());
            panic_deliberately();
        })
        .open_on(Arc::new(device))
        .unwrap();
    let t: Table<u32, u32> = db.open_table("t").unwrap();
    fails.0.store(true, Ordering::SeqCst);
    let mut tx = db.begin();
    tx.insert(&t, &1, &1).unwrap();
    let Err(Error::Poisoned { cause }) = tx.commit() else {
        panic!("a device that panics has not written");
    };
    assert!(cause.contains("on purpose"), "{cause}");
    assert!(matches!(
        heard.recv_timeout(PATIENCE),
        Ok(Health::Poisoned { .. })
    ));
    assert!(db.close().is_err());
}

/// A type that encodes and decodes itself, and panics if the number is 7.
#[derive(Clone, Debug, PartialEq)]
struct Seventh(u32);

impl Key for Seventh {
    const TYPE_NAME: &'static str = "seventh";

    fn from_key_bytes(bytes: Bytes) -> Result<Self> {
        u32::from_key_bytes(bytes).map(Self::checked)
    }
}

impl Value for Seventh {
    const TYPE_NAME: &'static str = "seventh";

    fn from_value_bytes(bytes: Bytes) -> Result<Self> {
        u32::from_value_bytes(bytes).map(Self::checked)
    }
}

impl Seventh {
    fn checked(number: u32) -> Self {
        if number == 7 {
            panic_deliberately();
        }
        Self(number)
    }
}

impl AsKey<Seventh> for Seventh {
    fn with_key_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        // The panic follows after the engine has done its part.
        let done = AsKey::<u32>::with_key_bytes(&self.0, f);
        Self::checked(self.0);
        done
    }
}

impl AsValue<Seventh> for Seventh {
    fn with_value_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        Self::checked(self.0);
        AsValue::<u32>::with_value_bytes(&self.0, f)
    }
}

/// Checks that another thread can write every key, and that a checkpoint can be written.
fn nothing_is_locked(db: &Database, t: &Table<u32, u32>) {
    let (sender, done) = channel();
    let (other, t) = (db.clone(), t.clone());
    std::thread::spawn(move || {
        other
            .transact(|tx| (0..20).try_for_each(|key| tx.insert(&t, &key, &key)))
            .unwrap();
        other.checkpoint().unwrap();
        let _ = sender.send(());
    });
    done.recv_timeout(PATIENCE)
        .expect("a lock outlived the panic");
}

/// Panics of closures, encoders, decoders and iterators reach the caller; the transaction that they
/// end leaves no trace.
#[test]
fn closures_that_panic_leave_nothing_locked_and_nothing_applied() {
    let db = small().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t: Table<u32, u32> = db.open_table("t").unwrap();
    db.transact(|tx| (0..20).try_for_each(|key| tx.insert(&t, &key, &key)))
        .unwrap();
    let raw: Table<Seventh, Seventh> = {
        // The same bytes as `u32`, under another type name.
        let numbers = db.create_untyped_table("n", "seventh", "seventh").unwrap();
        let put = |tx: &mut braid::Transaction, key: u32, value: u32| {
            AsKey::<u32>::with_key_bytes(&key, |key| {
                AsValue::<u32>::with_value_bytes(&value, |value| tx.insert(&numbers, key, value))
            })
        };
        db.transact(|tx| {
            put(tx, 7, 1)?;
            put(tx, 8, 7)
        })
        .unwrap();
        db.open_table("n").unwrap()
    };
    let seen = || db.snapshot().iter(&t).unwrap().count();
    let try_each = |each: &dyn Fn(&mut braid::Transaction)| {
        panics(|| {
            db.transact(|tx| -> Result<()> {
                tx.insert(&t, &100, &1)?;
                tx.get_for_update(&t, &1)?;
                each(tx);
                Ok(())
            })
        });
        nothing_is_locked(&db, &t);
        assert_eq!(seen(), 20);
    };
    try_each(&|_| panic_deliberately());
    try_each(&|tx| tx.get_with(&t, &2, |_| panic_deliberately()).unwrap());
    try_each(&|tx| {
        tx.get_for_update_with(&t, &3, |_| panic_deliberately())
            .unwrap()
    });
    try_each(&|tx| drop(tx.fetch_update(&t, &4, |_| panic_deliberately())));
    try_each(&|tx| drop(tx.retain(&t, .., |_, _| panic_deliberately())));
    try_each(&|tx| {
        drop(tx.prefetch(
            &t,
            std::iter::from_fn(|| -> Option<&u32> { panic_deliberately() }),
        ))
    });
    try_each(&|tx| drop(tx.insert(&raw, &Seventh(7), &Seventh(1))));
    try_each(&|tx| drop(tx.insert(&raw, &Seventh(1), &Seventh(7))));
    try_each(&|tx| drop(tx.get(&raw, &Seventh(8))));
    try_each(&|tx| drop(tx.range(&raw, ..).unwrap().next()));
    try_each(&|tx| drop(tx.pop_first(&raw)));
    try_each(&|tx| drop(tx.take(&raw, &Seventh(8))));
    try_each(&|tx| {
        // The panic drops a scan in progress.
        let mut range = tx.range(&t, ..).unwrap();
        range.next();
        panic_deliberately();
    });
    panics(|| db.get_with(&t, &2, |_| panic_deliberately()));
    panics(|| db.get(&raw, &Seventh(8)));
    panics(|| db.snapshot().get_with(&t, &2, |_| panic_deliberately()));
    panics(|| db.retry(|_tx| -> Result<()> { panic_deliberately() }));
    nothing_is_locked(&db, &t);
}

/// A transaction whose caller catches the panic continues as if the call had not been made.
#[test]
fn a_transaction_continues_after_a_caught_panic() {
    let db = small().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t: Table<u32, u32> = db.open_table("t").unwrap();
    let mut tx = db.begin();
    tx.insert(&t, &1, &1).unwrap();
    panics(|| tx.fetch_update(&t, &1, |_| panic_deliberately()));
    panics(|| tx.get_with(&t, &1, |_| panic_deliberately()));
    panics(|| tx.retain(&t, .., |_, _| panic_deliberately()));
    tx.insert(&t, &2, &2).unwrap();
    tx.commit().unwrap();
    assert_eq!(db.get(&t, &1).unwrap(), Some(1));
    assert_eq!(db.get(&t, &2).unwrap(), Some(2));
    nothing_is_locked(&db, &t);
}

/// A bulk load whose iterator panics can continue, or be dropped, which frees its pages.
#[test]
fn a_bulk_load_survives_its_iterator() {
    let db = small().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let entries = (0..10u32).map(|n| match n {
        5 => panic_deliberately(),
        n => (n, n),
    });
    let mut loader = db.bulk_load::<u32, u32>("t").unwrap();
    panics(|| loader.extend(entries.clone()));
    loader.insert(&5, &5).unwrap();
    let t = loader.finish().unwrap();
    assert_eq!(db.snapshot().iter(&t).unwrap().count(), 6);
    panics(|| {
        let mut loader = db.bulk_load::<u32, u32>("u")?;
        loader.extend(entries.clone())
    });
    assert_eq!(db.table_names().unwrap(), ["t"]);
    db.bulk_load::<u32, u32>("u").unwrap().finish().unwrap();
    nothing_is_locked(&db, &t);
}

/// Callbacks of recovery and of backups.
#[test]
fn progress_that_panics_stops_neither_recovery_nor_later_backups() {
    let device = SimDevice::new(1);
    let db = small().open_on(Arc::new(device.clone())).unwrap();
    let t: Table<u32, u32> = db.open_table("t").unwrap();
    write(&db, &t, 1).wait().unwrap();
    let killed = Arc::new(device.after_kill());
    panics(|| {
        let backup = db.backup_options().progress(|_| panic_deliberately());
        backup.to_writer(&mut Vec::new())
    });
    struct Panics;
    impl io::Write for Panics {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic_deliberately()
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    panics(|| db.backup_to(&mut Panics));
    db.backup_to(&mut Vec::new()).unwrap();
    nothing_is_locked(&db, &t);
    let recovered = small()
        .recovery_progress(|_| panic_deliberately())
        .open_on(killed)
        .unwrap();
    let t: Table<u32, u32> = recovered.open_table("t").unwrap();
    assert_eq!(recovered.get(&t, &1).unwrap(), Some(1));
}
