//! SQLite's `-wal` file as it sees it: a header and frames, of which the log keeps the differences.
//!
//! The file starts with a header of 32 bytes; each frame has a header of 24 bytes and a page. SQLite
//! appends frames, writes over frames of its open transaction, and begins again with another header.
//! An image of the log is a frame with its header (Q1).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use braid_nvwal::{
    Change, CommitMode, LogError, Mark, PendingSync, SharedWriter, Writer, WriterOptions,
};
use braid_pmem::{MapAs, MappingKind, Region, RegionError, RegionOptions};
use braid_rt::mutant;

use crate::frames::{Action, Frames, HEADER_PAGE, MOST};
use crate::place::{Mode, Tuning};
use crate::regions;
use crate::stub::sync_directory;

/// Bytes of the file's header.
pub(crate) const FILE_HEADER: usize = 32;
/// Bytes of a frame's header.
pub(crate) const FRAME_HEADER: usize = 24;
/// Addresses for the longest log.
const CAPACITY: u64 = 64 << 30;
/// Bytes of a block in an ordinary file: a new block takes four flushes of its own.
const FILE_BLOCK: u64 = 1 << 20;
/// Most bytes between two stores of the mark in an ordinary file: each is a write to another page.
const FILE_MARK_INTERVAL: u64 = 256 << 10;

/// Why the file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WalError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error("cannot {action} {}: {source}", path.display())]
    System {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "cannot write {len} bytes at {offset} of the -wal file: SQLite writes headers and frames"
    )]
    Shape { offset: u64, len: usize },
    #[error("the log {} has no frame {number} of the -wal file", path.display())]
    NoFrame { path: PathBuf, number: u32 },
}

impl WalError {
    /// Whether there is no space.
    pub(crate) fn is_full(&self) -> bool {
        use braid_pmem::MapError::{Capacity, NoSpace};
        match self {
            Self::Log(LogError::Full { .. }) => true,
            Self::Log(LogError::Region(RegionError::Map { source, .. }))
            | Self::Region(RegionError::Map { source, .. }) => {
                matches!(source, NoSpace { .. } | Capacity { .. })
            }
            _ => false,
        }
    }
}

/// What one connection has done last, from which follows what its next write means.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// The start of a frame that SQLite writes in parts: header and page, or divided at the end of a
    /// sector.
    held: Option<(u32, Vec<u8>)>,
    /// Memory of the last frame, for the next one.
    spare: Vec<u8>,
    /// The frame that was read whole by the last operation.
    read: Option<u32>,
}

/// One log, in a process that may have several connections.
#[derive(Debug)]
pub(crate) struct WalFile {
    path: PathBuf,
    map_as: MapAs,
    tuning: Tuning,
    options: WriterOptions,
    log: SharedWriter,
    frames: Frames,
    is_ticket: bool,
    /// Everything before it is durable, as far as this process knows.
    durable: Mark,
    /// Locked by the thread that waits for the device; it waits for all.
    waiting: Arc<Mutex<()>>,
    /// The last frame that the newest transaction of this process wrote and cut again.
    cut: u32,
    /// A frame in parts of which SQLite is interested, and its position.
    image: Vec<u8>,
    image_at: Option<u64>,
}

fn region_options(map_as: MapAs) -> RegionOptions {
    RegionOptions::default()
        .map_as(map_as)
        .capacity(CAPACITY)
        .prewritten(true)
}

/// Creates an empty log with frames for pages of this size. A log that is there is replaced.
pub(crate) fn create(
    path: &Path,
    map_as: MapAs,
    page_size: usize,
    tuning: Tuning,
) -> Result<(), WalError> {
    let system = |action, path: &Path| {
        let path = path.to_owned();
        move |source| WalError::System {
            action,
            path,
            source,
        }
    };
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let _ = regions::remove(&unfinished);
    let region = regions::create(&unfinished, &region_options(map_as))?;
    let mut log = regions::log_options(&unfinished)
        .page_size(u32::try_from(FRAME_HEADER + page_size).expect("a page of at most 64 KiB"));
    if region.mapping().kind() == MappingKind::File {
        log = log.block_size(FILE_BLOCK);
    }
    if let Some(bytes) = tuning.block_size {
        log = log.block_size(bytes);
    }
    let writer = Writer::create(
        Arc::new(region),
        Region::DATA_START,
        &log,
        &WriterOptions::default(),
    );
    if let Err(error) = writer.map(drop) {
        let _ = regions::remove(&unfinished);
        return Err(error.into());
    }
    regions::rename(&unfinished, path).map_err(system("create", path))?;
    sync_directory(path).map_err(system("sync the directory of", path))
}

