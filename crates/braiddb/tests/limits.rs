//! Sizes and times at the limits of their types: each is accepted or refused with a typed error,
//! and none panics, wraps around or allocates all memory.

use std::sync::Arc;
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{Builder, Database, Error, TableOptions};

/// Returns the option that an open refuses; `None` if the database opens and works.
fn refused(set: impl FnOnce(Builder) -> Builder) -> Option<String> {
    let device = Arc::new(MemoryDevice::new());
    let builder = Database::builder().pool_bytes(1 << 20);
    let db = match set(builder.clone()).open_on(device.clone()) {
        Ok(db) => db,
        Err(Error::InvalidOption { option, .. }) => {
            // A refused operation leaves nothing that affects the next one.
            builder.open_on(device).unwrap();
            return Some(option.to_owned());
        }
        Err(error) => panic!("{error:?}"),
    };
    let table = db.open_table::<u64, u64>("limits").unwrap();
    db.transact(|tx| tx.insert(&table, &1, &2)).unwrap();
    db.checkpoint().unwrap();
    assert_eq!(db.get(&table, &1).unwrap(), Some(2));
    db.close().unwrap();
    None
}

#[test]
fn options_at_the_limits_of_their_types() {
    let is = |option: &str| Some(option.to_owned());
    assert_eq!(refused(|b| b.pool_bytes(usize::MAX)), is("pool_bytes"));
    assert_eq!(refused(|b| b.pool_bytes(0)), is("pool_bytes"));
    #[cfg(target_pointer_width = "64")]
    assert_eq!(refused(|b| b.pool_bytes((4 << 40) + 1)), is("pool_bytes"));
    assert_eq!(refused(|b| b.strands(usize::MAX)), is("strands"));
    assert_eq!(refused(|b| b.strands(65_537)), is("strands"));
    assert_eq!(refused(|b| b.lanes(usize::MAX)), is("lanes"));
    assert_eq!(refused(|b| b.strands(256).lanes(33)), is("lanes"));
    assert_eq!(refused(|b| b.segment_bytes(u64::MAX)), is("segment_bytes"));
    assert_eq!(refused(|b| b.max_log_bytes(u64::MAX)), None);
    assert_eq!(
        refused(|b| b.max_log_bytes(u64::MAX).checkpoint_log_bytes(u64::MAX)),
        is("max_log_bytes")
    );
    assert_eq!(refused(|b| b.checkpoint_log_bytes(u64::MAX)), None);
    assert_eq!(
        refused(|b| b.transaction_bytes_max(usize::MAX)),
        is("transaction_bytes_max")
    );
    assert_eq!(
        refused(|b| b.flushes_in_flight(usize::MAX)),
        is("flushes_in_flight")
    );
    assert_eq!(refused(|b| b.group_size(u32::MAX)), None);
    assert_eq!(refused(|b| b.epoch(Duration::MAX)), is("epoch"));
    assert_eq!(refused(|b| b.archive_interval(Duration::MAX)), None);
    assert_eq!(refused(|b| b.feed_log_bytes(u64::MAX)), None);
}

#[test]
fn times_to_live_at_the_limits() {
    let device = Arc::new(MemoryDevice::new());
    let db = Database::builder()
        .pool_bytes(1 << 20)
        .open_on(device)
        .unwrap();
    let with = |ttl| TableOptions {
        time_to_live: Some(ttl),
        ..TableOptions::default()
    };
    let longest = Duration::from_millis(u64::MAX);
    let table = db
        .open_table_with::<u64, u64>("longest", with(longest))
        .unwrap();
    db.transact(|tx| tx.insert(&table, &1, &2)).unwrap();
    assert_eq!(db.get(&table, &1).unwrap(), Some(2));
    let longer = db.open_table_with::<u64, u64>("longer", with(longest + Duration::from_millis(1)));
    assert!(matches!(
        longer,
        Err(Error::InvalidOption {
            option: "time_to_live",
            ..
        })
    ));
}
