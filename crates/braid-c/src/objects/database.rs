//! An open database, for writing or only for reading.

use std::mem;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use braid::Database;

use crate::boundary::Outcome;

/// Object of a database's handle.
#[derive(Clone)]
pub(crate) enum OpenDatabase {
    /// Open for writing.
    Writer(Database),
    /// Opened read-only: the newest state that the caller requested.
    Reader(Arc<RwLock<Database>>),
}

/// A database in the state that new reads see.
pub(crate) enum Current<'a> {
    Writer(&'a Database),
    State(Database),
}

impl Deref for Current<'_> {
    type Target = Database;

    #[inline(always)]
    fn deref(&self) -> &Database {
        match self {
            Current::Writer(database) => database,
            Current::State(database) => database,
        }
    }
}

impl OpenDatabase {
    pub(crate) fn new(database: Database, read_only: bool) -> Self {
        if read_only {
            Self::Reader(Arc::new(RwLock::new(database)))
        } else {
            Self::Writer(database)
        }
    }

    #[inline(always)]
    pub(crate) fn current(&self) -> Current<'_> {
        match self {
            Self::Writer(database) => Current::Writer(database),
            Self::Reader(newest) => Current::State(state(newest)),
        }
    }

    /// Moves to the newest durable state; returns whether it is newer.
    pub(crate) fn refresh(&self) -> Outcome<bool> {
        let Self::Reader(newest) = self else {
            return Ok(false);
        };
        // Meanwhile, readers continue with the previous state.
        let mut database = state(newest);
        if !database.refresh()? {
            return Ok(false);
        }
        let mut newest = newest.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have refreshed to a newer state.
        if database.durable_seqno() <= newest.durable_seqno() {
            return Ok(false);
        }
        let before = mem::replace(&mut *newest, database);
        drop(newest);
        drop(before);
        Ok(true)
    }
}

#[inline(never)]
fn state(newest: &RwLock<Database>) -> Database {
    let newest = newest.read().unwrap_or_else(PoisonError::into_inner);
    newest.clone()
}
