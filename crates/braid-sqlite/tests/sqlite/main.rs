//! The extension in SQLite: behaviour against SQLite without it, guards, processes.
#![cfg(unix)]

mod basics;
mod guards;
mod model;
mod processes;
mod wait;
