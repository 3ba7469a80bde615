//! Damage to the data file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use braid::Error;
use braid::offline::salvage;

use super::victim::*;

#[test]
fn a_sound_database_is_copied() {
    let victim = Victim::new(&["books", "boats"]);
    let saved = victim.salvage();
    saved.expect_all(&victim);
    assert!(saved.findings.is_empty(), "{:?}", saved.findings);
    assert_eq!(saved.report.tables, 2);
    assert!(
        saved.report.entries > 5_000 && saved.report.transactions > 50,
        "{:?}",
        saved.report
    );

    // The new database replaces nothing, and is not made from nothing.
    let into = victim.place.path().join("into");
    let error = salvage(victim.dir(), &into, &mut |_| {}).unwrap_err();
    assert!(
        matches!(&error, Error::NotADatabase { reason, .. } if reason.contains("empty")),
        "{error}"
    );
    let nowhere = victim.place.path().join("nowhere");
    let other = victim.place.path().join("other");
    assert!(matches!(
        salvage(&nowhere, &other, &mut |_| {}),
        Err(Error::NotADatabase { .. })
    ));
    assert!(!nowhere.exists() && !other.exists());
    let _db = open(&into);
    assert!(matches!(
        salvage(&into, &other, &mut |_| {}),
        Err(Error::Locked { .. })
    ));
}

#[test]
fn a_damaged_leaf_costs_its_keys_and_the_log_gives_back_some() {
    let victim = Victim::new(&["books", "boats"]);
    let pages = victim.pages();
    let leaves: Vec<_> = pages[&2].iter().filter(|page| page.2).collect();
    // A leaf with a key that is also in the log: those keys are 97 apart, and a leaf holds fewer.
    let logged = |lower: &str, upper: &str| {
        let mut keys = (0..3000)
            .step_by(97)
            .map(|i| String::from_utf8(key(i + 100)).unwrap());
        keys.any(|key| *key >= *lower && *key < *upper)
    };
    let fits = |page: &&&(u64, usize, bool, String, String)| logged(&page.3, &page.4);
    let (page, block, _, lower, upper) = leaves[5..].iter().find(fits).unwrap();
    victim.damage_block(*block);
    let saved = victim.salvage();
    let losses = saved.losses();
    assert_eq!(losses.len(), 1, "{losses:?}");
    let range =
        format!("table \"books\": entries from \"{lower}\" up to but not including \"{upper}\"");
    assert!(
        losses[0].contains(&range) && losses[0].contains(&format!("page {page}")),
        "{losses:?}"
    );
    let inside = |key: &[u8]| key >= lower.as_bytes() && key < upper.as_bytes();
    let mut expected = victim.contents.clone();
    expected.retain(|(table, key), value| {
        let logged = victim.checkpointed.get(&(table.clone(), key.clone())) != Some(value);
        table != "books" || !inside(key) || logged
    });
    assert!(expected.len() < victim.contents.len());
    assert!(
        expected
            .keys()
            .any(|(table, key)| table == "books" && inside(key))
    );
    assert_eq!(saved.contents, expected);
}

#[test]
fn inner_pages_are_rebuilt_from_their_leaves() {
    let victim = Victim::new(&["books", "boats"]);
    let (page, block) = victim.root(2);
    victim.damage_block(block);
    let saved = victim.salvage();
    saved.expect_all(&victim);
    saved.expect_damage(&format!("(page {page})"));

    // One of its leaves, too.
    let victim = Victim::new(&["books", "boats"]);
    let pages = victim.pages();
    let (_, leaf, _, lower, upper) = pages[&2].iter().filter(|page| page.2).nth(3).unwrap();
    victim.damage_block(*leaf);
    victim.damage_block(victim_root_block(&pages, 2));
    let saved = victim.salvage();
    let losses = saved.losses();
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert!(
        losses[0].contains(&format!("\"{lower}\"")) && losses[0].contains(&format!("\"{upper}\"")),
        "{losses:?}"
    );
    let missing: BTreeSet<_> = victim
        .contents
        .keys()
        .filter(|key| !saved.contents.contains_key(key))
        .collect();
    let inside = |key: &[u8]| key >= lower.as_bytes() && key < upper.as_bytes();
    assert!(
        !missing.is_empty()
            && missing
                .iter()
                .all(|(table, key)| table == "books" && inside(key))
    );
}

fn victim_root_block(pages: &Pages, tree: u32) -> usize {
    pages[&tree][0].1
}

