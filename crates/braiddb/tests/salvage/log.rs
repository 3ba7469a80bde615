//! Damage to the log.

use std::fs;
use std::path::PathBuf;

use braid::offline::{salvage, verify};
use braid::{Builder, Error, Protocol, Readable, Table, Transaction};

use super::victim::*;

/// Returns the segment with the log's last chunks, and the offset of the first of them.
fn log_files(victim: &Victim) -> Vec<PathBuf> {
    let names = files(&victim.dir()).into_keys();
    names
        .filter(|path| path.extension().is_some_and(|ending| ending == "seg"))
        .collect()
}

#[test]
fn a_damaged_log_is_kept_up_to_the_damage() {
    let victim = Victim::new(&["books", "boats"]);
    let mut text = String::new();
    braid::offline::dump(victim.dir(), &mut text).unwrap();
    let key = b"key-001458";
    // The chunk with a transaction from the middle of the log after the checkpoint.
    let (path, at) = log_files(&victim)
        .into_iter()
        .filter_map(|path| {
            let bytes = fs::read(&path).unwrap();
            let value = [&key[..], b"value 1358 of round 1"].concat();
            let at = bytes
                .windows(value.len())
                .position(|window| window == value)?;
            Some((path, at))
        })
        .next()
        .unwrap();
    damage(&path, at, 4);
    let error = builder().open(victim.dir()).map(drop).unwrap_err();
    assert!(matches!(error, Error::Corrupted { .. }), "{error}");
    let saved = victim.salvage();
    let losses = saved.losses().join("\n");
    assert!(
        losses.contains("log: ") && losses.contains("are lost"),
        "{losses}"
    );
    // A prefix: earlier commits exist, and later ones do not.
    let round = |contents: &Contents| {
        let of = |table: &str| {
            (0..3000)
                .step_by(97)
                .map(move |i| (table.to_owned(), i))
                .collect::<Vec<_>>()
        };
        let mut order = of("books");
        order.extend(of("boats"));
        let there = |(table, i): &(String, u64)| {
            contents.get(&(table.clone(), super::victim::key(i + 100))) == Some(&value(*i, 1))
        };
        order.iter().map(there).collect::<Vec<bool>>()
    };
    let there = round(&saved.contents);
    let kept = there.iter().take_while(|is| **is).count();
    assert!(
        kept == 14 && there[kept..].iter().all(|is| !is),
        "{there:?}"
    );
    // The checkpoint's contents are complete as well.
    for (place, value) in &victim.checkpointed {
        if victim.contents.get(place) == Some(value) {
            assert_eq!(saved.contents.get(place), Some(value));
        }
    }
}

/// Each log file is truncated or removed: opening names it, `verify` counts it, and salvage keeps
/// everything before it.
#[test]
fn a_truncated_or_missing_log_file_is_named_and_the_rest_saved() {
    let victim = Victim::new(&["books", "boats"]);
    let whole = files(&victim.dir());
    let mut reported = 0;
    for path in log_files(&victim) {
        let bytes = &whole[&path];
        for len in [None, Some(0), Some(4096), Some(bytes.len() / 2 + 100)] {
            match len {
                None => fs::remove_file(&path).unwrap(),
                Some(len) => fs::write(&path, &bytes[..len]).unwrap(),
            }
            let name = path.file_name().unwrap().to_str().unwrap();
            let opened = builder().open_read_only(victim.dir());
            let opened = opened.map(|db| contents_of(&db));
            match &opened {
                Err(Error::Corrupted { what, location }) => {
                    assert!(
                        location.contains(name) && what.contains("restore"),
                        "{opened:?}"
                    );
                    let mut lines = Vec::new();
                    let report = verify(victim.dir(), &mut |line| lines.push(line)).unwrap();
                    assert!(report.damages == 1 && lines[0].contains(name), "{lines:?}");
                    reported += 1;
                    // Everything except the lost transactions.
                    let saved = victim.salvage();
                    assert!(
                        saved.losses().join(" ").contains("log"),
                        "{:?}",
                        saved.losses()
                    );
                    for (place, value) in &victim.checkpointed {
                        let newer = victim.contents.get(place) != Some(value);
                        assert!(newer || saved.contents.get(place) == Some(value));
                    }
                }
                // The file contained nothing that the database needs.
                found => assert_eq!(found.as_ref().unwrap(), &victim.contents, "{name}, {len:?}"),
            }
            fs::write(&path, bytes).unwrap();
        }
    }
    assert!(reported >= 4, "{reported}");
}

