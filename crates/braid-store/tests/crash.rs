//! The state of a store after a loss of power, or a failure of the medium, at any moment.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use braid_io::{Device, SimDevice};
use braid_store::{Change, Direction, Store, StoreError, StoreOptions, Tree};
use bytes::Bytes;

/// By key: version and value.
type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// A pool so small that pages are loaded and evicted all the time.
const SMALL_POOL: StoreOptions = StoreOptions::of_pool(512 << 10);

const TREE: u32 = 5;

/// A checkpoint's state and its caller bytes.
#[derive(Clone, Debug, Default)]
struct Saved {
    meta: Vec<u8>,
    model: Model,
}

/// One store and its expected contents.
struct Run {
    seed: u64,
    rng: fastrand::Rng,
    device: SimDevice,
    store: Store,
    tree: Tree,
    model: Model,
    version: u64,
    /// The newest checkpoint whose publication succeeded.
    published: Option<Saved>,
    /// A checkpoint whose publication failed: it may be valid or not.
    doubtful: Option<Saved>,
}

fn content(tree: &Tree) -> Result<Model, StoreError> {
    let mut model = Model::new();
    let (mut from, mut position) = (Bound::Unbounded, None);
    loop {
        let lower = from.as_ref().map(|key: &Bytes| &key[..]);
        let leaf = tree.scan_leaf(
            position,
            lower,
            Bound::Unbounded,
            Direction::Forward,
            usize::MAX,
        )?;
        for record in leaf.records() {
            model.insert(
                record.key.to_vec(),
                (record.meta.version, record.value.to_vec()),
            );
        }
        match leaf.next {
            Some(next) => (from, position) = (next, leaf.position),
            None => return Ok(model),
        }
    }
}

fn findings(store: &Store) -> Vec<String> {
    let mut findings = Vec::new();
    store
        .verify(&mut |damage| findings.push(damage.what))
        .unwrap();
    findings
}

impl Run {
    fn create(seed: u64) -> Self {
        let device = SimDevice::new(seed);
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            device,
            tree: store.tree(TREE).unwrap(),
            store,
            model: Model::new(),
            version: 0,
            published: None,
            doubtful: None,
        }
    }

    fn change(&mut self, removals: u8) -> Result<(), StoreError> {
        self.version += 1;
        let key = format!("key-{:05}", self.rng.u32(..1_500)).into_bytes();
        let removal = self.rng.u8(..) < removals;
        let len = match self.rng.u8(..) {
            0..2 => self.rng.usize(2_000..40_000),
            2..60 => self.rng.usize(400..2_000),
            _ => self.rng.usize(0..300),
        };
        let value = vec![self.version as u8; len];
        let change = if removal {
            Change::Remove
        } else {
            Change::Put {
                version: self.version,
                value: &value,
            }
        };
        self.tree.modify(&key, |_| (change, ()))?;
        if removal {
            self.model.remove(&key);
        } else {
            self.model.insert(key, (self.version, value));
        }
        Ok(())
    }

    fn changes(&mut self, most: usize, removals: u8) -> Result<(), StoreError> {
        (0..self.rng.usize(..most)).try_for_each(|_| self.change(removals))
    }

    /// Takes a checkpoint with changes before, during and after it; sometimes abandons it.
    fn round(&mut self) -> Result<(), StoreError> {
        let removals = if self.rng.u8(..) < 64 { 200 } else { 50 };
        self.changes(500, removals)?;
        let saved = Saved {
            meta: format!("{}-{}", self.seed, self.version).into_bytes(),
            model: self.model.clone(),
        };
        let mut checkpoint = self.store.begin_checkpoint(saved.meta.clone())?;
        self.changes(200, removals)?;
        checkpoint.write(&|_| {})?;
        self.changes(200, removals)?;
        if self.rng.u8(..) < 40 {
            return Ok(());
        }
        self.doubtful = Some(saved);
        checkpoint.publish()?;
        self.published = self.doubtful.take();
        self.changes(100, removals)
    }

    /// Opens the store after a crash or a restart, which must be exactly the newest checkpoint.
    fn reopen(&mut self, device: SimDevice) -> bool {
        let seed = self.seed;
        let (store, meta) = match Store::open(Arc::new(device.clone()), SMALL_POOL) {
            Ok(opened) => opened,
            Err(error) => {
                assert!(self.published.is_none(), "seed {seed}: {error}");
                return false;
            }
        };
        let mut candidates = [self.published.take(), self.doubtful.take()]
            .into_iter()
            .flatten();
        let saved = candidates
            .find(|saved| saved.meta == meta)
            .unwrap_or_else(|| panic!("seed {seed}: opened at {}", meta.escape_ascii()));
        assert_eq!(findings(&store), [""; 0], "seed {seed}");
        self.tree = store.tree(TREE).unwrap();
        assert!(content(&self.tree).unwrap() == saved.model, "seed {seed}");
        self.model = saved.model.clone();
        self.published = Some(saved);
        (self.store, self.device) = (store, device);
        true
    }

    /// Checks the store immediately after a checkpoint of everything.
    fn assert_sound(&mut self) {
        let saved = Saved {
            meta: format!("{}-{}-all", self.seed, self.version).into_bytes(),
            model: self.model.clone(),
        };
        let mut checkpoint = self.store.begin_checkpoint(saved.meta.clone()).unwrap();
        checkpoint.write(&|_| {}).unwrap();
        checkpoint.publish().unwrap();
        self.published = Some(saved);
        assert_eq!(findings(&self.store), [""; 0], "seed {}", self.seed);
        assert!(
            content(&self.tree).unwrap() == self.model,
            "seed {}",
            self.seed
        );
    }
}

