//! Why a command fails.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;

use crate::kind::Kind;
use crate::resp::Reply;

/// Why a command fails: the client's mistake, or an error of the engine.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The answer, beginning with its code; the command changed nothing.
    Client(Cow<'static, str>),
    Engine(braid::Error),
    /// Nothing is there yet; the client waits, and the command runs again.
    Wait(Box<Wait>),
}

/// What of a key a client waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// An element that no other client gets.
    Elements(Kind),
    /// Entries of a stream, which other clients get as well.
    Entries,
    /// Entries of a stream that nobody else of this group gets.
    Group(Bytes),
}

/// A command that found nothing waits for elements of one of its keys.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) keys: Vec<Bytes>,
    pub(crate) interest: Interest,
    /// The request to run again, if it differs from the one that the client sent.
    pub(crate) again: Option<Vec<Bytes>>,
    /// `None` waits forever.
    pub(crate) timeout: Option<Duration>,
    /// The reply when time has passed.
    pub(crate) otherwise: Reply,
}

/// Result of a command or a part of it.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) const SYNTAX: Failure = Failure::Client(Cow::Borrowed("ERR syntax error"));
    pub(crate) const NOT_AN_INTEGER: Failure =
        Failure::Client(Cow::Borrowed("ERR value is not an integer or out of range"));
    pub(crate) const NOT_A_FLOAT: Failure =
        Failure::Client(Cow::Borrowed("ERR value is not a valid float"));
    pub(crate) const WRONG_TYPE: Failure = Failure::Client(Cow::Borrowed(
        "WRONGTYPE Operation against a key holding the wrong kind of value",
    ));
    pub(crate) const NO_SUCH_KEY: Failure = Failure::Client(Cow::Borrowed("ERR no such key"));
    pub(crate) const OVERFLOW: Failure =
        Failure::Client(Cow::Borrowed("ERR increment or decrement would overflow"));

    pub(crate) fn client(text: impl Into<Cow<'static, str>>) -> Failure {
        Failure::Client(text.into())
    }

    /// Lets the client wait for elements of `keys`; `otherwise` is the reply when time has passed.
    pub(crate) fn wait(
        keys: &[Bytes],
        interest: Interest,
        timeout: Option<Duration>,
        otherwise: Reply,
    ) -> Failure {
        Failure::Wait(Box::new(Wait {
            // They may wait for hours, and the memory of a request is shared.
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
            interest,
            again: None,
            timeout,
            otherwise,
        }))
    }

    /// Changes the request that runs again after a wait.
    pub(crate) fn running_again(mut self, args: Vec<Bytes>) -> Failure {
        if let Failure::Wait(wait) = &mut self {
            wait.again = Some(args);
        }
        self
    }

    /// Returns the text that tells what failed.
    #[cfg(feature = "scripts")]
    pub(crate) fn describe(&self) -> String {
        match self {
            Failure::Client(text) => text.clone().into_owned(),
            Failure::Engine(error) => error.to_string(),
            Failure::Wait(_) => "there is nothing yet".to_owned(),
        }
    }

    /// Returns the reply that tells the client.
    pub(crate) fn to_reply(&self) -> Reply {
        match self {
            Failure::Client(text) => Reply::Error(text.clone()),
            Failure::Engine(error) => Reply::Error(Cow::Owned(describe(error))),
            // In MULTI nothing waits.
            Failure::Wait(wait) => wait.otherwise.clone(),
        }
    }
}

/// Returns an error of the engine with a code that clients know.
fn describe(error: &braid::Error) -> String {
    match error {
        braid::Error::OutOfSpace { .. } => format!("MISCONF writes are refused: {error}"),
        braid::Error::Poisoned { .. }
        | braid::Error::Io { .. }
        | braid::Error::Corrupted { .. } => {
            format!("IOERR {error}")
        }
        braid::Error::TransactionTooLarge { .. } => {
            format!("ERR the command changes too much: {error}")
        }
        braid::Error::Conflict(_) | braid::Error::LockTimeout { .. } => {
            format!("TRYAGAIN {error}")
        }
        error => format!("ERR {error}"),
    }
}

impl From<braid::Error> for Failure {
    fn from(error: braid::Error) -> Self {
        match error {
            braid::Error::KeyTooLong { .. } | braid::Error::ValueTooLong { .. } => {
                Failure::Client(Cow::Owned(format!("ERR {error}")))
            }
            error => Failure::Engine(error),
        }
    }
}
