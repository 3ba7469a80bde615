//! Tablespaces with logs of their own.

use super::*;

use std::time::Duration;

/// Opens a database whose tablespaces are on these devices.
pub(super) fn open(devices: &[SimDevice], builder: Builder) -> braid::Result<Database> {
    let builder = builder
        .tablespace_device("one", Arc::new(devices[1].clone()))
        .tablespace_device("two", Arc::new(devices[2].clone()));
    builder.open_on(Arc::new(devices[0].clone()))
}

/// Opens it for reading only.
fn read(devices: &[SimDevice]) -> Database {
    let builder = inline()
        .tablespace_device("one", Arc::new(devices[1].clone()))
        .tablespace_device("two", Arc::new(devices[2].clone()));
    let main = Arc::new(devices[0].clone());
    builder.open_read_only_on(main).unwrap()
}

pub(super) fn inline() -> Builder {
    small().background_threads(false).strands(2)
}

/// The protocols with which tablespaces can have logs.
fn protocols() -> Vec<Protocol> {
    let all = Protocol::ALL.iter().copied();
    all.filter(|protocol| protocol.has_side_lanes()).collect()
}

/// Protocols that number flushes or lanes have larger ones.
fn with_protocol(protocol: Protocol) -> Builder {
    inline().protocol(protocol).segment_bytes(1 << 20)
}

fn options(device: &SimDevice) -> TablespaceOptions {
    let device: Arc<dyn Device> = Arc::new(device.clone());
    TablespaceOptions::on_device(device).pool_bytes(1 << 20)
}

pub(super) fn devices(seed: u64) -> Vec<SimDevice> {
    (0..3)
        .map(|index| SimDevice::new(seed * 8 + index))
        .collect()
}

/// Creates a database whose tablespaces have logs, and opens it again, with which the logs begin.
pub(super) fn with_logs(devices: &[SimDevice], builder: &Builder) -> Database {
    let db = open(devices, builder.clone()).unwrap();
    for (name, device) in [("one", &devices[1]), ("two", &devices[2])] {
        db.create_tablespace(name, options(device).own_log(true))
            .unwrap();
    }
    fill(&db, 1);
    assert!(
        db.stats()
            .tablespaces
            .iter()
            .all(|space| space.log_bytes == 0)
    );
    db.close().unwrap();
    open(devices, builder.clone()).unwrap()
}

/// The names of the log files on a device.
fn log_files(device: &SimDevice) -> Vec<String> {
    let names = device.list().unwrap().into_iter().map(|entry| entry.name);
    names.filter(|name| braid_log::is_log_name(name)).collect()
}

#[test]
fn transactions_write_only_to_the_logs_of_their_tables() {
    for protocol in protocols() {
        check_logs_written(protocol);
    }
}

fn check_logs_written(protocol: Protocol) {
    let devices = devices(1);
    let db = with_logs(&devices, &with_protocol(protocol));
    check(&db, 1);
    let tables = tables(&db);
    // The opening has begun the logs.
    let written = || {
        let stats = db.stats();
        let own = stats.tablespaces.iter().map(|space| space.log_bytes);
        let own: Vec<u64> = own.collect();
        [stats.log.written_bytes - own[0] - own[1], own[0], own[1]]
    };
    let which =
        |before: [u64; 3], after: [u64; 3]| [0, 1, 2].map(|lane| after[lane] > before[lane]);
    for table in 0..3 {
        let before = written();
        put(&db, &tables[table..=table], 7, b"alone").unwrap();
        let expected = [0, 1, 2].map(|lane| lane == table);
        assert_eq!(which(before, written()), expected, "{protocol} {table}");
    }
    let before = written();
    put(&db, &tables[..2], 7, b"together").unwrap();
    assert_eq!(which(before, written()), [true, true, false], "{protocol}");
    let before = written();
    put(&db, &tables[1..], 7, b"together").unwrap();
    assert_eq!(which(before, written()), [false, true, true], "{protocol}");
    db.close().unwrap();
    let names = [1, 2].map(|number| log_files(&devices[number]).len());
    assert!(names.iter().all(|&count| count > 0), "{names:?}");
}

