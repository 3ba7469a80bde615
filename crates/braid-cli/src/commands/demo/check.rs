//! Compares a recovered database with the transfers acknowledged before the crash.

use std::collections::BTreeMap;

use braid::{Database, Readable};

use super::bank::{Bank, INITIAL_BALANCE, Transfer};
use crate::failure::Failure;

/// Maximum number of violations that are listed; the rest are only counted.
const MAX_LISTED: usize = 20;

/// Result of a check.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Number of transfers in the ledger.
    pub(super) transfers: u64,
    /// Number of these that had been acknowledged.
    pub(super) acknowledged: u64,
    /// Descriptions of violations; at most [`MAX_LISTED`].
    pub(super) violations: Vec<String>,
    /// Number of violations.
    pub(super) count: u64,
}

impl Findings {
    fn violation(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.violations.len() < MAX_LISTED {
            self.violations.push(text());
        }
    }
}

/// Checks the whole database in one snapshot.
///
/// `acknowledged` contains for each thread the newest transfer known to be durable. The ledger must
/// contain each thread's transfers from 1 to its counter without a gap. The counter must not be
/// below the acknowledged number. Every balance must be the initial one plus the effects of the
/// ledger. So no acknowledged transfer is lost, and no transfer is half done or doubled.
pub(super) fn check(
    db: &Database,
    bank: &Bank,
    accounts: u32,
    acknowledged: &[u64],
) -> Result<Findings, Failure> {
    let snapshot = db.snapshot();
    let mut findings = Findings::default();
    let mut wanted = vec![INITIAL_BALANCE; accounts as usize];
    let mut newest: BTreeMap<u32, u64> = BTreeMap::new();

    for record in snapshot.iter(&bank.ledger)? {
        let (key, value) = record?;
        let transfer = Transfer::decode(&key, &value);
        let last = newest.entry(transfer.thread).or_insert(0);
        if transfer.sequence != *last + 1 {
            let (thread, first, end) = (transfer.thread, *last + 1, transfer.sequence);
            findings.violation(|| {
                format!(
                    "thread {thread}: transfers {first} up to {end} are missing from the ledger"
                )
            });
        }
        *last = transfer.sequence;
        findings.transfers += 1;
        for (account, change) in [
            (transfer.from, -transfer.amount),
            (transfer.to, transfer.amount),
        ] {
            match wanted.get_mut(account as usize) {
                Some(balance) => *balance += change,
                None => findings.violation(|| format!("{transfer:?} names an unknown account")),
            }
        }
    }

    check_counters(&snapshot, bank, acknowledged, &newest, &mut findings)?;
    check_balances(&snapshot, bank, &wanted, &mut findings)?;
    Ok(findings)
}

fn check_counters(
    snapshot: &impl Readable,
    bank: &Bank,
    acknowledged: &[u64],
    newest: &BTreeMap<u32, u64>,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let mut counters: BTreeMap<u32, u64> = BTreeMap::new();
    for record in snapshot.iter(&bank.counters)? {
        let (thread, counter) = record?;
        counters.insert(thread, counter);
    }
    for (thread, &entered) in newest {
        let counter = counters.get(thread).copied().unwrap_or(0);
        if counter != entered {
            findings.violation(|| {
                format!("thread {thread}: its counter says {counter}, the ledger ends at {entered}")
            });
        }
    }
    for (&thread, &counter) in &counters {
        if counter > 0 && !newest.contains_key(&thread) {
            findings.violation(|| {
                format!("thread {thread}: its counter says {counter}, the ledger has nothing")
            });
        }
    }
    for (thread, &promised) in acknowledged.iter().enumerate() {
        let entered = u32::try_from(thread)
            .ok()
            .and_then(|t| newest.get(&t))
            .copied()
            .unwrap_or(0);
        findings.acknowledged += promised;
        if entered < promised {
            findings.violation(|| {
                format!(
                    "thread {thread}: transfers {} to {promised} were acknowledged and are lost",
                    entered + 1
                )
            });
        }
    }
    Ok(())
}

