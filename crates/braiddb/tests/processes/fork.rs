//! Children made by `fork` cannot use an inherited database, and do not damage it, whatever they
//! do.
//!
//! The tests fork a separate process in which threads of the parent commit meanwhile. The child
//! must exit in time: it would wait forever for a lock that a thread of the parent held at the
//! fork.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use braid::changes::{Changes, Feed};
use braid::{
    BulkLoader, Bytes, Database, Durability, Error, Health, Readable, Result, Snapshot, Table,
    Ticket, Transaction, TransactionOptions,
};

use crate::parent::directory;

/// The variable that names the database to the forking process.
pub(crate) const FORKING: &str = "BRAID_FORKING";

/// Seconds after which the system kills a child.
const LONGEST: u32 = 30;

/// Forks, runs `work` in the child, and returns how the child ended: 0 unless `work` panicked.
fn in_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `work`. `work` uses nothing that a thread of the parent may have
    // locked except the allocator, which the C library makes usable in the child, and ends without
    // running any code of the parent.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: as above.
            unsafe { libc::alarm(LONGEST) };
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(worked.is_err())) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid, and the child is this process's.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                -libc::WTERMSIG(status)
            }
        }
    }
}

fn forked<T>(what: &str, outcome: Result<T>) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} succeeds"));
    assert!(matches!(error, Error::Forked), "{what}: {error:?}");
}

/// One handle of each kind.
struct Handles {
    db: Database,
    t: Table<u64, Bytes>,
    small: Transaction,
    large: Transaction,
    reader: Transaction,
    empty: Transaction,
    snapshot: Snapshot,
    named: Snapshot,
    loader: BulkLoader<u64, Bytes>,
    feed: Feed,
    changes: Changes,
    durable: Ticket,
    pending: Ticket,
    awaited: Ticket,
}

impl Handles {
    fn of(db: &Database) -> Self {
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        db.transact(|tx| tx.insert(&t, &0, &b"parent"[..])).unwrap();
        let (mut small, mut large, reader) = (db.begin(), db.begin(), db.begin());
        small.insert(&t, &1, &b"small"[..]).unwrap();
        for key in 10_000..10_100 {
            large.insert(&t, &key, &b"large"[..]).unwrap();
        }
        reader.get(&t, &0).unwrap();
        let commit = |key, durability| {
            let mut tx = db.begin_with(TransactionOptions {
                durability,
                ..TransactionOptions::default()
            });
            tx.insert(&t, &key, &b"ticket"[..]).unwrap();
            tx.commit_async().unwrap()
        };
        let durable = commit(2, Durability::Immediate);
        durable.wait().unwrap();
        let feed = db.feed("feed").unwrap();
        let mut loader = db.bulk_load("loaded").unwrap();
        for key in 0..3_000 {
            loader.insert(&key, &[7; 500]).unwrap();
        }
        Self {
            small,
            large,
            reader,
            empty: db.begin(),
            snapshot: db.snapshot(),
            named: db
                .open_snapshot("named")
                .or_else(|_| db.create_snapshot("named"))
                .unwrap(),
            loader,
            changes: feed.changes().unwrap(),
            feed,
            durable,
            pending: commit(3, Durability::None),
            awaited: commit(4, Durability::None),
            t,
            db: db.clone(),
        }
    }

    /// In the child, every use fails and every drop returns.
    fn refuse(self, mut scan: impl Iterator<Item = Result<(u64, Bytes)>>) {
        let (db, t) = (&self.db.clone(), &self.t);
        forked("a read", db.get(t, &0));
        forked("a read in place", db.get_with(t, &0, |_| ()));
        forked("a table", db.open_table::<u64, Bytes>("t"));
        forked("a new table", db.open_table::<u64, Bytes>("child"));
        forked("the names", db.table_names());
        forked("a drop", db.drop_table("t"));
        forked("a sync", db.sync());
        forked("a checkpoint", db.checkpoint());
        forked("compacting", db.compact());
        forked("a load", db.bulk_load::<u64, Bytes>("child"));
        forked("a feed", db.feed("child"));
        forked("changes", db.changes(self.changes.position()));
        forked("a backup", db.backup_to(&mut Vec::new()));
        forked(
            "a transaction",
            db.transact(|tx| tx.insert(t, &0, &b"child"[..])),
        );
        forked("a snapshot's name", db.create_snapshot("child"));
        forked("a named snapshot", db.open_snapshot("named"));
        assert!(!db.drop_snapshot("named"));
        assert!(matches!(db.health(), Health::Closed));
        forked("a new snapshot", db.snapshot().get(t, &0));
        forked("a snapshot", self.snapshot.get(t, &0));
        forked("keys at once", self.named.get_many(t, &[0, 1]));
        forked("a range", self.named.range(t, ..).map(drop));
        if let Some(entry) = scan.find(|entry| entry.is_err()) {
            forked("a scan", entry);
        }
        let mut small = self.small;
        forked("a write", small.insert(t, &0, &b"child"[..]));
        forked("a transaction's read", small.get(t, &0));
        forked("a commit", small.commit());
        forked("a large commit", self.large.commit_async());
        forked("a reader's commit", self.reader.commit());
        self.empty.abort();
        let mut loader = self.loader;
        forked("an entry", loader.insert(&9_999, &b"child"[..]));
        forked("a load's end", loader.finish());
        let mut changes = self.changes;
        forked("a change", changes.next().unwrap());
        forked("a wait", changes.next_within(Duration::from_secs(1)));
        forked("a feed's position", self.feed.position());
        forked("a feed's changes", self.feed.changes());
        self.durable.wait().unwrap();
        let outcomes = std::sync::Arc::new(AtomicU64::new(0));
        let tell = outcomes.clone();
        self.awaited.on_durable(move |outcome| {
            let is_known = matches!(outcome, Ok(_) | Err(Error::Forked));
            tell.store(u64::from(is_known), Ordering::Relaxed);
        });
        assert_eq!(outcomes.load(Ordering::Relaxed), 1);
        // A thread of the parent may have flushed it by now.
        match self.pending.try_wait() {
            Some(Ok(_)) => {}
            outcome => forked("a ticket", outcome.expect("an answer")),
        }
        forked("closing", db.clone().close());
        drop(self.db);
    }
}

