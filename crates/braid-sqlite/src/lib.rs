//! SQLite with a write-ahead log in persistent memory.
//!
//! An extension for unmodified SQLite, 3.32 or newer. It registers the VFS `braid`, which replaces
//! what lies behind the `-wal` file: SQLite reads and writes frames as always, and the log
//! ([`braid_nvwal`]) keeps of each page the bytes that changed. Everything else stays SQLite's: its
//! locks, its `-shm` file, its checksums and its checkpoints.
//!
//! ```sql
//! .load ./libbraid_sqlite
//! .open file:app.db?vfs=braid&braid_log=/mnt/pmem
//! PRAGMA journal_mode = WAL;
//! ```
//!
//! A program that links SQLite statically calls [`register!`]. The chapter *SQLite* of the book
//! explains the parameters, the promises and the limits.
//!
//! # Rules
//!
//! - **Q1: the log repeats what SQLite wrote.** A frame of SQLite's file, header and page, is one image
//!   of the log. A transaction of the log ends with each frame that commits; SQLite's own recovery
//!   checks the frames again.
//! - **Q2: other programs do not open a database whose log may have frames.** Before the first frame,
//!   and until the log is deleted, the `-wal` file has a header of a foreign version (guard B), and the
//!   database's header has the versions 3 and 3 (guard A). Both are written under an exclusive lock of
//!   the database, which no program holds that has the database open without this extension.
//! - **Q3: the log is deleted before the guards are removed.**
//! - **Q4: a process writes the log only with SQLite's lock for writers.** The log notices when another
//!   process had it.
//! - **Q5: no panic leaves the library.**
//! - **Q6: a checkpoint copies durable frames.** In mode `ticket`, a commit does not wait for the device;
//!   `braid_wait()` does, and a connection does so before it writes into the database or cuts it.

#![cfg(unix)]
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod abi;
mod database;
mod frames;
mod guard;
mod inner;
mod last_error;
mod library;
mod place;
#[cfg(test)]
mod power;
mod regions;
#[cfg(test)]
mod simulation;
mod stub;
mod vfs;
mod wait;
mod wal;
mod walfile;

pub use last_error::braid_sqlite_error;
pub use library::{Library, RegisterError};
pub use vfs::{
    braid_sqlite_auto_init, braid_sqlite_register, braid_sqlite_wal_size, register,
    sqlite3_braidsqlite_init,
};
pub use wait::braid_sqlite_wait;
