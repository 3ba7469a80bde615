//! Statistics for other processes: the file `STATS`, and the facades `metrics` and `tracing` if
//! enabled.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid::device::MemoryDevice;
use braid::{Database, Table};

/// Polls until a condition holds that a background thread of the database brings about.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_stats_file_exists_while_the_database_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("STATS");
    let read = || fs::read_to_string(&file).unwrap_or_default();

    // Statistics that a killed process left are not shown as current ones.
    let db = Database::open(dir.path()).unwrap();
    db.close().unwrap();
    fs::write(&file, "braid_commits_total 77\n").unwrap();
    let db = Database::open(dir.path()).unwrap();
    assert!(!file.exists());
    db.close().unwrap();

    let db = Database::builder()
        .stats_file(true)
        .open(dir.path())
        .unwrap();
    eventually("the file is there", || file.exists());
    let table: Table<u64, u64> = db.open_table("t").unwrap();
    for key in 0..5 {
        db.transact(|tx| tx.insert(&table, &key, &key)).unwrap();
    }
    let commits = format!("\nbraid_commits_total {}\n", db.stats().commits);
    eventually("the commits are counted", || read().contains(&commits));
    // A reader sees complete files only.
    for _ in 0..1000 {
        let text = read();
        assert!(
            text.starts_with("# HELP braid_info") && text.ends_with('\n'),
            "{text}"
        );
        assert!(text.contains("\nbraid_store_checkpoint_number "), "{text}");
    }
    // A failure to write the file affects nothing else.
    fs::remove_file(&file).unwrap();
    fs::create_dir(dir.path().join("STATS")).unwrap();
    fs::write(dir.path().join("STATS/inside"), "").unwrap();
    db.transact(|tx| tx.insert(&table, &9, &9)).unwrap();
    db.close().unwrap();
    fs::remove_dir_all(dir.path().join("STATS")).unwrap();
    let left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().starts_with("STATS")),
        "{left:?}"
    );
}

#[test]
fn log_to_recover_is_counted_until_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&table, &1, &vec![7; 100_000]))
        .unwrap();
    assert!(db.stats().log_bytes_to_recover > 100_000);
    db.checkpoint().unwrap();
    assert!(db.stats().log_bytes_to_recover < 100_000);
    assert!(!db.stats().poisoned && !db.stats().checkpoint_failing);
    db.close().unwrap();
}

#[cfg(feature = "metrics")]
mod facade {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    use super::*;

    type Values = Arc<Mutex<BTreeMap<String, f64>>>;

    /// Keeps the last value of each metric, and the descriptions.
    #[derive(Clone, Default)]
    struct Kept {
        values: Values,
        described: Arc<Mutex<Vec<String>>>,
    }

    struct Slot(Values, String);

    impl CounterFn for Slot {
        fn increment(&self, _: u64) {
            unreachable!("the counts are absolute")
        }
        fn absolute(&self, value: u64) {
            self.0.lock().unwrap().insert(self.1.clone(), value as f64);
        }
    }

    impl GaugeFn for Slot {
        fn increment(&self, _: f64) {
            unreachable!()
        }
        fn decrement(&self, _: f64) {
            unreachable!()
        }
        fn set(&self, value: f64) {
            self.0.lock().unwrap().insert(self.1.clone(), value);
        }
    }

    impl Kept {
        fn slot(&self, key: &Key) -> Arc<Slot> {
            let label = key.labels().next().unwrap();
            assert_eq!(label.key(), "database");
            Arc::new(Slot(
                self.values.clone(),
                format!("{}/{}", label.value(), key.name()),
            ))
        }

        fn value(&self, name: &str) -> Option<f64> {
            self.values.lock().unwrap().get(name).copied()
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
            self.described.lock().unwrap().push(key.as_str().to_owned());
        }
        fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
            self.described.lock().unwrap().push(key.as_str().to_owned());
        }
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.slot(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.slot(key))
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            unreachable!("there are none")
        }
    }

    #[test]
    fn metrics_are_published_on_demand_and_by_themselves() {
        let kept = Kept::default();
        metrics::set_global_recorder(kept.clone()).ok().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let db = Database::builder()
            .metrics("shop")
            .open(dir.path())
            .unwrap();
        let table: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| tx.insert(&table, &1, &1)).unwrap();
        let commits = db.stats().commits as f64;
        db.publish_metrics("asked");
        assert_eq!(kept.value("asked/braid_commits_total"), Some(commits));
        assert_eq!(kept.value("asked/braid_info"), Some(1.0));
        assert!(kept.value("asked/braid_log_write_seconds_total").unwrap() > 0.0);
        eventually("the checkpoint thread publishes", || {
            kept.value("shop/braid_commits_total") == Some(commits)
        });
        let described = kept.described.lock().unwrap().clone();
        // Every metric of the text is published, each with its description.
        let text = db.stats().to_prometheus();
        for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = name.split(' ').next().unwrap();
            assert!(kept.value(&format!("asked/{name}")).is_some(), "{name}");
            assert!(
                name == "braid_info" || described.iter().any(|d| d == name),
                "{name}"
            );
        }
        db.close().unwrap();
    }
}

#[cfg(feature = "tracing")]
mod events {
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use braid_io::SimDevice;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
    use tracing_subscriber::registry::LookupSpan;

    use super::*;

