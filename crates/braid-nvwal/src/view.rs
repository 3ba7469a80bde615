//! What a process knows of a generation, and how it learns what another process has committed.

use crate::chain::{Chain, Found};
use crate::error::LogError;
use crate::format::Frame;
use crate::header::LogHeader;
use crate::index::Index;
use crate::scan::{End, next_transaction};

/// How often a reader looks again when a generation begins at the same time.
pub(crate) const ATTEMPTS: usize = 100;

/// What a view did not have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// Another generation, whose frames follow.
    Generation(u64),
    /// The next frame, of this page.
    Frame(u64, Frame),
}

/// The committed transactions of a generation up to an end.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) generation: u64,
    pub(crate) chain: Chain,
    pub(crate) index: Index,
    pub(crate) end: End,
}

impl View {
    /// The start of a generation.
    pub(crate) fn start(header: &LogHeader, generation: u64) -> Self {
        let chain = Chain::new(header, generation);
        Self {
            generation,
            index: Index::default(),
            end: End::of_empty(chain.salt()),
            chain,
        }
    }

    /// Reads what the log shows, from the start of the newest generation if it is another one. Calls
    /// `changed` with everything that the view did not have.
    ///
    /// # Errors
    ///
    /// [`LogError::Beginning`], [`LogError::Corrupted`], [`LogError::Media`] or [`LogError::Map`].
    /// The view is as it was, or a shorter one of the newest generation.
    pub(crate) fn catch_up(
        &mut self,
        header: &LogHeader,
        changed: &mut dyn FnMut(News),
    ) -> Result<(), LogError> {
        for _ in 0..ATTEMPTS {
            let Some((generation, position)) = header.shown()? else {
                braid_rt::yield_point();
                std::thread::yield_now();
                continue;
            };
            if generation != self.generation {
                *self = Self::start(header, generation);
                changed(News::Generation(generation));
            }
            let read = self.read_to(header, position, changed);
            if header.is_generation(generation) {
                return read;
            }
        }
        Err(LogError::Beginning)
    }

    /// Reads the transactions up to a position.
    fn read_to(
        &mut self,
        header: &LogHeader,
        position: u64,
        changed: &mut dyn FnMut(News),
    ) -> Result<(), LogError> {
        while self.chain.capacity() < position {
            let offset = self.chain.next()?;
            let damaged = |what| LogError::Corrupted {
                offset: self.chain.link(),
                what,
            };
            if !self.chain.is_within(offset) {
                // The writer may have extended the file.
                header.mapping.follow()?;
            }
            if offset == 0 || !self.chain.is_within(offset) {
                return Err(damaged("the chain of blocks ends before the log does"));
            }
            if self.chain.inspect(offset)? != Found::Expected {
                return Err(damaged("a pointer leads to another block"));
            }
            self.chain.push(offset);
        }
        let mut each = |page, frame| changed(News::Frame(page, frame));
        while self.end.position < position {
            let Self {
                chain, index, end, ..
            } = self;
            if !next_transaction(chain, header.page_size, index, end, &mut each)? {
                return Err(LogError::Corrupted {
                    offset: self.chain.offset_of(self.end.position),
                    what: "a committed transaction is not valid",
                });
            }
        }
        Ok(())
    }
}
