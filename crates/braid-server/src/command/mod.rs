//! The commands: their table, and one module per family.

mod acl;
mod arguments;
mod bitfield;
mod bits;
mod caching;
mod clients;
mod connection;
mod diagnostics;
mod dump;
mod fields;
#[cfg(feature = "scripts")]
mod functions;
mod geo;
mod hashes;
mod hyperloglog;
mod info;
mod introspection;
mod key_specs;
mod keys;
mod lists;
mod memory;
mod operations;
mod pops;
mod pubsub;
mod scan;
#[cfg(feature = "scripts")]
mod scripting;
mod server;
mod sets;
mod sort;
mod sorted_sets;
mod streams;
mod strings;
mod subcommands;
mod table;

use bytes::Bytes;

use crate::acl::{Denied, Reason};
use crate::failure::{Failure, Result};
use crate::keyspace::Data;
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;
use crate::signature::{Flag, Signature};

pub(crate) use caching::remember;
pub(crate) use clients::describe;
#[cfg(feature = "scripts")]
pub(crate) use functions::load_all as load_functions;
pub(crate) use introspection::{keys_of, placed_keys};
pub(crate) use operations::{may_save, save_after};
pub(crate) use server::{copies, waitaof_at_once, waits_for_device};
#[cfg(feature = "scripts")]
pub(crate) use subcommands::Misuse;
pub(crate) use subcommands::Subcommand;
pub(crate) use table::{commands, find};

/// A command that runs in a transaction or on a snapshot.
pub(crate) type OnData = fn(&mut Data, &[Bytes]) -> Result<Reply>;

/// How a command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// In a transaction or on a snapshot.
    Data(OnData),
    /// Without data.
    Session(fn(&Shared, &mut Session, &[Bytes]) -> Result<Reply>),
    /// A script, whose commands use the data and the connection.
    #[cfg_attr(not(feature = "scripts"), allow(dead_code))]
    Script(fn(&Shared, &mut Session, &mut Data, &[Bytes]) -> Result<Reply>),
    /// By the executor itself.
    Executor(Control),
}

/// Commands that control transactions, or wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Waitaof,
}

impl Control {
    /// Returns whether the command runs at once after MULTI, instead of in the transaction.
    pub(crate) fn runs_at_once_in_multi(self) -> bool {
        !matches!(self, Control::Unwatch | Control::Waitaof)
    }
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    /// Position in the table.
    pub(crate) number: usize,
    pub(crate) signature: Signature,
    /// Subcommands, if the first argument has to be one.
    pub(crate) subcommands: &'static [Subcommand],
    pub(crate) run: Run,
}

impl Command {
    /// Returns whether the command may change data.
    pub(crate) fn may_write(&self) -> bool {
        let is_script = matches!(self.run, Run::Script(_));
        self.is(Flag::Write) || (is_script && !self.is(Flag::Readonly))
    }
}

/// Runs a command on data; `run` is how it runs.
pub(crate) fn run_on(
    command: &Command,
    run: OnData,
    data: &mut Data,
    args: &[Bytes],
) -> Result<Reply> {
    // OBJECT looks at keys without reading them.
    data.reads_only = command.is(Flag::Readonly) && command.name != "object";
    run(data, args)
}

impl std::ops::Deref for Command {
    type Target = Signature;

    fn deref(&self) -> &Signature {
        &self.signature
    }
}

/// Logs that a user may not do something, and returns the error.
pub(crate) fn refuse(
    shared: &Shared,
    session: &Session,
    context: &'static str,
    command: &Command,
    denied: &Denied,
) -> String {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let (reason, object) = match denied {
        Denied::Command => (Reason::Command, command.name.to_owned()),
        Denied::Key(key) => (Reason::Key, text(key)),
        Denied::Channel(channel) => (Reason::Channel, text(channel)),
    };
    let user = session.user.name();
    let client = describe(shared, session.id);
    shared.acl.log.add(reason, context, object, user, client);
    format!("NOPERM {}", denied.describe(user, command.name))
}

/// Runs a command of a MULTI or a script. If it fails, it has changed nothing, and the others still
/// run.
pub(crate) fn run_or_undo(
    data: &mut Data,
    run: impl FnOnce(&mut Data) -> Result<Reply>,
) -> Result<Reply> {
    let mark = data.mark();
    match run(data) {
        Ok(reply) => Ok(reply),
        Err(Failure::Engine(error)) => Err(error.into()),
        Err(failure) => {
            if let Some(mark) = mark {
                data.roll_back(mark)?;
            }
            Ok(failure.to_reply())
        }
    }
}
