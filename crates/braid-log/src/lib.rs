//! A parallel write-ahead log with group commit, tickets and pluggable commit protocols.

mod error;
mod options;
mod protocol;
mod skeleton;
mod start;
mod stats;

pub use error::LogError;
pub use options::{FlushMode, LogOptions, ProtocolKind};
pub use skeleton::{InFlight, Log, Piece, Recovered, ScanProgress, Ticket};
pub use start::{LanePosition, LogStart};
pub use stats::LogStats;
