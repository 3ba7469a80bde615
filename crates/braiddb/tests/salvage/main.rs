//! Each piece of a database is damaged in turn: everything else is saved, and what is not is named.

mod log;
mod pages;
mod victim;
