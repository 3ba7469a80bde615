//! The writer of a log.

use std::sync::Arc;

use braid_pmem::{Heap, HeapOptions, HeapReport, MappingKind, Region};
use braid_rt::mutant;

use crate::cache::Cache;
use crate::chain::Chain;
use crate::checkpoint::Checkpoint;
use crate::error::LogError;
use crate::format::{Content, Encoder, Frame, Mark, encode_commit, seal};
use crate::header::{LEN, LogHeader};
use crate::images::read_image;
use crate::options::{CommitMode, LogOptions, WriterOptions};
use crate::recovery::{Recovery, recover};
use crate::scan::End;
use crate::view::View;

/// Bytes by which a log of long blocks grows; of short ones it gets sixteen at a time.
const PIECE_BYTES: u64 = 4 << 20;

/// A place in the open transaction, from [`Writer::savepoint`].
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    begin: Mark,
    frames: usize,
    tail: u64,
    earlier: u32,
}

/// What a writer has appended since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Frames with whole pages.
    pub whole_pages: u64,
    /// Frames with differences.
    pub differences: u64,
    /// Committed transactions.
    pub commits: u64,
    /// Bytes of all records, those of rolled-back transactions included.
    pub bytes: u64,
    /// Blocks that were added to the log.
    pub blocks: u64,
    /// Generations that were begun.
    pub generations: u64,
}

/// The only writer of a log.
///
/// A transaction is what was [appended](Self::append) since the last [`commit`](Self::commit) or
/// [`roll_back`](Self::roll_back). After an error of [`append`](Self::append) the transaction has what
/// it had before, and can be rolled back or continued. After [`LogError::Fence`] nothing can be
/// committed any more.
#[derive(Debug)]
pub struct Writer {
    pub(crate) heap: Heap,
    pub(crate) header: LogHeader,
    options: WriterOptions,
    pub(crate) opening: u64,
    /// The committed log, and the frames of the open transaction.
    pub(crate) view: View,
    cache: Cache,
    /// Memory for a record, and for the image of a page that is not in the cache.
    encoder: Encoder,
    base: Vec<u8>,
    /// Where the open transaction ends, and the checksum of everything before.
    tail: u64,
    earlier: u32,
    /// The same after each frame of the open transaction.
    steps: Vec<(u64, u32)>,
    /// The stored mark.
    mark: u64,
    /// Where the last durable transaction ends.
    synced: u64,
    /// Everything before it is durable.
    durable: u64,
    stats: LogStats,
}

impl Writer {
    /// Creates a log from an offset of the region on. Everything after the offset belongs to the log.
    ///
    /// # Errors
    ///
    /// [`LogError::AlreadyExists`], [`LogError::InvalidOptions`], or what the region returns. There
    /// is no log then.
    pub fn create(
        region: Arc<Region>,
        start: u64,
        log: &LogOptions,
        options: &WriterOptions,
    ) -> Result<Self, LogError> {
        LogHeader::check(log, start)?;
        let mapping = Arc::clone(region.mapping());
        if LogHeader::read(Arc::clone(&mapping), start).is_ok() {
            return Err(LogError::AlreadyExists { offset: start });
        }
        region.grow(start + LEN)?;
        let blocks = (PIECE_BYTES / log.block_size).clamp(1, 16);
        let piece = (log.block_size * blocks + 256).next_multiple_of(4096);
        let heap = HeapOptions::default()
            .piece_size(piece)
            .max_bytes(log.max_bytes)
            .classes(&[log.block_size]);
        let heap = Heap::create(region, start + LEN, &heap)?;
        let header = LogHeader::create(mapping, start, log)?;
        let found = HeapReport::default();
        Self::recovered(heap, header, &found, options).map(|(writer, _)| writer)
    }

    /// Opens a log for writing, after a crash or without one. Readers in other processes can stay.
    ///
    /// # Errors
    ///
    /// [`LogError::NotALog`], [`LogError::Version`], [`LogError::Corrupted`],
    /// [`LogError::Incomplete`], [`LogError::Media`], [`LogError::Heap`] or [`LogError::Fence`].
    pub fn open(
        region: Arc<Region>,
        start: u64,
        options: &WriterOptions,
    ) -> Result<(Self, Recovery), LogError> {
        let header = LogHeader::read(Arc::clone(region.mapping()), start)?;
        let (heap, found) = Heap::open(region, start + LEN)?;
        if heap.block_len(1) != Some(header.block_size) {
            return Err(LogError::NotALog { offset: start });
        }
        Self::recovered(heap, header, &found, options)
    }

