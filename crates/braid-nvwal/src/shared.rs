//! A log that several processes write in turns.

use std::ops::Range;
use std::sync::Arc;

use braid_pmem::{Heap, Mapping, MappingKind, Region};
use braid_rt::mutant;

use crate::error::LogError;
use crate::format::{Frame, Mark};
use crate::header::{LEN, LogHeader};
use crate::options::{CommitMode, WriterOptions};
use crate::recovery::recover;
use crate::view::{News, View};
use crate::writer::{LogStats, Writer};

/// What a process learns about the log: of its own appends at once, of another process's transactions
/// when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A generation begins: all earlier frames are gone.
    Generation(u64),
    /// The next frame of a committed transaction.
    Frame {
        /// Page number.
        page: u64,
        /// The tag that [`append`](SharedWriter::append) got.
        tag: u32,
        /// Position of the frame.
        position: u64,
    },
}

/// A process's access to a log that several processes read, and write in turns.
///
/// The callers have a lock of their own: a process takes its turn ([`take_turn`](Self::take_turn))
/// when it has acquired the lock, and appends and commits before it releases it. Taking a turn again
/// costs a load, unless another process had one: then this process reads what the other has committed,
/// and cleans up if the other was killed. A transaction that is open when the turn passes on is lost.
///
/// Readers need no turn. A generation begins only when the caller knows that no process reads frames
/// of the old one.
///
/// The region is [shared](braid_pmem::RegionOptions::is_shared). [`Writer::create`] creates the log,
/// in a region that is not; drop both before other processes join.
#[derive(Debug)]
pub struct SharedWriter {
    region: Arc<Region>,
    writer: Writer,
    has_turn: bool,
}

impl SharedWriter {
    /// Joins the log at an offset of a shared region, without a turn. The view is empty until
    /// [`refresh`](Self::refresh).
    ///
    /// # Errors
    ///
    /// [`LogError::NotALog`], [`LogError::Version`], [`LogError::Media`] or [`LogError::Heap`].
    pub fn join(
        region: Arc<Region>,
        start: u64,
        options: &WriterOptions,
    ) -> Result<Self, LogError> {
        let header = LogHeader::read(Arc::clone(region.mapping()), start)?;
        let heap = Heap::attach(Arc::clone(&region), start + LEN)?;
        if heap.block_len(1) != Some(header.block_size) {
            return Err(LogError::NotALog { offset: start });
        }
        let view = View::start(&header, header.generation()?);
        Ok(Self {
            region,
            writer: Writer::at(heap, header, view, options),
            has_turn: false,
        })
    }

    /// Whether this process has the turn: no other process has taken one since.
    ///
    /// # Errors
    ///
    /// [`LogError::Media`].
    pub fn has_turn(&self) -> Result<bool, LogError> {
        if mutant!("nvwal_keep_the_turn") {
            return Ok(self.has_turn);
        }
        Ok(self.has_turn && self.writer.header.opening()? == self.writer.opening)
    }

    fn expect_turn(&self, action: &'static str) -> Result<(), LogError> {
        if self.has_turn()? {
            Ok(())
        } else {
            Err(LogError::TurnLost { action })
        }
    }

    /// Takes the turn to write. The caller's lock excludes other processes from doing so until the
    /// caller has released it. Calls `changed` with what other processes have committed since, also
    /// what a process committed that was killed before it could say so. Returns whether another
    /// process, or none, had the turn.
    ///
    /// # Errors
    ///
    /// As [`Writer::open`]; the view is then at the start of the generation.
    pub fn take_turn(&mut self, changed: &mut dyn FnMut(Change)) -> Result<bool, LogError> {
        if self.has_turn()? {
            return Ok(false);
        }
        self.has_turn = false;
        self.writer.roll_back();
        self.region.follow()?;
        let (header, region) = (&self.writer.header, Arc::clone(&self.region));
        let generation = header.generation()?;
        let (heap, found) = Heap::open(region, header.start + LEN)?;
        let start = View::start(header, generation);
        let mut known = std::mem::replace(&mut self.writer.view, start);
        if known.generation != generation {
            known = View::start(header, generation);
            changed(Change::Generation(generation));
        }
        let recovered = recover(header, &heap, &found, known, &mut |page, frame| {
            changed(frame_of(page, frame));
        });
        match recovered {
            Ok(recovered) => {
                self.writer.view = recovered.view;
                self.writer.opening = recovered.opening;
                self.writer.heap = heap;
                self.writer.resume(true);
                self.has_turn = true;
                Ok(true)
            }
            Err(error) => {
                self.writer.resume(false);
                changed(Change::Generation(generation));
                Err(error)
            }
        }
    }

    /// Reads what other processes have committed. With the turn, there is nothing; without it, an open
    /// transaction is removed.
    ///
    /// # Errors
    ///
    /// As [`Reader::refresh`](crate::Reader::refresh).
    pub fn refresh(&mut self, changed: &mut dyn FnMut(Change)) -> Result<Mark, LogError> {
        if self.has_turn()? {
            return Ok(self.mark());
        }
        self.has_turn = false;
        self.writer.roll_back();
        let before = self.mark();
        let Writer { header, view, .. } = &mut self.writer;
        let result = view.catch_up(header, &mut |news| match news {
            News::Generation(generation) => changed(Change::Generation(generation)),
            News::Frame(page, frame) => changed(frame_of(page, frame)),
        });
        if self.mark() != before {
            self.writer.resume(false);
        }
        result.map(|()| self.mark())
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.writer.page_size()
    }

    /// The kind of memory.
    #[must_use]
    pub fn kind(&self) -> MappingKind {
        self.region.mapping().kind()
    }

