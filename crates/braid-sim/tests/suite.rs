//! The tests of the simulator, as one program: it is compiled and linked once.

mod catalog;
mod close;
#[cfg(unix)]
mod drive_faults;
#[cfg(unix)]
mod drive_order;
mod histories;
#[cfg(unix)]
mod images;
mod moved;
mod poisoned;
mod ranges;
mod syncs;
