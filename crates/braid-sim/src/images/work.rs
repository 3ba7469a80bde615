//! Transactions whose effects are known, and the check of a database that performed them.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid::{
    Builder, Bytes, Database, Error, Protocol, Readable, Result, Snapshot, Table, Transaction,
};
use braid_io::VolumeDevice;
use braid_nvme::volume::FormatOptions;
use braid_nvme::{Blocking, Drive, Volume};
use fastrand::Rng;

/// Number of threads that perform transactions.
pub const THREADS: usize = 3;

/// A number of transactions of each thread.
pub type Counts = [u64; THREADS];

/// Name of the database on the volume.
pub(super) const NAME: &str = "db";

/// Keys of each thread.
const KEYS: u64 = 12;

const ACCOUNTS: u64 = 6;
/// Balance of each account at the start.
const BALANCE: u64 = 1000;

/// Transactions of several threads on a database, as a seed determines.
///
/// Each thread writes and removes keys of its own, and counts its transactions; it also moves amounts
/// between accounts that all threads share, and stores the counts of other threads that it has read.
/// So after a failure the counts determine the contents.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    seed: u64,
}

/// The tables.
#[derive(Clone)]
pub struct Tables {
    records: Table<u64, Bytes>,
    counts: Table<u64, Bytes>,
    accounts: Table<u64, u64>,
}

impl Tables {
    /// Opens the tables, and creates those that are missing.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub fn open(db: &Database) -> Result<Self> {
        Ok(Self {
            records: db.open_table("records")?,
            counts: db.open_table("counts")?,
            accounts: db.open_table("accounts")?,
        })
    }

    /// Reads all entries.
    ///
    /// # Errors
    ///
    /// The first error of a read.
    pub fn read_all(&self, snapshot: &Snapshot) -> Result<()> {
        snapshot
            .iter(&self.records)?
            .try_for_each(|e| e.map(drop))?;
        snapshot.iter(&self.counts)?.try_for_each(|e| e.map(drop))?;
        snapshot.iter(&self.accounts)?.try_for_each(|e| e.map(drop))
    }
}

fn encode(counts: &Counts) -> Vec<u8> {
    counts.map(u64::to_le_bytes).concat()
}

/// Decodes counts; all zero if there are none.
pub(super) fn decode(bytes: &[u8]) -> Counts {
    let mut words = bytes.chunks_exact(8);
    std::array::from_fn(|_| {
        let word = words.next().map(|word| word.try_into());
        word.map_or(0, |word| u64::from_le_bytes(word.expect("eight bytes")))
    })
}

/// The value that transaction `number` stores.
fn value(key: u64, number: u64, len: usize) -> Vec<u8> {
    let words = [key, number, !number].map(u64::to_le_bytes).concat();
    words.into_iter().cycle().take(len).collect()
}

impl Work {
    /// Returns the work of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns options of the database, with the protocol that the seed selects.
    pub fn builder(&self) -> Builder {
        let protocol = Protocol::ALL[(self.seed % Protocol::ALL.len() as u64) as usize];
        let builder = Database::builder()
            .protocol(protocol)
            .pool_bytes(1 << 20)
            .segment_bytes(128 << 10)
            .discard(self.seed.is_multiple_of(3));
        if protocol.forced_strands().is_some() {
            builder
        } else {
            builder.strands(2).lanes(1 + (self.seed % 2) as usize)
        }
    }

    /// Creates a volume on a drive.
    ///
    /// # Errors
    ///
    /// The volume's error.
    pub fn format(&self, drive: Arc<dyn Drive>) -> std::io::Result<()> {
        let (unit, journal) =
            [(4096, 256), (16 << 10, 64), (64 << 10, 32)][(self.seed % 3) as usize];
        let options = FormatOptions::default().unit(unit).journal(journal << 10);
        Volume::format(Blocking::new(drive), options)?;
        Ok(())
    }

    /// Opens the volume of a drive, and returns the device of the database.
    ///
    /// # Errors
    ///
    /// The volume's error.
    pub fn device(&self, drive: Arc<dyn Drive>) -> std::io::Result<VolumeDevice> {
        VolumeDevice::new(Volume::open(Blocking::new(drive))?, NAME)
    }

    /// Opens the database on the volume of a drive, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// The database's error; [`Error::Io`] for one of the volume.
    pub fn open(&self, drive: Arc<dyn Drive>) -> Result<Database> {
        let device = self.device(drive).map_err(|source| Error::Io {
            what: "cannot open the volume".into(),
            source: Arc::new(source),
        })?;
        self.builder().open_on(Arc::new(device))
    }