    /// Where the committed log ends, as far as this process knows.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.writer.mark()
    }

    /// Number of frames in the open transaction.
    #[must_use]
    pub fn open_frames(&self) -> usize {
        self.writer.open_frames()
    }

    /// What this process has appended.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.writer.stats()
    }

    /// Changes when the following commits of this process flush and fence.
    pub fn set_mode(&mut self, mode: CommitMode) {
        self.writer.set_mode(mode);
    }

    /// Appends a frame with the image of a page and a tag of the caller, also if the image is that of
    /// the page's newest frame. Returns the frame's position.
    ///
    /// # Errors
    ///
    /// [`LogError::TurnLost`], or as [`Writer::append`].
    pub fn append(&mut self, page: u64, image: &[u8], tag: u32) -> Result<u64, LogError> {
        self.expect_turn("append to the log")?;
        self.writer.put_page(page, image, Some(tag))
    }

    /// Commits the open transaction without making it durable, as [`Writer::commit_unsynced`].
    ///
    /// # Errors
    ///
    /// [`LogError::TurnLost`] or [`LogError::Full`].
    pub fn commit_unsynced(&mut self, tag: u64) -> Result<Mark, LogError> {
        self.expect_turn("commit")?;
        self.writer.commit_unsynced(tag)
    }

    /// Removes the open transaction.
    pub fn roll_back(&mut self) {
        self.writer.roll_back();
    }

    /// Makes durable all transactions that this process, or another one, has committed. Needs no turn;
    /// calls `changed` with the transactions of other processes.
    ///
    /// # Errors
    ///
    /// [`LogError::Fence`], or as [`refresh`](Self::refresh).
    pub fn sync(&mut self, changed: &mut dyn FnMut(Change)) -> Result<Mark, LogError> {
        if self.has_turn()? {
            return self.writer.sync();
        }
        let mark = self.refresh(changed)?;
        let Writer { header, view, .. } = &self.writer;
        // Everything before the mark in the header is durable (R3). Only a process with the turn
        // stores another one there.
        let durable = header.mark(mark.generation)?.min(mark.position);
        if mutant!("nvwal_leave_the_flush_to_the_writer") {
            return Ok(mark);
        }
        view.chain.flush(durable..mark.position);
        header.mapping.fence()?;
        Ok(mark)
    }

    /// Begins to make durable what [`sync`](Self::sync) does, in two steps, so that the caller need not
    /// hold its lock of this value while [`PendingSync::wait`] waits for the device. The same thread
    /// waits, and then calls [`end_sync`](Self::end_sync). Transactions may be appended meanwhile.
    ///
    /// # Errors
    ///
    /// As [`refresh`](Self::refresh).
    pub fn begin_sync(&mut self, changed: &mut dyn FnMut(Change)) -> Result<PendingSync, LogError> {
        let mark = self.refresh(changed)?;
        let durable = if self.has_turn {
            self.writer.begin_sync()
        } else {
            // As `sync`.
            let Writer { header, .. } = &self.writer;
            header.mark(mark.generation)?.min(mark.position)
        };
        let chain = &self.writer.view.chain;
        let mut ranges = Vec::new();
        chain.pieces(durable..mark.position, |offset, part| {
            ranges.push(offset..offset + part.len() as u64);
        });
        Ok(PendingSync {
            mapping: Arc::clone(chain.mapping()),
            ranges,
            mark,
            opening: self.writer.opening,
        })
    }

    /// Notes that a sync is over: everything before its mark is durable.
    pub fn end_sync(&mut self, sync: &PendingSync) {
        let is_same = self.has_turn
            && self.writer.opening == sync.opening
            && self.mark().generation == sync.mark.generation;
        if is_same {
            self.writer.end_sync(sync.mark.position);
        }
    }

    /// Begins a new generation. Everything in the log is durable in the caller's database, and no
    /// process reads frames of the generation any more.
    ///
    /// # Errors
    ///
    /// [`LogError::TurnLost`], or as [`Writer::new_generation`].
    pub fn new_generation(&mut self) -> Result<(), LogError> {
        self.expect_turn("begin a new generation")?;
        self.writer.new_generation(self.writer.mark())
    }

    /// Reads the image of a page as it was when the frame at this position was appended.
    ///
    /// # Errors
    ///
    /// [`LogError::GenerationChanged`], or as [`Writer::read_frame`].
    pub fn read_frame(&self, position: u64, image: &mut [u8]) -> Result<(), LogError> {
        let result = self.writer.read_frame(position, image);
        // R8
        if !self.writer.header.is_generation(self.mark().generation) {
            return Err(LogError::GenerationChanged);
        }
        result
    }
}

/// Transactions on their way to the device, from [`SharedWriter::begin_sync`].
#[derive(Debug)]
pub struct PendingSync {
    mapping: Arc<Mapping>,
    ranges: Vec<Range<u64>>,
    mark: Mark,
    opening: u64,
}

impl PendingSync {
    /// Where the log ends that is durable after [`wait`](Self::wait).
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Waits for the device.
    ///
    /// # Errors
    ///
    /// [`LogError::Fence`].
    pub fn wait(&self) -> Result<(), LogError> {
        if mutant!("nvwal_ticket_before_the_flush") {
            return Ok(());
        }
        // A block that was freed and used again meanwhile is flushed in vain.
        for range in &self.ranges {
            self.mapping.flush(range.clone());
        }
        Ok(self.mapping.fence()?)
    }
}

fn frame_of(page: u64, frame: Frame) -> Change {
    Change::Frame {
        page,
        tag: frame.tag,
        position: frame.position,
    }
}