fn join(
    path: &Path,
    map_as: MapAs,
    mode: Option<Mode>,
    tuning: Tuning,
) -> Result<(SharedWriter, WriterOptions), WalError> {
    let region = regions::join(path, &region_options(map_as).shared(true))?;
    let options = writer_options(region.mapping().kind(), mode).whole_pages(tuning.whole_pages);
    let log = SharedWriter::join(Arc::new(region), Region::DATA_START, &options)?;
    Ok((log, options))
}

/// The options that suit a kind of memory. In a file, a fence is a system call that waits for the
/// device: a commit has one, and it writes no page besides those of the log's end. A write is one, too:
/// a transaction has one.
fn writer_options(kind: MappingKind, mode: Option<Mode>) -> WriterOptions {
    match kind {
        MappingKind::File => WriterOptions::default()
            .mode(mode.map_or(CommitMode::Checksum, |mode| mode.commits))
            .mark_interval(FILE_MARK_INTERVAL)
            .gather(true),
        // Tests use both ways.
        #[cfg(test)]
        MappingKind::Simulated if mode.is_some_and(|mode| mode.commits == CommitMode::Checksum) => {
            WriterOptions::default()
                .mode(CommitMode::Checksum)
                .mark_interval(4096)
                .gather(true)
        }
        _ => WriterOptions::default().mode(mode.map_or(CommitMode::default(), |mode| mode.commits)),
    }
}

/// Notes a change of the log in the table.
fn note(frames: &mut Frames, change: Change) {
    match change {
        Change::Generation(_) => frames.clear(),
        Change::Frame {
            page,
            tag,
            position,
        } => {
            // A frame without a place would be a mistake of the writer: SQLite's checksums end the
            // file there.
            let _ = frames.apply(Action::of(page, tag), position);
            frames.commit();
        }
    }
}

impl WalFile {
    /// Joins the log at a path.
    pub(crate) fn open(
        path: &Path,
        map_as: MapAs,
        mode: Option<Mode>,
        tuning: Tuning,
    ) -> Result<Self, WalError> {
        let (log, options) = join(path, map_as, mode, tuning)?;
        Ok(Self {
            log,
            path: path.to_owned(),
            map_as,
            tuning,
            options,
            frames: Frames::default(),
            is_ticket: mode.is_some_and(|mode| mode.is_ticket),
            durable: Mark {
                generation: 0,
                position: 0,
            },
            waiting: Arc::default(),
            cut: 0,
            image: Vec::new(),
            image_at: None,
        })
    }

    fn frame_size(&self) -> usize {
        self.log.page_size()
    }

    /// The frame that contains an offset, and where in it.
    fn place(&self, offset: u64) -> Option<(u32, usize)> {
        let offset = offset.checked_sub(FILE_HEADER as u64)?;
        let size = self.frame_size() as u64;
        let number = u32::try_from(offset / size + 1).ok()?;
        let within = usize::try_from(offset % size).ok()?;
        (number <= MOST).then_some((number, within))
    }

    /// Reads what other processes have committed.
    fn refresh(&mut self) -> Result<(), WalError> {
        if self.log.has_turn()? || mutant!("sqlite_read_what_is_known") {
            return Ok(());
        }
        self.frames.roll_back();
        let before = self.log.mark();
        let frames = &mut self.frames;
        let mark = self.log.refresh(&mut |change| note(frames, change))?;
        if mark != before {
            self.image_at = None;
        }
        Ok(())
    }

