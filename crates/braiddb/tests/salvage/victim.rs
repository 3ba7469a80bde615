//! A database to damage, and the outcome of salvaging it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use braid::offline::{Finding, SalvageReport, salvage};
use braid::{Builder, Database, Error, Readable, Table, Transaction};
use tempfile::TempDir;

pub(crate) const BLOCK: usize = 8192;

pub(crate) fn builder() -> Builder {
    Database::builder()
        .background_threads(false)
        .segment_bytes(64 << 10)
}

pub(crate) fn open(dir: &Path) -> Database {
    builder().open(dir).unwrap()
}

/// The values by table and key.
pub(crate) type Contents = BTreeMap<(String, Vec<u8>), Vec<u8>>;

pub(crate) fn key(i: u64) -> Vec<u8> {
    format!("key-{i:06}").into_bytes()
}

pub(crate) fn value(i: u64, round: u64) -> Vec<u8> {
    format!("value {i} of round {round} {}", "x".repeat(80)).into_bytes()
}

pub(crate) fn contents_of(db: &Database) -> Contents {
    let snapshot = db.snapshot();
    let mut contents = Contents::new();
    for name in db.table_names().unwrap() {
        let table = db.untyped_table(&name).unwrap().unwrap();
        for entry in snapshot.iter(&table).unwrap() {
            let (key, value) = entry.unwrap();
            contents.insert((name.clone(), key.to_vec()), value.to_vec());
        }
    }
    contents
}

/// A database as a kill leaves it, and its contents.
pub(crate) struct Victim {
    pub(crate) place: TempDir,
    pub(crate) contents: Contents,
    /// Its contents at the newest checkpoint.
    pub(crate) checkpointed: Contents,
}

/// Pages by tree: (number, block, is a leaf, the fences as shown).
pub(crate) type Pages = BTreeMap<u32, Vec<(u64, usize, bool, String, String)>>;

impl Victim {
    pub(crate) fn new(tables: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let live = place.path().join("live");
        let db = builder().strands(2).open(&live).unwrap();
        let handles: Vec<Table> = tables
            .iter()
            .map(|name| db.open_table(name).unwrap())
            .collect();
        for (n, table) in handles.iter().enumerate() {
            // Most of their bytes are the same, so that the pages' fences are long.
            let offset = 7 * n as u64;
            let fill = |tx: &mut Transaction| {
                (offset..offset + 3000).try_for_each(|i| tx.insert(table, &key(i), &value(i, 0)))
            };
            db.transact(fill).unwrap();
            db.transact(|tx| tx.insert(table, b"large", &vec![7; 50_000]))
                .unwrap();
            db.transact(|tx| tx.remove(table, &key(offset + 50)).map(drop))
                .unwrap();
        }
        db.checkpoint().unwrap();
        let checkpointed = contents_of(&db);
        for table in &handles {
            for i in (0..3000).step_by(97) {
                db.transact(|tx| tx.insert(table, &key(i + 100), &value(i, 1)))
                    .unwrap();
            }
            db.transact(|tx| tx.remove(table, &key(500)).map(drop))
                .unwrap();
        }
        Self::killed(place, db, checkpointed)
    }

    /// A database whose map has several leaves, with pages that were evicted repeatedly, also
    /// during and after its newest checkpoint.
    pub(crate) fn large() -> Self {
        let place = tempfile::tempdir().unwrap();
        let live = place.path().join("live");
        let builder = builder().pool_bytes(1 << 20).checkpoint_log_bytes(1 << 30);
        let db = builder.strands(2).open(&live).unwrap();
        let t: Table = db.open_table("t").unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let mut change = |count: u64, round: u64| {
            for _ in 0..count / 20 {
                let put = |tx: &mut Transaction| {
                    (0..20).try_for_each(|_| {
                        let i = rng.u64(..14_000);
                        let value = value(i, round).repeat([1, 3, 6][rng.usize(..3)]);
                        match rng.u32(..8) {
                            0 => tx.remove(&t, &key(i)).map(drop),
                            _ => tx.insert(&t, &key(i), &value),
                        }
                    })
                };
                db.transact(put).unwrap();
            }
        };
        for i in 0..10 {
            let large = vec![i as u8; 30_000];
            db.transact(|tx| tx.insert(&t, &[b"large", &key(i)[..]].concat(), &large))
                .unwrap();
        }
        for round in 0..4 {
            change(20_000, round);
            db.checkpoint().unwrap();
        }
        let checkpointed = contents_of(&db);
        change(6_000, 9);
        Self::killed(place, db, checkpointed)
    }

