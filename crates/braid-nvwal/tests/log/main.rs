//! Logs through their public interface, in simulated memory: behaviour, crashes, damage, readers.

mod basics;
mod crashes;
mod damage;
mod model;
mod readers;