    /// Makes this process the writer (Q4).
    fn take_turn(&mut self) -> Result<(), WalError> {
        if self.log.has_turn()? {
            return Ok(());
        }
        self.frames.roll_back();
        self.image_at = None;
        let frames = &mut self.frames;
        self.log.take_turn(&mut |change| note(frames, change))?;
        Ok(())
    }

    /// The file's length. After a crash SQLite asks for it before it reads the file, with its locks for
    /// writers: `may_recover` then.
    pub(crate) fn len(&mut self, may_recover: bool) -> Result<u64, WalError> {
        if may_recover {
            self.take_turn()?;
        } else {
            self.refresh()?;
        }
        if self.frames.header().is_none() {
            return Ok(0);
        }
        Ok(FILE_HEADER as u64 + u64::from(self.frames.len()) * self.frame_size() as u64)
    }

    /// Reads bytes of the file; returns how many there are.
    pub(crate) fn read(
        &mut self,
        cursor: &mut Cursor,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, WalError> {
        cursor.read = None;
        self.refresh()?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (position, start, end) = match self.place(at) {
                None => (
                    self.frames.header(),
                    usize::try_from(at).unwrap_or(0),
                    FILE_HEADER,
                ),
                Some((number, within)) => (self.frames.get(number), within, self.frame_size()),
            };
            let Some(position) = position else {
                // SQLite until 3.40 reads the checksum of a frame that a savepoint has removed, and
                // uses it for nothing.
                let is_cut = self.place(at).is_some_and(|(number, _)| number <= self.cut);
                if is_cut && self.log.has_turn()? && bytes.len() - done < FRAME_HEADER {
                    bytes[done..].fill(0);
                    done = bytes.len();
                }
                break;
            };
            if self.image_at != Some(position) {
                self.image_at = None;
                self.image.resize(self.log.page_size(), 0);
                self.log.read_frame(position, &mut self.image)?;
                self.image_at = Some(position);
            }
            let part = &self.image[start..end];
            let count = part.len().min(bytes.len() - done);
            bytes[done..done + count].copy_from_slice(&part[..count]);
            done += count;
        }
        if bytes.len() == self.frame_size() && done == bytes.len() {
            cursor.read = self
                .place(offset)
                .filter(|place| place.1 == 0)
                .map(|place| place.0);
        }
        Ok(done)
    }

