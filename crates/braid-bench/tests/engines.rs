//! Every engine of the build meets the contract of `KvEngine`. Other engines are skipped with a
//! note; `cargo test -p braid-bench --features peers` includes all of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use braid_bench::BenchError;
use braid_bench::engines::{
    Acknowledgement, Body, KvEngine, Mode, Order, PeerInfo, Session, Stop, Transaction, Wait, open,
    peers,
};

const CACHE: usize = 16 << 20;
const TABLES: [&str; 2] = ["a", "b \" c"];

macro_rules! engines {
    ($($test:ident $name:literal)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(#[test]
        fn $test() {
            conforms($name);
        })*
    };
}

engines! {
    braid "braid"
    redb "redb"
    fjall "fjall"
    lmdb "lmdb"
    sqlite "sqlite"
    rocksdb "rocksdb"
    rocksdb_txn "rocksdb-txn"
    wiredtiger "wiredtiger"
    wiredtiger_dsync "wiredtiger-dsync"
    redis "redis"
    raft_engine "raft-engine"
    postgres "postgres"
}

#[test]
fn every_engine_is_tested() {
    let names: Vec<_> = peers().iter().map(|peer| peer.name).collect();
    assert_eq!(names, TESTED);
}

#[test]
fn an_unknown_engine_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let Err(error) = open("brade", dir.path(), &[], CACHE) else {
        panic!("opened");
    };
    assert!(
        error
            .to_string()
            .contains("no engine brade; choose one of braid, redb")
    );
}

fn conforms(name: &str) {
    let peer = peers().iter().find(|peer| peer.name == name).unwrap();
    // A server runs as another user, who must be able to access its directory.
    let dir = tempfile::tempdir().unwrap();
    #[cfg(unix)]
    {
        use std::fs::Permissions;
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    }
    let path = dir.path().join("engine");
    if let Err(note) = &peer.version {
        eprintln!("skipped {name}: {note}");
        let error = open(name, &path, &TABLES, CACHE).err().unwrap();
        assert!(matches!(error, BenchError::Unavailable { .. }), "{error}");
        return;
    }
    check(peer, &path);
}

fn reopen(peer: &PeerInfo, path: &Path) -> Box<dyn KvEngine> {
    open(peer.name, path, &TABLES, CACHE).unwrap()
}

/// Returns the same path, relative to the test's directory.
fn relative(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap();
    let up = here.ancestors().skip(1).map(|_| "..");
    up.collect::<PathBuf>()
        .join(path.strip_prefix("/").unwrap_or(path))
}

fn check(peer: &PeerInfo, path: &Path) {
    let engine = reopen(peer, path);
    assert_eq!(engine.name(), peer.name);
    assert_eq!(engine.abilities(), peer.abilities);
    let can = peer.abilities;
    rollback(&*engine);
    refusals(&*engine);
    tickets(&*engine);
    if can.reads {
        reads_and_deletes(&*engine);
        wholeness(&*engine);
    }
    if can.scans {
        scans(&*engine);
    }
    if can.updates {
        own_writes(&*engine);
        counters(&*engine);
    }
    if can.serializable {
        no_write_skew(&*engine);
    }
    engine.settle().unwrap();
    drop(engine);
    let engine = reopen(peer, &relative(path));
    if can.reads {
        let mut session = engine.session().unwrap();
        assert_eq!(get(&mut *session, 0, b"kept").as_deref(), Some(&b"2"[..]));
        assert_eq!(get(&mut *session, 0, b"deleted"), None);
        assert_eq!(get(&mut *session, 1, b"ticket").as_deref(), Some(&b"t"[..]));
        assert_eq!(get(&mut *session, 0, b"undone"), None);
        if can.updates {
            assert_eq!(number(get(&mut *session, 1, b"counter")), 4 * 50);
        }
    }
    #[cfg(target_os = "linux")]
    assert_eq!(processes_in(path) > 0, engine.server_usage().is_some());
    // A panic closes the engine and stops its server.
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        write(&mut *engine.session().unwrap(), &mut |tx| {
            tx.put(0, b"after", b"reopening")
        });
        std::panic::resume_unwind(Box::new("meant"))
    }));
    assert!(panicked.is_err());
    #[cfg(target_os = "linux")]
    assert_eq!(processes_in(path), 0);
}

/// Returns the number of processes that work in a directory.
#[cfg(target_os = "linux")]
fn processes_in(dir: &Path) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path().join("cwd")).ok())
        .filter(|cwd| cwd.starts_with(dir))
        .count()
}