/// Power fails at any step of any device, while transactions write to several tablespaces.
#[test]
fn a_transaction_in_several_logs_is_recovered_whole_or_not_at_all() {
    let mut lost = 0;
    for seed in 0..48u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut devices = devices(seed + 100);
        let protocol = protocols()[seed as usize % protocols().len()];
        let builder = with_protocol(protocol);
        let mut db = with_logs(&devices, &builder);
        // The newest value that was acknowledged, and the newest that was written, of each key.
        let mut acknowledged = [1u64; 8];
        for round in 0..3u64 {
            let tables = tables(&db);
            let failing = &devices[rng.usize(..3)];
            failing.crash_after(rng.u64(1..120));
            let mut written = acknowledged;
            for number in 0..40 {
                let (key, value) = (rng.usize(..8), 2 + round * 100 + number);
                let commit = || {
                    let mut tx = db.begin();
                    for table in &tables {
                        tx.insert(table, &(1_000 + key as u64), &value.to_le_bytes()[..])?;
                    }
                    Ok::<_, Error>(tx)
                };
                let Ok(tx) = commit() else { break };
                written[key] = value;
                if rng.bool() {
                    if tx.commit().is_err() {
                        break;
                    }
                    // A commit makes everything before it durable, too.
                    acknowledged = written;
                } else {
                    let Ok(ticket) = tx.commit_async() else { break };
                    drop(ticket);
                }
                if rng.u8(..16) == 0 && db.checkpoint().is_ok() {
                    acknowledged = written;
                }
            }
            drop(tables);
            drop(db);
            devices.iter().for_each(SimDevice::power_off);
            devices = devices.iter().map(SimDevice::after_crash).collect();
            db = open(&devices, builder.clone()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let tables = self::tables(&db);
            let snapshot = db.snapshot();
            for key in 0..8 {
                let values = tables.each_ref().map(|table| {
                    let value = snapshot.get(table, &(1_000 + key as u64)).unwrap();
                    value.map_or(1, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
                });
                let [first, ..] = values;
                assert_eq!(values, [first; 3], "seed {seed}, key {key}: torn");
                let (from, to) = (acknowledged[key], written[key]);
                assert!((from..=to).contains(&first), "seed {seed}, key {key}");
                lost += u64::from(first < to);
                acknowledged[key] = first;
            }
        }
    }
    assert!(lost > 10, "{lost}");
}

/// The power fails at any step of the opening that begins the logs.
#[test]
fn logs_begin_between_crashes_at_any_step() {
    let mut began = 0;
    for step in 1..90 {
        let mut devices = devices(step + 1_000);
        let db = open(&devices, inline()).unwrap();
        for (name, device) in [("one", &devices[1]), ("two", &devices[2])] {
            db.create_tablespace(name, options(device).own_log(true))
                .unwrap();
        }
        fill(&db, 1);
        drop(db);
        devices[step as usize % 3].crash_after(step);
        if let Ok(db) = open(&devices, inline()) {
            began += 1;
            let _ = put(&db, &tables(&db), 0, &[1; 100]);
        }
        devices.iter().for_each(SimDevice::power_off);
        devices = devices.iter().map(SimDevice::after_crash).collect();
        let db = open(&devices, inline()).unwrap_or_else(|e| panic!("step {step}: {e}"));
        check(&db, 1);
        put(&db, &tables(&db), 5, b"later").unwrap();
        drop(db);
        devices.iter().for_each(SimDevice::power_off);
        devices = devices.iter().map(SimDevice::after_crash).collect();
        let db = open(&devices, inline()).unwrap();
        for table in tables(&db) {
            assert_eq!(db.get(&table, &5).unwrap().as_deref(), Some(&b"later"[..]));
        }
    }
    assert!(began > 5, "{began}");
}

/// Opens a database without the device of a tablespace.
fn open_without(devices: &[SimDevice], name: &str, read_only: bool) -> braid::Result<Database> {
    let places = ["one", "two"].into_iter().zip(&devices[1..]);
    let places = places.filter(|(place, _)| *place != name);
    let builder = places.fold(
        inline().segment_bytes(1 << 20),
        |builder, (place, device)| builder.tablespace_device(place, Arc::new(device.clone())),
    );
    let main = Arc::new(devices[0].clone());
    if read_only {
        builder.open_read_only_on(main)
    } else {
        builder.open_on(main)
    }
}

/// Without a log, the others are read up to the number that is proven durable everywhere: no transaction in
/// them is torn, and nothing that a later checkpoint or flush says was durable is missing.
#[test]
fn without_a_log_the_others_are_read_up_to_what_was_durable_everywhere() {
    for seed in 0..24u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let devices = devices(seed + 3_000);
        let protocol = protocols()[seed as usize % protocols().len()];
        let db = with_logs(&devices, &with_protocol(protocol));
        let tables = tables(&db);
        // The transactions that wrote to all tables.
        let mut written: Vec<u64> = Vec::new();
        let mut checkpointed = 0;
        for number in 0..rng.u64(10..40) {
            // Sometimes only the log that will be missing has the transaction.
            let only_one = rng.u32(..3) == 0;
            let of = if only_one { &tables[1..2] } else { &tables[..] };
            put(&db, of, 0, &value(number, 30)).unwrap();
            if !only_one {
                written.push(number);
            }
            if rng.u32(..12) == 0 {
                db.checkpoint().unwrap();
                checkpointed = written.len();
            }
        }
        let durable = db.durable_seqno();
        // The others may have parts of a transaction that the missing log lacks.
        devices[1].power_off();
        put(&db, &tables, 0, &value(1_000, 30)).unwrap_err();
        devices.iter().for_each(SimDevice::power_off);
        drop(db);
        let devices: Vec<SimDevice> = devices.iter().map(SimDevice::after_crash).collect();
        let read = open_without(&devices, "one", true).unwrap();
        let [main, one, two] =
            ["in main", "in one", "in two"].map(|name| read.existing_table::<u64, Bytes>(name));
        let shown = [main, two].map(|table| {
            let found = read.get(&table.unwrap().unwrap(), &0).unwrap();
            let found = found.filter(|value| value.len() == 38);
            found.map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()))
        });
        assert_eq!(shown[0], shown[1], "seed {seed}: torn");
        let count = written.iter().position(|&number| Some(number) == shown[0]);
        let count = count.map_or(0, |index| index + 1);
        // Each flush records what was durable before it.
        let least = checkpointed.max(written.len().saturating_sub(3));
        assert!(count >= least, "seed {seed}: {count} of {}", written.len());
        assert!(read.durable_seqno() <= durable, "seed {seed}");
        let error = one.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(&error, Error::Tablespace(TablespaceError::Missing { name, .. }) if name == "one")
                && text.contains(&format!("up to sequence number {}", read.durable_seqno())),
            "{text}"
        );
        drop(read);
        // With its device, nothing is lost.
        let db = open(&devices, with_protocol(protocol)).unwrap();
        let main = db.existing_table::<u64, Bytes>("in main").unwrap().unwrap();
        let found = db.get(&main, &0).unwrap().unwrap();
        let newest = written.last().map(|number| number.to_le_bytes());
        assert!(found.starts_with(newest.as_ref().map_or(&[][..], |newest| newest)));
        // gsn assigns only some of the numbers.
        assert!(db.durable_seqno() >= durable, "seed {seed}");
    }
}

