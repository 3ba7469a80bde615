//! Salvage after damage to each part of a database: everything else is saved, and losses are named.

mod log;
mod pages;
mod victim;
