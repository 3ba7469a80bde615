//! Observability: statistics, health, metrics, events.

pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod placement;
pub(crate) mod recovery;
pub(crate) mod stats;
pub(crate) mod trace;
