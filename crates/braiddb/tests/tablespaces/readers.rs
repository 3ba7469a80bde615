//! Readers alongside a writer of a database with tablespaces: at each step of a checkpoint, and while
//! the writer does anything at each read of an opening reader.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use braid_io::{File, Layer, LayeredDevice};

use super::*;

const SPACES: [&str; 2] = ["one", "two"];
const TABLES: [&str; 3] = ["main", "in one", "in two"];
const KEYS: u64 = 40;

/// Protocol, and whether `one` has a log of its own.
const KINDS: [(Protocol, bool); 5] = [
    (Protocol::Glsn, true),
    (Protocol::Epoch, true),
    (Protocol::Serial, false),
    (Protocol::Gsn, false),
    (Protocol::Gwsn, false),
];

type Action = Box<dyn FnMut() -> io::Result<()> + Send>;

/// A layer of several devices that calls a function before each operation of one kind.
#[derive(Clone, Default)]
struct Steps {
    action: Arc<Mutex<Option<Action>>>,
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

impl Steps {
    fn set(&self, action: Option<Action>) {
        *self.action.lock().unwrap_or_else(PoisonError::into_inner) = action;
    }

    /// Calls the function, whose own operations are not steps.
    fn step(&self) -> io::Result<()> {
        let lock = || self.action.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut action) = lock().take() else {
            return Ok(());
        };
        let done = action();
        lock().get_or_insert(action);
        done
    }
}

/// The steps of a reader: its reads.
#[derive(Clone, Debug, Default)]
struct Reads(Steps);

impl Layer for Reads {
    fn before_read(&self, _: &str, _: Range<u64>) {
        self.0.step().unwrap();
    }
}

/// The steps of a writer: what it makes durable.
#[derive(Clone, Debug, Default)]
struct Writes(Steps);

impl Layer for Writes {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        file.write_durable_at(bufs, offset)?;
        self.0.step()
    }

    fn sync(&self, file: &dyn File) -> io::Result<()> {
        self.0.step()?;
        file.sync()
    }
}

/// The media of a database and of its tablespaces.
#[derive(Clone, Default)]
struct Media([Arc<MemoryDevice>; 3]);

impl Media {
    fn bare(&self) -> [Arc<dyn Device>; 3] {
        self.0.clone().map(|device| device as Arc<dyn Device>)
    }

    fn with(&self, layer: &impl Layer) -> [Arc<dyn Device>; 3] {
        let over = |device| Arc::new(LayeredDevice::over(device, layer.clone()));
        self.bare().map(|device| over(device) as Arc<dyn Device>)
    }

    fn data_bytes(&self) -> u64 {
        let entries = self.0.iter().flat_map(|device| device.list().unwrap());
        let data = entries.filter(|entry| entry.name == "data.braid");
        data.map(|entry| entry.len).sum()
    }
}

fn builder(devices: &[Arc<dyn Device>; 3]) -> Builder {
    let builder = small()
        .background_threads(false)
        .segment_bytes(128 << 10)
        .strands(2);
    let spaces = SPACES.iter().zip(&devices[1..]);
    spaces.fold(builder, |builder, (name, device)| {
        builder.tablespace_device(name, device.clone())
    })
}

fn read(devices: &[Arc<dyn Device>; 3]) -> braid::Result<Database> {
    builder(devices).open_read_only_on(devices[0].clone())
}

/// A database that is written in one way: each transaction writes one key in all tables.
struct Writer {
    db: Database,
    tables: [Table<u64, Bytes>; 3],
    number: u64,
}

fn filling(number: u64) -> Vec<u8> {
    value(number, 500)
}

impl Writer {
    fn create(devices: [Arc<dyn Device>; 3], (protocol, own_log): (Protocol, bool)) -> Self {
        let strands = protocol.forced_strands().unwrap_or(2);
        let builder = builder(&devices).protocol(protocol).strands(strands);
        let db = builder.open_on(devices[0].clone()).unwrap();
        for (name, device) in SPACES.iter().zip(&devices[1..]) {
            let options = TablespaceOptions::on_device(device.clone()).pool_bytes(1 << 20);
            let options = options.own_log(own_log && *name == "one");
            db.create_tablespace(name, options).unwrap();
        }
        db.close().unwrap();
        let mut writer = Self::open(&devices, 0);
        (0..KEYS).for_each(|_| writer.put().unwrap());
        writer.db.checkpoint().unwrap();
        writer
    }

    fn open(devices: &[Arc<dyn Device>; 3], number: u64) -> Self {
        let db = builder(devices).open_on(devices[0].clone());
        let db = db.unwrap();
        let tables = [
            db.open_table(TABLES[0]).unwrap(),
            table_in(&db, "one", TABLES[1]),
            table_in(&db, "two", TABLES[2]),
        ];
        Self { db, tables, number }
    }

