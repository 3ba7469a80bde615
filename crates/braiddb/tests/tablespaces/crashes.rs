//! Crashes at any step of any device.

use super::*;

/// Every transaction writes its number to a key of each tablespace. After a crash at any step of any
/// device, all tablespaces have the same transactions: those up to one that is not before the last
/// acknowledged one.
#[test]
fn after_a_crash_all_tablespaces_have_the_same_transactions() {
    let (mut interrupted, mut behind) = (0, 0);
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let protocol = PROTOCOLS[seed as usize % PROTOCOLS.len()];
        let mut simulated = Simulated::new(seed, 1 + seed as usize % 3);
        let (mut acknowledged, mut started) = (0, 0);
        for round in 0..6 {
            let disturbed = rng.usize(..simulated.devices.len());
            simulated.devices[disturbed].crash_after(rng.u64(1..120));
            // Errors end the round.
            let _ = (|| {
                let db = simulated.open_as(simulated.builder().protocol(protocol))?;
                simulated.create_all(&db)?;
                let tables = simulated.tables(&db)?;
                for _ in 0..rng.u64(1..60) {
                    started += 1;
                    let bytes = value(
                        started,
                        [10, 500, 20_000][rng.usize(..12).saturating_sub(9)],
                    );
                    put(&db, &tables, started % 40, &bytes)?;
                    acknowledged = started;
                    if rng.u32(..8) == 0 {
                        db.checkpoint()?;
                    }
                }
                if rng.bool() {
                    db.close()?;
                }
                Ok::<(), Error>(())
            })()
            .inspect_err(|error| {
                let is_refused = matches!(error, Error::InvalidOption { .. });
                assert!(!is_refused, "seed {seed}: {error}");
                interrupted += 1;
            });
            if rng.u32(..3) == 0 {
                simulated.kill();
            } else {
                simulated.crash();
            }
            let db = simulated.open();
            let db = db.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            simulated.create_all(&db).unwrap();
            let tables = simulated.tables(&db).unwrap();
            let found = |table: &Table<u64, Bytes>| -> Vec<(u64, Vec<u8>)> {
                let snapshot = db.snapshot();
                let entries = snapshot.range(table, ..).unwrap();
                let entries = entries.map(|entry| entry.map(|(key, value)| (key, value.to_vec())));
                entries.collect::<braid::Result<_>>().unwrap()
            };
            let main = found(&tables[0]);
            let number =
                |(_, value): &(u64, Vec<u8>)| u64::from_le_bytes(value[..8].try_into().unwrap());
            let newest = main.iter().map(number).max().unwrap_or(0);
            assert!(
                (acknowledged..=started).contains(&newest),
                "seed {seed}, round {round}: {newest} of {acknowledged} to {started}"
            );
            behind += u32::from(newest > acknowledged);
            for table in &tables[1..] {
                assert!(
                    found(table) == main,
                    "seed {seed}, round {round}: {}",
                    table.name()
                );
            }
            for entry in &main {
                assert!(
                    number(entry) + 40 > newest && number(entry) % 40 == entry.0,
                    "seed {seed}"
                );
            }
            (acknowledged, started) = (newest, newest);
        }
    }
    println!("{interrupted} rounds were interrupted, {behind} kept more than was acknowledged");
    assert!(interrupted > 100, "{interrupted}");
}
