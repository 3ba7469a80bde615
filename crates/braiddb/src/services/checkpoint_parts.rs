//! The parts of a checkpoint: one for each tablespace other than the main one.
//!
//! All begin at one instant. A part that cannot be written leaves its tablespace behind, and the
//! others are published without it, unless the checkpoint must be whole.

use std::ops::Range;
use std::sync::Arc;

use braid_store::{Checkpoint, CheckpointReport};

use super::instance::Instance;
use super::readers::Readers;
use crate::engine::spaces::Space;
use crate::error::{Error, Result};
use crate::format::space::SpaceMeta;

/// Which tablespaces a checkpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All: what depends on the checkpoint concerns every data file.
    Whole,
    /// The main one; others that cannot be written are left behind.
    Writable,
}

/// The part of a tablespace other than the main one.
struct Part {
    space: Arc<Space>,
    /// The checkpoint, or why it cannot be written.
    checkpoint: Result<Checkpoint>,
}

/// The parts of all tablespaces other than the main one.
pub(super) struct OtherParts {
    scope: Scope,
    stamp: u64,
    parts: Vec<Part>,
}

impl OtherParts {
    /// Begins the part of each tablespace, as `meta` says, while no transaction changes pages.
    pub(super) fn begin(
        spaces: &[Arc<Space>],
        scope: Scope,
        stamp: u64,
        meta: impl Fn(&Space) -> SpaceMeta,
    ) -> Result<Self> {
        let mut parts = Self {
            scope,
            stamp,
            parts: Vec::with_capacity(spaces.len()),
        };
        for space in spaces {
            let begun = space.store.begin_checkpoint(meta(space).encode());
            let begun = begun.map_err(Error::from);
            if let Err(error) = &begun {
                parts.fail(space, error)?;
            }
            parts.parts.push(Part {
                space: space.clone(),
                checkpoint: begun,
            });
        }
        Ok(parts)
    }

    /// Notes that the part of a tablespace cannot be written. An error if the checkpoint must be whole.
    fn fail(&self, space: &Space, error: &Error) -> Result<()> {
        // Whatever fails before the superblock is written does not poison the store.
        let may_be_written = space.store.poisoned().is_some();
        space
            .state
            .set_failed(self.stamp, may_be_written, error.clone());
        match self.scope {
            Scope::Whole => Err(error.clone()),
            Scope::Writable => {
                braid_rt::coverage_point("checkpoint: a tablespace is left behind");
                Ok(())
            }
        }
    }

    /// Calls `work` with each checkpoint. One for which it fails is abandoned.
    pub(super) fn each(
        &mut self,
        mut work: impl FnMut(&mut Checkpoint) -> Result<()>,
    ) -> Result<()> {
        for index in 0..self.parts.len() {
            let Ok(checkpoint) = &mut self.parts[index].checkpoint else {
                continue;
            };
            if let Err(error) = work(checkpoint) {
                let space = self.parts[index].space.clone();
                self.parts[index].checkpoint = Err(error.clone());
                self.fail(&space, &error)?;
            }
        }
        Ok(())
    }

    /// Publishes the parts that were written, before that of the main tablespace, whose newest checkpoint
    /// has the sequence `main`. Returns the tablespaces.
    pub(super) fn publish(mut self, readers: Option<&Readers>, main: u64) -> Result<Published> {
        let mut published = Published::default();
        for Part { space, checkpoint } in std::mem::take(&mut self.parts) {
            // A reader that pins one of these may have found this tablespace's newest checkpoint.
            let needed_by = space.state.needed_by(main);
            let outcome = checkpoint.and_then(|checkpoint| {
                let readers =
                    readers.filter(|_| !braid_rt::mutant!("forget_readers_of_tablespaces"));
                publish_keeping(checkpoint, readers, space.number, needed_by)
            });
            match outcome {
                Ok(_) => {
                    space.state.set_written(self.stamp, main);
                    published.written.push(space);
                }
                Err(error) => {
                    self.fail(&space, &error)?;
                    published.left.push((space.number, error));
                }
            }
        }
        Ok(published)
    }
}

/// Publishes a checkpoint of a tablespace, and keeps the pages that it replaces if readers in other
/// processes need them: those that pin one of the checkpoints `of` the main tablespace.
pub(super) fn publish_keeping(
    checkpoint: Checkpoint,
    readers: Option<&Readers>,
    space: u8,
    of: Range<u64>,
) -> Result<CheckpointReport> {
    let needs_pages = |_| readers.is_some_and(|readers| readers.needs_pages(of.clone()));
    let (report, kept) = checkpoint.publish_keeping(needs_pages)?;
    if let (Some(readers), Some(kept)) = (readers, kept) {
        readers.keep_pages(space, of, kept);
    }
    Ok(report)
}

/// The tablespaces after their parts of a checkpoint were published.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Those with the new checkpoint.
    pub(super) written: Vec<Arc<Space>>,
    /// Those without it, by number.
    pub(super) left: Vec<(u8, Error)>,
}

impl Instance {
    /// Writes a checkpoint for which the tablespace of this number, and the main one, are needed.
    pub(crate) fn checkpoint_for(&self, number: u8) -> Result<()> {
        let _one_at_a_time = self.hold_checkpoints();
        self.engine.check_open()?;
        let left = self.checkpoint_in(Scope::Writable)?;
        let needed = left.into_iter().find(|(left, _)| *left == number);
        needed.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Writes a checkpoint of all tablespaces.
    pub(crate) fn whole_checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.hold_checkpoints();
        self.engine.check_open()?;
        self.whole_checkpoint_locked()
    }

    /// As [`Instance::whole_checkpoint`], for a caller that holds the checkpoints.
    pub(crate) fn whole_checkpoint_locked(&self) -> Result<()> {
        self.checkpoint_in(Scope::Whole).map(drop)
    }
}