#[test]
fn a_log_that_is_missing_is_named_and_nothing_is_changed() {
    let devices = devices(3);
    let db = with_logs(&devices, &inline());
    put(&db, &tables(&db), 1, b"logged").unwrap();
    drop(db);
    // Without the device, not for writing.
    let error = open_without(&devices, "two", false).unwrap_err();
    let is_named = matches!(
        &error,
        Error::Tablespace(TablespaceError::Missing { name, .. }) if name == "two"
    );
    assert!(is_named, "{error}");
    // The log alone is missing.
    let files = log_files(&devices[1]);
    let copy = devices[1].after_crash();
    for name in &files {
        copy.remove(name).unwrap();
    }
    let without = [devices[0].clone(), copy, devices[2].clone()];
    let error = fault(open(&without, inline()));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "one"),
        "{error}"
    );
    let db = open(&devices, inline()).unwrap();
    for table in tables(&db) {
        assert_eq!(db.get(&table, &1).unwrap().as_deref(), Some(&b"logged"[..]));
    }
}

#[test]
fn a_read_only_opening_reads_all_logs_and_begins_none() {
    let devices = devices(4);
    let db = open(&devices, inline()).unwrap();
    db.create_tablespace("one", options(&devices[1]).own_log(true))
        .unwrap();
    db.create_tablespace("two", options(&devices[2])).unwrap();
    fill(&db, 1);
    drop(db);
    let db = read(&devices);
    check(&db, 1);
    drop(db);
    assert_eq!(log_files(&devices[1]), [""; 0]);
    let db = open(&devices, inline()).unwrap();
    fill(&db, 2);
    drop(db);
    assert!(!log_files(&devices[1]).is_empty());
    assert_eq!(log_files(&devices[2]), [""; 0]);
    let db = read(&devices);
    check(&db, 2);
}

