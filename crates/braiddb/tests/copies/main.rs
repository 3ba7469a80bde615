//! Backups, the archive of the log, and the change feed: what is copied of a database while it is in use.

mod archive;
mod backup;
mod changes;
mod crashes;
mod damage;
mod model;