    fn recovered(
        heap: Heap,
        header: LogHeader,
        found: &HeapReport,
        options: &WriterOptions,
    ) -> Result<(Self, Recovery), LogError> {
        let known = View::start(&header, header.generation()?);
        let recovered = recover(&header, &heap, found, known, &mut |_, _| {})?;
        let mut writer = Self::at(heap, header, recovered.view, options);
        writer.opening = recovered.opening;
        Ok((writer, recovered.report))
    }

    /// A writer at the end of a view, without the number of an opening.
    pub(crate) fn at(heap: Heap, header: LogHeader, view: View, options: &WriterOptions) -> Self {
        let position = view.end.position;
        Self {
            heap,
            header,
            options: *options,
            opening: 0,
            cache: Cache::new(options.cached_pages),
            encoder: Encoder::default(),
            base: Vec::new(),
            tail: position,
            earlier: view.end.earlier,
            steps: Vec::new(),
            mark: position,
            synced: position,
            durable: position,
            stats: LogStats::default(),
            view,
        }
    }

    /// Continues at the end of the view, which has changed. Its transactions are durable, and the mark
    /// is there, if `is_durable`.
    pub(crate) fn resume(&mut self, is_durable: bool) {
        let position = self.view.end.position;
        self.cache.clear();
        self.steps.clear();
        (self.tail, self.earlier) = (position, self.view.end.earlier);
        if is_durable {
            (self.mark, self.synced, self.durable) = (position, position, position);
        }
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.header.page_size
    }

