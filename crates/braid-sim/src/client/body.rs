//! The reads and writes of a transaction, until it is ready to commit.

use std::collections::BTreeMap;

use braid::{Readable, Result, Transaction};

use super::Client;
use crate::keys::TableKey;
use crate::record::{Key, Op, TxId, Version};
use crate::tables::decode;

/// Longest list of writers in a value.
const LIST_MAX: usize = 5;

/// A transaction, and the operations that it has performed.
pub(super) struct Body {
    pub(super) tx: Transaction,
    pub(super) id: TxId,
    pub(super) ops: Vec<Op>,
}

impl Body {
    pub(super) fn new(tx: Transaction, id: TxId) -> Self {
        Self {
            tx,
            id,
            ops: Vec::new(),
        }
    }

    fn saw(&mut self, key: Key, version: Option<Version>) {
        self.ops.push(Op::Get(key, version));
    }

    /// Returns the versions that the transaction leaves although they are marked as intermediate.
    fn left_intermediate(&self) -> Vec<(Key, Version)> {
        let mut last: BTreeMap<Key, Option<Version>> = BTreeMap::new();
        for op in &self.ops {
            match op {
                Op::Put(key, version) => last.insert(*key, Some(version.clone())),
                Op::Remove(key) => last.insert(*key, None),
                _ => None,
            };
        }
        let last = last.into_iter();
        last.filter_map(|(key, version)| Some((key, version.filter(|v| v.intermediate)?)))
            .collect()
    }
}

impl Client {
    /// Announces keys, which the transaction may read.
    fn announce(&self, body: &Body) -> Result<()> {
        const KEYS: [Key; 3] = [0, 1, 2];
        if let Some(table) = self.tables.single() {
            return body.tx.prefetch::<TableKey, _, Key>(table, &KEYS);
        }
        KEYS.iter().try_for_each(|key| {
            let table = self.tables.of(*key);
            body.tx.prefetch::<TableKey, _, Key>(table, [key])
        })
    }

    /// Performs the operations of a transaction.
    pub(super) fn perform(&mut self, body: &mut Body) -> Result<()> {
        let begun = braid_rt::wall_clock();
        if self.plan.seesaw {
            return self.seesaw(body);
        }
        let reads_only = self.rng.u32(..6) == 0;
        let often = if self.plan.reopens { 4 } else { 16 };
        if !reads_only && self.rng.u32(..often) == 0 {
            self.many(body)?;
        }
        if body.id.is_multiple_of(4) {
            self.announce(body)?;
        }
        for _ in 0..self.rng.u32(1..6) {
            self.step(body, reads_only)?;
            if self.plan.savepoints && self.rng.u32(..3) == 0 {
                self.detour(body)?;
            }
            if self.plan.careless && self.rng.u32(..4) == 0 {
                self.stumble(&mut body.tx);
            }
            braid_rt::yield_point();
        }
        if !body.ops.iter().any(Op::is_write) {
            return Ok(());
        }
        self.write_final_versions(body)?;
        body.tx.insert(&self.tables.marks, &body.id, &b""[..])?;
        if let Some(leases) = &self.tables.leases
            && self.rng.bool()
        {
            let written = &self.background.leases;
            written.write(&mut body.tx, leases, body.id, begun)?;
        }
        Ok(())
    }

    /// Reads or writes a key, or reads a range.
    fn step(&mut self, body: &mut Body, reads_only: bool) -> Result<()> {
        match self.rng.u32(..10) {
            0..4 => body.ops.push(self.read(&body.tx)?),
            _ if reads_only => body.ops.push(self.read(&body.tx)?),
            4 => {
                let key = self.key();
                self.remove(body, key)?;
            }
            5 => {
                // Locked and not written.
                let key = self.key();
                let seen = self.get_for_update(body, key)?;
                body.saw(key, seen);
            }
            6..8 => self.append(body)?,
            _ => {
                let key = self.key();
                self.put(body, key, vec![body.id])?;
            }
        }
        Ok(())
    }

