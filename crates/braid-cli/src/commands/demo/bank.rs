//! The bank of the demo: its tables and its one kind of transaction.

use braid::device::DeviceChoice;
use braid::stats::RecoveryProgress;
use braid::tablespace::TablespaceOptions;
use braid::{Database, Protocol, Table, Transaction};
use fastrand::Rng;

use crate::commands::log_place::LogPlaceArgs;
use crate::failure::Failure;

/// Initial balance of each account.
pub(super) const INITIAL_BALANCE: i64 = 1_000;

/// Maximum amount of one transfer.
const MAX_AMOUNT: i64 = 100;

/// The tables; handles are cheap to clone.
#[derive(Clone)]
pub(super) struct Bank {
    /// Account number to balance: a table, or one in each tablespace, which have the accounts in turn.
    pub(super) accounts: Vec<Table<u32, i64>>,
    /// One record for each transfer, by [`Transfer::key`].
    pub(super) ledger: Table<[u8; 12], [u8; 20]>,
    /// Thread number to the thread's last transfer number.
    pub(super) counters: Table<u32, u64>,
}

/// A ledger record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    /// The thread that made the transfer. After a crash, new threads get new numbers.
    pub(super) thread: u32,
    /// Number of the transfer within its thread, from 1 without gaps.
    pub(super) sequence: u64,
    /// Number of workers that were started before.
    pub(super) epoch: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) amount: i64,
}

impl Transfer {
    /// Returns the ledger key: thread, then sequence, encoded so that scans return this order.
    pub(super) fn key(&self) -> [u8; 12] {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.thread.to_be_bytes());
        key[4..].copy_from_slice(&self.sequence.to_be_bytes());
        key
    }

    pub(super) fn value(&self) -> [u8; 20] {
        let mut value = [0; 20];
        value[..4].copy_from_slice(&self.epoch.to_be_bytes());
        value[4..8].copy_from_slice(&self.from.to_be_bytes());
        value[8..12].copy_from_slice(&self.to.to_be_bytes());
        value[12..].copy_from_slice(&self.amount.to_be_bytes());
        value
    }

    pub(super) fn decode(key: &[u8; 12], value: &[u8; 20]) -> Self {
        let word = |bytes: &[u8], at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |bytes: &[u8], at: usize| {
            (u64::from(word(bytes, at)) << 32) | u64::from(word(bytes, at + 4))
        };
        Transfer {
            thread: word(key, 0),
            sequence: long(key, 4),
            epoch: word(value, 0),
            from: word(value, 4),
            to: word(value, 8),
            amount: long(value, 12).cast_signed(),
        }
    }
}

/// Opens the demo's database, which is created only if `create` is true: an interrupted demo removes
/// its directory, and a worker that starts meanwhile must not create it once more.
pub(super) fn open(
    dir: &std::path::Path,
    create: bool,
    protocol: Protocol,
    device: DeviceChoice,
    log: &LogPlaceArgs,
    progress: impl Fn(&RecoveryProgress) + Send + Sync + 'static,
) -> Result<Database, Failure> {
    let builder = Database::builder()
        .protocol(protocol)
        .device(device)
        .create_if_missing(create)
        .recovery_progress(progress);
    Ok(log.apply(builder).open(dir)?)
}

/// Creates tablespaces with logs of their own in the database's directory; on a machine with several
/// memory nodes, each is bound to one, in turn. The logs begin with the next opening.
pub(super) fn create_tablespaces(
    db: &Database,
    dir: &std::path::Path,
    tablespaces: u8,
) -> Result<(), Failure> {
    let nodes: Vec<usize> = db.placement().iter().map(|node| node.node).collect();
    for part in 0..tablespaces {
        let name = format!("part-{part:02}");
        let mut options = TablespaceOptions::in_directory(dir.join(&name)).own_log(true);
        if nodes.len() > 1 {
            options = options.memory_node(nodes[usize::from(part) % nodes.len()]);
        }
        db.create_tablespace(&name, options)?;
    }
    Ok(())
}

