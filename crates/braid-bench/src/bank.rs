//! Transfers between accounts, with adjustable contention.

use fastrand::Rng;

use crate::driver::{Check, Client, Driver, Step};
use crate::engines::{Abilities, KvEngine, Stop, TableId, Transaction};
use crate::ledger::{Entry, Ledger};
use crate::load::{self, CATALOGUE};
use crate::sum::{balance, fold};
use crate::zipf::Zipf;
use crate::{BenchError, LoadProgress, Spec};

const ACCOUNTS: TableId = 0;
const LOADS: TableId = 1;

/// Initial balance of each account.
const BEGIN: i64 = 1_000;

pub(crate) struct Bank {
    accounts: u64,
    /// Distribution of the accounts that take part.
    zipf: Zipf,
    ledger: Ledger,
}

impl Bank {
    pub(crate) fn new(spec: &Spec) -> Self {
        let hot = spec.hot.unwrap_or(spec.records).min(spec.records);
        Bank {
            accounts: spec.records,
            zipf: Zipf::new(hot, spec.zipf),
            ledger: Ledger::new(spec.threads),
        }
    }

    fn data(&self) -> String {
        format!("bank-{}", self.accounts)
    }

    /// Returns the number of accounts, the sum of their balances, and the number of their
    /// transfers.
    fn read(engine: &dyn KvEngine) -> Result<(u64, i64, u64), BenchError> {
        fold(
            engine,
            ACCOUNTS,
            "bank",
            (0, 0, 0),
            |(n, sum, parts), row| Some((n + 1, sum + balance(row)?, parts + transfers(row)?)),
        )
    }
}

/// Returns a row: the balance, and the number of transfers of the account.
fn row(balance: i64, transfers: u64) -> [u8; 16] {
    let mut row = [0; 16];
    row[..8].copy_from_slice(&balance.to_le_bytes());
    row[8..].copy_from_slice(&transfers.to_le_bytes());
    row
}

fn transfers(row: &[u8]) -> Option<u64> {
    row.get(8..)?.try_into().ok().map(u64::from_le_bytes)
}

impl Driver for Bank {
    fn name(&self) -> &str {
        "bank"
    }

    fn describe(&self) -> String {
        format!(
            "{} accounts, {} of them hot",
            self.accounts,
            self.zipf.items()
        )
    }

    fn tables(&self) -> Vec<String> {
        vec![self.data(), CATALOGUE.into()]
    }

    fn needs(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn load(
        &self,
        engine: &dyn KvEngine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<u64, BenchError> {
        let data = self.data();
        load::once(engine, LOADS, &data, self.accounts, progress, |loader| {
            let accounts: Vec<u64> = (0..self.accounts).collect();
            for batch in accounts.chunks(load::batch(24)) {
                loader.batch(batch.len() as u64, &mut |tx| {
                    (batch.iter())
                        .try_for_each(|n| tx.put(ACCOUNTS, &n.to_be_bytes(), &row(BEGIN, 0)))
                })?;
            }
            Ok(())
        })
    }

    fn client(&self, thread: usize, seed: u64) -> Box<dyn Client + '_> {
        Box::new(BankClient {
            rng: Rng::with_seed(seed),
            zipf: &self.zipf,
            accounts: [0; 2],
            amount: 0,
            entry: self.ledger.entry(thread),
        })
    }

    fn check(&self, engine: &dyn KvEngine) -> Result<Vec<Check>, BenchError> {
        let (accounts, sum, parts) = Self::read(engine)?;
        Ok(vec![
            Check::equal("no account is lost or new", accounts, self.accounts),
            Check::equal(
                "no money is lost or made",
                sum,
                self.accounts as i64 * BEGIN,
            ),
            Check::equal("both sides of every transfer are there", parts % 2, 0),
        ])
    }

    fn acknowledged(&self) -> u64 {
        self.ledger.acknowledged()
    }

    fn present(&self, engine: &dyn KvEngine) -> Result<Option<u64>, BenchError> {
        Self::read(engine).map(|(.., parts)| Some(parts / 2))
    }
}

struct BankClient<'a> {
    rng: Rng,
    zipf: &'a Zipf,
    accounts: [u64; 2],
    amount: i64,
    entry: Entry<'a>,
}

impl Client for BankClient<'_> {
    fn draw(&mut self) -> Option<Step> {
        let from = self.zipf.draw(&mut self.rng);
        let mut to = self.zipf.draw(&mut self.rng);
        if to == from {
            to = (from + 1) % self.zipf.items();
        }
        self.accounts = [from, to];
        self.amount = self.rng.i64(1..=100);
        Some(Step {
            token: 1,
            ..Step::write(2 * 24)
        })
    }

    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        let [from, to] = self.accounts;
        for (account, amount) in [(from, -self.amount), (to, self.amount)] {
            let key = account.to_be_bytes();
            let mut old = None;
            tx.get_for_update(ACCOUNTS, &key, &mut |row| {
                old = balance(row).zip(transfers(row));
            })?;
            let (balance, parts) = old.ok_or(Stop::Failed(BenchError::Row { table: "bank" }))?;
            tx.put(ACCOUNTS, &key, &row(balance + amount, parts + 1))?;
        }
        Ok(())
    }

    fn acknowledged(&mut self, token: u64) {
        self.entry.add(token);
    }
}
