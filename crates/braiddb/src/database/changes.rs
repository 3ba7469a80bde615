//! Reading committed changes, and named consumers of them.

use braid_log::SeqNo;

use super::Database;
use crate::base::position::Position;
use crate::error::Result;
use crate::services::changes::{Changes, Feed};

impl Database {
    /// Reads the transactions after a position, in commit order: [`Changes`] is an iterator over
    /// [`ChangeSet`](crate::changes::ChangeSet)s.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// let db = braid::Database::in_memory()?;
    /// let stock = db.open_table::<String, u32>("stock")?;
    /// let from = db.position();
    /// db.transact(|tx| tx.insert(&stock, "cups", &12))?;
    ///
    /// let mut changes = db.changes(from)?;
    /// let set = changes.next().expect("one transaction")?;
    /// let change = &set.changes[0];
    /// assert_eq!(change.table.as_deref(), Some("stock"));
    /// assert_eq!(&change.key[..], b"cups");
    /// assert!(changes.next().is_none(), "no more for now");
    /// let stored = set.position.to_string(); // to resume after this transaction another day
    /// # assert_eq!(changes.position(), stored.parse()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The first position is the current one ([`Database::position`]), that of a snapshot or
    /// commit ([`Database::position_after`]), a stored one, or the oldest one that the log still
    /// contains ([`Database::oldest_position`]). [`Changes::position`] is the position after what
    /// was read, and [`Changes::next_within`] waits for further transactions.
    ///
    /// # Errors
    /// [`Error::PositionLost`](crate::Error::PositionLost) if the log after the position was
    /// released, [`Error::ForeignPosition`](crate::Error::ForeignPosition) if the position belongs
    /// to another database, [`Error::Closed`](crate::Error::Closed),
    /// [`Error::Corrupted`](crate::Error::Corrupted) or [`Error::Io`](crate::Error::Io).
    pub fn changes(&self, from: Position) -> Result<Changes> {
        Changes::open(self.instance(), from)
    }

    /// Returns the position after the newest durable transaction.
    pub fn position(&self) -> Position {
        self.position_after(self.durable_seqno())
    }

    /// Returns the position after the transaction with this sequence number.
    pub fn position_after(&self, seqno: u64) -> Position {
        self.engine().position(SeqNo::new(seqno))
    }

    /// Returns the oldest position from which changes can be read: without feeds, the start of the
    /// newest checkpoint.
    pub fn oldest_position(&self) -> Position {
        self.engine().position(self.instance().retention.oldest())
    }
}

impl Database {
    /// Opens a [`Feed`] by name, or creates it durably if it is missing: a new feed begins after
    /// the current durable transactions.
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
    /// assert_eq!(db.feeds(), [(feed.name().to_owned(), feed.position()?)]);
    /// db.drop_feed("search index")?; // the log is no longer kept for it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidTableName`](crate::Error::InvalidTableName) for an empty or too long name,
    /// or those of a commit.
    pub fn feed(&self, name: &str) -> Result<Feed> {
        Feed::open(self.instance(), name)
    }

    /// Returns the names of all feeds, with the positions up to which they were acknowledged.
    pub fn feeds(&self) -> Vec<(String, Position)> {
        Feed::all(self.instance())
    }

    /// Removes a feed, so that the log is no longer kept for it. Returns whether it existed.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn drop_feed(&self, name: &str) -> Result<bool> {
        Feed::remove(self.instance(), name)
    }
}
