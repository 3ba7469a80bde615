//! Images that a power failure may leave of a drive with a database.
//!
//! [`run`] performs the transactions of a [`Work`] on a database on a volume, while the drive's
//! writes and flushes are recorded with what was acknowledged ([`braid_nvme::crash`]). [`check`] makes
//! images from the record, and recovers and checks the database on each of them.

mod work;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;

use braid::{Database, Error, Result, Ticket, offline};
use braid_nvme::crash::{AnnotatedDrive, sample};
use braid_nvme::volume::fsck;
use braid_nvme::{Blocking, Drive, DriveName, MemoryDrive};
use fastrand::Rng;

pub use work::{Counts, THREADS, Tables, Work};
use work::{NAME, decode};

/// Transactions of a thread that may be committed and not acknowledged: tickets, and the current one.
const PENDING: usize = 3;

/// Openings of the database in a record.
const ROUNDS: u64 = 3;

/// One image in so many is also checked by `offline::verify`.
const VERIFIED: u64 = 8;

/// Images of a record that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of images.
    pub images: u64,
    /// Images on which the power failed again after the recovery.
    pub twice: u64,
    /// Images that [`offline::verify`] also checked, as a file that stands in for the drive.
    pub verified: u64,
}

/// Called with the transactions that are acknowledged, whenever their number changes.
type Note<'a> = &'a (dyn Fn(&Counts) -> Result<()> + Sync);

/// The acknowledged transactions, noted whenever they change.
struct Acknowledged<'a> {
    note: Note<'a>,
    counts: Mutex<Counts>,
}

impl Acknowledged<'_> {
    fn note(&self, change: impl FnOnce(&mut Counts)) -> Result<()> {
        // The note is written under the lock, so that the last one contains all earlier ones.
        let mut counts = self.counts.lock().expect("nobody panics with it");
        change(&mut counts);
        (self.note)(&counts)
    }
}

fn failed(what: &str, source: io::Error) -> Error {
    Error::Io {
        what: format!("cannot {what}"),
        source: Arc::new(source),
    }
}

/// Creates a volume and a database on a drive, and performs `transactions` transactions of each
/// thread, in three openings. Erases the drive.
///
/// # Errors
///
/// The database's error.
pub fn run(drive: &AnnotatedDrive, seed: u64, transactions: u64) -> Result<()> {
    let work = Work::new(seed);
    let shared: Arc<dyn Drive> = Arc::new(drive.clone());
    let formatted = work.format(shared.clone());
    formatted.map_err(|error| failed("format the drive", error))?;
    // From here on, the database can be opened: an interrupted creation starts over.
    drive
        .acknowledge(&[])
        .map_err(|error| failed("write a note", error.into()))?;
    let note = |counts: &Counts| {
        let noted = drive.acknowledge(&counts.map(u64::to_le_bytes).concat());
        noted.map_err(|error| failed("write a note", error.into()))
    };
    let acknowledged = Acknowledged {
        note: &note,
        counts: Mutex::default(),
    };
    for round in 0..ROUNDS {
        let db = work.open(shared.clone())?;
        let tables = if round == 0 {
            work.prepare(&db)?
        } else {
            Tables::open(&db)?
        };
        acknowledged.note(|_| {})?;
        let numbers = 1 + transactions * round / ROUNDS..=transactions * (round + 1) / ROUNDS;
        let outcomes = clients(work, &db, &tables, &numbers, &acknowledged);
        outcomes.into_iter().try_for_each(|outcome| outcome)?;
        // Without an error every time, and sometimes without the checkpoint of a `close`.
        if round % 2 == 0 {
            drop(tables);
            db.close()?;
        }
    }
    Ok(())
}

/// Performs the transactions of all threads, and returns their outcomes.
fn clients(
    work: Work,
    db: &Database,
    tables: &Tables,
    numbers: &RangeInclusive<u64>,
    acknowledged: &Acknowledged<'_>,
) -> Vec<Result<()>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let numbers = numbers.clone();
                scope.spawn(move || client(work, db, tables, thread, numbers, acknowledged))
            })
            .collect();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("no client panics");
        threads.into_iter().map(join).collect()
    })
}