impl Bank {
    pub(super) fn open(db: &Database) -> Result<Self, Failure> {
        let mut names = db.tablespace_names();
        names.sort();
        let in_space = |name: &String| {
            db.open_table_in(name, &format!("accounts in {name}"), Default::default())
        };
        let mut accounts = names.iter().map(in_space).collect::<Result<Vec<_>, _>>()?;
        if accounts.is_empty() {
            accounts.push(db.open_table("accounts")?);
        }
        Ok(Bank {
            accounts,
            ledger: db.open_table("ledger")?,
            counters: db.open_table("counters")?,
        })
    }

    /// Returns the table that has an account.
    pub(super) fn accounts_with(&self, account: u32) -> &Table<u32, i64> {
        &self.accounts[account as usize % self.accounts.len()]
    }

    /// Creates the accounts, all in one transaction.
    pub(super) fn create_accounts(&self, db: &Database, accounts: u32) -> Result<(), Failure> {
        let mut tx = db.begin();
        for account in 0..accounts {
            tx.insert(self.accounts_with(account), &account, &INITIAL_BALANCE)?;
        }
        tx.commit()?;
        Ok(())
    }

    /// Makes one transfer in `tx` and records it in the ledger.
    ///
    /// The inner error says that the database returned a state that no serial execution could have
    /// left.
    pub(super) fn transfer(
        &self,
        tx: &mut Transaction,
        draft: &Transfer,
    ) -> braid::Result<Result<(), String>> {
        let (thread, sequence) = (draft.thread, draft.sequence);
        let last = tx.get_for_update(&self.counters, &thread)?.unwrap_or(0);
        if last + 1 != sequence {
            return Ok(Err(format!(
                "thread {thread} is at transfer {sequence}, but its counter says {last}"
            )));
        }
        let (from, to) = (self.accounts_with(draft.from), self.accounts_with(draft.to));
        let Some(source) = tx.get_for_update(from, &draft.from)? else {
            return Ok(Err(format!("account {} is missing", draft.from)));
        };
        let Some(target) = tx.get_for_update(to, &draft.to)? else {
            return Ok(Err(format!("account {} is missing", draft.to)));
        };
        // No account is overdrawn: a transfer from an empty account moves nothing, and the ledger
        // says so.
        let amount = draft.amount.min(source);
        tx.insert(from, &draft.from, &(source - amount))?;
        tx.insert(to, &draft.to, &(target + amount))?;
        let entry = Transfer { amount, ..*draft };
        if !tx.insert_if_absent(&self.ledger, &entry.key(), &entry.value())? {
            return Ok(Err(format!(
                "transfer {sequence} of thread {thread} exists already"
            )));
        }
        tx.insert(&self.counters, &thread, &sequence)?;
        Ok(Ok(()))
    }
}

/// Draws two different accounts (there are at least two) and an amount.
pub(super) fn draw(
    rng: &mut Rng,
    accounts: u32,
    thread: u32,
    sequence: u64,
    epoch: u32,
) -> Transfer {
    let from = rng.u32(0..accounts);
    let to = (from + rng.u32(1..accounts)) % accounts;
    Transfer {
        thread,
        sequence,
        epoch,
        from,
        to,
        amount: rng.i64(1..=MAX_AMOUNT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_records_keep_everything_and_sort_by_thread_and_sequence() {
        let mut rng = Rng::with_seed(1);
        let mut last = [0; 12];
        for thread in 0..3 {
            for sequence in [1, 2, 255, 256, 1 << 40] {
                let transfer = draw(&mut rng, 10, thread, sequence, 7);
                assert_ne!(transfer.from, transfer.to);
                assert!((1..=MAX_AMOUNT).contains(&transfer.amount));
                let key = transfer.key();
                assert_eq!(Transfer::decode(&key, &transfer.value()), transfer);
                assert!(key > last);
                last = key;
            }
        }
    }
}