    /// Fills the accounts.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub fn prepare(&self, db: &Database) -> Result<Tables> {
        let tables = Tables::open(db)?;
        db.transact(|tx| {
            (0..ACCOUNTS).try_for_each(|account| tx.insert(&tables.accounts, &account, &BALANCE))
        })?;
        Ok(tables)
    }

    fn random(&self, thread: usize, number: u64) -> Rng {
        let mut random = Rng::with_seed(self.seed);
        Rng::with_seed(random.u64(..) ^ (number << 8 | thread as u64))
    }

    /// The keys that a transaction writes, and the lengths of their values; `None` removes.
    fn writes(thread: usize, random: &mut Rng) -> Vec<(u64, Option<usize>)> {
        let count = random.u32(1..5);
        let one = |_| {
            let key = thread as u64 * 1000 + random.u64(..KEYS);
            let len = match random.u32(..16) {
                0..3 => None,
                3 => Some(random.usize(10_000..40_000)),
                _ => Some(random.usize(1..300)),
            };
            (key, len)
        };
        (0..count).map(one).collect()
    }

    /// Performs transaction `number` of a thread, without committing it. Numbers count from 1.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub fn perform(
        &self,
        tx: &mut Transaction,
        tables: &Tables,
        thread: usize,
        number: u64,
    ) -> Result<()> {
        let mut random = self.random(thread, number);
        for (key, len) in Self::writes(thread, &mut random) {
            match len {
                Some(len) => tx.insert(&tables.records, &key, &value(key, number, len))?,
                None => drop(tx.remove(&tables.records, &key)?),
            }
        }
        if random.bool() {
            let (from, to) = (random.u64(..ACCOUNTS), random.u64(..ACCOUNTS));
            let held = tx.get(&tables.accounts, &from)?.unwrap_or(0);
            let amount = random.u64(..100).min(held);
            tx.insert(&tables.accounts, &from, &(held - amount))?;
            tx.fetch_update(&tables.accounts, &to, |held| {
                Some(held.unwrap_or(0) + amount)
            })?;
        }
        let looks = random.u32(..3) == 0;
        let count = |tx: &Transaction, of: usize| {
            let stored = tx.get(&tables.counts, &(of as u64))?;
            Ok::<Counts, Error>(stored.map_or([0; THREADS], |bytes| decode(&bytes)))
        };
        let mut counts = count(tx, thread)?;
        if looks {
            for (other, seen) in counts.iter_mut().enumerate() {
                *seen = count(tx, other)?[other];
            }
        }
        counts[thread] = number;
        tx.insert(&tables.counts, &(thread as u64), &encode(&counts))
    }

    /// Checks that the database has every transaction of `acknowledged`, at most `more` later ones of
    /// each thread, each of them whole and after all on which it depends. Returns the numbers of
    /// transactions.
    ///
    /// # Errors
    ///
    /// A description of what is wrong.
    pub fn check(
        &self,
        db: &Database,
        acknowledged: &Counts,
        more: u64,
    ) -> std::result::Result<Counts, String> {
        let text = |error: Error| error.to_string();
        let tables = Tables::open(db).map_err(text)?;
        let snapshot = db.snapshot();
        let mut stored = [[0; THREADS]; THREADS];
        for (thread, counts) in stored.iter_mut().enumerate() {
            let found = snapshot
                .get(&tables.counts, &(thread as u64))
                .map_err(text)?;
            *counts = found.map_or([0; THREADS], |bytes| decode(&bytes));
        }
        let counts: Counts = std::array::from_fn(|thread| stored[thread][thread]);
        for thread in 0..THREADS {
            let (count, acknowledged) = (counts[thread], acknowledged[thread]);
            if count < acknowledged {
                return Err(format!(
                    "thread {thread} has {count} transactions, and {acknowledged} were acknowledged"
                ));
            }
            if count > acknowledged + more {
                return Err(format!(
                    "thread {thread} has {count} transactions, and {acknowledged} were acknowledged: \
                     it had not begun so many"
                ));
            }
            if let Some(other) = (0..THREADS).find(|other| stored[thread][*other] > counts[*other])
            {
                return Err(format!(
                    "transaction {count} of thread {thread} has read transaction {} of thread \
                     {other}, which is lost",
                    stored[thread][other]
                ));
            }
        }
        let mut expected = BTreeMap::new();
        for (thread, count) in counts.iter().enumerate() {
            for number in 1..=*count {
                for (key, len) in Self::writes(thread, &mut self.random(thread, number)) {
                    match len {
                        Some(len) => drop(expected.insert(key, (number, len))),
                        None => drop(expected.remove(&key)),
                    }
                }
            }
        }
        for entry in snapshot.iter(&tables.records).map_err(text)? {
            let (key, found) = entry.map_err(text)?;
            match expected.remove(&key) {
                Some((number, len)) if value(key, number, len) == *found => {}
                other => {
                    let len = found.len();
                    return Err(format!(
                        "key {key} has {len} bytes that differ from its last write {other:?} of \
                         transactions {counts:?}"
                    ));
                }
            }
        }
        if let Some((key, write)) = expected.first_key_value() {
            return Err(format!("key {key} is missing, written as {write:?}"));
        }
        let mut sum = 0;
        for entry in snapshot.iter(&tables.accounts).map_err(text)? {
            sum += entry.map_err(text)?.1;
        }
        if sum != ACCOUNTS * BALANCE {
            return Err(format!("the accounts have {sum}: a transfer is not whole"));
        }
        Ok(counts)
    }
}
