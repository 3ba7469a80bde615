//! The commands: their table, and one module per family.

mod acl;
mod arguments;
mod bitfield;
mod bits;
mod connection;
mod geo;
mod hashes;
mod hyperloglog;
mod introspection;
mod keys;
mod lists;
mod pubsub;
mod scan;
mod server;
mod sets;
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

/// Properties of a command, with the names of COMMAND INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Write,
    Readonly,
    Denyoom,
    Admin,
    Pubsub,
    Noscript,
    Blocking,
    Loading,
    Fast,
    NoAuth,
    NoMulti,
}

impl Flag {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Flag::Write => "write",
            Flag::Readonly => "readonly",
            Flag::Denyoom => "denyoom",
            Flag::Admin => "admin",
            Flag::Pubsub => "pubsub",
            Flag::Noscript => "noscript",
            Flag::Blocking => "blocking",
            Flag::Loading => "loading",
            Flag::Fast => "fast",
            Flag::NoAuth => "no_auth",
            Flag::NoMulti => "no_multi",
        }
    }
}

/// A command.
#[derive(Debug)]
pub(crate) struct Command {
    /// Name in lower case.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least as many.
    pub(crate) arity: i32,
    pub(crate) flags: &'static [Flag],
    /// Index of the first key, of the last (negative: from the end), and the step.
    pub(crate) keys: (i32, i32, i32),
    /// Family, as COMMAND DOCS and the categories of access control name it.
    pub(crate) group: &'static str,
    pub(crate) run: Run,
}

impl Command {
    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns whether this many arguments, with the name, are allowed.
    pub(crate) fn accepts(&self, arguments: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity < 0 {
            arguments >= arity
        } else {
            arguments == arity
        }
    }
}