    /// Where the committed log ends.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            generation: self.view.generation,
            position: self.view.end.position,
        }
    }

    /// The tag of the last committed transaction of the generation; zero without one.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.view.end.tag
    }

    /// Number of pages with committed frames in the generation.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.view.index.len()
    }

    /// Number of frames in the open transaction.
    #[must_use]
    pub fn open_frames(&self) -> usize {
        self.view.index.open_frames()
    }

    /// What was appended.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.stats
    }

    /// Changes when the following commits flush and fence.
    pub fn set_mode(&mut self, mode: CommitMode) {
        self.options.mode = mode;
    }

    /// Appends the image of a page to the open transaction. Returns the position of its frame: a
    /// new one, or the page's newest one if its image is the same.
    ///
    /// The page's first frame in a generation, and the one after
    /// [`chain_limit`](WriterOptions::chain_limit) differences, has the whole page without ranges of
    /// zeros. Other frames have the bytes that differ from the page's newest frame. With
    /// [`whole_pages`](WriterOptions::whole_pages) every frame has every byte.
    ///
    /// # Errors
    ///
    /// [`LogError::PageLength`], [`LogError::Full`], [`LogError::Media`] or [`LogError::Fence`]. The
    /// transaction has what it had before.
    pub fn append(&mut self, page: u64, image: &[u8]) -> Result<u64, LogError> {
        self.put_page(page, image, None)
    }

    /// Appends the image of a page. With a tag there is always a new frame.
    pub(crate) fn put_page(
        &mut self,
        page: u64,
        image: &[u8],
        tag: Option<u32>,
    ) -> Result<u64, LogError> {
        self.expect_page(image.len())?;
        let previous = self.view.index.newest(page);
        let mut content = Content::NonZero;
        let mut is_cached = false;
        if self.options.whole_pages {
            content = Content::Everything;
        } else if let Some(frame) = previous.filter(|f| f.depth < self.options.chain_limit) {
            // R6: a difference is one to the newest frame of its page.
            let (of, cached) = match self.view.index.committed(page) {
                Some(older) if mutant!("nvwal_wrong_base") => (older, None),
                _ => (frame, self.cache.get(page)),
            };
            is_cached = cached.is_some();
            let newest = match cached {
                Some(cached) => cached,
                None => {
                    self.base.resize(image.len(), 0);
                    read_image(&self.view.chain, Some(page), of.position, &mut self.base)?;
                    &self.base
                }
            };
            if tag.is_none() && newest == image {
                return Ok(frame.position);
            }
            content = Content::Since(newest);
        }
        let tag = tag.unwrap_or(0);
        let depth = self.encoder.frame((page, tag), image, previous, content);
        let mut record = std::mem::take(&mut self.encoder.record);
        let put = self.put(&mut record);
        self.encoder.record = record;
        let position = put?;
        let frame = Frame {
            position,
            depth,
            tag,
        };
        self.view.index.append(page, frame);
        if is_cached && depth > 0 {
            self.cache.change(page, image, &self.encoder.ranges);
        } else {
            self.cache.put(page, image);
        }
        self.steps.push((self.tail, self.earlier));
        match depth {
            0 => self.stats.whole_pages += 1,
            _ => self.stats.differences += 1,
        }
        Ok(position)
    }

    /// Writes a record at the tail.
    fn put(&mut self, record: &mut [u8]) -> Result<u64, LogError> {
        let position = self.tail;
        let next = position + record.len() as u64;
        while self.view.chain.capacity() < next {
            self.add_block(record.len() as u64)?;
        }
        let salt = self.view.chain.salt();
        let earlier = seal(record, salt, position, self.earlier);
        if self.options.gather {
            self.view.chain.hold(position, record);
        } else {
            self.view.chain.write(position, record);
        }
        if self.options.mode == CommitMode::Eager {
            self.flush_to(next)?;
        }
        (self.tail, self.earlier) = (next, earlier);
        self.stats.bytes += record.len() as u64;
        Ok(position)
    }

    /// Makes the log durable up to a position, with one fence.
    fn flush_to(&mut self, position: u64) -> Result<(), LogError> {
        self.view.chain.write_held();
        if !mutant!("nvwal_skip_flush_before_mark") {
            self.view.chain.flush(self.durable.min(position)..position);
        }
        if !mutant!("nvwal_skip_fence_before_mark") {
            self.view.chain.mapping().fence()?;
        }
        self.durable = self.durable.max(position);
        Ok(())
    }

    /// Adds a block to the chain. Every step is durable before the next one (R5).
    fn add_block(&mut self, len: u64) -> Result<(), LogError> {
        let block = match self.heap.allocate(self.header.block_size) {
            // What the caller asked for, not a block.
            Err(braid_pmem::HeapError::Full { .. }) => return Err(LogError::Full { len }),
            block => block?,
        };
        self.view.chain.prepare(block.offset)?;
        self.view.chain.set_link(block.offset)?;
        self.heap.publish(block.offset)?;
        self.view.chain.push(block.offset);
        self.stats.blocks += 1;
        Ok(())
    }

    /// Reads the newest image of a page, that of the open transaction included. Returns whether the
    /// generation has one.
    ///
    /// # Errors
    ///
    /// [`LogError::PageLength`], [`LogError::Media`] or [`LogError::Corrupted`].
    pub fn read(&self, page: u64, image: &mut [u8]) -> Result<bool, LogError> {
        self.expect_page(image.len())?;
        let Some(frame) = self.view.index.newest(page) else {
            return Ok(false);
        };
        read_image(&self.view.chain, Some(page), frame.position, image)?;
        Ok(true)
    }

    /// Reads the image of a page as it was when the frame at this position was appended.
    ///
    /// # Errors
    ///
    /// [`LogError::NoFrame`], or as [`read`](Self::read).
    pub fn read_frame(&self, position: u64, image: &mut [u8]) -> Result<(), LogError> {
        self.expect_page(image.len())?;
        if position >= self.tail {
            return Err(LogError::NoFrame { position });
        }
        if let Some(cached) = self.cached_at(position)? {
            image.copy_from_slice(cached);
            return Ok(());
        }
        read_image(&self.view.chain, None, position, image)
    }

    /// The cached image of the frame at this position, if it is the newest one of its page.
    fn cached_at(&self, position: u64) -> Result<Option<&[u8]>, LogError> {
        let page_at = position + 16;
        if page_at + 8 > self.tail {
            return Ok(None);
        }
        let mut page = [0; 8];
        self.view.chain.read(page_at, &mut page)?;
        // Only a hint: the index has a position once, as that of its page.
        let page = u64::from_le_bytes(page);
        let newest = self.view.index.newest(page);
        Ok(match newest {
            Some(newest) if newest.position == position => self.cache.get(page),
            _ => None,
        })
    }

    /// Commits the open transaction with a tag of the caller, such as the size of the database. The
    /// transaction, and all earlier ones, are durable on return; then readers see it.
    ///
    /// # Errors
    ///
    /// [`LogError::Full`]: the transaction is still open. [`LogError::Fence`]: recovery finds all of
    /// the transaction, or nothing.
    pub fn commit(&mut self, tag: u64) -> Result<Mark, LogError> {
        self.put_commit(tag)?;
        self.harden(self.tail)?;
        Ok(self.show(tag))
    }

    /// Commits the open transaction without making it durable. Readers see it at once. A crash
    /// keeps a prefix of such transactions, and everything up to the last [`sync`](Self::sync) or
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// [`LogError::Full`]: the transaction is still open.
    pub fn commit_unsynced(&mut self, tag: u64) -> Result<Mark, LogError> {
        self.put_commit(tag)?;
        Ok(self.show(tag))
    }

    /// Makes all committed transactions durable.
    ///
    /// # Errors
    ///
    /// [`LogError::Fence`].
    pub fn sync(&mut self) -> Result<Mark, LogError> {
        if self.synced < self.view.end.position {
            self.harden(self.view.end.position)?;
        }
        Ok(self.mark())
    }

    fn put_commit(&mut self, tag: u64) -> Result<(), LogError> {
        let mut record = encode_commit(tag, self.opening, self.earlier);
        self.put(&mut record)?;
        // R11
        if !mutant!("nvwal_show_what_is_held") {
            self.view.chain.write_held();
        }
        Ok(())
    }

    /// Makes transactions up to a position durable.
    fn harden(&mut self, position: u64) -> Result<(), LogError> {
        let is_ordered = self.options.mode != CommitMode::Checksum;
        if is_ordered && mutant!("nvwal_mark_before_records") {
            self.header.set_mark(self.view.generation, position);
            self.view.chain.mapping().fence()?;
        }
        if !is_ordered {
            self.set_late_mark();
        }
        if self.durable < position {
            self.flush_to(position)?;
        }
        self.synced = position;
        if is_ordered {
            // R3
            self.expect_durable(self.mark..position);
            self.header.set_mark(self.view.generation, position);
            self.view.chain.mapping().fence()?;
            self.mark = position;
        }
        Ok(())
    }

    /// Stores a mark in no order with records after it: that of the last durable transaction.
    fn set_late_mark(&mut self) {
        if self.mark + self.options.mark_interval < self.synced {
            self.expect_durable(self.mark..self.synced);
            self.header.set_mark(self.view.generation, self.synced);
            self.mark = self.synced;
        }
    }

    /// Begins a sync whose mark is late. Returns what is durable already.
    pub(crate) fn begin_sync(&mut self) -> u64 {
        self.set_late_mark();
        self.durable.min(self.view.end.position)
    }

    /// Ends a sync up to the end of a committed transaction.
    pub(crate) fn end_sync(&mut self, position: u64) {
        debug_assert!(position <= self.view.end.position);
        self.durable = self.durable.max(position);
        self.synced = self.synced.max(position);
    }

    /// Asserts that no crash of simulated memory loses a byte of the range.
    fn expect_durable(&self, range: std::ops::Range<u64>) {
        // Crash tests, and not this assertion, catch the deliberate bugs.
        if self.view.chain.mapping().kind() == MappingKind::Simulated && !cfg!(braid_mutants) {
            let lost = self.view.chain.not_durable(range);
            assert_eq!(lost, None, "R3: the mark follows what is not durable");
        }
    }

    /// Shows readers the open transaction, which is committed.
    fn show(&mut self, tag: u64) -> Mark {
        debug_assert!(
            !self.view.chain.has_held() || cfg!(braid_mutants),
            "R11: other processes would not find the transaction"
        );
        self.view.index.commit();
        self.steps.clear();
        self.view.end = End {
            position: self.tail,
            earlier: self.earlier,
            tag,
        };
        self.stats.commits += 1;
        self.header
            .publish(self.view.generation, self.view.end.position);
        self.mark()
    }

    /// Removes the open transaction.
    pub fn roll_back(&mut self) {
        self.cut(0, self.view.end.position, self.view.end.earlier);
    }

    /// Returns a place in the open transaction.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            begin: self.mark(),
            frames: self.view.index.open_frames(),
            tail: self.tail,
            earlier: self.earlier,
        }
    }

    /// Removes what the open transaction appended after a savepoint.
    ///
    /// # Errors
    ///
    /// [`LogError::OtherTransaction`] if the savepoint is not one of the open transaction, or if the
    /// transaction was rolled back to an earlier one.
    pub fn roll_back_to(&mut self, savepoint: &Savepoint) -> Result<(), LogError> {
        let place = match savepoint.frames.checked_sub(1) {
            None => Some((self.view.end.position, self.view.end.earlier)),
            Some(last) => self.steps.get(last).copied(),
        };
        if savepoint.begin != self.mark() || place != Some((savepoint.tail, savepoint.earlier)) {
            return Err(LogError::OtherTransaction);
        }
        self.cut(savepoint.frames, savepoint.tail, savepoint.earlier);
        Ok(())
    }

    fn cut(&mut self, frames: usize, tail: u64, earlier: u32) {
        if !mutant!("nvwal_keep_images_of_a_rolled_back_transaction") {
            for page in self.view.index.open_pages(frames) {
                self.cache.remove(page);
            }
        }
        self.view.index.roll_back_to(frames);
        self.steps.truncate(frames);
        self.view.chain.cut(tail);
        (self.tail, self.earlier) = (tail, earlier);
        // Other records will be there.
        self.durable = self.durable.min(tail);
    }

    /// Returns the newest committed images, for the caller to write into its database: as of the
    /// oldest mark that a reader has pinned, otherwise as of the newest one. Unsynced transactions
    /// become durable first, so that the database never has what the log may lose.
    ///
    /// # Errors
    ///
    /// [`LogError::Fence`].
    pub fn checkpoint(&mut self) -> Result<Checkpoint<'_>, LogError> {
        self.sync()?;
        let mut position = self.view.end.position;
        if !mutant!("nvwal_checkpoint_past_readers") {
            for (_, pinned, _) in self.header.pinned() {
                position = position.min(pinned);
            }
        }
        let mark = Mark {
            generation: self.view.generation,
            position,
        };
        Ok(Checkpoint::new(
            &self.view.chain,
            &self.view.index,
            self.header.page_size,
            mark,
        ))
    }

    /// Begins a new generation: empties the log and frees its blocks. The pages of `checkpoint`, from
    /// [`Checkpoint::mark`](crate::Checkpoint::mark), are durable in the caller's database.
    ///
    /// # Errors
    ///
    /// [`LogError::NotCheckpointed`] if the log has more than the checkpoint,
    /// [`LogError::ReadersActive`] if a reader has pinned it, [`LogError::OpenTransaction`]: the log
    /// stays as it is. [`LogError::Fence`] or [`LogError::Heap`]: opening the log completes the
    /// change.
    pub fn new_generation(&mut self, checkpoint: Mark) -> Result<(), LogError> {
        if self.tail != self.view.end.position {
            return Err(LogError::OpenTransaction {
                action: "begin a new generation",
                frames: self.view.index.open_frames(),
            });
        }
        if checkpoint != self.mark() {
            return Err(LogError::NotCheckpointed {
                checkpoint: checkpoint.position,
                end: self.view.end.position,
            });
        }
        self.header.announce();
        let pinned = self.header.pinned();
        if !pinned.is_empty() && !mutant!("nvwal_recycle_under_readers") {
            self.header
                .publish(self.view.generation, self.view.end.position);
            return Err(LogError::ReadersActive {
                processes: pinned.iter().map(|(_, _, process)| *process).collect(),
            });
        }
        if mutant!("nvwal_free_before_generation") {
            self.free(&self.view.chain)?;
        }
        // R4: the generation is durable before anything of the former one is lost.
        let next = self.view.generation + 1;
        self.header.set_generation(next)?;
        let view = View::start(&self.header, next);
        let old = std::mem::replace(&mut self.view, view).chain;
        self.cache.clear();
        (self.tail, self.earlier) = (0, self.view.end.earlier);
        (self.mark, self.synced, self.durable) = (0, 0, 0);
        self.header.set_mark(next, 0);
        self.view.chain.set_link(0)?;
        self.header.publish(next, 0);
        self.stats.generations += 1;
        if mutant!("nvwal_free_before_generation") {
            return Ok(());
        }
        self.free(&old)
    }

    /// Frees the blocks of a chain, the newest first.
    fn free(&self, chain: &Chain) -> Result<(), LogError> {
        for block in chain.blocks().iter().rev() {
            self.heap.free(*block)?;
        }
        Ok(())
    }

    /// The processes of the readers that have pinned the log.
    #[must_use]
    pub fn readers(&self) -> Vec<u32> {
        let pinned = self.header.pinned();
        pinned.iter().map(|(_, _, process)| *process).collect()
    }

    /// Releases the readers of processes that have ended without unpinning the log, as `has_ended`
    /// says: after a power failure, those of all other processes. Returns how many there were.
    ///
    /// A reader that is released and still there reads errors after the next generation has begun,
    /// and no other wrong bytes of the log; but its database may have changed.
    pub fn release_readers(&mut self, mut has_ended: impl FnMut(u32) -> bool) -> usize {
        let pinned = self.header.pinned();
        let ended = pinned.iter().filter(|(_, _, process)| has_ended(*process));
        let mut count = 0;
        for (slot, _, _) in ended {
            self.header.release_slot(*slot);
            count += 1;
        }
        count
    }

    fn expect_page(&self, found: usize) -> Result<(), LogError> {
        match self.header.page_size {
            expected if expected != found => Err(LogError::PageLength { found, expected }),
            _ => Ok(()),
        }
    }
}