#[test]
fn without_a_log_there_is_the_checkpoint() {
    let victim = Victim::new(&["books"]);
    for path in log_files(&victim) {
        fs::remove_file(path).unwrap();
    }
    let saved = victim.salvage();
    let losses = saved.losses();
    assert!(
        losses.len() == 1 && losses[0].contains("log: every transaction after sequence number"),
        "{losses:?}"
    );
    assert_eq!(saved.contents, victim.checkpointed);
}

/// Every commit reads what the one before it wrote, so the salvaged commits must be a prefix, in
/// several lanes and over several opens.
#[test]
#[allow(clippy::too_many_lines, reason = "one scenario")]
fn of_every_protocol_s_log_a_prefix_is_saved() {
    for (seed, protocol) in Protocol::ALL.iter().copied().enumerate() {
        let place = tempfile::tempdir().unwrap();
        let live = place.path().join("live");
        let one = matches!(protocol, Protocol::Serial | Protocol::Aether);
        let builder = || -> Builder { builder().protocol(protocol).lanes(if one { 1 } else { 2 }) };
        let mut count = 0;
        let mut victim = None;
        for opening in 0..3 {
            let dir = victim.as_ref().unwrap_or(&live);
            let db = builder().open(dir).unwrap();
            let table: Table<u64, u64> = db.open_table("t").unwrap();
            if opening == 0 {
                db.checkpoint().unwrap();
            }
            // From several threads in turn, so that several lanes are used.
            for _ in 0..10 {
                std::thread::scope(|scope| {
                    let work = || {
                        let next = |tx: &mut Transaction| {
                            let last = tx.get(&table, &0)?.unwrap_or(0);
                            tx.insert(&table, &0, &(last + 1))?;
                            tx.insert(&table, &(last + 1), &7)
                        };
                        db.transact(next).unwrap();
                    };
                    scope.spawn(work).join().unwrap();
                });
                count += 1;
            }
            // As after a kill: the first checkpoint remains the newest.
            let copy = place.path().join(format!("killed-{opening}"));
            fs::create_dir(&copy).unwrap();
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
            }
            db.close().unwrap();
            victim = Some(copy);
        }
        let dir = victim.unwrap();
        let whole = files(&dir);
        // A prefix of the commits: the counter, and one key for each of them.
        let saved = |name: &str| {
            let into = place.path().join(name);
            let mut findings = Vec::new();
            let report = salvage(&dir, &into, &mut |finding| findings.push(finding)).unwrap();
            let db = open(&into);
            let table: Option<Table<u64, u64>> = db.existing_table("t").unwrap();
            let entries: Vec<(u64, u64)> = match &table {
                Some(table) => db
                    .snapshot()
                    .iter(table)
                    .unwrap()
                    .map(Result::unwrap)
                    .collect(),
                None => Vec::new(),
            };
            let last = entries.first().map_or(0, |(_, last)| *last);
            let expected = (0..=last).map(|i| (i, if i == 0 { last } else { 7 }));
            let expected: Vec<_> = expected.filter(|_| last > 0).collect();
            assert_eq!(entries, expected, "{protocol}: {findings:?}");
            (last, report.losses, findings)
        };
        let (last, losses, findings) = saved("all");
        assert_eq!((last, losses), (count, 0), "{protocol}: {findings:?}");
        // Chunks begin at multiples of 4096; the segment's header is not damaged.
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let logs: Vec<_> = whole
            .keys()
            .filter(|path| path.extension().is_some_and(|e| e == "seg"))
            .collect();
        let mut reported = false;
        for round in 0..3 {
            let path = logs[random.usize(..logs.len())];
            let chunks: Vec<usize> = (4096..whole[path].len())
                .step_by(4096)
                .filter(|at| whole[path][*at..*at + 4] != [0; 4])
                .collect();
            let Some(&at) = chunks.get(random.usize(..(chunks.len() / 2).max(1))) else {
                continue;
            };
            damage(path, at + 80, 8);
            let (last, losses, findings) = saved(&format!("round-{round}"));
            fs::write(path, &whole[path]).unwrap();
            assert!(
                last <= count && (losses > 0 || last + 1 >= count),
                "{protocol}: {last} of {count}, {findings:?}"
            );
            reported |= losses > 0;
        }
        assert!(reported, "{protocol}");
    }
}