    /// Returns the files that a kill would leave now.
    fn killed(place: TempDir, db: Database, checkpointed: Contents) -> Self {
        let contents = contents_of(&db);
        let dir = place.path().join("victim");
        fs::create_dir(&dir).unwrap();
        for entry in fs::read_dir(place.path().join("live")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
        db.close().unwrap();
        Victim {
            place,
            contents,
            checkpointed,
        }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.place.path().join("victim")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir().join("data.braid")
    }

    pub(crate) fn pages(&self) -> Pages {
        let mut text = String::new();
        braid::offline::dump(self.dir(), &mut text).unwrap();
        let (mut pages, mut tree) = (Pages::new(), 0);
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("tree ") {
                tree = rest.split(':').next().unwrap().parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("page ") {
                let (page, rest) = rest.split_once(" at block ").unwrap();
                let (block, rest) = rest.split_once(": ").unwrap();
                let (kind, rest) = rest.split_once(", ").unwrap();
                let (_, fences) = rest.split_once(", ").unwrap();
                let (lower, upper) = fences.split_once(" .. ").unwrap();
                pages.entry(tree).or_default().push((
                    page.parse().unwrap(),
                    block.parse().unwrap(),
                    kind == "leaf",
                    lower.to_owned(),
                    upper.to_owned(),
                ));
            }
        }
        pages
    }

    pub(crate) fn root(&self, tree: u32) -> (u64, usize) {
        let (page, block, is_leaf, ..) = self.pages()[&tree][0];
        assert!(!is_leaf, "the tables are deep enough");
        (page, block)
    }

    /// The blocks whose identity has one of these bits, the newest last.
    pub(crate) fn blocks(&self, is_it: impl Fn(u64) -> bool) -> Vec<usize> {
        let bytes = fs::read(self.data()).unwrap();
        let mut found = Vec::new();
        for (block, bytes) in bytes.chunks(BLOCK).enumerate().skip(2) {
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            if bytes.len() == BLOCK && is_it(word(8)) {
                found.push((word(0) >> 32, block));
            }
        }
        found.sort();
        found.into_iter().map(|(_, block)| block).collect()
    }

    pub(crate) fn damage_block(&self, block: usize) {
        damage(&self.data(), block * BLOCK + 100, 64);
    }

    pub(crate) fn salvage(&self) -> Saved {
        self.try_salvage().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Salvages, and checks that the damaged database stays unchanged and the new one is sound.
    pub(crate) fn try_salvage(&self) -> Result<Saved, Error> {
        let before = files(&self.dir());
        let into = self.place.path().join("into");
        let _ = fs::remove_dir_all(&into);
        let mut findings = Vec::new();
        let report = salvage(self.dir(), &into, &mut |finding| findings.push(finding));
        assert_eq!(files(&self.dir()), before, "the damaged one is only read");
        let report = report?;
        let mut damages = Vec::new();
        braid::offline::verify(&into, &mut |damage| damages.push(damage)).unwrap();
        assert!(damages.is_empty(), "{damages:?}");
        let db = open(&into);
        let contents = contents_of(&db);
        // The salvaged database can be used.
        let table: Table = db.open_table("new").unwrap();
        db.transact(|tx| tx.insert(&table, b"k", b"v")).unwrap();
        db.close().unwrap();
        Ok(Saved {
            contents,
            findings,
            report,
        })
    }
}

pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| !path.ends_with("LOCK"))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

pub(crate) fn damage(path: &Path, offset: usize, len: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset..offset + len]
        .iter_mut()
        .for_each(|byte| *byte ^= 0x5a);
    fs::write(path, bytes).unwrap();
}

pub(crate) struct Saved {
    pub(crate) contents: Contents,
    pub(crate) findings: Vec<Finding>,
    pub(crate) report: SalvageReport,
}

impl Saved {
    pub(crate) fn losses(&self) -> Vec<&str> {
        let lost = |finding: &'_ Finding| matches!(finding, Finding::Lost(_));
        let lost = self.findings.iter().filter(|finding| lost(finding));
        lost.map(|finding| match finding {
            Finding::Lost(what) => what.as_str(),
            other => panic!("{other:?}"),
        })
        .collect()
    }

    #[track_caller]
    pub(crate) fn expect_all(&self, victim: &Victim) {
        assert_eq!(self.losses(), [] as [&str; 0], "{:?}", self.findings);
        assert_eq!(self.report.losses, 0);
        assert!(self.contents == victim.contents, "{:?}", self.findings);
    }

    #[track_caller]
    pub(crate) fn expect_damage(&self, what: &str) {
        let reported = self
            .findings
            .iter()
            .any(|finding| format!("{finding:?}").contains(what));
        assert!(reported, "{what}: {:?}", self.findings);
    }
}