    fn put(&mut self) -> braid::Result<()> {
        let number = self.number + 1;
        put(&self.db, &self.tables, number % KEYS, &filling(number))?;
        self.number = number;
        Ok(())
    }

    /// Replaces every value, with checkpoints.
    fn replace_all(&mut self) {
        for part in 1..=KEYS {
            self.put().unwrap();
            if part % (KEYS / 2) == 0 {
                self.db.checkpoint().unwrap();
            }
        }
    }

    fn move_table(&mut self) {
        let places = [None, Some("one"), Some("two")];
        let place = places[self.number as usize % 3];
        self.db.move_table(TABLES[2], place).unwrap();
    }

    fn create_and_drop(&mut self) {
        if self.db.tablespace_names().len() == 2 {
            let device = Arc::new(MemoryDevice::new());
            let options = TablespaceOptions::on_device(device).pool_bytes(1 << 20);
            self.db.create_tablespace("three", options).unwrap();
            table_in(&self.db, "three", "in three");
        } else {
            self.db.drop_table("in three").unwrap();
            self.db.drop_tablespace("three").unwrap();
        }
    }
}

fn table_in(db: &Database, space: &str, name: &str) -> Table<u64, Bytes> {
    db.open_table_in(space, name, Default::default()).unwrap()
}

/// Returns the number of the last transaction that a reader shows, of which each table must have the same.
#[track_caller]
fn shown(reader: &Database, what: &str) -> u64 {
    let mut newest = Vec::new();
    for name in TABLES {
        let table: Table<u64, Bytes> = reader.existing_table(name).unwrap().expect(name);
        let snapshot = reader.snapshot();
        let mut found = Vec::new();
        for entry in snapshot.iter(&table).unwrap() {
            let (key, value) = entry.unwrap_or_else(|error| panic!("{what}, {name}: {error}"));
            let number = u64::from_le_bytes(value[..8].try_into().unwrap());
            assert!(
                number % KEYS == key && value[..] == filling(number),
                "{what}"
            );
            found.push(number);
        }
        let last = found.iter().max().copied().unwrap_or(0);
        let oldest = (last + 1).saturating_sub(KEYS).max(1);
        found.sort_unstable();
        assert!(found.into_iter().eq(oldest..=last), "{what}, {name}");
        newest.push(last);
    }
    assert!(
        newest.iter().all(|last| *last == newest[0]),
        "{what}: {newest:?}"
    );
    newest[0]
}

/// Each step of a checkpoint has a reader, whose state stays while everything is replaced.
#[test]
fn readers_open_at_each_step_of_a_checkpoint_of_tablespaces() {
    for kind in KINDS {
        let media = Media::default();
        let writes = Writes::default();
        let mut writer = Writer::create(media.with(&writes), kind);
        let readers = Arc::new(Mutex::new(Vec::new()));
        for round in 0..3 {
            (0..7).for_each(|_| writer.put().unwrap());
            let (at, kept, number) = (media.bare(), readers.clone(), writer.number);
            writes.0.set(Some(Box::new(move || {
                let reader = read(&at).unwrap();
                assert_eq!(shown(&reader, "a step"), number);
                // Another one, which has read nothing yet.
                kept.lock().unwrap().push((number, read(&at).unwrap()));
                Ok(())
            })));
            writer.db.checkpoint().unwrap();
            writes.0.set(None);
            let count = readers.lock().unwrap().len();
            assert!(count >= 5 * (round + 1), "{count}");
        }
        for _ in 0..3 {
            writer.replace_all();
        }
        let readers = std::mem::take(&mut *readers.lock().unwrap());
        for (number, mut reader) in readers {
            assert_eq!(shown(&reader, &format!("{kind:?}")), number);
            assert!(reader.refresh().unwrap());
            assert_eq!(shown(&reader, "refreshed"), writer.number);
            drop(reader);
        }
        // What they pinned is free.
        writer.replace_all();
        let before = media.data_bytes();
        for _ in 0..10 {
            writer.replace_all();
        }
        assert!(media.data_bytes() <= before + (512 << 10), "{kind:?}");
    }
}

