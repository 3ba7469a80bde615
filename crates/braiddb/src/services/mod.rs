//! Services around the engine: background threads, checkpoints, the archive, change feeds, backups,
//! loading, and readers in other processes.

mod agents;
pub(crate) mod archive;
mod archiving;
pub(crate) mod backup;
pub(crate) mod bulk;
pub(crate) mod changes;
mod checkpoint;
mod checkpoint_parts;
mod checkpoint_state;
mod close;
pub(crate) mod compact;
pub(crate) mod copies;
mod instance;
mod maintenance;
pub(crate) mod moving;
mod notifier;
pub(crate) mod pacing;
pub(crate) mod publish;
pub(crate) mod rate;
pub(crate) mod readers;
pub(crate) mod retention;
mod stats;
mod threads;
mod ttl;

pub(crate) use self::close::Closer;
pub(crate) use self::instance::{Instance, Parts};