    /// Each event as a line: level, spans, message and fields.
    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.push_str(&format!(" {}={value:?}", field.name()));
        }
    }

    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collected {
        fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
            let mut line = Line(event.metadata().level().to_string());
            if let Some(span) = context.event_span(event) {
                line.0.push_str(&format!(" [{}]", span.name()));
            }
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
    }

    impl Collected {
        /// Returns the events of this thread while `body` runs.
        fn during(body: impl FnOnce()) -> Vec<String> {
            let collected = Self::default();
            let subscriber = tracing_subscriber::registry().with(collected.clone());
            tracing::subscriber::with_default(subscriber, body);
            let lines = collected.0.lock().unwrap();
            lines.clone()
        }
    }

    fn builder() -> braid::Builder {
        Database::builder().background_threads(false)
    }

    #[track_caller]
    fn expect(lines: &[String], parts: &[&str]) {
        let fits = |line: &String| parts.iter().all(|part| line.contains(part));
        assert!(lines.iter().any(fits), "{parts:?} in {lines:#?}");
    }

    /// A subscriber that drops every event and span.
    struct Panics;

    impl<S: Subscriber> Layer<S> for Panics {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        fn on_enter(&self, _: &tracing::span::Id, _: Context<'_, S>) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }

    #[test]
    fn a_subscriber_that_panics_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Panics), || {
            for round in 0..2 {
                let builder = builder().slow_commit(Duration::ZERO);
                let db = builder.open(dir.path()).unwrap();
                let t: Table<u32, u32> = db.open_table("t").unwrap();
                db.transact(|tx| tx.insert(&t, &round, &1)).unwrap();
                db.checkpoint().unwrap();
                db.close().unwrap();
            }
        });
    }

    #[test]
    fn checkpoints_recovery_and_slow_commits_are_traced() {
        let dir = tempfile::tempdir().unwrap();
        let mut checkpointed = String::new();
        let lines = Collected::during(|| {
            let db = builder()
                .slow_commit(Duration::ZERO)
                .open(dir.path())
                .unwrap();
            let table: Table<u64, u64> = db.open_table("t").unwrap();
            // More sequence numbers than checkpoints.
            db.transact(|tx| (0..20).try_for_each(|key| tx.insert(&table, &key, &1)))
                .unwrap();
            db.checkpoint().unwrap();
            checkpointed = format!("seqno={} ", db.durable_seqno());
            db.transact(|tx| tx.insert(&table, &1, &1)).unwrap();
            let mut tx = db.begin();
            tx.insert(&table, &2, &2).unwrap();
            tx.commit_async().unwrap().wait().unwrap();
            std::mem::forget(db.clone());
        });
        expect(
            &lines,
            &[
                "INFO [checkpoint]",
                "checkpoint published",
                &checkpointed,
                "pages=",
                "seconds=",
            ],
        );
        expect(&lines, &["WARN", "slow commit", "seqno="]);
        // Three commits, and that of the table's creation.
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.contains("slow commit"))
                .count(),
            4,
            "{lines:#?}"
        );

        // The database was not closed: opening a copy replays the log after the checkpoint.
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let lines = Collected::during(|| {
            let db = builder().open(copy.path()).unwrap();
            db.close().unwrap();
        });
        expect(&lines, &["INFO [recovery]", "log scanned", "bytes="]);
        expect(
            &lines,
            &[
                "INFO [recovery]",
                "log replayed",
                "transactions=2",
                "discarded=0",
            ],
        );
        assert!(
            !lines.iter().any(|line| line.contains("slow commit")),
            "{lines:#?}"
        );
    }

    #[test]
    fn a_failed_checkpoint_and_poisoning_are_reported() {
        let device = SimDevice::new(7);
        let lines = Collected::during(|| {
            let db = builder().open_on(Arc::new(device.clone())).unwrap();
            let table: Table<u64, u64> = db.open_table("t").unwrap();
            device.fail_write_after(0);
            let result = db.transact(|tx| tx.insert(&table, &1, &1));
            assert!(result.is_err());
            for _ in 0..2 {
                assert!(matches!(db.health(), braid::Health::Poisoned { .. }));
            }
            assert!(db.checkpoint().is_err());
        });
        expect(&lines, &["ERROR", "poisoned", "cause="]);
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.contains("poisoned cause"))
                .count(),
            1,
            "{lines:#?}"
        );
        expect(
            &lines,
            &["ERROR [checkpoint]", "checkpoint failed", "error="],
        );
    }
}

/// Every gate is named once, and those that a checkpoint certainly holds have been held.
#[test]
fn statistics_tell_how_long_gates_were_held() {
    let builder = Database::builder().pool_bytes(1 << 20);
    let builder = builder.background_threads(false);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t = db.open_table::<u64, u64>("t").unwrap();
    let snapshot = db.snapshot();
    for value in 0..2 {
        (0..100).for_each(|key| db.transact(|tx| tx.insert(&t, &key, &value)).unwrap());
    }
    drop(snapshot);
    let before = db.stats().gate_holds;
    let names: BTreeSet<_> = before.iter().map(|hold| hold.gate).collect();
    assert_eq!(names.len(), before.len());
    let held = |stats: &braid::Stats, gate| {
        let mut holds = stats.gate_holds.iter();
        let hold = holds.find(|hold| hold.gate == gate).unwrap();
        assert!(hold.longest <= hold.elapsed);
        !hold.elapsed.is_zero()
    };
    assert!(!held(&db.stats(), "garbage"));
    db.compact().unwrap();
    let stats = db.stats();
    for gate in [
        "commit gate",
        "large commits",
        "open checkpoint",
        "free space",
        "page gate",
        "garbage",
    ] {
        assert!(held(&stats, gate), "{gate}");
    }
    let text = stats.to_prometheus();
    assert!(text.contains("\nbraid_gate_longest_hold_seconds{gate=\"commit gate\"} 0.0"));
}