/// The end of [`run_until_failure`].
#[derive(Debug)]
pub struct Failure {
    /// Transactions of each thread that were acknowledged.
    pub acknowledged: Counts,
    /// The error with which each thread ended.
    pub errors: Vec<Error>,
}

/// Creates a volume and a database on a drive, and performs transactions until the drive fails.
/// Erases the drive. `note` is called with the transactions that are acknowledged, whenever their
/// number changes. [`check_after_failure`] checks the database later.
///
/// # Errors
///
/// The database's error, if it cannot be created.
pub fn run_until_failure(
    drive: Arc<dyn Drive>,
    seed: u64,
    note: impl Fn(&Counts) + Sync,
) -> Result<Failure> {
    let work = Work::new(seed);
    let formatted = work.format(drive.clone());
    formatted.map_err(|error| failed("format the drive", error))?;
    let db = work.open(drive)?;
    let tables = work.prepare(&db)?;
    let note = |counts: &Counts| {
        note(counts);
        Ok(())
    };
    let acknowledged = Acknowledged {
        note: &note,
        counts: Mutex::default(),
    };
    let outcomes = clients(work, &db, &tables, &(1..=u64::MAX), &acknowledged);
    let errors = outcomes.into_iter().filter_map(std::result::Result::err);
    Ok(Failure {
        errors: errors.collect(),
        acknowledged: acknowledged
            .counts
            .into_inner()
            .expect("nobody panics with it"),
    })
}

/// Opens the database that [`run_until_failure`] left with this seed, and checks that it has every
/// acknowledged transaction, each whole, and commits another one.
///
/// # Errors
///
/// A description of what is wrong.
pub fn check_after_failure(
    drive: Arc<dyn Drive>,
    seed: u64,
    acknowledged: &Counts,
) -> std::result::Result<Counts, String> {
    let work = Work::new(seed);
    let report = fsck(&Blocking::new(drive.clone()));
    let report = report.map_err(|error| format!("fsck: {error}"))?;
    if let Some(fault) = report.faults.first() {
        return Err(format!("fsck: {fault}"));
    }
    let text = |error: Error| error.to_string();
    let db = work.open(drive).map_err(text)?;
    let counts = work.check(&db, acknowledged, PENDING as u64 + 1)?;
    let tables = Tables::open(&db).map_err(text)?;
    db.transact(|tx| work.perform(tx, &tables, 0, counts[0] + 1))
        .map_err(text)?;
    db.close().map_err(text)?;
    Ok(counts)
}

/// Performs transactions of one thread.
fn client(
    work: Work,
    db: &Database,
    tables: &Tables,
    thread: usize,
    numbers: RangeInclusive<u64>,
    acknowledged: &Acknowledged<'_>,
) -> Result<()> {
    let mut tickets: VecDeque<(u64, Ticket)> = VecDeque::new();
    let mut random = Rng::with_seed(thread as u64);
    for number in numbers {
        let ticket = db.retry(|mut tx| {
            work.perform(&mut tx, tables, thread, number)?;
            tx.commit_async()
        })?;
        tickets.push_back((number, ticket));
        let keep = random.usize(..PENDING);
        while tickets.len() > keep
            && let Some((number, ticket)) = tickets.pop_front()
        {
            ticket.wait()?;
            acknowledged.note(|counts| counts[thread] = number)?;
        }
        if number % 16 == 7 && thread == 0 {
            db.checkpoint()?;
        }
    }
    for (number, ticket) in tickets {
        ticket.wait()?;
        acknowledged.note(|counts| counts[thread] = number)?;
    }
    Ok(())
}

