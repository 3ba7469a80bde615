//! The tests of the simulator, as one program: it is compiled and linked once.

mod catalog;
mod close;
mod histories;
#[cfg(unix)]
mod images;
mod moved;
mod poisoned;
mod ranges;
