//! A parallel write-ahead log with group commit, tickets and pluggable commit protocols.

mod background;
mod callbacks;
mod chunk;
mod core;
mod entries;
mod error;
mod event;
mod flush;
mod inflight;
mod lane;
mod log;
mod options;
mod piece;
mod pool;
mod protocol;
mod reader;
mod recover;
mod scan;
mod segment;
mod space;
mod start;
mod stats;
mod strand;
mod ticket;

pub use error::LogError;
pub use inflight::InFlight;
pub use log::Log;
pub use options::{FlushMode, LogOptions, ProtocolKind};
pub use recover::{Piece, Recovered, ScanProgress};
pub use start::{LanePosition, LogStart};
pub use stats::LogStats;
pub use ticket::Ticket;
