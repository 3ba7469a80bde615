//! Reading an archive: its coverage, its holes, its transactions.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_io::{Device, DeviceChoice, File, OpenMode};
use braid_rt::to_usize;

use super::batch::{BATCH_HEADER, BLOCK, BatchHeader, FORMAT, FileHeader, transactions};
use super::owner::Owner;
use super::until::Until;
use crate::error::{BackupError, Error, Result};

/// A transaction in an archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArchivedTransaction<'a> {
    pub(crate) seqno: u64,
    /// The transaction's redo records.
    pub(crate) payload: &'a [u8],
}

struct Batch {
    file: Arc<dyn File>,
    name: String,
    offset: u64,
    header: BatchHeader,
}

/// The batches of an archive.
pub(crate) struct Archive {
    device: Arc<dyn Device>,
    name: String,
    identity: Option<u128>,
    /// Ordered by sequence number, possibly with holes and overlaps.
    batches: Vec<Batch>,
    /// Sequence numbers up to which transactions existed, whether or not the archive contains them:
    /// each file records where it begins, and the owner record how far the archive was when the
    /// database was closed.
    known: Vec<u64>,
    owner: Option<Owner>,
}

/// Transactions that an archive lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Time of the last batch before the hole, if there is one.
    pub(super) since: Option<SystemTime>,
}

/// Returns the name of the file that begins after sequence number `after`.
pub(super) fn file_name(after: u64) -> String {
    format!("archive-{after:020}.log")
}

fn parse_name(name: &str) -> Option<u64> {
    let after = name.strip_prefix("archive-")?.strip_suffix(".log")?;
    let after = after.parse().ok()?;
    (file_name(after) == name).then_some(after)
}

/// Opens the device of an archive's directory.
pub(super) fn open_device(path: &Path, mode: u32) -> Result<Arc<dyn Device>> {
    braid_io::open_directory_with_mode(path, DeviceChoice::File, mode)
        .map_err(|e| Error::io(format!("cannot open archive {}", path.display()), e))
}