fn open(path: &Path) -> Result<Database> {
    Database::builder()
        .pool_bytes(2 << 20)
        .segment_bytes(1 << 20)
        .stats_file(true)
        .open(path)
}

/// Stops the threads of the parent, even if a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The forking process: its threads commit and write checkpoints while it forks children.
pub(crate) fn run() {
    let Some(path) = std::env::var_os(FORKING).map(PathBuf::from) else {
        return;
    };
    let db = open(&path).unwrap();
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    let (stop, committed) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    std::thread::scope(|scope| {
        let stops = Stop(&stop);
        for (thread, committed) in committed.iter().enumerate() {
            let (db, t, stop) = (&db, &t, &stop);
            scope.spawn(move || {
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let key = 100 + thread as u64;
                    db.transact(|tx| tx.insert(t, &key, &n.to_le_bytes()[..]))
                        .unwrap();
                    committed.store(n, Ordering::Relaxed);
                    if thread == 0 && n.is_multiple_of(16) {
                        db.checkpoint().unwrap();
                    }
                }
            });
        }
        for round in 0..20 {
            let handles = Handles::of(&db);
            let snapshot = db.snapshot();
            let mut scan = snapshot.iter(&t).unwrap();
            scan.next().unwrap().unwrap();
            let child = in_child(|| {
                let path = path.clone();
                handles.refuse(&mut scan);
                // The lock belongs to the parent, and remains.
                assert!(matches!(open(&path), Err(Error::Locked { .. })));
                // The child may use a database of its own.
                let own = path.with_extension(format!("child-{round}"));
                let db = open(&own).unwrap();
                let u: Table<u64, Bytes> = db.open_table("u").unwrap();
                db.transact(|tx| tx.insert(&u, &1, &b"own"[..])).unwrap();
                db.close().unwrap();
                drop(open(&own).unwrap());
            });
            assert_eq!(child, 0, "round {round}: how the child ended");
        }
        drop(stops);
    });
    let (other, table) = (db.clone(), t.clone());
    assert_eq!(in_child(move || drop((db, t))), 0);
    let outside = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "opening"])
        .env(FORKING, &path)
        .status();
    assert!(outside.unwrap().success(), "another process is kept out");
    let last: Vec<u64> = committed
        .iter()
        .map(|n| n.load(Ordering::Relaxed))
        .collect();
    drop(table);
    other.close().unwrap();
    let db = open(&path).unwrap();
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    for (thread, last) in last.into_iter().enumerate() {
        let found = db.get(&t, &(100 + thread as u64)).unwrap().unwrap();
        assert!(last > 0);
        assert_eq!(found[..], last.to_le_bytes());
    }
    assert_eq!(&db.get(&t, &0).unwrap().unwrap()[..], b"parent");
    assert_eq!(db.get(&t, &1).unwrap(), None);
    assert_eq!(db.get(&t, &10_000).unwrap(), None);
    assert_eq!(db.table_names().unwrap(), ["t"]);
    db.close().unwrap();
}

/// Another process finds the database locked.
pub(crate) fn run_opening() {
    let Some(path) = std::env::var_os(FORKING).map(PathBuf::from) else {
        return;
    };
    assert!(matches!(open(&path), Err(Error::Locked { .. })));
}

#[test]
fn a_child_made_by_fork_leaves_the_database_alone() {
    let dir = directory();
    let path = dir.path().join("db");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "forking", "--nocapture"])
        .env(FORKING, &path)
        .output()
        .unwrap();
    let outcomes = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{outcomes}");
    let report = braid::offline::verify(&path, &mut |damage| panic!("{damage}")).unwrap();
    assert_eq!(report.damages, 0);
}
