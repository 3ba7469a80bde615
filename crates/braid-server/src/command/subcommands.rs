//! The subcommands of commands that have some, with the number of arguments of each. So a request that
//! cannot run is refused before it is queued by MULTI.

use bytes::Bytes;

use super::Command;
use crate::signature::fits;

/// A name in lower case, and the number of arguments with both names; negative: at least as many.
pub(crate) type Subcommand = (&'static str, i32);

/// Why a request cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    /// The number of arguments is wrong.
    Arguments(Option<&'static str>),
    /// There is no such subcommand.
    Subcommand,
}

impl Command {
    /// Checks the number of arguments and the subcommand of a request.
    pub(crate) fn check(&self, args: &[Bytes]) -> Result<(), Misuse> {
        if !self.accepts(args.len()) {
            return Err(Misuse::Arguments(None));
        }
        let (false, Some(wanted)) = (self.subcommands.is_empty(), args.get(1)) else {
            return Ok(());
        };
        let is_wanted = |known: &&Subcommand| wanted.eq_ignore_ascii_case(known.0.as_bytes());
        match self.subcommands.iter().find(is_wanted) {
            None => Err(Misuse::Subcommand),
            Some((_, arity)) if fits(*arity, args.len()) => Ok(()),
            Some((name, _)) => Err(Misuse::Arguments(Some(name))),
        }
    }

    /// Returns the error for a request that [`Command::check`] refuses.
    pub(crate) fn describe(&self, misuse: Misuse, args: &[Bytes]) -> String {
        let name = self.name;
        match misuse {
            Misuse::Arguments(None) => {
                format!("ERR wrong number of arguments for '{name}' command")
            }
            Misuse::Arguments(Some(subcommand)) => {
                format!("ERR wrong number of arguments for '{name}|{subcommand}' command")
            }
            Misuse::Subcommand => {
                let wanted = args.get(1).map_or(&[][..], |wanted| wanted);
                let shown = String::from_utf8_lossy(&wanted[..wanted.len().min(128)]);
                let name = name.to_uppercase();
                format!("ERR unknown subcommand '{shown}'. Try {name} HELP.")
            }
        }
    }
}

pub(super) const ACL: &[Subcommand] = &[
    ("cat", -2),
    ("deluser", -3),
    ("dryrun", -4),
    ("genpass", -2),
    ("getuser", 3),
    ("help", 2),
    ("list", 2),
    ("load", 2),
    ("log", -2),
    ("save", 2),
    ("setuser", -3),
    ("users", 2),
    ("whoami", 2),
];

pub(super) const CLIENT: &[Subcommand] = &[
    ("caching", 3),
    ("getname", 2),
    ("getredir", 2),
    ("help", 2),
    ("id", 2),
    ("info", 2),
    ("kill", -3),
    ("list", -2),
    ("no-evict", 3),
    ("no-touch", 3),
    ("pause", -3),
    ("reply", 3),
    ("setinfo", 4),
    ("setname", 3),
    ("tracking", -3),
    ("trackinginfo", 2),
    ("unblock", -3),
    ("unpause", 2),
];

pub(super) const COMMAND: &[Subcommand] = &[
    ("count", 2),
    ("docs", -2),
    ("getkeys", -3),
    ("getkeysandflags", -3),
    ("help", 2),
    ("info", -2),
    ("list", -2),
];

pub(super) const CONFIG: &[Subcommand] = &[
    ("get", -3),
    ("help", 2),
    ("resetstat", 2),
    ("rewrite", 2),
    ("set", -4),
];

pub(super) const FEED: &[Subcommand] = &[("ack", 4), ("create", 3), ("drop", 3), ("list", 2)];

#[cfg(feature = "scripts")]
pub(super) const FUNCTION: &[Subcommand] = &[
    ("delete", 3),
    ("dump", 2),
    ("flush", -2),
    ("help", 2),
    ("kill", 2),
    ("list", -2),
    ("load", -3),
    ("restore", -3),
    ("stats", 2),
];

pub(super) const LATENCY: &[Subcommand] = &[
    ("doctor", 2),
    ("graph", 3),
    ("help", 2),
    ("histogram", -2),
    ("history", 3),
    ("latest", 2),
    ("reset", -2),
];

pub(super) const MEMORY: &[Subcommand] = &[
    ("doctor", 2),
    ("help", 2),
    ("malloc-stats", 2),
    ("purge", 2),
    ("stats", 2),
    ("usage", -3),
];

pub(super) const OBJECT: &[Subcommand] = &[
    ("encoding", 3),
    ("freq", 3),
    ("help", 2),
    ("idletime", 3),
    ("refcount", 3),
];

pub(super) const PUBSUB: &[Subcommand] = &[
    ("channels", -2),
    ("help", 2),
    ("numpat", 2),
    ("numsub", -2),
    ("shardchannels", -2),
    ("shardnumsub", -2),
];

#[cfg(feature = "scripts")]
pub(super) const SCRIPT: &[Subcommand] = &[
    ("exists", -3),
    ("flush", -2),
    ("help", 2),
    ("kill", 2),
    ("load", 3),
];

pub(super) const SLOWLOG: &[Subcommand] = &[("get", -2), ("help", 2), ("len", 2), ("reset", 2)];

pub(super) const XGROUP: &[Subcommand] = &[
    ("create", -5),
    ("createconsumer", 5),
    ("delconsumer", 5),
    ("destroy", 4),
    ("help", 2),
    ("setid", -5),
];

pub(super) const XINFO: &[Subcommand] =
    &[("consumers", 4), ("groups", 3), ("help", 2), ("stream", -3)];
