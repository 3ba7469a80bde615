//! The functions of `shim.c`, which documents them.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($name:ident)*) => {
        $(#[repr(C)]
        pub(super) struct $name {
            _private: [u8; 0],
        })*
    };
}

opaque! {
    WT_CONNECTION
    WT_CURSOR
    WT_SESSION
}

// The build script compiles the shim and links the library.
unsafe extern "C" {
    pub(super) static braid_wt_rollback: c_int;
    pub(super) static braid_wt_notfound: c_int;
    pub(super) static braid_wt_busy: c_int;

    pub(super) fn wiredtiger_version(
        major: *mut c_int,
        minor: *mut c_int,
        patch: *mut c_int,
    ) -> *const c_char;
    /// The string lives until the thread's next call.
    pub(super) fn wiredtiger_strerror(error: c_int) -> *const c_char;

    pub(super) fn braid_wt_open(
        home: *const c_char,
        config: *const c_char,
        connection: *mut *mut WT_CONNECTION,
    ) -> c_int;
    pub(super) fn braid_wt_close(connection: *mut WT_CONNECTION) -> c_int;
    pub(super) fn braid_wt_session(
        connection: *mut WT_CONNECTION,
        session: *mut *mut WT_SESSION,
    ) -> c_int;
    pub(super) fn braid_wt_session_close(session: *mut WT_SESSION) -> c_int;
    pub(super) fn braid_wt_create(
        session: *mut WT_SESSION,
        uri: *const c_char,
        config: *const c_char,
    ) -> c_int;
    pub(super) fn braid_wt_checkpoint(session: *mut WT_SESSION, config: *const c_char) -> c_int;
    pub(super) fn braid_wt_drop(session: *mut WT_SESSION, uri: *const c_char) -> c_int;
    pub(super) fn braid_wt_compact(session: *mut WT_SESSION, uri: *const c_char) -> c_int;
    pub(super) fn braid_wt_verify(session: *mut WT_SESSION, uri: *const c_char) -> c_int;
    pub(super) fn braid_wt_reconfigure(
        connection: *mut WT_CONNECTION,
        config: *const c_char,
    ) -> c_int;
    pub(super) fn braid_wt_begin(session: *mut WT_SESSION, config: *const c_char) -> c_int;
    pub(super) fn braid_wt_commit(session: *mut WT_SESSION) -> c_int;
    pub(super) fn braid_wt_rollback_transaction(session: *mut WT_SESSION) -> c_int;
    pub(super) fn braid_wt_cursor(
        session: *mut WT_SESSION,
        uri: *const c_char,
        config: *const c_char,
        cursor: *mut *mut WT_CURSOR,
    ) -> c_int;
    pub(super) fn braid_wt_cursor_close(cursor: *mut WT_CURSOR) -> c_int;
    pub(super) fn braid_wt_name(cursor: *mut WT_CURSOR, name: *mut *const c_char) -> c_int;
    pub(super) fn braid_wt_search(
        cursor: *mut WT_CURSOR,
        key: *const c_void,
        key_len: usize,
    ) -> c_int;
    pub(super) fn braid_wt_search_near(
        cursor: *mut WT_CURSOR,
        key: *const c_void,
        key_len: usize,
        side: *mut c_int,
    ) -> c_int;
    pub(super) fn braid_wt_next(cursor: *mut WT_CURSOR) -> c_int;
    pub(super) fn braid_wt_prev(cursor: *mut WT_CURSOR) -> c_int;
    pub(super) fn braid_wt_reset(cursor: *mut WT_CURSOR) -> c_int;
    pub(super) fn braid_wt_key(
        cursor: *mut WT_CURSOR,
        key: *mut *const c_void,
        key_len: *mut usize,
    ) -> c_int;
    pub(super) fn braid_wt_value(
        cursor: *mut WT_CURSOR,
        value: *mut *const c_void,
        value_len: *mut usize,
    ) -> c_int;
    pub(super) fn braid_wt_put(
        cursor: *mut WT_CURSOR,
        key: *const c_void,
        key_len: usize,
        value: *const c_void,
        value_len: usize,
    ) -> c_int;
    pub(super) fn braid_wt_remove(
        cursor: *mut WT_CURSOR,
        key: *const c_void,
        key_len: usize,
    ) -> c_int;
}
