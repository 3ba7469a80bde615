//! Named consumers of changes, whose progress is part of the database.

use std::fmt;
use std::sync::Arc;

use braid_log::SeqNo;
use bytes::Bytes;

use super::Changes;
use crate::base::limits::MAX_TABLE_NAME_LEN;
use crate::base::position::Position;
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::read::snapshot::Readable;
use crate::services::instance::Instance;
use crate::txn::transaction::Transaction;

/// First byte of the catalog's keys that contain feed names.
const FEEDS: u8 = b'F';

fn feed_key(name: &str) -> Result<Vec<u8>> {
    if name.is_empty() || name.len() > MAX_TABLE_NAME_LEN {
        return Err(Error::InvalidTableName {
            name: name.to_owned(),
        });
    }
    Ok([&[FEEDS], name.as_bytes()].concat())
}

fn decode(value: &[u8]) -> Result<SeqNo> {
    let bytes = value.try_into().map_err(|_| Error::Corrupted {
        what: "an entry of a feed is malformed".into(),
        location: "the catalog".into(),
    })?;
    Ok(SeqNo::new(u64::from_le_bytes(bytes)))
}

/// Named consumer of changes, from [`Database::feed`](crate::Database::feed): the database stores
/// its position and keeps the log after that position, up to [`crate::Builder::feed_log_bytes`].
///
/// Several processes may use one feed in turn: each resumes at the last [`Feed::acknowledge`].
/// Changes that were read but not acknowledged are delivered again.
#[derive(Clone)]
pub struct Feed {
    instance: Arc<Instance>,
    name: String,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Feed {
    /// Opens a consumer, creating it if it does not exist.
    pub(crate) fn open(instance: &Arc<Instance>, name: &str) -> Result<Self> {
        let (engine, retention) = (&instance.engine, &instance.retention);
        engine.check_open()?;
        let key = feed_key(name)?;
        let _change = engine.tables.change.lock();
        if retention.feed(name).is_none() {
            let seqno = {
                // A running checkpoint has already decided which log it releases. Later checkpoints
                // consider this feed. The commit below may have to wait for one.
                let _no_checkpoint = instance.hold_checkpoints();
                let seqno = engine.log.durable_seqno();
                retention.set_feed(name, seqno);
                seqno
            };
            let mut tx = Transaction::begin(engine, Default::default());
            let done = tx
                .insert(
                    &Catalog::of(engine).table(),
                    &key,
                    &seqno.get().to_le_bytes(),
                )
                .and_then(|_| tx.commit());
            if let Err(error) = done {
                retention.remove_feed(name);
                return Err(error);
            }
        }
        Ok(Self {
            instance: instance.clone(),
            name: name.to_owned(),
        })
    }

    /// Returns the names and positions of all consumers.
    pub(crate) fn all(instance: &Instance) -> Vec<(String, Position)> {
        let engine = &instance.engine;
        if engine.is_inherited() {
            return Vec::new();
        }
        let feeds = instance.retention.feeds().into_iter();
        feeds
            .map(|(name, seqno)| (name, engine.position(seqno)))
            .collect()
    }

    /// Removes a consumer. Returns whether it existed.
    pub(crate) fn remove(instance: &Instance, name: &str) -> Result<bool> {
        let engine = &instance.engine;
        engine.check_open()?;
        let _change = engine.tables.change.lock();
        let mut tx = Transaction::begin(engine, Default::default());
        let was_there = tx.remove(&Catalog::of(engine).table(), &feed_key(name)?)?;
        tx.commit()?;
        instance.retention.remove_feed(name);
        Ok(was_there)
    }

    /// Returns the feed's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the position up to which the feed was acknowledged.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound) if it was dropped.
    pub fn position(&self) -> Result<Position> {
        self.instance.engine.check_open()?;
        let seqno = self.instance.retention.feed(&self.name);
        let missing = || Error::FeedNotFound {
            name: self.name.clone(),
        };
        Ok(self.instance.engine.position(seqno.ok_or_else(missing)?))
    }

    /// Reads the transactions that are not acknowledged.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), or as
    /// [`Database::changes`](crate::Database::changes):
    /// [`Error::PositionLost`](crate::Error::PositionLost) if more log was written than is kept for
    /// feeds. Then rescan the tables in a snapshot, acknowledge its
    /// [position](crate::Database::position_after), and resume from there.
    pub fn changes(&self) -> Result<Changes> {
        Changes::open(&self.instance, self.position()?)
    }

    /// Records durably that everything up to `position` was consumed. A position older than the
    /// recorded one has no effect.
    ///
    /// Each call is a transaction: acknowledging only every hundredth position costs a hundredth.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound),
    /// [`Error::ForeignPosition`](crate::Error::ForeignPosition), or those of a commit.
    pub fn acknowledge(&self, position: Position) -> Result<()> {
        let engine = &self.instance.engine;
        engine.check_open()?;
        engine.check_position(position)?;
        let _change = engine.tables.change.lock();
        if self.position()?.seqno >= position.seqno {
            return Ok(());
        }
        let mut tx = Transaction::begin(engine, Default::default());
        let seqno = position.seqno.get().to_le_bytes();
        let catalog = Catalog::of(engine).table();
        tx.insert(&catalog, &feed_key(&self.name)?, &seqno)?;
        if braid_rt::mutant!("acknowledge_in_memory") {
            tx.abort();
        } else {
            tx.commit()?;
        }
        // Only now: log may be released only after the position is durable.
        self.instance.retention.set_feed(&self.name, position.seqno);
        Ok(())
    }
}

/// Loads the positions of all consumers from the catalog when the database is opened.
pub(crate) fn load_feeds(instance: &Instance) -> Result<()> {
    let engine = &instance.engine;
    let tx = Transaction::begin(engine, Default::default());
    for entry in tx.prefix(&Catalog::of(engine).table(), &[FEEDS])? {
        let (key, value): (Bytes, Bytes) = entry?;
        let name = String::from_utf8_lossy(&key[1..]);
        instance.retention.set_feed(&name, decode(&value)?);
    }
    Ok(())
}