/// A reader opens the newest state, whatever the writer does at each of its reads.
#[test]
fn a_writer_goes_on_at_each_read_of_a_reader_of_tablespaces() {
    let changes: [fn(&mut Writer); 5] = [
        |writer| writer.db.checkpoint().unwrap(),
        |writer| {
            writer.put().unwrap();
            writer.db.checkpoint().unwrap();
            writer.put().unwrap();
            writer.db.checkpoint().unwrap();
        },
        Writer::replace_all,
        Writer::move_table,
        Writer::create_and_drop,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let kind = KINDS[index];
        let media = Media::default();
        let writer = Arc::new(Mutex::new(Writer::create(media.bare(), kind)));
        let reads = Reads::default();
        let devices = media.with(&reads);
        let mut kept = Vec::new();
        for step in (0_u64..).step_by(if index < 2 { 1 } else { 3 }) {
            let what = format!("{kind:?}, change {index}, step {step}");
            writer.lock().unwrap().put().unwrap();
            let before = writer.lock().unwrap().number;
            let (mut left, at) = (step, writer.clone());
            let is_done = Arc::new(Mutex::new(false));
            let done = is_done.clone();
            reads.0.set(Some(Box::new(move || {
                if left == 0 {
                    let mut writer = at.lock().unwrap();
                    writer.put().unwrap();
                    change(&mut writer);
                    *done.lock().unwrap() = true;
                }
                left = left.wrapping_sub(1);
                Ok(())
            })));
            let opened = read(&devices);
            reads.0.set(None);
            let reader = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            let now = writer.lock().unwrap().number;
            let unread = read(&devices).unwrap();
            if step % 2 == 0 {
                let found = shown(&reader, &what);
                assert!(
                    (before..=now).contains(&found),
                    "{what}: {before} {found} {now}"
                );
            } else {
                kept.push((before..=now, reader, what));
            }
            drop(unread);
            if !*is_done.lock().unwrap() {
                break;
            }
        }
        writer.lock().unwrap().replace_all();
        assert!(kept.len() > 3, "change {index}: {} readers", kept.len());
        for (numbers, reader, what) in kept {
            let found = shown(&reader, &what);
            assert!(numbers.contains(&found), "{what}: {numbers:?} {found}");
        }
    }
}

/// The writer fails at each step of a checkpoint, and the next one knows only the newest checkpoints: it
/// overwrites nothing that readers of earlier ones need.
#[test]
fn the_next_writer_keeps_what_readers_of_tablespaces_need() {
    let kind = KINDS[0];
    let mut failures = 0;
    for step in 0.. {
        let media = Media::default();
        let writes = Writes::default();
        let mut writer = Writer::create(media.with(&writes), kind);
        writer.put().unwrap();
        let first = (writer.number, read(&media.bare()).unwrap());
        writer.replace_all();
        let second = (writer.number, read(&media.bare()).unwrap());
        writer.put().unwrap();
        let (mut left, number) = (step, writer.number);
        writes.0.set(Some(Box::new(move || {
            left = i32::max(left - 1, -1);
            if left < 0 {
                return Err(io::Error::other("the device is gone"));
            }
            Ok(())
        })));
        let failed = writer.db.checkpoint().is_err();
        let third = (number, read(&media.bare()).unwrap());
        drop(writer);
        writes.0.set(None);
        let mut writer = Writer::open(&media.bare(), number);
        for _ in 0..4 {
            writer.replace_all();
        }
        for (number, reader) in [first, second, third] {
            assert_eq!(shown(&reader, &format!("step {step}")), number);
        }
        failures += i32::from(failed);
        if !failed {
            break;
        }
    }
    assert!(failures > 5, "{failures}");
}

/// A reader's handle is one of the table, wherever that is: in states from before moves and after them.
#[test]
fn handles_of_readers_follow_a_table_that_moves() {
    let media = Media::default();
    let mut writer = Writer::create(media.bare(), KINDS[0]);
    let mut reader = read(&media.bare()).unwrap();
    let handle = |reader: &Database| {
        let found: Option<Table<u64, Bytes>> = reader.existing_table(TABLES[2]).unwrap();
        found.unwrap()
    };
    let mut handles = vec![handle(&reader)];
    let mut snapshots = vec![(reader.snapshot(), writer.number)];
    for place in [None, Some("one"), Some("two"), None] {
        writer.db.move_table(TABLES[2], place).unwrap();
        writer.put().unwrap();
        assert!(reader.refresh().unwrap());
        handles.push(handle(&reader));
        snapshots.push((reader.snapshot(), writer.number));
    }
    for (snapshot, number) in &snapshots {
        for handle in &handles {
            let key = number % KEYS;
            let found = snapshot.get(handle, &key).unwrap();
            assert_eq!(found.as_deref(), Some(&filling(*number)[..]), "{number}");
            assert_eq!(snapshot.iter(handle).unwrap().count(), KEYS as usize);
        }
    }
    // Another table of the same name is another table.
    writer.db.drop_table(TABLES[2]).unwrap();
    let namesake = table_in(&writer.db, "two", TABLES[2]);
    writer
        .db
        .transact(|tx| tx.insert(&namesake, &1, b"new"))
        .unwrap();
    assert!(reader.refresh().unwrap());
    for handle in &handles {
        let found = reader.get(handle, &1);
        assert!(
            matches!(found, Err(Error::TableDropped { .. })),
            "{found:?}"
        );
    }
    let (snapshot, _) = &snapshots[0];
    let namesake = handle(&reader);
    let found = snapshot.get(&namesake, &1);
    assert!(
        matches!(found, Err(Error::TableDropped { .. })),
        "{found:?}"
    );
}
