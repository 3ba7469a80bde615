//! Work around the engine: background threads, checkpoints, the archive, change feeds, backups, loading.

pub(crate) mod archive;
pub(crate) mod backup;
pub(crate) mod bulk;
pub(crate) mod changes;
pub(crate) mod compact;
pub(crate) mod copies;
pub(crate) mod ingest;
pub(crate) mod maintenance;
pub(crate) mod publish;
pub(crate) mod retention;
pub(crate) mod ttl;
