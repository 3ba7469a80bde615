//! The tests of the database that need no process of their own, as one program: it is compiled and
//! linked once.

mod backpressure;
mod batches;
mod bulk;
mod close;
mod compact;
mod copies;
mod crash;
mod damage;
mod durability;
mod examples;
mod faults;
mod foreign_objects;
mod in_place;
mod ingest;
mod killed;
mod large_values;
mod limits;
mod locks;
mod log_directory;
mod long_keys;
mod named_snapshots;
mod openings;
mod panics;
mod pmem;
mod protocols;
mod read_only;
mod readers;
mod salvage;
mod savepoints;
mod table_options;
mod transact_async;
mod transactions;
mod upgrade;
mod version_limit;
mod volume;