    /// Appends to the version that the transaction reads, with or without a lock from then on.
    fn append(&mut self, body: &mut Body) -> Result<()> {
        let key = self.key();
        let old = if self.rng.bool() {
            self.get_for_update(body, key)?
        } else {
            self.tables.get(&body.tx, key)?
        };
        body.saw(key, old.clone());
        let mut writers = old.map_or(Vec::new(), |version| version.writers);
        if writers.last() != Some(&body.id) {
            writers.push(body.id);
        }
        let writers = writers.split_off(writers.len().saturating_sub(LIST_MAX));
        self.put(body, key, writers)
    }

    fn get_for_update(&self, body: &mut Body, key: Key) -> Result<Option<Version>> {
        let seen = body.tx.get_for_update(self.tables.of(key), &key)?;
        Ok(seen.map(|bytes| decode(&bytes)))
    }

    fn put(&mut self, body: &mut Body, key: Key, writers: Vec<TxId>) -> Result<()> {
        let version = Version {
            writers,
            intermediate: !self.plan.seesaw && self.rng.u32(..5) == 0,
        };
        let bytes = version.encode();
        body.tx.insert(self.tables.of(key), &key, &bytes[..])?;
        body.ops.push(Op::Put(key, version));
        Ok(())
    }

    fn remove(&mut self, body: &mut Body, key: Key) -> Result<()> {
        if body.tx.remove(self.tables.of(key), &key)? {
            body.ops.push(Op::Remove(key));
        } else {
            // Removing a missing key is a read.
            body.saw(key, None);
        }
        Ok(())
    }

    /// Writes so many keys that the transaction acquires its locks in the commit.
    fn many(&mut self, body: &mut Body) -> Result<()> {
        let (first, second) = (self.key(), self.key());
        let version = Version {
            writers: vec![body.id; LIST_MAX],
            intermediate: true,
        };
        let bytes = version.encode();
        for n in 0..70 {
            let key = if n % 2 == 0 { first } else { second };
            body.tx.insert(self.tables.of(key), &key, &bytes[..])?;
        }
        self.put(body, first, vec![body.id])?;
        self.put(body, second, vec![body.id])
    }

    /// Writes, then rolls the writes back: no transaction may ever see them.
    fn detour(&mut self, body: &mut Body) -> Result<()> {
        let savepoint = body.tx.savepoint();
        for _ in 0..self.rng.u32(1..4) {
            let version = Version {
                writers: vec![body.id; LIST_MAX],
                intermediate: true,
            };
            let (key, bytes) = (self.key(), version.encode());
            body.tx.insert(self.tables.of(key), &key, &bytes[..])?;
        }
        body.tx.rollback_to(&savepoint)
    }

    /// Writes versions again that the transaction marked as intermediate and then left.
    fn write_final_versions(&mut self, body: &mut Body) -> Result<()> {
        for (key, mut version) in body.left_intermediate() {
            version.intermediate = false;
            let bytes = version.encode();
            body.tx.insert(self.tables.of(key), &key, &bytes[..])?;
            body.ops.push(Op::Put(key, version));
        }
        Ok(())
    }

    /// Key 1 is inserted with a new key 2 and removed with a new key 0. So a reader that saw key 1
    /// missing, with an old 0 and a new 2, saw a state that never existed; and a purged removal
    /// leaves no trace that could reveal this.
    fn seesaw(&mut self, body: &mut Body) -> Result<()> {
        match self.rng.u32(..6) {
            kind @ 0..3 => {
                for key in 0..3_u8 {
                    if kind == 0 && key == 1 {
                        // Validated after the other reads, whose numbers may be old by then.
                        let seen = self.tables.scan(&body.tx, 1, 2)?;
                        body.ops.push(Op::Scan(1, 2, seen));
                        continue;
                    }
                    let seen = self.tables.get(&body.tx, key)?;
                    body.saw(key, seen);
                    braid_rt::yield_point();
                }
                return Ok(());
            }
            3 => {
                self.put(body, 1, vec![body.id])?;
                self.put(body, 2, vec![body.id])?;
            }
            _ => {
                self.put(body, 0, vec![body.id])?;
                self.remove(body, 1)?;
            }
        }
        let marks = &self.tables.marks;
        body.tx.insert(marks, &body.id, &b""[..]).map(drop)
    }
}
