//! Foreign objects at every name that the engine uses: links, FIFOs and directories.
//!
//! The names are not listed here: inotify reports those that an operation opens, creates or
//! renames. Each operation then meets each kind of object at each name that any operation uses in
//! its directories.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use braid::backup::Restore;
use braid::{Builder, Database, offline};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, Mode};

/// The directories in which an operation works.
const DIRECTORIES: [&str; 3] = ["db", "archive", "copies"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Object {
    Link,
    /// A link to the moved file itself, if there was one.
    LinkToOwn,
    DanglingLink,
    LinkToDirectory,
    HardLink,
    HardLinkToEmpty,
    Fifo,
    Directory,
}

const OBJECTS: [Object; 8] = [
    Object::Link,
    Object::LinkToOwn,
    Object::DanglingLink,
    Object::LinkToDirectory,
    Object::HardLink,
    Object::HardLinkToEmpty,
    Object::Fifo,
    Object::Directory,
];

type Outcome = Result<(), braid::Error>;

/// An operation on a directory with [`DIRECTORIES`].
struct Operation {
    name: &'static str,
    /// Whether it starts with a database.
    on_database: bool,
    /// Whether the permissions of its files can be chosen.
    has_mode: bool,
    run: fn(&Path, u32) -> Outcome,
}

fn builder(mode: u32) -> Builder {
    Database::builder()
        .file_mode(mode)
        .background_threads(false)
        .stats_file(true)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

fn fill(db: &Database) -> Outcome {
    let table = db.open_table::<u64, Vec<u8>>("t")?;
    for key in 0..8 {
        db.transact(|tx| tx.insert(&table, &key, &vec![7; 4000]))?;
    }
    db.checkpoint()
}

fn use_and_close(db: Database) -> Outcome {
    fill(&db)?;
    db.close()
}

const OPERATIONS: [Operation; 8] = [
    Operation {
        name: "create",
        on_database: false,
        has_mode: true,
        run: |place, mode| use_and_close(builder(mode).open(place.join("db"))?),
    },
    Operation {
        name: "open",
        on_database: true,
        has_mode: true,
        run: |place, mode| use_and_close(builder(mode).open(place.join("db"))?),
    },
    Operation {
        name: "open_read_only",
        on_database: true,
        has_mode: true,
        run: |place, _| Database::open_read_only(place.join("db"))?.close(),
    },
    Operation {
        name: "archive",
        on_database: true,
        has_mode: true,
        run: |place, mode| {
            let builder = builder(mode).archive(place.join("archive"));
            let db = builder.open(place.join("db"))?;
            fill(&db)?;
            db.archive_now()?;
            db.close()
        },
    },
    Operation {
        name: "backup",
        on_database: true,
        has_mode: true,
        run: |place, mode| {
            let db = builder(mode).open(place.join("db"))?;
            db.backup(place.join("copies/named"))?;
            db.backup(place.join("copies"))?;
            db.close()
        },
    },
    Operation {
        name: "restore",
        on_database: false,
        has_mode: true,
        run: |place, mode| {
            let restore = Restore::new().backup(place.join("copies/template"));
            let restore = restore.archive(place.join("archive")).file_mode(mode);
            restore.run(place.join("db")).map(drop)
        },
    },
    Operation {
        name: "salvage",
        on_database: true,
        has_mode: false,
        run: |place, _| {
            offline::salvage(place.join("db"), place.join("copies/salvaged"), &mut |_| {}).map(drop)
        },
    },
    Operation {
        name: "salvage into",
        on_database: false,
        has_mode: false,
        run: |place, _| {
            let damaged = place.join("../../damaged/db");
            offline::salvage(damaged, place.join("db"), &mut |_| {}).map(drop)
        },
    },
];

/// A database with an archive and a backup, closed.
fn make_template(place: &Path) {
    fs::create_dir_all(place.join("copies")).unwrap();
    let builder = builder(0o600).archive(place.join("archive"));
    let db = builder.open(place.join("db")).unwrap();
    fill(&db).unwrap();
    db.backup(place.join("copies/template")).unwrap();
    db.archive_now().unwrap();
    db.close().unwrap();
}

/// Copies the template for an operation; returns the objects outside of its directories.
fn prepare(template: &Path, place: &Path, operation: &Operation, mode: u32) {
    for directory in DIRECTORIES {
        fs::create_dir_all(place.join(directory)).unwrap();
        if directory == "db" && !operation.on_database {
            continue;
        }
        for entry in fs::read_dir(template.join(directory)).unwrap() {
            let from = entry.unwrap().path();
            let to = place.join(directory).join(from.file_name().unwrap());
            fs::copy(&from, &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    let outside = place.join("outside");
    fs::create_dir_all(outside.join("drawer")).unwrap();
    fs::write(outside.join("letter"), "Dear engine").unwrap();
    fs::write(outside.join("empty"), "").unwrap();
    fs::write(outside.join("drawer/note"), "Buy milk").unwrap();
    for name in ["letter", "empty", "drawer/note"] {
        let mode = fs::Permissions::from_mode(0o604);
        fs::set_permissions(outside.join(name), mode).unwrap();
    }
}

/// Puts an object at a name. Returns `false` if the object needs a file that does not exist.
fn put(place: &Path, name: &str, object: Object) -> bool {
    let (at, outside) = (place.join(name), place.join("outside"));
    let own = outside.join("own");
    match fs::rename(&at, &own) {
        Ok(()) if object == Object::LinkToOwn => {}
        // Its new name would count as an outside file that may not appear.
        Ok(()) => fs::remove_file(&own).unwrap(),
        Err(_) => {}
    }
    match object {
        Object::Link => symlink(outside.join("letter"), at).unwrap(),
        Object::LinkToOwn if own.exists() => symlink(own, at).unwrap(),
        Object::LinkToOwn => return false,
        Object::DanglingLink => symlink(outside.join("nothing"), at).unwrap(),
        Object::LinkToDirectory => symlink(outside.join("drawer"), at).unwrap(),
        Object::HardLink => fs::hard_link(outside.join("letter"), at).unwrap(),
        Object::HardLinkToEmpty => fs::hard_link(outside.join("empty"), at).unwrap(),
        Object::Fifo => rustix::fs::mkfifoat(CWD, &at, Mode::from_raw_mode(0o600)).unwrap(),
        Object::Directory => {
            fs::create_dir(&at).unwrap();
            fs::write(at.join("inside"), "Mine").unwrap();
        }
    }
    true
}

/// Contents and permissions of everything in a directory.
fn look(directory: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mut contents = Vec::new();
        if metadata.is_dir() {
            found.extend(look(&path));
        } else {
            contents = fs::read(&path).unwrap();
        }
        found.insert(path, (metadata.mode(), contents));
    }
    found
}

/// Names in the directories that an operation opens, creates or renames.
fn names(place: &Path, run: impl FnOnce()) -> BTreeSet<String> {
    let notifier = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    let flags = WatchFlags::OPEN | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    let watches: BTreeMap<i32, &str> = DIRECTORIES
        .into_iter()
        .map(|directory| {
            let watch = inotify::add_watch(&notifier, place.join(directory), flags);
            (watch.unwrap(), directory)
        })
        .collect();
    run();
    let mut found = BTreeSet::new();
    let mut buf = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&notifier, &mut buf);
    while let Ok(event) = reader.next() {
        assert!(!event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW));
        // Events of the directory itself have no name.
        if let Some(name) = event.file_name() {
            let name = name.to_str().unwrap();
            found.insert(format!("{}/{name}", watches[&event.wd()]));
        }
    }
    found
}

/// Ends the process if a case takes longer than a minute. An operation that waits for the other end
/// of a FIFO cannot be interrupted otherwise.
fn watch(cases: &Receiver<String>) {
    let mut case = String::new();
    loop {
        match cases.recv_timeout(Duration::from_mins(1)) {
            Ok(next) => case = next,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                // Unlike `eprintln!`, this is shown although the test does not end.
                let _ = writeln!(io::stderr(), "{case}: it hangs");
                std::process::abort();
            }
        }
    }
}

/// Checks that an operation left everything outside as it was, and created files with `mode`.
/// Returns what is wrong.
fn check(
    place: &Path,
    name: &str,
    mode: u32,
    before: &BTreeMap<PathBuf, (u32, Vec<u8>)>,
) -> String {
    let mut wrong = String::new();
    let after = look(&place.join("outside"));
    for (path, then) in before {
        if after.get(path) != Some(then) {
            write!(wrong, " changed {};", path.display()).unwrap();
        }
    }
    for path in after.keys().filter(|path| !before.contains_key(*path)) {
        write!(wrong, " created {};", path.display()).unwrap();
    }
    for directory in DIRECTORIES.map(|directory| place.join(directory)) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            // Permissions of a lock file depend on the umask.
            let is_own = metadata.is_file() && metadata.nlink() == 1 && !path.ends_with("LOCK");
            if is_own && metadata.mode() & 0o7777 != mode {
                write!(wrong, " {} is {:o};", path.display(), metadata.mode()).unwrap();
            }
        }
    }
    let at = place.join(name);
    if fs::symlink_metadata(&at).is_ok_and(|found| found.is_dir())
        && fs::read(at.join("inside")).is_ok_and(|inside| inside != b"Mine")
    {
        write!(wrong, " changed the directory").unwrap();
    }
    wrong
}