/// The number of seeds that a test tries; `BRAID_HISTORIES` limits it on a slow machine, such as an
/// emulated one.
fn bounded(count: u64) -> u64 {
    let most = std::env::var("BRAID_HISTORIES").ok();
    most.map_or(count, |most| count.min(most.parse().expect("a number")))
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("BRAID_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("BRAID_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..bounded(count),
    }
}

/// Crashes at a random step of changes, evictions, checkpoints and publications, several times in a
/// row.
#[test]
fn a_crash_leaves_the_newest_published_checkpoint() {
    let mut crashes = 0;
    for seed in seeds(60) {
        let mut run = Run::create(seed);
        for _ in 0..4 {
            run.device.crash_after(run.rng.u64(1..2_500));
            while !run.device.has_crashed() {
                let result = run.round();
                assert!(
                    result.is_ok() || run.device.has_crashed(),
                    "seed {seed}: {result:?}"
                );
            }
            crashes += 1;
            let left = run.device.after_crash();
            if !run.reopen(left) {
                break;
            }
        }
    }
    assert!(crashes > 0);
}

/// Every crash point of one publication, one after the other.
#[test]
fn a_crash_at_each_step_of_a_checkpoint_leaves_the_old_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for seed in seeds(4) {
        for step in 1.. {
            let mut run = Run::create(seed);
            run.device.sync_directory().unwrap();
            run.changes(400, 30).unwrap();
            let before = run.model.clone();
            let mut checkpoint = run.store.begin_checkpoint(b"old".to_vec()).unwrap();
            checkpoint.write(&|_| {}).unwrap();
            checkpoint.publish().unwrap();
            run.changes(300, 30).unwrap();
            let after = run.model.clone();
            run.device.crash_after(step);
            let result = run
                .store
                .begin_checkpoint(b"new".to_vec())
                .and_then(|mut checkpoint| {
                    run.changes(200, 30)?;
                    checkpoint.write(&|_| {})?;
                    checkpoint.publish()
                });
            let crashed = run.device.has_crashed();
            assert!(crashed || result.is_ok(), "seed {seed}, step {step}");
            let left = Arc::new(run.device.after_crash());
            let (store, meta) = Store::open(left, SMALL_POOL).unwrap();
            let expected = match &meta[..] {
                b"old" if result.is_err() => &before,
                b"new" => &after,
                meta => panic!("seed {seed}, step {step}: {}", meta.escape_ascii()),
            };
            *if meta == b"old" { &mut old } else { &mut new } += 1;
            assert_eq!(findings(&store), [""; 0], "seed {seed}, step {step}");
            let found = content(&store.tree(TREE).unwrap()).unwrap();
            assert!(found == *expected, "seed {seed}, step {step}");
            if !crashed {
                break;
            }
        }
    }
    assert!(old > 0 && new > 0, "both outcomes: {old} old, {new} new");
}

