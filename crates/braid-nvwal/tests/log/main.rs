//! Logs through their public interface, in simulated memory: behaviour, crashes, damage, readers.

mod basics;
mod crashes;
mod damage;
#[cfg(unix)]
mod files;
mod model;
mod readers;
mod turns;
