//! Tests of the server through its sockets, with a client of another project.

#[path = "suite/acl.rs"]
mod acl;
#[path = "suite/arguments.rs"]
mod arguments;
#[path = "suite/bad_clients.rs"]
mod bad_clients;
#[path = "suite/blocking.rs"]
mod blocking;
#[path = "suite/cold.rs"]
mod cold;
#[path = "suite/connections.rs"]
mod connections;
#[path = "suite/diagnostics.rs"]
mod diagnostics;
#[cfg(unix)]
#[path = "suite/differential.rs"]
mod differential;
#[path = "suite/dump.rs"]
mod dump;
#[path = "suite/durability.rs"]
mod durability;
#[path = "suite/events.rs"]
mod events;
#[path = "suite/fields.rs"]
mod fields;
#[path = "suite/geo.rs"]
mod geo;
#[path = "suite/keys.rs"]
mod keys;
#[path = "suite/models.rs"]
mod models;
#[path = "suite/notices.rs"]
mod notices;
#[path = "suite/operations.rs"]
mod operations;
#[path = "suite/pages.rs"]
mod pages;
#[path = "suite/pipelines.rs"]
mod pipelines;
#[path = "suite/pubsub.rs"]
mod pubsub;
#[path = "suite/restart.rs"]
mod restart;
#[cfg(feature = "scripts")]
#[path = "suite/scripts.rs"]
mod scripts;
#[path = "suite/specs.rs"]
mod specs;
#[path = "suite/streams.rs"]
mod streams;
#[path = "suite/strings.rs"]
mod strings;
#[path = "suite/support.rs"]
mod support;
#[cfg(feature = "tls")]
#[path = "suite/tls.rs"]
mod tls;
#[path = "suite/tracking.rs"]
mod tracking;
#[path = "suite/transactions.rs"]
mod transactions;
#[path = "suite/types.rs"]
mod types;
#[cfg(unix)]
#[path = "suite/unix.rs"]
mod unix;