/// Commits, and retries until no other transaction conflicts.
fn write(session: &mut dyn Session, body: &mut Body<'_>) {
    loop {
        match session.transact(Mode::ReadWrite, Wait::Durable, body) {
            Ok(Acknowledgement::Durable) => return,
            Ok(Acknowledgement::Pending(_)) => panic!("an unrequested ticket"),
            Err(Stop::Conflict) => thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

fn read(session: &mut dyn Session, body: &mut Body<'_>) {
    while let Err(error) = session.transact(Mode::ReadOnly, Wait::Durable, body) {
        assert!(matches!(error, Stop::Conflict), "{error}");
    }
}

fn get(session: &mut dyn Session, table: usize, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    let there = session
        .get(table, key, &mut |found| value = Some(found.to_vec()))
        .unwrap();
    assert_eq!(there, value.is_some());
    value
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| {
        u64::from_le_bytes(value.as_slice().try_into().unwrap())
    })
}

fn rollback(engine: &dyn KvEngine) {
    let mut session = engine.session().unwrap();
    let undone = session.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
        tx.put(0, b"undone", b"1")?;
        tx.put(1, b"undone", b"1")?;
        Err(Stop::RolledBack)
    });
    assert!(matches!(undone, Err(Stop::RolledBack)));
    // A panic also rolls back, and leaves no lock held.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut session = engine.session().unwrap();
        session.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
            tx.put(0, b"undone", b"1")?;
            std::panic::resume_unwind(Box::new("meant"))
        })
    }));
    assert!(panicked.is_err());
    if engine.abilities().reads {
        assert_eq!(get(&mut *session, 0, b"undone"), None);
        assert_eq!(get(&mut *session, 1, b"undone"), None);
    }
}

fn refusals(engine: &dyn KvEngine) {
    let mut session = engine.session().unwrap();
    for body in [
        &mut |tx: &mut dyn Transaction| tx.put(0, b"undone", b"1"),
        &mut |tx: &mut dyn Transaction| tx.delete(0, b"undone"),
    ] as [&mut Body<'_>; 2]
    {
        let refused = session.transact(Mode::ReadOnly, Wait::Durable, body);
        assert!(
            matches!(refused, Err(Stop::Failed(BenchError::WriteInReadOnly))),
            "{refused:?}"
        );
    }
    if !engine.abilities().reads {
        let refused = session.get(0, b"undone", &mut |_| ());
        assert!(matches!(
            refused,
            Err(Stop::Failed(BenchError::Unable { .. }))
        ));
    }
    if !engine.abilities().scans {
        let refused = session.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
            tx.scan(0, b"a", b"b", Order::Ascending, &mut |_, _| true)
        });
        assert!(matches!(
            refused,
            Err(Stop::Failed(BenchError::Unable { .. }))
        ));
    }
}

fn tickets(engine: &dyn KvEngine) {
    let put: &mut Body<'_> = &mut |tx| tx.put(1, b"ticket", b"t");
    let acknowledged = engine
        .session()
        .unwrap()
        .transact(Mode::ReadWrite, Wait::Ticket, put)
        .unwrap();
    match acknowledged {
        Acknowledgement::Durable => assert!(!engine.abilities().in_flight),
        Acknowledgement::Pending(ticket) => {
            assert!(engine.abilities().in_flight);
            ticket.wait().unwrap();
        }
    }
}

