//! Copies of a database in use: backups, the archive of the log, and the change feed.

mod archive;
mod backup;
mod changes;
mod crashes;
mod damage;
mod model;