/// Runs an operation with each object at each name. Returns the number of cases and what was wrong.
fn run(root: &Path, operation: &Operation, names: &BTreeSet<String>) -> (usize, String) {
    let (cases, received) = channel();
    let watchdog = thread::spawn(move || watch(&received));
    let (mut count, mut failures) = (0, String::new());
    let place = root.join(operation.name).join("place");
    let cases_of = |name| OBJECTS.map(|object| (name, object));
    for (index, (name, object)) in names.iter().flat_map(cases_of).enumerate() {
        // A user may name the directory of a backup through a link.
        if (name.as_str(), object) == ("copies/named", Object::LinkToDirectory) {
            continue;
        }
        let mode = if operation.has_mode && index % 2 == 1 {
            0o640
        } else {
            0o600
        };
        prepare(&root.join("template"), &place, operation, mode);
        if put(&place, name, object) {
            let case = format!("{}, {object:?} at {name}", operation.name);
            cases.send(case.clone()).unwrap();
            let before = look(&place.join("outside"));
            let outcome = (operation.run)(&place, mode);
            count += 1;
            let wrong = check(&place, name, mode, &before);
            if !wrong.is_empty() {
                writeln!(failures, "{case}:{wrong} {outcome:?}").unwrap();
            }
        }
        fs::remove_dir_all(&place).unwrap();
    }
    drop(cases);
    watchdog.join().unwrap();
    (count, failures)
}