fn check_balances(
    snapshot: &impl Readable,
    bank: &Bank,
    wanted: &[i64],
    findings: &mut Findings,
) -> Result<(), Failure> {
    let mut sum = 0;
    let mut seen = 0_usize;
    for table in &bank.accounts {
        for record in snapshot.iter(table)? {
            let (account, balance) = record?;
            sum += balance;
            seen += 1;
            match wanted.get(account as usize) {
                Some(&right) if right == balance => {}
                Some(&right) => findings.violation(|| {
                    format!("account {account} holds {balance}, its transfers add up to {right}")
                }),
                None => findings.violation(|| format!("account {account} was never opened")),
            }
            if balance < 0 {
                findings.violation(|| format!("account {account} is overdrawn: {balance}"));
            }
        }
    }
    if seen != wanted.len() {
        findings.violation(|| format!("{seen} accounts of {} exist", wanted.len()));
    }
    let right = INITIAL_BALANCE * wanted.len() as i64;
    if sum != right {
        findings.violation(|| format!("the balances add up to {sum} instead of {right}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::demo::bank;
    use braid::Protocol;
    use braid::device::DeviceChoice;

    use crate::commands::log_place::LogPlaceArgs;
    use fastrand::Rng;

    const ACCOUNTS: u32 = 10;

    /// Checks a bank with five transfers of each of two threads, after `damage` has changed it.
    fn findings(
        acknowledged: &[u64],
        damage: impl FnOnce(&Bank, &mut braid::Transaction),
    ) -> Findings {
        let dir = tempfile::tempdir().unwrap();
        let db = bank::open(
            dir.path(),
            true,
            Protocol::Glsn,
            DeviceChoice::Memory,
            &LogPlaceArgs::default(),
            |_| (),
        )
        .unwrap();
        let bank = Bank::open(&db).unwrap();
        bank.create_accounts(&db, ACCOUNTS).unwrap();
        let mut rng = Rng::with_seed(9);
        for sequence in 1..=5 {
            for thread in 0..2 {
                let draft = bank::draw(&mut rng, ACCOUNTS, thread, sequence, 0);
                let mut tx = db.begin();
                bank.transfer(&mut tx, &draft).unwrap().unwrap();
                tx.commit().unwrap();
            }
        }
        let mut tx = db.begin();
        damage(&bank, &mut tx);
        tx.commit().unwrap();
        check(&db, &bank, ACCOUNTS, acknowledged).unwrap()
    }

    fn entry(thread: u32, sequence: u64) -> Transfer {
        Transfer {
            thread,
            sequence,
            epoch: 0,
            from: 1,
            to: 2,
            amount: 3,
        }
    }

    #[test]
    fn a_right_bank_passes() {
        let found = findings(&[5, 4], |_, _| ());
        assert_eq!(found.violations, Vec::<String>::new());
        assert_eq!(
            (found.transfers, found.acknowledged, found.count),
            (10, 9, 0)
        );
    }

    #[test]
    fn every_violation_is_found() {
        let lost = findings(&[5, 6], |_, _| ());
        assert!(
            lost.violations[0].contains("6 to 6 were acknowledged and are lost"),
            "{lost:?}"
        );

        let gap = findings(&[5, 5], |bank, tx| {
            tx.remove(&bank.ledger, &entry(1, 3).key()).unwrap();
        });
        assert!(
            gap.violations[0].contains("thread 1: transfers 3 up to 4"),
            "{gap:?}"
        );
        assert!(gap.count >= 3, "the balances are wrong too: {gap:?}");

        let tail = findings(&[4, 5], |bank, tx| {
            tx.remove(&bank.ledger, &entry(0, 5).key()).unwrap();
        });
        assert!(
            tail.violations[0].contains("counter says 5, the ledger ends at 4"),
            "{tail:?}"
        );

        let half = findings(&[5, 5], |bank, tx| {
            tx.fetch_update(bank.accounts_with(4), &4, |old| {
                old.map(|balance| balance + 1)
            })
            .unwrap();
        });
        assert!(
            half.violations[0].starts_with("account 4 holds"),
            "{half:?}"
        );
        assert!(
            half.violations[1].starts_with("the balances add up to"),
            "{half:?}"
        );

        let doubled = findings(&[5, 5], |bank, tx| {
            let extra = entry(0, 6);
            tx.insert(&bank.ledger, &extra.key(), &extra.value())
                .unwrap();
        });
        assert!(doubled.violations[0].contains("counter says 5, the ledger ends at 6"));
        assert!(doubled.count >= 3, "{doubled:?}");

        let closed = findings(&[5, 5], |bank, tx| {
            tx.remove(bank.accounts_with(7), &7).unwrap();
        });
        assert!(
            closed.violations[0].contains("9 accounts of 10"),
            "{closed:?}"
        );

        let orphan = findings(&[5, 5], |bank, tx| {
            tx.insert(&bank.counters, &3, &8).unwrap();
        });
        assert!(
            orphan.violations[0].contains("ledger has nothing"),
            "{orphan:?}"
        );
    }
}
