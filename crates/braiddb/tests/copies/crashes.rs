//! Backups and the feed through crashes of the simulated device.

use std::sync::Arc;

use braid::changes::ChangeSet;
use braid::device::MemoryDevice;
use braid::{Database, Error, Protocol};
use braid_io::SimDevice;

use super::model::{Model, Writes, contents, small, small_restore, tables, writes};

struct History {
    seed: u64,
    rng: fastrand::Rng,
    device: SimDevice,
    protocol: Protocol,
    model: Model,
    /// All transactions that a consumer was shown.
    shown: Vec<(u64, Writes)>,
    backups: Vec<(u64, Vec<u8>)>,
    /// Number of backups that were restored.
    restored: usize,
}

impl History {
    fn open(&self) -> Result<Database, Error> {
        let several = self.protocol.forced_strands().is_none();
        Database::builder()
            .background_threads(false)
            .pool_bytes(1 << 20)
            .segment_bytes(128 << 10)
            .strands(if several { 3 } else { 1 })
            .lanes(if several { 2 } else { 1 })
            .protocol(self.protocol)
            .open_on(Arc::new(self.device.clone()))
    }

    /// Writes, reads the feed and makes backups until power fails.
    fn round(&mut self, db: &Database) -> Result<(), Error> {
        let tables = tables(db)?;
        let feed = db.feed("consumer")?;
        let mut changes = feed.changes()?;
        for _ in 0..self.rng.u32(5..60) {
            let mut rng = self.rng.fork();
            let model = &self.model;
            // Another thread uses another strand.
            std::thread::scope(|scope| {
                let work = scope.spawn(|| model.transfer(db, &tables, &mut rng));
                work.join().unwrap()
            })?;
            match self.rng.u8(..12) {
                0 => db.checkpoint()?,
                1 => {
                    let mut stream = Vec::new();
                    let number = db.backup_to(&mut stream)?.seqno;
                    self.backups.push((number, stream));
                }
                2..6 => {
                    for set in changes.by_ref() {
                        let set: ChangeSet = set?;
                        self.shown.push((set.seqno, writes(&set)));
                        if self.rng.u8(..10) == 0 {
                            feed.acknowledge(set.position)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&mut self) {
        let db = self.open().unwrap();
        db.open_table::<u64, u64>("extras").unwrap();
        db.feed("consumer").unwrap();
        self.model.begin(&db).unwrap();
        drop(db);
        for _ in 0..5 {
            let db = self.open().unwrap();
            self.device.crash_after(self.rng.u64(1..400));
            let _ = self.round(&db);
            drop(db);
            self.device = self.device.after_crash();
            let db = self.open().unwrap();
            self.check(&db);
            drop(db);
            self.device = self.device.after_kill();
        }
    }

    fn check(&mut self, db: &Database) {
        let seed = self.seed;
        // The transactions that recovery kept, from the feed. Its acknowledged position is one that
        // was shown.
        let feed = db.feed("consumer").unwrap();
        let acknowledged = feed.position().unwrap().seqno();
        let mut changes = feed.changes().unwrap();
        let kept: Vec<(u64, Writes)> = changes
            .by_ref()
            .map(|set| set.map(|set| (set.seqno, writes(&set))).unwrap())
            .collect();
        // Transactions that were shown still exist, unchanged.
        let again: Vec<_> = self
            .shown
            .iter()
            .filter(|set| set.0 > acknowledged)
            .cloned()
            .collect();
        let mut again_once = again.clone();
        again_once.sort();
        again_once.dedup();
        assert!(
            kept.starts_with(&again_once),
            "seed {seed}: what was shown changed"
        );
        // The shown and the kept transactions make up the whole state: none is skipped.
        let mut all: std::collections::BTreeMap<u64, Writes> = self.shown.iter().cloned().collect();
        all.extend(kept.iter().cloned());
        let mut commits = self.model.commits.lock().unwrap();
        for (number, writes) in &all {
            let mut noted = commits.get(number).cloned().unwrap_or_else(|| {
                // Its outcome was unknown when the power failed.
                commits.insert(*number, writes.clone());
                writes.clone()
            });
            noted.sort_unstable();
            assert!(noted == *writes, "seed {seed}: number {number}");
        }
        // A transaction that is not shown did not happen.
        commits.retain(|number, _| all.contains_key(number));
        drop(commits);
        let state = self.model.state_at(u64::MAX);
        let found = contents(db, &tables(db).unwrap());
        assert!(
            found == state,
            "seed {seed}: the feed and the tables differ"
        );
        self.shown
            .extend(kept.into_iter().filter(|set| !again_once.contains(set)));
        let last = db.durable_seqno();
        for (number, stream) in self.backups.drain(..) {
            self.restored += 1;
            assert!(number <= last, "seed {seed}: a backup of what was lost");
            let device = Arc::new(MemoryDevice::new());
            let restore = small_restore().stream(&stream[..]);
            assert_eq!(restore.run_on(device.clone()).unwrap().seqno, number);
            let builder = small().segment_bytes(256 << 10);
            let restored = builder.open_on(device).unwrap();
            let found = contents(&restored, &tables(&restored).unwrap());
            assert!(
                found == self.model.state_at(number),
                "seed {seed}: the backup at {number}"
            );
        }
    }
}

#[test]
fn feeds_and_backups_survive_crashes() {
    let fixed = std::env::var("BRAID_SEED").ok();
    let fixed = fixed.map(|seed| seed.parse().expect("a number"));
    let most = std::env::var("BRAID_HISTORIES").ok();
    let most = most.map_or(25, |most| most.parse().expect("a number"));
    let seeds = fixed.map_or(0..most, |seed: u64| seed..seed + 1);
    let (mut shown, mut restored) = (0, 0);
    for seed in seeds {
        for &protocol in Protocol::ALL {
            let mut history = History {
                seed,
                rng: fastrand::Rng::with_seed(seed),
                device: SimDevice::new(seed),
                protocol,
                model: Model::default(),
                shown: Vec::new(),
                backups: Vec::new(),
                restored: 0,
            };
            let run = std::panic::AssertUnwindSafe(|| history.run());
            if let Err(cause) = std::panic::catch_unwind(run) {
                eprintln!("the history of BRAID_SEED={seed} with {protocol} failed");
                std::panic::resume_unwind(cause);
            }
            shown += history.shown.len();
            restored += history.restored;
        }
    }
    let enough = shown > 500 && restored > 20;
    assert!(fixed.is_some() || most < 25 || enough, "{shown} {restored}");
}