fn reads_and_deletes(engine: &dyn KvEngine) {
    let mut session = engine.session().unwrap();
    write(&mut *session, &mut |tx| {
        tx.put(0, b"kept", b"1")?;
        tx.put(0, b"deleted", b"1")?;
        tx.delete(0, b"never there")
    });
    write(&mut *session, &mut |tx| {
        tx.put(0, b"kept", b"2")?;
        tx.delete(0, b"deleted")
    });
    assert_eq!(get(&mut *session, 0, b"kept").as_deref(), Some(&b"2"[..]));
    assert_eq!(get(&mut *session, 0, b"deleted"), None);
    assert_eq!(get(&mut *session, 1, b"kept"), None, "tables are apart");
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        let mut seen = Vec::new();
        session
            .transact(mode, Wait::Durable, &mut |tx| {
                for key in [&b"kept"[..], b"deleted"] {
                    seen.push(tx.get(0, key, &mut |value| assert_eq!(value, b"2"))?);
                    seen.push(tx.get_for_update(0, key, &mut |value| assert_eq!(value, b"2"))?);
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [true, true, false, false], "{mode:?}");
    }
}

fn own_writes(engine: &dyn KvEngine) {
    write(&mut *engine.session().unwrap(), &mut |tx| {
        tx.put(0, b"own", b"1")?;
        assert!(tx.get(0, b"own", &mut |value| assert_eq!(value, b"1"))?);
        tx.put(0, b"own", b"2")?;
        assert!(tx.get_for_update(0, b"own", &mut |value| assert_eq!(value, b"2"))?);
        tx.delete(0, b"own")?;
        assert!(!tx.get(0, b"own", &mut |_| ())?);
        Ok(())
    });
}

fn scans(engine: &dyn KvEngine) {
    let mut session = engine.session().unwrap();
    let keys: Vec<_> = (10..30_u32).map(|i| format!("scan{i}")).collect();
    write(&mut *session, &mut |tx| {
        for key in &keys {
            tx.put(1, key.as_bytes(), key.as_bytes())?;
        }
        Ok(())
    });
    let mut backwards = keys[2..9].to_vec();
    backwards.reverse();
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        for (order, wanted) in [
            (Order::Ascending, &keys[2..9]),
            (Order::Descending, &backwards[..]),
        ] {
            for limit in [3, usize::MAX] {
                let mut seen = Vec::new();
                session
                    .transact(mode, Wait::Durable, &mut |tx| {
                        let (from, to) = (keys[2].as_bytes(), keys[9].as_bytes());
                        tx.scan(1, from, to, order, &mut |key, value| {
                            assert_eq!(key, value);
                            seen.push(String::from_utf8(key.to_vec()).unwrap());
                            seen.len() < limit
                        })
                    })
                    .unwrap();
                let limit = limit.min(wanted.len());
                assert_eq!(seen, wanted[..limit], "{mode:?} {order:?}");
            }
            // An empty key is below all others.
            for (to, wanted) in [(&b"scan12"[..], 2), (b"", 0)] {
                let mut seen = Vec::new();
                session
                    .transact(mode, Wait::Durable, &mut |tx| {
                        tx.scan(1, b"", to, order, &mut |key, _| {
                            seen.push(String::from_utf8(key.to_vec()).unwrap());
                            true
                        })
                    })
                    .unwrap();
                seen.sort_unstable();
                assert_eq!(seen, keys[..wanted], "{mode:?} {order:?}");
            }
            // Nothing lies between two neighbours, before the first, or after the last.
            for (from, to) in [
                ("scan10a", "scan10b"),
                ("scan", "scan10"),
                ("scan3", "scan4"),
            ] {
                session
                    .transact(mode, Wait::Durable, &mut |tx| {
                        let (from, to) = (from.as_bytes(), to.as_bytes());
                        tx.scan(1, from, to, order, &mut |key, _| panic!("{key:?}"))
                    })
                    .unwrap();
            }
        }
    }
}

/// Each transaction writes both of two keys, so no reader may see them differ.
fn wholeness(engine: &dyn KvEngine) {
    if !engine.abilities().transactions {
        return;
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut session = engine.session().unwrap();
            let _done = SetWhenDropped(&done);
            for round in 1..=100_u64 {
                write(&mut *session, &mut |tx| {
                    tx.put(0, b"twin", &round.to_le_bytes())?;
                    tx.put(1, b"twin", &round.to_le_bytes())
                });
            }
        });
        let mut session = engine.session().unwrap();
        while !done.load(Ordering::Relaxed) {
            let (mut left, mut right) = (None, None);
            read(&mut *session, &mut |tx| {
                (left, right) = (None, None);
                tx.get(0, b"twin", &mut |value| left = Some(value.to_vec()))?;
                tx.get(1, b"twin", &mut |value| right = Some(value.to_vec()))?;
                Ok(())
            });
            assert_eq!(left, right);
        }
        writer.join().unwrap();
    });
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads increment a counter in each table; none of their updates is lost.
fn counters(engine: &dyn KvEngine) {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut session = engine.session().unwrap();
                for _ in 0..50 {
                    write(&mut *session, &mut |tx| {
                        for table in 0..TABLES.len() {
                            let mut old = None;
                            tx.get_for_update(table, b"counter", &mut |value| {
                                old = Some(value.to_vec());
                            })?;
                            tx.put(table, b"counter", &(number(old) + 1).to_le_bytes())?;
                        }
                        Ok(())
                    });
                }
            });
        }
    });
    let mut session = engine.session().unwrap();
    for table in 0..TABLES.len() {
        assert_eq!(number(get(&mut *session, table, b"counter")), 4 * 50);
    }
}

/// Two threads each remove one of two keys, but only if both exist: one key stays.
fn no_write_skew(engine: &dyn KvEngine) {
    let barrier = Barrier::new(2);
    let both = [&b"left"[..], b"right"];
    let round = |own: usize| {
        let mut session = engine.session().unwrap();
        for _ in 0..30 {
            if own == 0 {
                write(&mut *session, &mut |tx| {
                    both.iter().try_for_each(|key| tx.put(0, key, b"x"))
                });
            }
            barrier.wait();
            write(&mut *session, &mut |tx| {
                let mut there = 0;
                for key in both {
                    there += u32::from(tx.get(0, key, &mut |_| ())?);
                }
                thread::yield_now();
                if there == 2 {
                    tx.delete(0, both[own])?;
                }
                Ok(())
            });
            barrier.wait();
            if own == 0 {
                let left = get(&mut *session, 0, b"left").is_some();
                let right = get(&mut *session, 0, b"right").is_some();
                assert!(left != right, "left {left}, right {right}");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| round(1));
        round(0);
    });
}
