//! Readers of a log, in the writer's process or another.

use std::sync::Arc;

use braid_pmem::Mapping;
use braid_rt::mutant;

use crate::error::LogError;
use crate::format::Mark;
use crate::header::{LogHeader, READERS};
use crate::images::read_image;
use crate::view::{ATTEMPTS, View};

/// A consistent view of a log at one mark, while the writer continues.
///
/// A reader stays at its mark until [`refresh`](Self::refresh) or [`pin`](Self::pin). When the
/// writer begins a new generation, the blocks of the old one are used again: reading then fails with
/// [`LogError::GenerationChanged`], and never returns other bytes. A reader that has pinned the log
/// keeps its generation, and the checkpoints of the writer do not pass its mark, so that pages which
/// the log lacks can be read from the database. Programs with locks of their own between readers and
/// checkpoints do without pins.
///
/// A reader in another process maps the file itself ([`Mapping::of_file`]); its capacity must be
/// enough for the longest log.
///
/// After a crash, a log is opened by a writer first. Before that a reader sees the log that was
/// visible, which may lack the last transactions.
#[derive(Debug)]
pub struct Reader {
    header: LogHeader,
    view: View,
    slot: Option<usize>,
}

impl Reader {
    /// Opens the log at an offset of a mapping, which may be for reading only. The reader is at the
    /// newest mark.
    ///
    /// # Errors
    ///
    /// [`LogError::NotALog`], [`LogError::Version`], or as [`refresh`](Self::refresh).
    pub fn open(mapping: Arc<Mapping>, start: u64) -> Result<Self, LogError> {
        let header = LogHeader::read(mapping, start)?;
        let generation = header.generation()?;
        let mut reader = Self {
            view: View::start(&header, generation),
            header,
            slot: None,
        };
        reader.refresh()?;
        Ok(reader)
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.header.page_size
    }

    /// The mark of the reader.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            generation: self.view.generation,
            position: self.view.end.position,
        }
    }

    /// The tag of the last transaction before the reader's mark; zero without one in the generation.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.view.end.tag
    }

    /// Numbers of the pages that the log has, ascending.
    #[must_use]
    pub fn pages(&self) -> Vec<u64> {
        self.view.index.pages()
    }

    /// Moves the reader to the newest mark. A pinned reader stays where it is.
    ///
    /// # Errors
    ///
    /// [`LogError::Beginning`] if a generation is being started all the time,
    /// [`LogError::Corrupted`], [`LogError::Media`] or [`LogError::Map`]. The reader stays at its
    /// mark, or is at the start of the newest generation.
    pub fn refresh(&mut self) -> Result<Mark, LogError> {
        if self.slot.is_some() {
            return Ok(self.mark());
        }
        self.view.catch_up(&self.header, &mut |_| {})?;
        Ok(self.mark())
    }

    /// Reads the image of a page at the reader's mark. Returns whether the log has one.
    ///
    /// # Errors
    ///
    /// [`LogError::GenerationChanged`], [`LogError::PageLength`], [`LogError::Media`] or
    /// [`LogError::Corrupted`].
    pub fn read(&self, page: u64, image: &mut [u8]) -> Result<bool, LogError> {
        let frame = self.view.index.committed(page);
        self.checked(image, |image| match frame {
            Some(frame) => {
                read_image(&self.view.chain, Some(page), frame.position, image).map(|()| true)
            }
            None => Ok(false),
        })
    }

    /// Position of the newest frame of a page at the reader's mark.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<u64> {
        self.view.index.committed(page).map(|frame| frame.position)
    }

    /// Reads the image to which the frame at a position before the reader's mark leads.
    ///
    /// # Errors
    ///
    /// [`LogError::NoFrame`], or as [`read`](Self::read).
    pub fn read_frame(&self, position: u64, image: &mut [u8]) -> Result<(), LogError> {
        if position >= self.view.end.position {
            return Err(LogError::NoFrame { position });
        }
        self.checked(image, |image| {
            read_image(&self.view.chain, None, position, image)
        })
    }

    /// Reads, then makes sure that the generation was the reader's meanwhile.
    fn checked<T>(
        &self,
        image: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let (found, expected) = (image.len(), self.header.page_size);
        if found != expected {
            return Err(LogError::PageLength { found, expected });
        }
        let result = read(image);
        // R8
        if !self.header.is_generation(self.view.generation) && !mutant!("nvwal_read_any_generation")
        {
            return Err(LogError::GenerationChanged);
        }
        result
    }

    /// Pins the log at its newest mark: until [`unpin`](Self::unpin), no generation begins, and
    /// checkpoints end at this mark.
    ///
    /// # Errors
    ///
    /// [`LogError::ReadOnly`] if the mapping is for reading only, [`LogError::TooManyReaders`], or as
    /// [`refresh`](Self::refresh).
    pub fn pin(&mut self) -> Result<Mark, LogError> {
        if self.header.mapping.is_read_only() {
            return Err(LogError::ReadOnly);
        }
        if self.slot.is_some() {
            return Ok(self.mark());
        }
        for _ in 0..ATTEMPTS {
            let mark = self.refresh()?;
            let slot = self.header.acquire_slot(mark.position);
            let slot = slot.ok_or(LogError::TooManyReaders(READERS))?;
            // R9: the writer looks at the slots after it has shown something else.
            if self.header.still_shows(mark.generation, mark.position) {
                self.slot = Some(slot);
                return Ok(mark);
            }
            self.header.release_slot(slot);
        }
        Err(LogError::Beginning)
    }

    /// Whether the reader has pinned the log.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.slot.is_some()
    }

    /// Releases the pin. The reader keeps its mark while the generation lasts.
    pub fn unpin(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.header.release_slot(slot);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.unpin();
    }
}