    /// Writes bytes of the file.
    pub(crate) fn write(
        &mut self,
        cursor: &mut Cursor,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WalError> {
        let shape = || WalError::Shape {
            offset,
            len: bytes.len(),
        };
        if offset == 0 {
            self.settle(cursor)?;
            return self.begin(bytes.try_into().map_err(|_| shape())?);
        }
        let (number, within) = self.place(offset).ok_or_else(shape)?;
        let was_read = cursor.read.take() == Some(number);
        let size = self.frame_size();
        if within + bytes.len() > size {
            return Err(shape());
        }
        let continues = |held: &(u32, Vec<u8>)| held.0 == number && held.1.len() == within;
        if !cursor.held.as_ref().is_some_and(continues) {
            self.settle(cursor)?;
            if within == FRAME_HEADER && bytes.len() + FRAME_HEADER == size {
                self.take_turn()?;
                return self.replace(number, |image| {
                    image[FRAME_HEADER..].copy_from_slice(bytes);
                });
            }
            if within != 0 {
                return Err(shape());
            }
            // SQLite reads a frame to change its checksum.
            if was_read && bytes.len() == FRAME_HEADER && number <= self.frames.len() {
                return self.rewrite_header(number, bytes);
            }
        }
        let Cursor { held, spare, .. } = cursor;
        let (_, held) = held.get_or_insert_with(|| {
            spare.clear();
            (number, std::mem::take(spare))
        });
        held.extend_from_slice(bytes);
        if held.len() < size {
            return Ok(());
        }
        self.take_turn()?;
        match cursor.held.take() {
            Some((number, image)) => {
                let appended = self.append(number, &image);
                cursor.spare = image;
                appended
            }
            None => Ok(()),
        }
    }

    /// Writes a frame header that no page has followed, before a write elsewhere.
    fn settle(&mut self, cursor: &mut Cursor) -> Result<(), WalError> {
        cursor.read = None;
        match cursor.held.take() {
            Some((number, header))
                if header.len() == FRAME_HEADER && number <= self.frames.len() =>
            {
                self.rewrite_header(number, &header)
            }
            _ => Ok(()),
        }
    }

    /// Begins the file again: SQLite has written all frames into the database.
    fn begin(&mut self, header: &[u8; FILE_HEADER]) -> Result<(), WalError> {
        let page_size = u32::from_be_bytes(header[8..12].try_into().expect("4 bytes")) as usize;
        let frame_size = FRAME_HEADER + page_size;
        if !(512..=65536).contains(&page_size) {
            return Err(WalError::Shape {
                offset: 0,
                len: page_size,
            });
        }
        if frame_size != self.frame_size() {
            // An empty log, from when the database was empty, too.
            self.take_turn()?;
            create(&self.path, self.map_as, page_size, self.tuning)?;
            (self.log, self.options) =
                join(&self.path, self.map_as, Some(self.mode()), self.tuning)?;
            self.frames.clear();
        }
        self.empty()?;
        let mut image = vec![0; frame_size];
        image[..FILE_HEADER].copy_from_slice(header);
        self.put(HEADER_PAGE, Action::Header, &image)?;
        self.commit(0)
    }

    /// Removes the header and all frames.
    fn empty(&mut self) -> Result<(), WalError> {
        self.take_turn()?;
        self.log.roll_back();
        self.frames.roll_back();
        if self.frames.header().is_some() || self.log.mark().position > 0 {
            self.image_at = None;
            self.log.new_generation()?;
            self.frames.clear();
        }
        Ok(())
    }

    /// Cuts the file. SQLite cuts at nothing, or after what it needs.
    pub(crate) fn truncate(&mut self, cursor: &mut Cursor, len: u64) -> Result<(), WalError> {
        *cursor = Cursor::default();
        if len == 0 { self.empty() } else { Ok(()) }
    }

    fn put(&mut self, page: u64, action: Action, image: &[u8]) -> Result<(), WalError> {
        let position = self.log.append(page, image, action.tag())?;
        if !self.frames.apply(action, position) {
            return Err(WalError::NoFrame {
                path: self.path.clone(),
                number: action.tag(),
            });
        }
        Ok(())
    }

    fn commit(&mut self, pages: u32) -> Result<(), WalError> {
        self.log.commit_unsynced(u64::from(pages))?;
        self.frames.commit();
        Ok(())
    }

    /// Appends a frame; later ones, of a transaction that was rolled back, are gone.
    fn append(&mut self, number: u32, image: &[u8]) -> Result<(), WalError> {
        if !self.frames.is_open() {
            self.cut = 0;
        }
        self.cut = self.cut.max(self.frames.len());
        if self.frames.is_start_of_open(number) {
            self.log.roll_back();
            self.frames.roll_back();
            self.image_at = None;
        }
        if number > self.frames.len() + 1 {
            return Err(WalError::NoFrame {
                path: self.path.clone(),
                number: number - 1,
            });
        }
        self.put_frame(Action::Append(number), image)
    }

    /// Logs a frame, and commits if it is the last one of a transaction.
    fn put_frame(&mut self, action: Action, image: &[u8]) -> Result<(), WalError> {
        let word = |at: usize| u32::from_be_bytes(image[at..at + 4].try_into().expect("4 bytes"));
        let (page, pages) = (word(0), word(4));
        self.put(u64::from(page), action, image)?;
        let (Action::Append(number) | Action::Replace(number)) = action else {
            return Ok(());
        };
        // Q1: SQLite writes the frame that commits after all others, and its checksum again after
        // theirs.
        if pages != 0 && number == self.frames.len() {
            self.commit(pages)?;
        }
        Ok(())
    }

    fn replace(&mut self, number: u32, change: impl FnOnce(&mut [u8])) -> Result<(), WalError> {
        let position = self.frames.get(number).ok_or_else(|| WalError::NoFrame {
            path: self.path.clone(),
            number,
        })?;
        let mut image = vec![0; self.frame_size()];
        self.log.read_frame(position, &mut image)?;
        change(&mut image);
        self.put_frame(Action::Replace(number), &image)
    }

    fn rewrite_header(&mut self, number: u32, header: &[u8]) -> Result<(), WalError> {
        self.take_turn()?;
        self.replace(number, |image| {
            image[..FRAME_HEADER].copy_from_slice(header)
        })
    }

    /// Makes everything that was committed durable.
    pub(crate) fn sync(&mut self) -> Result<(), WalError> {
        if mutant!("sqlite_skip_the_sync") {
            return Ok(());
        }
        if !self.log.has_turn()? {
            self.frames.roll_back();
            self.image_at = None;
        }
        let frames = &mut self.frames;
        self.durable = self.log.sync(&mut |change| note(frames, change))?;
        Ok(())
    }

    /// Where the log ends whose transactions a thread waits for, and the lock of the one that waits for
    /// the device.
    pub(crate) fn waiting(&mut self) -> Result<(Mark, Arc<Mutex<()>>), WalError> {
        self.refresh()?;
        Ok((self.log.mark(), Arc::clone(&self.waiting)))
    }

    /// Begins to make everything that was committed durable; `None` if it is, up to the target.
    pub(crate) fn begin_sync(&mut self, target: Mark) -> Result<Option<PendingSync>, WalError> {
        // An earlier generation is in the database (Q6).
        let Mark {
            generation,
            position,
        } = self.durable;
        if generation > target.generation
            || (generation == target.generation && position >= target.position)
        {
            return Ok(None);
        }
        self.refresh()?;
        let frames = &mut self.frames;
        let pending = self.log.begin_sync(&mut |change| note(frames, change))?;
        Ok(Some(pending))
    }

    pub(crate) fn end_sync(&mut self, pending: &PendingSync) {
        self.log.end_sync(pending);
        self.durable = pending.mark();
    }

    /// Whether the log has neither a header nor frames.
    pub(crate) fn is_empty(&mut self) -> Result<bool, WalError> {
        Ok(self.len(true)? == 0)
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode {
            commits: self.options.mode,
            is_ticket: self.is_ticket,
        }
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) {
        self.options = self.options.mode(mode.commits);
        self.is_ticket = mode.is_ticket;
        self.log.set_mode(mode.commits);
    }

    /// The committed file, as SQLite without the extension would have it.
    pub(crate) fn export(&mut self, path: &Path) -> Result<u64, WalError> {
        use std::io::Write;
        let failed = |source| WalError::System {
            action: "export the log to",
            path: path.to_owned(),
            source,
        };
        let len = self.len(false)?;
        let mut file = std::io::BufWriter::new(std::fs::File::create(path).map_err(failed)?);
        let mut cursor = Cursor::default();
        let mut bytes = vec![0; self.frame_size()];
        let mut at = 0;
        while at < len {
            let count = if at == 0 {
                FILE_HEADER
            } else {
                self.frame_size()
            };
            let read = self.read(&mut cursor, at, &mut bytes[..count])?;
            file.write_all(&bytes[..read]).map_err(failed)?;
            at += count as u64;
        }
        let file = file
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        Ok(len)
    }

    /// One line for `PRAGMA braid_stats`.
    pub(crate) fn describe(&mut self) -> Result<String, WalError> {
        let len = self.len(false)?;
        let stats = self.log.stats();
        Ok(format!(
            "log={} memory={} mode={} wal_bytes={len} log_bytes={} durable_bytes={} frames={} commits={} \
             bytes={} whole_pages={} differences={} generations={}",
            self.path.display(),
            self.log.kind(),
            self.mode(),
            self.log.mark().position,
            if self.durable.generation == self.log.mark().generation {
                self.durable.position
            } else {
                0
            },
            self.frames.len(),
            stats.commits,
            stats.bytes,
            stats.whole_pages,
            stats.differences,
            stats.generations,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 512;
    const SIZE: u64 = (FRAME_HEADER + PAGE) as u64;

    fn frame(page: u32, commits: u32, byte: u8) -> Vec<u8> {
        let mut frame = [page.to_be_bytes(), commits.to_be_bytes()].concat();
        frame.resize(FRAME_HEADER, 0);
        frame.resize(FRAME_HEADER + PAGE, byte);
        frame
    }

    fn at(number: u64) -> u64 {
        FILE_HEADER as u64 + (number - 1) * SIZE
    }

    #[test]
    fn frames_arrive_in_parts_of_any_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let map_as = MapAs::Emulated { line_latency: 0 };
        let tuning = Tuning::default();
        create(&path, map_as, 4096, tuning).unwrap();
        let mut file = WalFile::open(&path, map_as, None, tuning).unwrap();
        let mut cursor = Cursor::default();
        let mut header = [7; FILE_HEADER];
        header[8..12].copy_from_slice(&(PAGE as u32).to_be_bytes());
        file.write(&mut cursor, 0, &header).unwrap();
        assert_eq!(file.len(false).unwrap(), FILE_HEADER as u64);
        // Header and page; a divided page; a divided header.
        for (number, cuts) in [(1, vec![24]), (2, vec![24, 100, 500]), (3, vec![10, 24])] {
            let bytes = frame(5, 1, number as u8);
            let mut start = 0;
            for end in cuts.into_iter().chain([bytes.len()]) {
                let offset = at(number) + start as u64;
                file.write(&mut cursor, offset, &bytes[start..end]).unwrap();
                // SQLite syncs between two sectors.
                file.sync().unwrap();
                start = end;
            }
            assert_eq!(file.len(false).unwrap(), at(number + 1));
        }
        let mut found = vec![0; 3 * SIZE as usize];
        assert_eq!(
            file.read(&mut cursor, at(1), &mut found).unwrap(),
            found.len()
        );
        let expected = [frame(5, 1, 1), frame(5, 1, 2), frame(5, 1, 3)].concat();
        assert!(found == expected);

        // An earlier frame again cuts; a page over a page does not.
        let page = &frame(5, 1, 9)[FRAME_HEADER..];
        file.write(&mut cursor, at(2) + FRAME_HEADER as u64, page)
            .unwrap();
        assert_eq!(file.len(false).unwrap(), at(4));
        let bytes = frame(6, 1, 8);
        file.write(&mut cursor, at(2), &bytes[..FRAME_HEADER])
            .unwrap();
        file.write(
            &mut cursor,
            at(2) + FRAME_HEADER as u64,
            &bytes[FRAME_HEADER..],
        )
        .unwrap();
        assert_eq!(file.len(false).unwrap(), at(3));
        for (offset, len) in [
            (at(9), 24 + PAGE),
            (at(1) + 100, 10),
            (at(1), 2 * PAGE),
            (0, 31),
        ] {
            assert!(
                file.write(&mut cursor, offset, &vec![1; len]).is_err(),
                "{offset}"
            );
        }

        // A savepoint removes frames, and SQLite reads a checksum of one.
        for number in 3..=5 {
            file.write(&mut cursor, at(number), &frame(7, 0, 1))
                .unwrap();
        }
        file.write(&mut cursor, at(4), &frame(7, 1, 2)).unwrap();
        let mut checksum = [1; 8];
        assert_eq!(
            file.read(&mut cursor, at(5) + 16, &mut checksum).unwrap(),
            8
        );
        let mut page = [1; PAGE];
        let page_at = at(5) + FRAME_HEADER as u64;
        assert_eq!(file.read(&mut cursor, page_at, &mut page).unwrap(), 0);
        file.write(&mut cursor, at(4), &frame(7, 1, 2)).unwrap();
        assert_eq!(
            file.read(&mut cursor, at(5) + 16, &mut checksum).unwrap(),
            0
        );

        file.truncate(&mut cursor, 0).unwrap();
        assert_eq!(file.len(false).unwrap(), 0);
    }
}