#[test]
fn foreign_objects_stay_as_they_are() {
    let root = tempfile::tempdir().unwrap();
    make_template(&root.path().join("template"));
    make_template(&root.path().join("damaged"));
    let used = OPERATIONS.each_ref().map(|operation| {
        let clean = root.path().join(operation.name).join("clean");
        prepare(&root.path().join("template"), &clean, operation, 0o600);
        names(&clean, || (operation.run)(&clean, 0o600).unwrap())
    });
    let all: BTreeSet<String> = used.iter().flatten().cloned().collect();
    for name in [
        "db/data.braid",
        "db/STATS.new",
        "db/.braid-probe",
        "archive/OWNER.new",
    ] {
        assert!(all.contains(name), "{name}: {all:?}");
    }
    // The test mostly waits for the medium.
    thread::scope(|scope| {
        let (root, all) = (root.path(), &all);
        let runs = std::array::from_fn::<_, { OPERATIONS.len() }, _>(|index| {
            let uses = |name: &&String| {
                let directory = name.split_inclusive('/').next().unwrap();
                used[index].iter().any(|used| used.starts_with(directory))
            };
            let names = all.iter().filter(uses).cloned().collect();
            scope.spawn(move || run(root, &OPERATIONS[index], &names))
        });
        let (mut count, mut failures) = (0, String::new());
        for run in runs {
            let (cases, wrong) = run.join().unwrap();
            count += cases;
            failures += &wrong;
        }
        assert!(failures.is_empty(), "{failures}");
        println!("{count} cases, {} names", all.len());
    });
}