#[test]
fn leaves_of_unknown_tables_get_a_table() {
    let victim = Victim::new(&["books", "boats"]);
    let pages = victim.pages();
    victim.damage_block(victim_root_block(&pages, 2));
    victim.damage_block(victim_root_block(&pages, 3));
    let saved = victim.salvage();
    let losses = saved.losses().join("\n");
    assert!(
        losses.contains("the table of ") && losses.contains("table \"salvaged-4\""),
        "{losses}"
    );
    assert!(
        losses.contains("table \"books\" or table \"boats\""),
        "{losses}"
    );
    // Nothing is lost: entries that are not in the log are in one of two tables without a name.
    let entries = |contents: &Contents, tables: &str| {
        let of = contents
            .iter()
            .filter(|((table, _), _)| table.starts_with(tables));
        let mut entries: Vec<_> = of
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        entries.sort();
        entries
    };
    assert!(entries(&saved.contents, "salvaged-") == entries(&victim.checkpointed, ""));
    for (place, value) in &victim.contents {
        if victim.checkpointed.get(place) != Some(value) {
            assert_eq!(saved.contents.get(place), Some(value), "from the log");
        }
    }
}

#[test]
fn lost_superblocks_are_found_by_their_roots() {
    for slots in [&[0][..], &[1], &[0, 1]] {
        let victim = Victim::new(&["books"]);
        for slot in slots {
            victim.damage_block(*slot);
        }
        let saved = victim.salvage();
        saved.expect_all(&victim);
        saved.expect_damage("superblock");
    }
}

#[test]
fn a_lost_root_costs_changes_since_the_previous_checkpoint() {
    let victim = Victim::new(&["books"]);
    let newest = *victim
        .blocks(|identity| identity >> 63 == 1)
        .last()
        .unwrap();
    victim.damage_block(newest);
    let into = victim.place.path().join("into");
    let mut findings = Vec::new();
    match salvage(victim.dir(), &into, &mut |finding| findings.push(finding)) {
        Ok(report) => assert!(report.losses > 0, "{findings:?}"),
        Err(error) => assert!(
            error.to_string().contains("no checkpoint can be found"),
            "{error}"
        ),
    }
}

#[test]
fn a_lost_map_leaf_is_replaced_by_a_search() {
    let victim = Victim::new(&["books", "boats"]);
    let newest = *victim
        .blocks(|identity| identity >> 62 == 1)
        .last()
        .unwrap();
    victim.damage_block(newest);
    let saved = victim.salvage();
    saved.expect_all(&victim);
    saved.expect_damage("map leaf 0");
}

/// Each leaf is damaged in turn. Pages have older and newer blocks, but matching ones exist, so
/// nothing is lost, and no loss is reported.
#[test]
fn a_lost_map_leaf_costs_nothing_that_is_there() {
    let victim = Victim::large();
    let leaves = victim.blocks(|identity| identity >> 62 == 1);
    let bytes = fs::read(victim.data()).unwrap();
    let mut newest = BTreeMap::new();
    for block in leaves {
        // Of the blocks with the same identity, the last is the newest.
        newest.insert(bytes[block * BLOCK + 8..block * BLOCK + 16].to_vec(), block);
    }
    assert!(newest.len() > 1, "{newest:?}");
    // The page was allocated, but not written yet.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(victim.data())
        .unwrap();
    file.set_len(bytes.len() as u64 + 20 * BLOCK as u64)
        .unwrap();
    for &block in newest.values() {
        victim.damage_block(block);
        let saved = victim.salvage();
        saved.expect_damage("map leaf");
        saved.expect_all(&victim);
        victim.damage_block(block);
    }
}

/// Page numbers are reused within the same checkpoint, and the blocks of the earlier pages look
/// newer: the reference to a page determines which block belongs to it.
#[test]
fn a_newer_block_that_does_not_fit_is_not_taken() {
    let victim = Victim::new(&["books", "boats"]);
    let mut bytes = fs::read(victim.data()).unwrap();
    let stamp_of = |block: usize| bytes[block * BLOCK + 4..block * BLOCK + 8].to_vec();
    let map = *victim
        .blocks(|identity| identity >> 62 == 1)
        .last()
        .unwrap();
    let newest = stamp_of(map);
    let pages = victim.pages();
    let leaves = pages.values().flatten().filter(|page| page.2);
    let leaves: Vec<(u64, usize)> = leaves.map(|&(page, block, ..)| (page, block)).collect();
    // Also parts of large values, for which any other part would otherwise pass.
    let is_part = |block: &usize| bytes[block * BLOCK + 16] == 3;
    let parts = victim.blocks(|identity| identity >> 62 == 0);
    let part_pages = parts.into_iter().filter(is_part).map(|block| {
        let identity = &bytes[block * BLOCK + 8..block * BLOCK + 16];
        u64::from_le_bytes(identity.try_into().unwrap())
    });
    let numbers = leaves.iter().map(|(page, _)| *page).chain(part_pages);
    let numbers: Vec<u64> = numbers.collect();
    assert!(numbers.len() > 50, "{}", numbers.len());
    for (i, page) in numbers.iter().enumerate() {
        let (_, other) = leaves[(i + 1) % leaves.len()];
        let mut block = bytes[other * BLOCK..(other + 1) * BLOCK].to_vec();
        block[4..8].copy_from_slice(&newest);
        block[8..16].copy_from_slice(&page.to_le_bytes());
        let crc = crc32c::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        bytes.extend(block);
    }
    fs::write(victim.data(), bytes).unwrap();
    victim.damage_block(map);
    let saved = victim.salvage();
    saved.expect_damage("map leaf 0");
    saved.expect_all(&victim);
}

