//! The C interface of Braid: `libbraid_c`, with `include/braid.h`, which is generated from this
//! crate's sources.
//!
//! `docs/c-api.md` is the manual for C programmers. Rules of the implementation:
//!
//! - **Nothing unwinds into C.** Every function runs its body in `boundary::call`, which turns
//!   errors and panics into a status and keeps the message for `braid_error_message`.
//! - **A handle is a number**, not an address, though it looks like a pointer to C: it names a slot
//!   of a table, a generation of this slot and a kind of object, and all three are checked at each
//!   use (`handles`). So a handle that was freed, ended or belongs to something else is an error.
//! - **`unsafe`** is limited to the tables of handles, and to reads and writes of C's memory
//!   (`memory`, `value`).

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
#![allow(
    non_camel_case_types,
    reason = "the types and their members have the names that they have in C"
)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a handle needs the 64 bits of a pointer");

mod backup;
mod boundary;
mod bulk;
mod changes;
mod cursor;
mod database;
mod feed;
mod handles;
mod health;
mod limits;
mod maintenance;
mod many;
mod memory;
mod modify;
mod options;
mod scan;
mod snapshot;
mod stats;
mod status;
mod stream;
mod table;
mod table_options;
mod ticket;
mod transaction;
mod value;
mod verify;
mod write;

pub use backup::*;
pub use boundary::*;
pub use bulk::*;
pub use changes::*;
pub use cursor::*;
pub use database::*;
pub use feed::*;
pub use handles::{
    braid_changes, braid_cursor, braid_db, braid_feed, braid_loader, braid_options, braid_snapshot,
    braid_table, braid_ticket, braid_tx,
};
pub use health::*;
pub use limits::*;
pub use maintenance::*;
pub use many::*;
pub use memory::braid_slice;
pub use modify::*;
pub use options::*;
pub use snapshot::*;
pub use stats::*;
pub use status::*;
pub use stream::{braid_read_callback, braid_source, braid_write_callback};
pub use table::*;
pub use table_options::*;
pub use ticket::*;
pub use transaction::*;
pub use value::{braid_value, braid_value_free};
pub use verify::*;
pub use write::*;