impl Archive {
    /// Opens an archive for reading; nothing in its directory changes.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let device = braid_io::open_directory_read_only(path)
            .map_err(|e| Error::io(format!("cannot open archive {}", path.display()), e))?;
        Self::open_on(device, &path.display().to_string())
    }

    /// Reads the headers of all batches, and the whole last batch of each file, whose writing may
    /// have been interrupted.
    pub(crate) fn open_on(device: Arc<dyn Device>, name: &str) -> Result<Self> {
        let mut archive = Self {
            device,
            name: name.to_owned(),
            identity: None,
            batches: Vec::new(),
            known: Vec::new(),
            owner: None,
        };
        archive.owner = Owner::read(&*archive.device, name)?;
        if let Some(owner) = archive.owner {
            archive.identity = Some(owner.identity);
            // Zero means that the archive was not begun yet.
            archive
                .known
                .extend((owner.archived > 0).then_some(owner.archived));
        }
        let entries = archive.device.list();
        let entries = entries.map_err(|e| Error::io(format!("cannot list archive {name}"), e))?;
        let mut files: Vec<_> = entries
            .into_iter()
            .filter_map(|entry| Some((parse_name(&entry.name)?, entry)))
            .collect();
        files.sort_unstable_by_key(|(after, _)| *after);
        for (_, entry) in files {
            archive.index(&entry.name, entry.len)?;
        }
        archive
            .batches
            .sort_by_key(|batch| (batch.header.after, batch.header.last));
        Ok(archive)
    }

    fn reading(&self, file: &str) -> impl Fn(std::io::Error) -> Error + use<> {
        let what = format!("cannot read {file} of archive {}", self.name);
        move |error| Error::io(&what, error)
    }

    fn index(&mut self, name: &str, len: u64) -> Result<()> {
        let reading = self.reading(name);
        let file = self
            .device
            .open(name, OpenMode::Existing)
            .map_err(&reading)?;
        // A file with an incomplete header has no batches.
        if len < BLOCK as u64 {
            return Ok(());
        }
        let mut block = self.device.allocate(BLOCK);
        file.read_at(&mut block[..BLOCK], 0).map_err(&reading)?;
        let header = match FileHeader::decode(&block) {
            Some(Ok(header)) => {
                self.known.push(header.after);
                Some(header.identity)
            }
            Some(Err(format)) => {
                return Err(BackupError::Format {
                    backup: format!("{}, {name}", self.name),
                    format,
                    known: FORMAT,
                }
                .into());
            }
            // The batches identify their database, too.
            None => None,
        };
        self.check_identity(name, header)?;
        let mut offset = BLOCK as u64;
        let mut last_good = self.batches.len();
        while offset + BLOCK as u64 <= len {
            file.read_at(&mut block[..BLOCK], offset)
                .map_err(&reading)?;
            let batch = BatchHeader::decode(&block).filter(|batch| offset + batch.size() <= len);
            // Blocks that are not a batch end the file, unless a batch follows; then the sequence
            // numbers reveal the missing ones.
            let Some(batch) = batch else {
                offset += BLOCK as u64;
                continue;
            };
            self.check_identity(name, Some(batch.identity))?;
            self.batches.push(Batch {
                file: file.clone(),
                name: name.to_owned(),
                offset,
                header: batch,
            });
            offset += batch.size();
            last_good = self.batches.len() - 1;
        }
        let is_torn = match self.batches.get(last_good) {
            Some(batch) => self.load(batch)?.is_none(),
            None => false,
        };
        if is_torn {
            self.batches.truncate(last_good);
        }
        Ok(())
    }

    fn check_identity(&mut self, name: &str, found: Option<u128>) -> Result<()> {
        let Some(found) = found else {
            return Ok(());
        };
        if *self.identity.get_or_insert(found) == found {
            return Ok(());
        }
        Err(BackupError::OtherArchive {
            archive: format!("{}, {name}", self.name),
        }
        .into())
    }

    /// Returns a batch's transactions; `None` if their checksum does not match.
    fn load(&self, batch: &Batch) -> Result<Option<Vec<u8>>> {
        let size = to_usize(batch.header.size());
        let mut buf = self.device.allocate(size);
        let read = batch.file.read_at(&mut buf[..size], batch.offset);
        read.map_err(self.reading(&batch.name))?;
        let bytes = &buf[BATCH_HEADER..BATCH_HEADER + batch.header.len as usize];
        Ok((crc32c::crc32c(bytes) == batch.header.crc).then(|| bytes.to_vec()))
    }

    /// Returns the identity of the archived log; `None` if the archive has none yet.
    pub(super) fn identity(&self) -> Option<u128> {
        self.identity
    }

    /// Returns the highest sequence number that the archive covers.
    pub(super) fn last(&self) -> Option<u64> {
        self.batches.iter().map(|batch| batch.header.last).max()
    }

    /// Makes the newest batch durable: a killed process may have written it without a sync. Every
    /// older batch was durable before the next one was written.
    pub(super) fn settle(&self) -> Result<()> {
        let newest = self.batches.iter().max_by_key(|batch| batch.header.last);
        let newest = newest.filter(|_| !braid_rt::mutant!("archive_unsettled"));
        let synced = newest.map(|batch| (batch, batch.file.sync()));
        match synced {
            Some((batch, Err(error))) => Err(Error::io(
                format!(
                    "cannot make {} of archive {} durable",
                    batch.name, self.name
                ),
                error,
            )),
            _ => Ok(()),
        }
    }

    /// Returns whether the archive records that everything up to this sequence number was archived
    /// or is missing.
    pub(super) fn mentions(&self, seqno: u64) -> bool {
        self.known.contains(&seqno) || self.last() == Some(seqno)
    }

    /// Returns the record of the database that writes the archive.
    pub(super) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Returns the sequence number up to which the archive continues from `seqno` without a hole,
    /// and the hole, if there is one.
    fn reach(&self, seqno: u64) -> (u64, Option<Hole>) {
        let (mut to, mut since) = (seqno, None);
        let hole = |to, until, since| Hole {
            from: to + 1,
            to: until,
            since,
        };
        for batch in &self.batches {
            if batch.header.after > to {
                return (to, Some(hole(to, batch.header.after, since)));
            }
            to = to.max(batch.header.last);
            since = Some(SystemTime::UNIX_EPOCH + batch.header.time);
        }
        let known = self.known.iter().copied().max();
        match known.filter(|_| !braid_rt::mutant!("archive_forgets_the_gap")) {
            Some(known) if known > to => (to, Some(hole(to, known, since))),
            _ => (to, None),
        }
    }

    /// Returns the sequence number after which the archive is complete up to its end, or up to
    /// `oldest`, if it will continue from there; and the transactions missing before.
    pub(super) fn begins(&self, oldest: u64) -> (u64, Option<Hole>) {
        let mut begins = self
            .batches
            .first()
            .map_or(oldest, |batch| batch.header.after);
        let (mut to, mut since) = (begins, None);
        let mut missing = (begins > 0).then_some(Hole {
            from: 1,
            to: begins,
            since,
        });
        let ends = self.batches.iter().map(|batch| {
            let time = Some(SystemTime::UNIX_EPOCH + batch.header.time);
            (batch.header.after, batch.header.last, time)
        });
        for (after, last, time) in ends.chain([(oldest, oldest, None)]) {
            if after > to {
                begins = after;
                missing = Some(Hole {
                    from: to + 1,
                    to: after,
                    since,
                });
            }
            to = to.max(last);
            since = time;
        }
        (begins, missing)
    }

    /// Returns the sequence number up to which to restore a database with this identity, whose
    /// backup reaches `seqno` and was made at `made`.
    pub(crate) fn target(
        &self,
        until: Until,
        identity: u128,
        seqno: u64,
        made: Duration,
    ) -> Result<u64> {
        if self.identity.is_some_and(|own| own != identity) {
            return Err(BackupError::OtherArchive {
                archive: self.name.clone(),
            }
            .into());
        }
        if self.batches.is_empty() && self.known.is_empty() {
            return Err(BackupError::EmptyArchive {
                archive: self.name.clone(),
            }
            .into());
        }
        let (to, hole) = self.reach(seqno);
        let hole_error =
            |Hole { from, to, since }| Error::from(BackupError::Hole { from, to, since });
        let out_of_reach = |asked: String| {
            Err(BackupError::OutOfReach {
                asked,
                from: seqno,
                to,
            }
            .into())
        };
        match until {
            Until::End => hole.map_or(Ok(to), |hole| Err(hole_error(hole))),
            Until::Seqno(asked) if (seqno..=to).contains(&asked) => Ok(asked),
            Until::Seqno(asked) => match hole {
                Some(hole) if asked > to => Err(hole_error(hole)),
                _ => out_of_reach(format!("sequence number {asked}")),
            },
            Until::Time(time) => {
                let since = time.duration_since(SystemTime::UNIX_EPOCH).ok();
                let (first, last) = self.passed(seqno, since.unwrap_or(Duration::ZERO));
                match (first, last) {
                    (first, Some(last)) if first != Some(last) => Err(BackupError::ClockSetBack {
                        earliest: first.unwrap_or(seqno),
                        latest: last,
                    }
                    .into()),
                    (_, Some(target)) if target <= to => Ok(target),
                    (_, Some(_)) => hole.map_or(Ok(to), |hole| Err(hole_error(hole))),
                    (_, None) if since.is_some_and(|since| made <= since) => Ok(seqno),
                    (_, None) => out_of_reach("a time before the backup".to_owned()),
                }
            }
        }
    }

    /// Returns the sequence numbers after `seqno` up to which everything was durable when the clock
    /// first and last passed `time`. They differ if the clock was set back in between; then only
    /// the caller can know which one is meant. Transactions that the backup contains do not matter.
    fn passed(&self, seqno: u64, time: Duration) -> (Option<u64>, Option<u64>) {
        let later = || self.batches.iter().filter(|b| b.header.last > seqno);
        let is_before = |batch: &&Batch| batch.header.time <= time;
        let end = |batch: &Batch| batch.header.last;
        let first = later().take_while(is_before).last().map(end);
        (first, later().rfind(is_before).map(end))
    }

    /// Calls `f` for the transactions after `after`, up to `to`, in the order of their sequence
    /// numbers.
    pub(crate) fn read(
        &self,
        after: u64,
        to: u64,
        f: &mut dyn FnMut(ArchivedTransaction<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut done = after;
        for batch in &self.batches {
            if batch.header.last <= done || batch.header.after >= to {
                continue;
            }
            let damaged = || {
                let (from, to) = (batch.header.after + 1, batch.header.last);
                Error::from(BackupError::Damaged {
                    backup: format!("{}, {}", self.name, batch.name),
                    what: format!("its transactions with sequence numbers {from} to {to}"),
                })
            };
            let bytes = self.load(batch)?.ok_or_else(damaged)?;
            for transaction in transactions(&bytes) {
                let (seqno, payload) = transaction.ok_or_else(damaged)?;
                if seqno > done && seqno <= to {
                    f(ArchivedTransaction { seqno, payload })?;
                }
            }
            done = batch.header.last;
        }
        Ok(())
    }
}
