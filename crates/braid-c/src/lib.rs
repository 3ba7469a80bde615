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
//!   `registry` has the tables of all kinds.
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

mod boundary;
mod functions;
mod handle_error;
mod handles;
mod limits;
mod memory;
mod objects;
mod registry;
mod status;
mod stream;
mod value;

pub use boundary::*;
pub use functions::*;
pub use handles::{
    braid_changes, braid_cursor, braid_db, braid_feed, braid_loader, braid_options, braid_snapshot,
    braid_table, braid_ticket, braid_tx,
};
pub use limits::*;
pub use memory::braid_slice;
pub use objects::{braid_change, braid_change_set, braid_position};
pub use status::*;
pub use stream::{braid_read_callback, braid_source, braid_write_callback};
pub use value::{braid_value, braid_value_free};
