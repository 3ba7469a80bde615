//! How many pages a buffer pool loads for some mixes of accesses, counted in one thread:
//!
//! ```text
//! cargo run --release -p braid-store --example hit_rates
//! ```
//!
//! The pool has 1,024 frames. *Small* is a table of about 280 pages, *large* one of about four times the
//! pool. For each mix, a line has the loads for each access to the table named first, after a warm-up.

use std::error::Error;
use std::sync::Arc;

use braid_io::MemoryDevice;
use braid_store::{Change, Store, StoreOptions, Tree};

const POOL_BYTES: usize = 8 << 20;
const SMALL: u64 = 16_384;
const LARGE: u64 = 250_000;
const ACCESSES: u64 = 200_000;
const VALUE: [u8; 100] = [7; 100];

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Tables {
    store: Store,
    small: Tree,
    large: Tree,
    rng: fastrand::Rng,
}

impl Tables {
    fn new() -> Outcome<Self> {
        let options = StoreOptions::of_pool(POOL_BYTES);
        let store = Store::create(Arc::new(MemoryDevice::new()), options)?;
        let (small, large) = (store.tree(1)?, store.tree(2)?);
        let this = Self {
            store,
            small,
            large,
            rng: fastrand::Rng::with_seed(1),
        };
        for key in 0..LARGE {
            this.large(key)?;
        }
        for key in 0..SMALL {
            this.small(key)?;
        }
        this.checkpoint()?;
        Ok(this)
    }

    fn checkpoint(&self) -> Outcome<()> {
        let mut checkpoint = self.store.begin_checkpoint(Vec::new())?;
        checkpoint.write(&|_| ())?;
        checkpoint.publish()?;
        Ok(())
    }

    /// Writes an entry of the small table. Returns the pages loaded.
    fn small(&self, key: u64) -> Outcome<u64> {
        self.counted(|| write(&self.small, key))
    }

    fn large(&self, key: u64) -> Outcome<u64> {
        self.counted(|| write(&self.large, key))
    }

    fn read_large(&self, key: u64) -> Outcome<u64> {
        self.counted(|| {
            self.large.get(&key.to_be_bytes(), |_| true)?;
            Ok(())
        })
    }

    fn counted(&self, access: impl FnOnce() -> Outcome<()>) -> Outcome<u64> {
        let before = self.store.stats().page_loads;
        access()?;
        Ok(self.store.stats().page_loads - before)
    }
}

fn write(tree: &Tree, key: u64) -> Outcome<()> {
    let change = Change::Put {
        version: 1,
        value: &VALUE,
    };
    Ok(tree.modify(&key.to_be_bytes(), |_| (change, ()))?)
}

/// Prints the loads for each access, in the second half of the accesses.
fn measure(name: &str, mut access: impl FnMut(&mut Tables, u64) -> Outcome<u64>) -> Outcome<()> {
    let mut tables = Tables::new()?;
    let mut loads = 0;
    for step in 0..ACCESSES {
        let of_step = access(&mut tables, step)?;
        loads += if step < ACCESSES / 2 { 0 } else { of_step };
        if step % 20_000 == 0 {
            tables.checkpoint()?;
        }
    }
    let each = loads as f64 / (ACCESSES - ACCESSES / 2) as f64;
    println!("{name:54} {each:.3}");
    Ok(())
}

fn main() -> Outcome<()> {
    measure(
        "small, and four random writes to large for each",
        |tables, _| {
            for _ in 0..4 {
                tables.large(tables.rng.clone().u64(..LARGE))?;
                tables.rng.u64(..);
            }
            let key = tables.rng.u64(..SMALL);
            tables.small(key)
        },
    )?;
    measure(
        "small, and a scan of 8 pages of large for each",
        |tables, step| {
            for page in 0..8 {
                tables.read_large((step * 8 + page) * 61 % LARGE)?;
            }
            let key = tables.rng.u64(..SMALL);
            tables.small(key)
        },
    )?;
    measure("large, at random", |tables, _| {
        let key = tables.rng.u64(..LARGE);
        tables.read_large(key)
    })?;
    measure(
        "a quarter of large at random, another one later",
        |tables, step| {
            let first = step / (ACCESSES / 8) % 4 * LARGE / 4;
            let key = first + tables.rng.u64(..LARGE / 6);
            tables.read_large(key)
        },
    )?;
    measure(
        "large, four fifths of accesses to a fifth of it, twice",
        |tables, _| {
            let mut end = LARGE;
            for _ in 0..2 {
                end = if tables.rng.u8(..5) < 4 { end / 5 } else { end };
            }
            let key = tables.rng.u64(..end);
            tables.read_large(key)
        },
    )
}
