//! The tests of the log, as one program: it is compiled and linked once.

mod backpressure;
mod common;
mod crash;
mod deletion;
mod files;
mod growth;
mod models;
mod one_pass;
mod openings;
mod padding;
mod side_lanes;
mod streams;
mod tail;