#[test]
fn a_tablespace_with_a_log_is_dropped_with_it() {
    for step in 0..40 {
        let mut devices = devices(step + 2_000);
        let db = with_logs(&devices, &inline());
        let [_, one, two] = tables(&db);
        put(&db, &[one.clone(), two.clone()], 1, b"before").unwrap();
        db.drop_table("in one").unwrap();
        drop(one);
        if step > 0 {
            devices[step as usize % 3].crash_after(step / 3 + 1);
        }
        let dropped = db.drop_tablespace("one");
        if step == 0 {
            dropped.unwrap();
            assert_eq!(devices[1].list().unwrap().len(), 0);
            // Its lane is not used any more, and its number is free.
            put(&db, std::slice::from_ref(&two), 2, b"after").unwrap();
        }
        drop((db, two));
        devices.iter().for_each(SimDevice::power_off);
        devices = devices.iter().map(SimDevice::after_crash).collect();
        let db = open(&devices, inline()).unwrap_or_else(|e| panic!("step {step}: {e}"));
        let two: Table<u64, Bytes> = db.open_table("in two").unwrap();
        assert_eq!(db.get(&two, &1).unwrap().as_deref(), Some(&b"before"[..]));
        if step == 0 {
            assert_eq!(db.get(&two, &2).unwrap().as_deref(), Some(&b"after"[..]));
        }
        if !db.tablespace_names().contains(&"one".to_owned()) {
            let left = devices[1].list().unwrap();
            assert!(left.is_empty(), "step {step}: {left:?}");
            // A new one in its place.
            db.create_tablespace("one", options(&devices[1]).own_log(true))
                .unwrap();
        }
        drop((db, two));
        let db = open(&devices, inline()).unwrap();
        put(&db, &tables(&db), 3, b"again").unwrap();
        drop(db);
        devices.iter().for_each(SimDevice::power_off);
        devices = devices.iter().map(SimDevice::after_crash).collect();
        let db = open(&devices, inline()).unwrap();
        for table in tables(&db) {
            assert_eq!(db.get(&table, &3).unwrap().as_deref(), Some(&b"again"[..]));
        }
    }
}

#[test]
fn a_log_that_a_feed_needs_keeps_its_tablespace() {
    let devices = devices(5);
    let db = with_logs(&devices, &inline());
    let feed = db.feed("feed").unwrap();
    put(&db, &tables(&db), 1, b"change").unwrap();
    // The parts of a transaction come as one.
    let mut changes = feed.changes().unwrap();
    let mut sizes = Vec::new();
    while let Some(set) = changes.next_within(Duration::ZERO).unwrap() {
        sizes.push(set.changes.len());
    }
    assert_eq!(sizes, [3]);
    db.drop_table("in one").unwrap();
    db.checkpoint().unwrap();
    let error = db.drop_tablespace("one").unwrap_err();
    let is_named = matches!(
        &error,
        Error::Tablespace(TablespaceError::LogNeeded { holder, .. }) if holder.contains("feed")
    );
    assert!(is_named, "{error}");
    while changes.next_within(Duration::ZERO).unwrap().is_some() {}
    feed.acknowledge(changes.position()).unwrap();
    drop((changes, feed));
    db.drop_tablespace("one").unwrap();
    assert_eq!(devices[1].list().unwrap().len(), 0);
}

