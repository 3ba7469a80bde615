//! The tests of the storage manager, as one program: it is compiled and linked once.

mod bulk;
mod crash;
mod detached;
mod dropped;
mod estimate;
mod faults;
mod filled;
mod leaf_hints;
mod limits;
mod long_keys;
mod model;
mod prefetch;
mod read_ahead;
mod sparse;
mod stale;
