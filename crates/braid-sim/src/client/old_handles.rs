//! Calls that reach a database after it was closed, through handles of every kind.

use std::time::Duration;

use braid::{Bytes, Error};

use super::{Client, Next};

impl Client {
    /// Calls functions that the rest of the plan may not use, on a database that may be closed
    /// meanwhile.
    pub(super) fn exercise(&mut self) -> Next {
        match self.rng.u32(..5) {
            0 => {
                let copied = self.background.copies.make_of_any_round(&self.db);
                self.or_failed(copied)
            }
            1 => {
                let feed = self.db.feed("left over");
                let acknowledged = feed.and_then(|feed| {
                    self.linger();
                    feed.acknowledge(self.db.position())
                });
                self.or_failed(acknowledged)
            }
            2 => {
                let changes = self.db.changes(self.db.position());
                let next = changes.and_then(|mut changes| {
                    let time = Duration::from_micros(self.rng.u64(1..500));
                    changes.next_within(time)
                });
                match next {
                    // The database keeps log only for feeds.
                    Err(Error::PositionLost { .. }) => Next::Go,
                    next => self.or_failed(next),
                }
            }
            3 => self.compact(),
            _ => self.load_in_vain(),
        }
    }

    /// Starts a bulk load that is dropped before its table has a name.
    fn load_in_vain(&mut self) -> Next {
        let name = format!("left-{}", self.next_name());
        let mut load = || {
            let mut loader = self.db.bulk_load::<u64, Bytes>(&name)?;
            for key in 0..self.rng.u64(1..600) {
                loader.insert(&key, &[7; 300][..])?;
                if key % 64 == 0 {
                    braid_rt::sleep(Duration::from_micros(self.rng.u64(1..60)));
                }
            }
            Ok(())
        };
        let loaded = load();
        self.or_failed(loaded)
    }
}
