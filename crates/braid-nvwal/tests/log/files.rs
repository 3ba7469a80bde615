//! Logs in files, with readers in other mappings and other processes.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use braid_nvwal::{CommitMode, LogError, LogOptions, Reader, SharedWriter, Writer, WriterOptions};
use braid_pmem::{MapAs, MapOptions, Mapping, Region, RegionError, RegionOptions};

use crate::model::START;
use crate::turns::Member;

const PAGE: usize = 1000;
const PAGES: u64 = 5;
/// Set for the processes that these tests start: the path of the region.
const PATH: &str = "BRAID_NVWAL_TEST";
const EMULATED: MapAs = MapAs::Emulated { line_latency: 0 };

fn create(path: &Path, options: &WriterOptions) -> Writer {
    let region = RegionOptions::default().map_as(EMULATED);
    let region = Region::create(path, Region::MIN_LEN, &region).unwrap();
    let log = LogOptions::default()
        .page_size(PAGE as u32)
        .block_size(4096)
        .max_bytes(300 << 10);
    Writer::create(Arc::new(region), START, &log, options).unwrap()
}

fn mapping(path: &Path, read_only: bool) -> Arc<Mapping> {
    let file: File = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(path)
        .unwrap();
    let options = MapOptions::default().map_as(EMULATED).read_only(read_only);
    Arc::new(Mapping::of_file(file, &options).unwrap())
}

