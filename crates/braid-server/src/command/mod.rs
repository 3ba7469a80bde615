//! The commands: their table, and one module per family.

mod acl;
mod arguments;
mod bitfield;
mod bits;
mod connection;
mod diagnostics;
mod dump;
mod geo;
mod hashes;
mod hyperloglog;
mod introspection;
mod keys;
mod lists;
mod memory;
mod pubsub;
mod scan;
mod server;
mod sets;
mod sort;
mod sorted_sets;
mod streams;
mod strings;
mod table;

use bytes::Bytes;

use crate::failure::Result;
use crate::keyspace::Data;
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;
use crate::signature::Signature;

pub(crate) use connection::describe;
pub(crate) use introspection::keys_of;
pub(crate) use table::{commands, find};

/// How a command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// In a transaction or on a snapshot.
    Data(fn(&mut Data, &[Bytes]) -> Result<Reply>),
    /// Without data.
    Session(fn(&Shared, &mut Session, &[Bytes]) -> Result<Reply>),
    /// By the executor itself: MULTI, EXEC, DISCARD, WATCH, UNWATCH.
    Executor(Transactional),
}

/// Commands that control transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transactional {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    /// Position in the table.
    pub(crate) number: usize,
    pub(crate) signature: Signature,
    pub(crate) run: Run,
}

impl std::ops::Deref for Command {
    type Target = Signature;

    fn deref(&self) -> &Signature {
        &self.signature
    }
}
