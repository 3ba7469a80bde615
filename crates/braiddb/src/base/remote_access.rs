//! How threads use a tablespace on another memory node than theirs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// How threads use tables in the memory of another node than theirs; see
/// [`Builder::remote_access`](crate::Builder::remote_access).
///
/// ```
/// use braid::tablespace::RemoteAccess;
/// assert_eq!("auto".parse(), Ok(RemoteAccess::Auto));
/// assert_eq!(RemoteAccess::default().to_string(), "direct");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteAccess {
    /// Each thread reads and writes the memory itself, wherever it is.
    #[default]
    Direct,
    /// A thread of another node passes its reads, scans and writes to an agent: a thread that runs on
    /// the tablespace's node, and returns copies.
    Agent,
    /// By agents where they are faster, which each opening measures.
    Auto,
}

impl fmt::Display for RemoteAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Agent => "agent",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for RemoteAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "direct" => Ok(Self::Direct),
            "agent" => Ok(Self::Agent),
            "auto" => Ok(Self::Auto),
            _ => Err("must be direct, agent or auto".to_owned()),
        }
    }
}

/// Work on a record of a tablespace with an agent.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentWork {
    /// Number of the tablespace.
    pub tablespace: u8,
    /// Whether the work writes.
    pub writes: bool,
    /// Bytes of the records.
    pub bytes: usize,
    /// Whether the agent does it: otherwise the thread that needs it.
    pub by_agent: bool,
}

/// Stands in for a machine with several memory nodes, in tests and models.
#[doc(hidden)]
pub trait AgentHook: Send + Sync {
    /// Whether a tablespace is on another node than the calling thread.
    fn is_remote(&self, tablespace: u8) -> bool;

    /// Called on the thread that does the work, after each read and after each write of a record.
    fn worked(&self, work: AgentWork);
}

/// A hook, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Hook(pub(crate) Option<Arc<dyn AgentHook>>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hook").field(&self.0.is_some()).finish()
    }
}