/// Checks about `images` images of a drive of `bytes` bytes, made at random moments of the record of
/// [`run`] with this seed: the volume is sound, the database opens, and it has every acknowledged
/// transaction, each whole. On some images the power fails again after the recovery and another
/// transaction; some are also verified. `record` opens the record.
///
/// # Errors
///
/// A description of the first wrong image.
pub fn check<R: Read>(
    record: impl Fn() -> io::Result<R>,
    bytes: u64,
    seed: u64,
    images: u64,
    mut random: Rng,
) -> std::result::Result<Checked, String> {
    let work = Work::new(seed);
    let mut checked = Checked::default();
    let mut seeds = random.fork();
    sample(
        record,
        bytes,
        images,
        || seeds.u64(..),
        |payload, image| {
            checked.images += 1;
            let noted = (!payload.is_empty()).then(|| decode(payload));
            let what = || {
                noted.map_or("during the creation".into(), |noted| {
                    format!("after {noted:?}")
                })
            };
            if checked.images.is_multiple_of(VERIFIED) && verify(image, noted.is_some())? {
                checked.verified += 1;
            }
            let db = recover(work, image).map_err(|error| format!("{}: {error}", what()))?;
            let Some(noted) = noted else { return Ok(()) };
            let mut again = || -> std::result::Result<bool, String> {
                let mut counts = work.check(&db, &noted, PENDING as u64 + 1)?;
                if random.bool() {
                    return Ok(false);
                }
                let thread = random.usize(..THREADS);
                let number = counts[thread] + 1;
                let tables = Tables::open(&db).map_err(|error| error.to_string())?;
                db.transact(|tx| work.perform(tx, &tables, thread, number))
                    .map_err(|error| error.to_string())?;
                counts[thread] = number;
                let after = image.crash(random.u64(..));
                let recovered = recover(work, &after).and_then(|db| work.check(&db, &counts, 0));
                recovered.map_err(|error| format!("after a second failure: {error}"))?;
                Ok(true)
            };
            let twice = again().map_err(|error| format!("{}: {error}", what()))?;
            checked.twice += u64::from(twice);
            Ok(())
        },
    )?;
    Ok(checked)
}

/// Checks the volume of a drive, and opens its database.
fn recover(work: Work, drive: &MemoryDrive) -> std::result::Result<Database, String> {
    let report = fsck(&Blocking::new(Arc::new(drive.clone())));
    let report = report.map_err(|error| format!("fsck: {error}"))?;
    if let Some(fault) = report.faults.first() {
        return Err(format!("fsck: {fault}"));
    }
    let opened = work.open(Arc::new(drive.clone()));
    opened.map_err(|error| format!("open: {error}"))
}

/// Verifies the database of a drive by its name, with a file that stands in for the drive. Returns
/// whether that was possible: the file system may lack direct I/O, and before its creation
/// (`created`), the database may be missing or unfinished.
fn verify(drive: &MemoryDrive, created: bool) -> std::result::Result<bool, String> {
    const PART: u64 = 128;
    let text = |error: io::Error| error.to_string();
    let file = tempfile::NamedTempFile::new().map_err(text)?;
    let info = drive.info();
    let write = |file: &File| {
        file.set_len(info.blocks * info.block_size as u64)?;
        for start in (0..info.blocks).step_by(PART as usize) {
            let blocks = start..info.blocks.min(start + PART);
            let part: Vec<u8> = blocks.flat_map(|lba| drive.block(lba)).collect();
            if part.iter().any(|byte| *byte != 0) {
                file.write_all_at(&part, start * info.block_size as u64)?;
            }
        }
        Ok(())
    };
    write(file.as_file()).map_err(text)?;
    if DriveName::Path(file.path().to_owned()).open().is_err() {
        return Ok(false);
    }
    let name = format!("nvme:{}/{NAME}", file.path().display());
    let mut findings = Vec::new();
    match offline::verify(&name, &mut |finding| findings.push(finding)) {
        Ok(report) if report.damages > 0 => Err(format!("verify: {}", findings.join("; "))),
        Ok(report) if created && report.creation_interrupted => {
            Err("verify: the creation was interrupted, although it had ended".into())
        }
        Ok(_) => Ok(true),
        Err(Error::NotADatabase { .. }) if !created => Ok(false),
        Err(error) => Err(format!("verify: {error}")),
    }
}
