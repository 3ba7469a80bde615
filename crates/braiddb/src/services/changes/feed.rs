//! Named consumers of changes, whose progress is part of the database.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Changes, Position};
use crate::database::Database;
use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::read::snapshot::Readable;
use crate::schema::catalog::MAX_TABLE_NAME_LEN;

/// The first byte of the catalog's keys that name feeds.
const FEEDS: u8 = b'F';

fn feed_key(name: &str) -> Result<Vec<u8>> {
    if name.is_empty() || name.len() > MAX_TABLE_NAME_LEN {
        return Err(Error::InvalidTableName {
            name: name.to_owned(),
        });
    }
    Ok([&[FEEDS], name.as_bytes()].concat())
}

fn decode(value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().map_err(|_| Error::Corrupted {
        what: "an entry of a feed is malformed".into(),
        location: "the catalog".into(),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Named consumer of changes, from [`Database::feed`]: the database stores its position and keeps
/// the log after that position, up to [`crate::Builder::feed_log_bytes`].
///
/// Several processes may use one feed in turn: each resumes at the last [`Feed::acknowledge`].
/// Changes that were read but not acknowledged are delivered again.
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
    /// Opens a feed by name, or creates it durably if it is missing: a new feed begins after the
    /// current durable transactions.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// let db = braid::Database::in_memory()?;
    /// let stock = db.open_table::<String, u32>("stock")?;
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
    /// [`Error::InvalidTableName`] for an empty or too long name, or those of a commit.
    pub fn feed(&self, name: &str) -> Result<Feed> {
        let inner = self.inner();
        inner.check_open()?;
        let key = feed_key(name)?;
        let _change = inner.catalog_change.lock();
        if inner.retention.feed(name).is_none() {
            // A checkpoint that is under way has decided already which log it gives up; those from here on
            // know of this feed.
            let _no_checkpoint = inner.checkpoint_running.lock();
            let seqno = inner.log.durable_seqno();
            inner.retention.set_feed(name, seqno);
            let mut tx = inner.begin(Default::default());
            let done = tx
                .insert(&inner.catalog_table(), &key, &seqno.to_le_bytes())
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

    /// Returns the names of all feeds, with the positions up to which they were acknowledged.
    pub fn feeds(&self) -> Vec<(String, Position)> {
        let inner = self.inner();
        if inner.is_inherited() {
            return Vec::new();
        }
        let feeds = inner.retention.feeds().into_iter();
        feeds
            .map(|(name, seqno)| (name, inner.position(seqno)))
            .collect()
    }

    /// Removes a feed, so that the log is no longer kept for it. Returns whether it existed.
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
    /// Returns the feed's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the position up to which the feed was acknowledged.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`] if it was dropped.
    pub fn position(&self) -> Result<Position> {
        self.inner.check_open()?;
        let seqno = self.inner.retention.feed(&self.name);
        let missing = || Error::FeedNotFound {
            name: self.name.clone(),
        };
        Ok(self.inner.position(seqno.ok_or_else(missing)?))
    }

    /// Reads the transactions that are not acknowledged.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], or as [`Database::changes`]: [`Error::PositionLost`] if more log was
    /// written than is kept for feeds. Then rescan the tables in a snapshot, acknowledge its
    /// [position](Database::position_behind), and resume from there.
    pub fn changes(&self) -> Result<Changes> {
        Changes::open(&self.inner, self.position()?)
    }

    /// Records durably that everything up to `position` was consumed. A position older than the
    /// recorded one has no effect.
    ///
    /// Each call is a transaction: acknowledging only every hundredth position costs a hundredth.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], [`Error::ForeignPosition`], or those of a commit.
    pub fn acknowledge(&self, position: Position) -> Result<()> {
        let inner = &self.inner;
        inner.check_open()?;
        inner.check_position(position)?;
        let _change = inner.catalog_change.lock();
        if self.position()?.seqno >= position.seqno {
            return Ok(());
        }
        let mut tx = inner.begin(Default::default());
        let seqno = position.seqno.to_le_bytes();
        tx.insert(&inner.catalog_table(), &feed_key(&self.name)?, &seqno)?;
        match braid_rt::mutant!("acknowledge_in_memory") {
            true => tx.abort(),
            false => drop(tx.commit()?),
        }
        // Only now: the log is given up when this is sure to be found again.
        inner.retention.set_feed(&self.name, position.seqno);
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
