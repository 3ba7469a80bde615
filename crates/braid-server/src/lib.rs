//! A server for Redis clients on the Braid storage engine, in which an answered write is durable.
//!
//! Thousands of connections share few threads. A write is answered when everything that it read
//! and wrote is durable, and many writes share a flush. Data may be larger than memory. MULTI and
//! EXEC are serializable across all types.
//!
//! `docs/server.md` in the repository describes the commands and the differences from Redis.

mod acl;
mod backups;
mod channels;
mod command;
mod config;
mod connection;
mod executor;
mod failure;
mod flushes;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod http;
mod keyspace;
mod kind;
mod latency;
mod listeners;
mod observe;
mod options;
mod pause;
mod rdb;
mod resp;
#[cfg(feature = "scripts")]
mod script;
mod server;
mod session;
mod shared;
mod signature;
#[cfg(feature = "tls")]
mod tls;
mod tracking;
mod waiters;

pub use config::{Config, ConfigError, LogFormat};
pub use options::{ServerOptions, TlsClients};
pub use server::{Server, ServerError};

/// Selects a limit. The unit tests have others, which a connection reaches with few requests.
const fn limit(usual: usize, tested: usize) -> usize {
    if cfg!(test) { tested } else { usual }
}
