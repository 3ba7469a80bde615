//! Named consumers of changes, whose progress is part of the database.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Changes, Position};
use crate::catalog::MAX_TABLE_NAME_LEN;
use crate::database::{Database, Inner};
use crate::error::{Error, Result};
use crate::snapshot::Readable;

/// The first byte of the catalog's keys that name feeds.
const FEEDS: u8 = b'F';

fn feed_key(name: &str) -> Result<Vec<u8>> {
    if name.is_empty() || name.len() > MAX_TABLE_NAME_LEN {
        return Err(Error::TableName {
            name: name.to_owned(),
        });
    }
    Ok([&[FEEDS], name.as_bytes()].concat())
}

fn decode(value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().map_err(|_| Error::Corrupted {
        what: "a feed's entry".into(),
        location: "the catalog".into(),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// A named consumer of changes: the database remembers how far it has come, and keeps the log behind that for
/// it, up to [`crate::Builder::feed_log_bytes`]. From [`Database::feed`].
///
/// Several processes of one kind may follow one feed in turn: whoever comes next goes on where the last
/// [`Feed::acknowledge`] was. What was read and not acknowledged comes again.
#[derive(Clone)]
pub struct Feed {
    inner: Arc<Inner>,
    name: String,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Database {
    /// A feed by name, which is created, durably, if there is none: it then begins behind what is durable now.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// let db = braid::Database::in_memory()?;
    /// let stock = db.table::<String, u32>("stock")?;
    /// let feed = db.feed("search index")?;
    /// db.transact(|tx| tx.insert(&stock, "cups", &12))?;
    /// for set in feed.changes()? {
    ///     let set = set?;
    ///     // … take it over, then:
    ///     feed.acknowledge(set.position)?;
    /// }
    /// assert_eq!(feed.changes()?.count(), 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TableName`] for a name that is too long or empty, or what a commit can fail with.
    pub fn feed(&self, name: &str) -> Result<Feed> {
        let inner = self.inner();
        inner.check_open()?;
        let key = feed_key(name)?;
        let _change = inner.catalog_change.lock();
        if inner.retention.feed(name).is_none() {
            // A checkpoint that is under way has decided already which log it gives up; those from here on
            // know of this feed.
            let _no_checkpoint = inner.checkpoint_running.lock();
            let number = inner.log.horizon();
            inner.retention.set_feed(name, number);
            let mut tx = inner.begin(Default::default());
            let done = tx
                .insert(&inner.catalog_table(), &key, &number.to_le_bytes())
                .and_then(|_| tx.commit());
            if let Err(error) = done {
                inner.retention.remove_feed(name);
                return Err(error);
            }
        }
        Ok(Feed {
            inner: inner.clone(),
            name: name.to_owned(),
        })
    }

    /// The names of all feeds, with the positions up to which they were acknowledged.
    pub fn feeds(&self) -> Vec<(String, Position)> {
        let inner = self.inner();
        if inner.is_inherited() {
            return Vec::new();
        }
        let feeds = inner.retention.feeds().into_iter();
        feeds
            .map(|(name, number)| (name, inner.position(number)))
            .collect()
    }

    /// Removes a feed: the log is not kept for it any more. Says whether there was one.
    ///
    /// # Errors
    /// What a commit can fail with.
    pub fn drop_feed(&self, name: &str) -> Result<bool> {
        let inner = self.inner();
        inner.check_open()?;
        let _change = inner.catalog_change.lock();
        let mut tx = inner.begin(Default::default());
        let was_there = tx.remove(&inner.catalog_table(), &feed_key(name)?)?;
        tx.commit()?;
        inner.retention.remove_feed(name);
        Ok(was_there)
    }
}

impl Feed {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The position up to which it was acknowledged.
    ///
    /// # Errors
    /// [`Error::FeedMissing`] if it was dropped.
    pub fn position(&self) -> Result<Position> {
        self.inner.check_open()?;
        let number = self.inner.retention.feed(&self.name);
        let missing = || Error::FeedMissing {
            name: self.name.clone(),
        };
        Ok(self.inner.position(number.ok_or_else(missing)?))
    }

    /// The transactions that were not acknowledged yet.
    ///
    /// # Errors
    /// [`Error::FeedMissing`], or as [`Database::changes`]: with [`Error::PositionLost`], more log came than is
    /// kept for feeds. Then read the tables themselves, from a snapshot, acknowledge its
    /// [position](Database::position_behind), and go on from there.
    pub fn changes(&self) -> Result<Changes> {
        Changes::open(&self.inner, self.position()?)
    }

    /// Notes, durably, that everything up to `position` was taken over, so that it is not needed any more.
    /// An older position than the one noted changes nothing.
    ///
    /// This is a transaction of its own: acknowledging every hundredth position costs a hundredth.
    ///
    /// # Errors
    /// [`Error::FeedMissing`], [`Error::ForeignPosition`], or what a commit can fail with.
    pub fn acknowledge(&self, position: Position) -> Result<()> {
        let inner = &self.inner;
        inner.check_open()?;
        inner.check_position(position)?;
        let _change = inner.catalog_change.lock();
        if self.position()?.number >= position.number {
            return Ok(());
        }
        let mut tx = inner.begin(Default::default());
        let number = position.number.to_le_bytes();
        tx.insert(&inner.catalog_table(), &feed_key(&self.name)?, &number)?;
        match braid_rt::mutant!("acknowledge_in_memory") {
            true => tx.abort(),
            false => drop(tx.commit()?),
        }
        // Only now: the log is given up when this is sure to be found again.
        inner.retention.set_feed(&self.name, position.number);
        Ok(())
    }
}

impl Inner {
    /// Reads the feeds when the database is opened.
    pub(crate) fn load_feeds(self: &Arc<Self>) -> Result<()> {
        let tx = self.begin(Default::default());
        for entry in tx.prefix(&self.catalog_table(), &[FEEDS])? {
            let (key, value): (Bytes, Bytes) = entry?;
            let name = String::from_utf8_lossy(&key[1..]);
            self.retention.set_feed(&name, decode(&value)?);
        }
        Ok(())
    }
}
