//! TPC-B: debits and credits of accounts, with sums of tellers and branches (the standard's clause
//! 1.2, without its terminals and rules for publication).

use fastrand::Rng;

use crate::driver::{Check, Client, Driver, Step};
use crate::engines::{Abilities, KvEngine, Stop, TableId, Transaction};
use crate::ledger::{Entry, Ledger};
use crate::load::{self, CATALOGUE};
use crate::sum::{balance, fold};
use crate::{BenchError, LoadProgress, Spec};

const BRANCH: TableId = 0;
const TELLER: TableId = 1;
const ACCOUNT: TableId = 2;
const HISTORY: TableId = 3;
const LOADS: TableId = 4;

/// Number of tellers of a branch (clause 4.2).
const TELLERS: u32 = 10;

/// Default number of accounts of a branch (clause 4.2).
pub(crate) const ACCOUNTS: u64 = 100_000;

/// Size of a row, including its key (clause 4.2.2), and of a row of history.
const ROW: usize = 100;
const HISTORY_ROW: usize = 50;

pub(crate) struct Tpcb {
    branches: u32,
    /// Number of accounts of a branch.
    accounts: u32,
    origins: load::Origins,
    ledger: Ledger,
}

impl Tpcb {
    pub(crate) fn new(spec: &Spec) -> Self {
        Tpcb {
            branches: spec.scale,
            accounts: spec.records.try_into().unwrap_or(u32::MAX),
            origins: load::Origins::default(),
            ledger: Ledger::new(spec.threads),
        }
    }

    fn data(&self) -> String {
        format!("tpcb-{}-{}", self.branches, self.accounts)
    }

    fn history(engine: &dyn KvEngine) -> Result<(u64, i64), BenchError> {
        fold(engine, HISTORY, "history", (0, 0), |(rows, sum), row| {
            Some((rows + 1, sum + balance(row)?))
        })
    }
}

impl Driver for Tpcb {
    fn name(&self) -> &str {
        "tpcb"
    }

    fn describe(&self) -> String {
        format!("{} branches of {} accounts", self.branches, self.accounts)
    }

    fn tables(&self) -> Vec<String> {
        let data = self.data();
        let own = ["branch", "teller", "account", "history"].map(|name| format!("{data}-{name}"));
        own.into_iter().chain([CATALOGUE.to_owned()]).collect()
    }

    fn needs(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn load(
        &self,
        engine: &dyn KvEngine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<u64, BenchError> {
        let rows = u64::from(self.branches) * u64::from(self.accounts);
        let loaded = load::once(engine, LOADS, &self.data(), rows, progress, |loader| {
            let accounts: Vec<u32> = (0..self.branches * self.accounts).collect();
            loader.batch(0, &mut |tx| {
                for branch in 0..self.branches {
                    put(tx, BRANCH, branch, 0)?;
                }
                (0..self.branches * TELLERS).try_for_each(|teller| put(tx, TELLER, teller, 0))
            })?;
            for batch in accounts.chunks(load::batch(ROW)) {
                loader.batch(batch.len() as u64, &mut |tx| {
                    batch.iter().try_for_each(|&n| put(tx, ACCOUNT, n, 0))
                })?;
            }
            Ok(())
        })?;
        self.origins.begin(engine, LOADS, &self.data())?;
        Ok(loaded)
    }

    fn client(&self, thread: usize, seed: u64) -> Box<dyn Client + '_> {
        let (driver, client) = self.origins.client();
        Box::new(TpcbClient {
            rng: Rng::with_seed(seed),
            tpcb: self,
            history: (driver, client, 0),
            input: [0; 3],
            delta: 0,
            entry: self.ledger.entry(thread),
        })
    }

    fn check(&self, engine: &dyn KvEngine) -> Result<Vec<Check>, BenchError> {
        let sum = |table, name| fold(engine, table, name, 0, |sum, row| Some(sum + balance(row)?));
        let branches = sum(BRANCH, "branch")?;
        let (_, deltas) = Self::history(engine)?;
        Ok(vec![
            Check::equal(
                "the tellers have what the branches have",
                sum(TELLER, "teller")?,
                branches,
            ),
            Check::equal(
                "the accounts have what the branches have",
                sum(ACCOUNT, "account")?,
                branches,
            ),
            Check::equal("the history makes what the branches have", deltas, branches),
        ])
    }

    fn acknowledged(&self) -> u64 {
        self.ledger.acknowledged()
    }

    fn present(&self, engine: &dyn KvEngine) -> Result<Option<u64>, BenchError> {
        Self::history(engine).map(|(rows, _)| Some(rows))
    }
}

/// Writes a row: the balance, padded to the standard's length.
fn put(tx: &mut dyn Transaction, table: TableId, key: u32, balance: i64) -> Result<(), Stop> {
    let mut row = [b' '; ROW - 4];
    row[..8].copy_from_slice(&balance.to_le_bytes());
    tx.put(table, &key.to_be_bytes(), &row)
}

struct TpcbClient<'a> {
    rng: Rng,
    tpcb: &'a Tpcb,
    /// Run, client and number: the key of the next row of history.
    history: (u32, u32, u32),
    /// Account, teller and branch.
    input: [u32; 3],
    delta: i64,
    entry: Entry<'a>,
}

impl Client for TpcbClient<'_> {
    fn draw(&mut self) -> Option<Step> {
        let Tpcb {
            branches, accounts, ..
        } = *self.tpcb;
        // A teller determines the branch; in 85 %, the account belongs to that branch (clause
        // 5.3.5).
        let teller = self.rng.u32(0..branches * TELLERS);
        let branch = teller / TELLERS;
        let home = if branches > 1 && self.rng.u8(0..100) >= 85 {
            let other = self.rng.u32(0..branches - 1);
            other + u32::from(other >= branch)
        } else {
            branch
        };
        let account = home * accounts + self.rng.u32(0..accounts);
        self.input = [account, teller, branch];
        self.delta = self.rng.i64(-999_999..=999_999);
        self.history.2 += 1;
        Some(Step {
            token: 1,
            ..Step::write(3 * ROW + HISTORY_ROW)
        })
    }

    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        let [account, teller, branch] = self.input;
        // The branch, which most transactions need, is last.
        let rows = [(ACCOUNT, account), (TELLER, teller), (BRANCH, branch)];
        if tx.reads_by_message() {
            for (table, key) in rows {
                tx.prefetch(table, &[&key.to_be_bytes()])?;
            }
        }
        for (table, key) in rows {
            let mut old = None;
            tx.get_for_update(table, &key.to_be_bytes(), &mut |row| old = balance(row))?;
            let old = old.ok_or(Stop::Failed(BenchError::Row { table: "tpcb" }))?;
            put(tx, table, key, old + self.delta)?;
        }
        let mut key = [0; 12];
        let (run, client, number) = self.history;
        for (part, n) in key.chunks_exact_mut(4).zip([run, client, number]) {
            part.copy_from_slice(&n.to_be_bytes());
        }
        let mut row = [b' '; HISTORY_ROW - 12];
        row[..8].copy_from_slice(&self.delta.to_le_bytes());
        for (part, n) in row[8..20].chunks_exact_mut(4).zip(self.input) {
            part.copy_from_slice(&n.to_le_bytes());
        }
        tx.put(HISTORY, &key, &row)
    }

    fn acknowledged(&mut self, token: u64) {
        self.entry.add(token);
    }
}