/// Space that was reserved for pages and never written is not a lost page.
#[test]
fn room_after_the_last_page_is_no_damage() {
    let victim = Victim::new(&["books", "boats"]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(victim.data())
        .unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len + 20 * BLOCK as u64).unwrap();
    let map = victim.blocks(|identity| identity >> 62 == 1);
    victim.damage_block(*map.last().unwrap());
    let saved = victim.salvage();
    saved.expect_all(&victim);
    assert_eq!(saved.losses(), [""; 0]);
}

/// The search finds an older version of the catalog, which has no table and does not show that it
/// is older.
#[test]
fn a_search_reports_that_its_result_may_be_old() {
    let victim = Victim::new(&["books"]);
    let (page, block, ..) = victim.pages()[&1][0];
    let versions = victim.blocks(|identity| identity == page);
    assert!(versions.len() > 1, "there is an older one");
    let map = victim.blocks(|identity| identity >> 62 == 1);
    victim.damage_block(*map.last().unwrap());
    victim.damage_block(block);
    let saved = victim.salvage();
    let is_reported = |loss: &&str| loss.contains("the newest version");
    assert!(
        saved.losses().iter().any(is_reported),
        "{:?}",
        saved.findings
    );
}

#[test]
fn a_damaged_part_of_a_large_value_costs_that_value() {
    let victim = Victim::new(&["books"]);
    let bytes = fs::read(victim.data()).unwrap();
    // All such pages: a single block may be old and free.
    for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
        if bytes[16] == 3 && bytes[8..16] != [0; 8] && block >= 2 {
            victim.damage_block(block);
        }
    }
    let saved = victim.salvage();
    let losses = saved.losses();
    assert!(
        losses.len() == 1 && losses[0].contains("table \"books\": the entry \"large\""),
        "{losses:?}"
    );
    let mut expected = victim.contents.clone();
    expected
        .remove(&("books".to_owned(), b"large".to_vec()))
        .unwrap();
    assert_eq!(saved.contents, expected);
}

#[test]
fn tables_without_a_name_get_one() {
    let victim = Victim::new(&["books", "boats"]);
    let catalog = victim.pages()[&1][0].1;
    victim.damage_block(catalog);
    let saved = victim.salvage();
    let losses = saved.losses();
    assert!(
        losses.len() == 1 && losses[0].contains("the catalog"),
        "{losses:?}"
    );
    let renamed = |((table, key), value): (&(String, Vec<u8>), &Vec<u8>)| {
        let name = if table == "books" {
            "salvaged-2"
        } else {
            "salvaged-3"
        };
        ((name.to_owned(), key.clone()), value.clone())
    };
    let expected: Contents = victim.contents.iter().map(renamed).collect();
    assert_eq!(saved.contents, expected);
}

/// Whatever is damaged, nothing appears that was never written, and the new database is sound.
#[test]
fn random_damage_makes_nothing_up() {
    let victim = Victim::new(&["books", "boats"]);
    let whole = files(&victim.dir());
    let log: Vec<&PathBuf> = whole
        .keys()
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    let blocks = whole[&victim.data()].len() / BLOCK;
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        for (path, bytes) in &whole {
            fs::write(path, bytes).unwrap();
        }
        for _ in 0..random.usize(1..6) {
            victim.damage_block(random.usize(..blocks));
        }
        if random.bool() {
            let path = log[random.usize(..log.len())];
            damage(path, random.usize(..whole[path].len() - 64), 64);
        }
        println!("seed {seed}");
        let saved = match victim.try_salvage() {
            Err(Error::Corrupted { .. }) => continue,
            saved => saved.unwrap_or_else(|error| panic!("seed {seed}: {error}")),
        };
        for ((table, key), value) in &saved.contents {
            let names: &[&str] = if table.starts_with("salvaged") {
                &["books", "boats"]
            } else {
                &[table]
            };
            let written = names.iter().any(|name| {
                let place = (name.to_string(), key.clone());
                victim.contents.get(&place) == Some(value)
                    || victim.checkpointed.get(&place) == Some(value)
            });
            // First the catalog's own entries, if its table has no name.
            assert!(
                written || key.len() < 10,
                "seed {seed}: {table} {}",
                key.escape_ascii()
            );
        }
        if saved.report.losses == 0 {
            assert!(
                saved.contents == victim.contents,
                "seed {seed}: {:?}",
                saved.findings
            );
        }
    }
}