/// No block is lost or used twice, however often checkpoints are taken, abandoned and disturbed.
#[test]
fn every_block_is_accounted_for() {
    for seed in seeds(20) {
        let mut run = Run::create(seed);
        for _ in 0..12 {
            run.round().unwrap();
            run.assert_sound();
        }
    }
}

/// Checkpoints that are dropped, written or not, leave their blocks to others, also those of pages
/// that were evicted and of large values that were replaced meanwhile.
#[test]
fn abandoned_checkpoints_leave_no_blocks() {
    let device = SimDevice::new(1);
    device.sync_directory().unwrap();
    let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
    let tree = store.tree(TREE).unwrap();
    let mut version = 0;
    // More pages than the pool has room for, or a leaf of the page map. The tree keeps its shape.
    let mut change = || {
        version += 1;
        for key in 0..8_000u32 {
            let len = if key % 500 == 0 { 20_000 } else { 200 };
            let value = vec![version as u8; len];
            let change = Change::Put {
                version,
                value: &value,
            };
            tree.modify(&key.to_be_bytes(), |_| (change, ())).unwrap();
        }
    };
    let begin = || store.begin_checkpoint(Vec::new()).unwrap();
    // The second one frees what the first one replaced.
    let used = || {
        for _ in 0..2 {
            let mut checkpoint = begin();
            checkpoint.write(&|_| {}).unwrap();
            checkpoint.publish().unwrap();
        }
        assert_eq!(findings(&store), [""; 0]);
        let stats = store.stats();
        (stats.file_bytes - stats.file_free_bytes) / stats.page_size as u64
    };
    change();
    let before = used();
    for round in 0..6 {
        change();
        let mut checkpoint = begin();
        if round % 3 > 0 {
            change();
        }
        if round % 2 > 0 {
            checkpoint.write(&|_| {}).unwrap();
            change();
        }
        drop(checkpoint);
        assert_eq!(used(), before, "round {round}");
    }
    let left = Arc::new(device.after_crash());
    let (reopened, _) = Store::open(left, SMALL_POOL).unwrap();
    assert_eq!(findings(&reopened), [""; 0]);
    let reopened = content(&reopened.tree(TREE).unwrap()).unwrap();
    assert!(reopened == content(&tree).unwrap());
}

/// Writes fail occasionally; the store continues, and every published checkpoint is correct.
#[test]
fn failed_writes_cost_a_checkpoint_and_nothing_else() {
    let (mut failures, seeds) = (0, seeds(30));
    // A single history may have none, and a few histories only one.
    let count = seeds.end - seeds.start;
    let (enough, alone) = (if count < 10 { 0 } else { count / 3 }, count == 1);
    for seed in seeds {
        let mut run = Run::create(seed);
        run.device.sync_directory().unwrap();
        run.round().unwrap();
        for _ in 0..8 {
            run.device.fail_write_after(run.rng.u64(1..400));
            let result = run.round();
            failures += u64::from(result.is_err());
            if matches!(result, Err(StoreError::Poisoned { .. })) {
                break;
            }
            if result.is_err() {
                // A change that failed may have been made or not.
                let now = content(&run.tree).unwrap();
                let differing = now
                    .iter()
                    .filter(|(key, record)| run.model.get(*key) != Some(*record))
                    .count();
                assert!(differing <= 1, "seed {seed}: {differing} records differ");
                run.model = now;
            }
        }
        let left = run.device.after_crash();
        assert!(run.published.is_none() || run.reopen(left), "seed {seed}");
    }
    assert!(alone || failures > enough, "{failures} failures");
}

/// After a failed sync no checkpoint is published any more (I8), and the newest one stays.
#[test]
fn a_failed_sync_ends_checkpoints() {
    let mut failures = 0;
    for seed in seeds(30) {
        let mut run = Run::create(seed);
        run.device.sync_directory().unwrap();
        for _ in 0..run.rng.u64(1..5) {
            run.round().unwrap();
        }
        run.device.fail_sync_after(1);
        while run.round().is_ok() {}
        failures += 1;
        // The pool's pages may be lost from the medium, so only the checkpoints are checked.
        assert!(
            matches!(
                run.store.begin_checkpoint(Vec::new()),
                Err(StoreError::Poisoned { .. })
            ),
            "seed {seed}"
        );
        let left = run.device.after_crash();
        run.reopen(left);
    }
    assert!(failures > 0);
}