#[test]
fn protocols_and_devices_that_cannot_have_such_logs_are_refused_by_name() {
    for &protocol in Protocol::ALL {
        let devices = devices(6);
        let builder = with_protocol(protocol);
        let db = open(&devices, builder).unwrap();
        let created = db.create_tablespace("one", options(&devices[1]).own_log(true));
        match created {
            Ok(()) => assert!(protocols().contains(&protocol)),
            Err(Error::Tablespace(TablespaceError::Log { reason, .. })) => {
                assert!(reason.contains("a single log"), "{reason}");
                assert_eq!(devices[1].list().unwrap().len(), 0);
            }
            Err(error) => panic!("{protocol}: {error}"),
        }
    }
    // The log in persistent memory, the tablespace on a disk.
    let devices = devices(7);
    devices[0].set_block_size(64);
    let db = open(&devices, inline()).unwrap();
    let error = db
        .create_tablespace("one", options(&devices[1]).own_log(true))
        .unwrap_err();
    assert!(
        matches!(&error, Error::Tablespace(TablespaceError::Log { reason, .. }) if reason.contains("64")),
        "{error}"
    );
    // Another protocol than the logs allow.
    let devices = self::devices(8);
    drop(with_logs(&devices, &inline()));
    let error = open(&devices, with_protocol(Protocol::Serial)).unwrap_err();
    assert!(error.to_string().contains("side_lanes"), "{error}");
    check(&open(&devices, inline()).unwrap(), 1);
}

/// Large values, which are streams in each log, and transactions that fail their validation.
#[test]
fn large_transactions_and_conflicts_lie_in_several_logs() {
    let mut devices = devices(9);
    let db = with_logs(&devices, &small().segment_bytes(1 << 20));
    let tables = tables(&db);
    let large = vec![3; 400 << 10];
    put(&db, &tables, 1_001, &large).unwrap();
    let mut tx = db.begin();
    tx.get(&tables[0], &1_001).unwrap();
    for table in &tables[1..] {
        tx.insert(table, &1_002, &large[..]).unwrap();
    }
    put(&db, &tables[..1], 1_001, b"other").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    put(&db, &tables, 1_003, b"after").unwrap();
    drop((db, tables));
    devices.iter().for_each(SimDevice::power_off);
    devices = devices.iter().map(SimDevice::after_crash).collect();
    let db = open(&devices, small().segment_bytes(1 << 20)).unwrap();
    for (index, table) in self::tables(&db).iter().enumerate() {
        let first = db.get(table, &1_001).unwrap().unwrap();
        assert_eq!(first == large, index > 0);
        assert_eq!(db.get(table, &1_002).unwrap(), None);
        let after = db.get(table, &1_003).unwrap();
        assert_eq!(after.as_deref(), Some(&b"after"[..]));
    }
}

/// Numbers in the failed log lie among those of others, so nothing more can be acknowledged.
#[test]
fn a_failed_log_stops_the_database_by_the_name_of_its_tablespace() {
    let mut devices = devices(21);
    let db = with_logs(&devices, &inline());
    let tables = tables(&db);
    for key in 0..50 {
        put(&db, &tables, key, b"before").unwrap();
    }
    devices[1].break_after(1);
    for written in [&tables[1..2], &tables[..1]] {
        let failed = put(&db, written, 300, b"after");
        let Err(Error::Poisoned { cause }) = &failed else {
            panic!("{failed:?}");
        };
        assert!(
            cause.contains("in the log of tablespace \"one\""),
            "{cause}"
        );
    }
    assert!(matches!(db.health(), Health::Poisoned { .. }));
    for table in &tables {
        assert_eq!(db.get(table, &7).unwrap().as_deref(), Some(&b"before"[..]));
    }
    drop(tables);
    let _ = db.close();
    devices.iter().for_each(SimDevice::power_off);
    devices = devices.iter().map(SimDevice::after_crash).collect();
    devices[1].repair();
    let db = open(&devices, inline()).unwrap();
    let tables = super::tables(&db);
    for table in &tables {
        assert_eq!(db.get(table, &7).unwrap().as_deref(), Some(&b"before"[..]));
    }
    put(&db, &tables, 300, b"again").unwrap();
}