/// The image of a page after a transaction.
fn image(page: u64, number: u64) -> Vec<u8> {
    let mut image = vec![page as u8; PAGE];
    for at in 0..8 {
        let at = (number + at * 119) as usize % (PAGE - 8);
        image[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    image
}

/// Commits a transaction that changes every page. Begins a generation if the log is full.
fn commit(writer: &mut Writer, number: u64) -> Result<(), LogError> {
    let mut append = || {
        for page in 0..PAGES {
            writer.append(page, &image(page, number))?;
        }
        writer.commit(number)
    };
    match append() {
        Ok(_) => return Ok(()),
        Err(LogError::Full { .. }) => writer.roll_back(),
        Err(error) => return Err(error),
    }
    loop {
        match writer.new_generation(writer.mark()) {
            Ok(()) => break,
            Err(LogError::ReadersActive { .. }) => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    commit(writer, number)
}

/// Checks that the pages are those of the transaction of the reader's tag.
fn check(reader: &Reader) -> Result<u64, LogError> {
    let number = reader.tag();
    let mut found = vec![0; PAGE];
    for page in reader.pages() {
        assert!(reader.read(page, &mut found)?);
        assert_eq!(found, image(page, number), "page {page}");
    }
    Ok(number)
}

#[test]
fn a_mapping_for_reading_follows_a_log_that_grows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("region");
    let mut writer = create(&path, &WriterOptions::default());
    commit(&mut writer, 1).unwrap();
    let read_only = mapping(&path, true);
    let len = read_only.len();
    let mut reader = Reader::open(Arc::clone(&read_only), START).unwrap();
    assert_eq!(check(&reader).unwrap(), 1);
    assert!(matches!(reader.pin(), Err(LogError::ReadOnly)));
    for number in 2..400 {
        commit(&mut writer, number).unwrap();
        reader.refresh().unwrap();
        assert_eq!(check(&reader).unwrap(), number);
    }
    assert!(read_only.len() > len);
    // A mapping for writing can pin it.
    let mut second = Reader::open(mapping(&path, false), START).unwrap();
    second.pin().unwrap();
    let error = writer.new_generation(writer.mark()).unwrap_err();
    assert!(matches!(error, LogError::ReadersActive { .. }), "{error}");
    drop(second);
    writer.new_generation(writer.mark()).unwrap();
    let mut found = vec![0; PAGE];
    assert!(matches!(
        reader.read(0, &mut found),
        Err(LogError::GenerationChanged)
    ));
}

/// Starts a test of this program as another process.
fn start(test: &str, path: &Path) -> Child {
    // In the emulator that runs this process, if there is one (`scripts/emulated.sh`).
    let runner = std::env::var("BRAID_RUNNER").unwrap_or_default();
    let program = std::env::current_exe().unwrap();
    let words = runner.split_whitespace().map(OsStr::new);
    let mut words = words.chain([program.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command
        .args(words)
        .args(["--exact", test, "--nocapture", "--quiet"])
        .env(PATH, path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a process. It must have run until then, because a process that panicked before would pass for
/// a killed one otherwise.
fn kill(process: &mut Child) {
    process.kill().unwrap();
    let status = process.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(9), "it ended before it was killed: {status}");
}

const LAST: u64 = 2000;

/// In the process of a reader: reads until the last transaction. Otherwise nothing.
#[test]
fn process_of_a_reader() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let mut reader = Reader::open(mapping(Path::new(&path), false), START).unwrap();
    let mut newest = 0;
    let mut last = None;
    while newest < LAST {
        // Each mark only once: a full log waits for the reader.
        let is_new = last != Some(reader.mark());
        let is_pinned = newest % 2 == 0 && is_new && reader.pin().is_ok();
        if is_pinned {
            last = Some(reader.mark());
        }
        if !is_pinned && reader.refresh().is_err() {
            continue;
        }
        match check(&reader) {
            // A new generation has no transaction yet.
            Ok(0) => {}
            Ok(number) => {
                assert!(number >= newest, "{number} after {newest}");
                newest = number;
            }
            Err(LogError::GenerationChanged) => assert!(!is_pinned),
            Err(error) => panic!("{error}"),
        }
        reader.unpin();
    }
}

#[test]
fn readers_in_other_processes_see_whole_transactions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("region");
    let mut writer = create(&path, &WriterOptions::default());
    let mut readers: Vec<Child> = (0..2)
        .map(|_| start("files::process_of_a_reader", &path))
        .collect();
    for number in 1..=LAST {
        commit(&mut writer, number).unwrap();
    }
    assert!(writer.stats().generations > 5);
    for reader in &mut readers {
        assert!(reader.wait().unwrap().success());
    }
    assert_eq!(writer.readers(), []);
}

/// In the process of a writer: commits until it is killed. Otherwise nothing.
#[test]
fn process_of_a_writer() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let region = RegionOptions::default().map_as(EMULATED);
    let region = Region::open(Path::new(&path), &region).unwrap();
    let options = WriterOptions::default().mode(CommitMode::Checksum);
    let (mut writer, _) = Writer::open(Arc::new(region), START, &options).unwrap();
    for number in writer.tag() + 1.. {
        // A generation without a transaction would hide how far this process was.
        commit(&mut writer, number).unwrap();
    }
}

#[test]
fn a_killed_writer_loses_nothing_that_a_reader_has_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("region");
    let options = WriterOptions::default();
    let mut writer = create(&path, &options);
    commit(&mut writer, 1).unwrap();
    drop(writer);
    let mut seen = 1;
    for round in 1..=5 {
        let mut process = start("files::process_of_a_writer", &path);
        let mut reader = Reader::open(mapping(&path, true), START).unwrap();
        while seen < round * 300 {
            assert!(process.try_wait().unwrap().is_none(), "the writer ended");
            if reader.refresh().is_err() {
                continue;
            }
            match check(&reader) {
                Ok(number) => seen = seen.max(number),
                Err(LogError::GenerationChanged) => {}
                Err(error) => panic!("{error}"),
            }
        }
        kill(&mut process);
        let region = RegionOptions::default().map_as(EMULATED);
        let region = match Region::open(&path, &region) {
            Ok(region) => region,
            Err(error @ RegionError::OpenElsewhere(_)) => panic!("after its end: {error}"),
            Err(error) => panic!("{error}"),
        };
        let (mut writer, report) = Writer::open(Arc::new(region), START, &options).unwrap();
        if report.tag == 0 {
            // It was killed after a generation began.
            commit(&mut writer, seen + 1).unwrap();
        }
        assert!(writer.tag() >= seen, "{} after {seen}", writer.tag());
        let reader = Reader::open(mapping(&path, true), START).unwrap();
        check(&reader).unwrap();
        seen = writer.tag();
    }
}

/// Room for the whole test: two numbers of 8 bytes.
fn counters(lock: &File) -> (u64, u64) {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 16];
    lock.read_exact_at(&mut bytes, 0).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (word(0), word(8))
}

fn lock_file(path: &Path) -> File {
    let path = path.with_extension("lock");
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn member(path: &Path) -> Member {
    let options = RegionOptions::default().map_as(EMULATED).shared(true);
    let region = Arc::new(Region::open(path, &options).unwrap());
    let options = WriterOptions::default();
    Member::new(SharedWriter::join(region, START, &options).unwrap())
}

/// In one of several processes: takes turns at writing until it is killed. Otherwise nothing.
#[test]
fn process_that_takes_turns() {
    use std::os::unix::fs::FileExt;
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let path = Path::new(&path);
    let lock = lock_file(path);
    let mut member = member(path);
    let mut random = fastrand::Rng::new();
    loop {
        lock.lock().unwrap();
        let (number, acknowledged) = counters(&lock);
        member.take_turn().unwrap();
        // The newest frame is of a committed transaction, and none that was acknowledged is lost.
        if let Some(last) = member.order.last().map(|tag| u64::from(*tag)) {
            assert!(last >= acknowledged && last <= number, "{last} of {number}");
            for (page, found) in member.pages(PAGE).unwrap() {
                assert_eq!(found, image(page, last), "page {page}");
            }
        }
        let number = number + 1;
        lock.write_all_at(&number.to_le_bytes(), 0).unwrap();
        let mut is_full = false;
        let mut appended = Vec::new();
        for page in 0..PAGES {
            match member.log.append(page, &image(page, number), number as u32) {
                Ok(position) => appended.push((page, position)),
                Err(LogError::Full { .. }) => is_full = true,
                Err(error) => panic!("{error}"),
            }
        }
        // The frames may fit, and the record of the commit not.
        let mut is_committed = false;
        if !is_full && random.u8(..) < 200 {
            match member.log.commit_unsynced(number) {
                Ok(_) => is_committed = true,
                Err(LogError::Full { .. }) => is_full = true,
                Err(error) => panic!("{error}"),
            }
        }
        if is_full {
            member.log.roll_back();
            member.log.new_generation().unwrap();
            (member.frames, member.order) = Default::default();
        } else if is_committed {
            for (page, position) in appended {
                member.frames.insert(page, (number as u32, position));
                member.order.push(number as u32);
            }
            lock.write_all_at(&number.to_le_bytes(), 8).unwrap();
        }
        // Otherwise the transaction stays open: it is lost with the turn.
        lock.unlock().unwrap();
        lock.lock().unwrap();
        if member.log.has_turn().unwrap() {
            member.log.roll_back();
        }
        lock.unlock().unwrap();
    }
}

#[test]
fn processes_take_turns_and_the_next_one_continues_after_a_killed_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("region");
    drop(create(&path, &WriterOptions::default()));
    std::fs::write(path.with_extension("lock"), [0; 16]).unwrap();
    let begin = || start("files::process_that_takes_turns", &path);
    let mut processes: Vec<Child> = (0..3).map(|_| begin()).collect();
    let lock = lock_file(&path);
    let mut reader = member(&path);
    let mut newest = 0;
    for round in 1..=12 {
        while counters(&lock).1 < round * 150 {
            for process in &mut processes {
                assert!(process.try_wait().unwrap().is_none(), "a process failed");
            }
            match reader.refresh() {
                Ok(()) => {}
                Err(LogError::Beginning) => continue,
                Err(error) => panic!("{error}"),
            }
            let Some(last) = reader.order.last().map(|tag| u64::from(*tag)) else {
                continue;
            };
            assert!(last >= newest, "{last} after {newest}");
            newest = last;
            match reader.pages(PAGE) {
                Ok(pages) => {
                    for (page, found) in pages {
                        assert_eq!(found, image(page, last), "page {page}");
                    }
                }
                Err(LogError::GenerationChanged) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let victim = &mut processes[(round % 3) as usize];
        kill(victim);
        *victim = begin();
    }
    for process in &mut processes {
        kill(process);
    }
    lock.lock().unwrap();
    assert!(reader.take_turn().unwrap());
    let (number, acknowledged) = counters(&lock);
    if let Some(last) = reader.order.last().map(|tag| u64::from(*tag)) {
        assert!(last >= acknowledged && last <= number, "{last} of {number}");
    }
}
