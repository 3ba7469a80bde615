//! Openings without a tablespace, or without the log of one. Each is tried on copies of the devices;
//! the history itself continues with the originals.

use braid::tablespace::TablespaceError;
use braid::{Builder, Database, Error};
use braid_io::{Device, SimDevice};
use fastrand::Rng;

use super::History;
use crate::check::Violation;
use crate::record::{Found, Key};
use crate::spaces::{self, Spaces};
use crate::tables::{Partial, Tables};

/// What of a tablespace is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The device has another one in its place, which is empty.
    Emptied,
    /// The caller does not name the device.
    Unnamed,
    /// The files of its log.
    Log,
    /// A bit in a header of its log.
    Bit,
}

const GONE: [Gone; 4] = [Gone::Emptied, Gone::Unnamed, Gone::Log, Gone::Bit];

impl Gone {
    fn event(self) -> &'static str {
        match self {
            Self::Emptied | Self::Unnamed => "opened without a tablespace",
            Self::Log => "opened without a tablespace's log",
            Self::Bit => "opened with a damaged log of a tablespace",
        }
    }
}

/// Whether the error says that this tablespace prevents the opening.
fn names(error: &Error, name: &str) -> bool {
    matches!(
        error,
        Error::Tablespace(
            TablespaceError::Missing { name: found, .. }
                | TablespaceError::Damaged { name: found, .. }
        ) if found == name
    )
}

impl History {
    /// Occasionally opens copies of the devices without a tablespace: it must be named, the others are
    /// readable, and nothing is lost when it comes back.
    pub(super) fn open_without_a_tablespace(&mut self) -> Result<(), Violation> {
        if self.decayed || self.tampered || self.plan.lies || self.plan.spaces == 0 {
            return Ok(());
        }
        // Independent of a seed's other decisions.
        let mut rng = Rng::with_seed(self.plan.seed ^ 0x9015_51e5 ^ self.outcome.crashes);
        if rng.u32(..4) > 0 {
            return Ok(());
        }
        let Some(trial) = Trial::new(self, &mut rng) else {
            return Ok(());
        };
        let tried = trial.run(&mut rng);
        let event = tried.map_err(|what| format!("{:?} of {}: {what}", trial.gone, trial.name))?;
        event.into_iter().for_each(|event| self.count(event));
        Ok(())
    }
}

/// Copies of the devices of a history, and the same without a tablespace.
pub(super) struct Trial<'h> {
    pub(super) history: &'h History,
    pub(super) main: SimDevice,
    all: Spaces,
    /// What all of them contain.
    pub(super) whole: Found,
    /// The tablespace that is missing.
    pub(super) number: usize,
    pub(super) name: String,
    pub(super) gone: Gone,
    pub(super) without: Spaces,
    /// Whether its log is missing, too.
    pub(super) is_without_log: bool,
}

impl<'h> Trial<'h> {
    /// Copies the devices. Returns `None` if they cannot be read, which is reported later.
    fn new(history: &'h History, rng: &mut Rng) -> Option<Self> {
        let mut all = history.spaces.clone();
        all.replace(SimDevice::after_kill);
        let number = rng.usize(1..=usize::from(history.plan.spaces));
        let mut gone = GONE[rng.usize(..GONE.len())];
        let (without, has_log) = without(&all, number, &mut gone, rng);
        let mut trial = Self {
            history,
            main: history.device.after_kill(),
            all,
            whole: Found::default(),
            number,
            name: spaces::name(number),
            gone,
            without,
            is_without_log: has_log && history.plan.has_logs(),
        };
        let db = trial.read(trial.all.name_in(small())).ok()?;
        if !db.tablespace_names().contains(&trial.name) {
            return None;
        }
        let tables = Tables::existing(&db).ok()?;
        trial.whole = tables.found_in(&db.snapshot()).ok()?;
        Some(trial)
    }

    fn read(&self, builder: Builder) -> braid::Result<Database> {
        let medium = self.history.medium(self.main.clone())?;
        builder.open_read_only_on(medium)
    }

    fn write(&self, builder: Builder) -> braid::Result<Database> {
        builder.open_on(self.history.medium(self.main.clone())?)
    }

    /// Names the devices without the tablespace.
    fn named(&self, builder: Builder) -> Builder {
        match self.gone {
            Gone::Unnamed => self.without.name_in_except(builder, self.number),
            _ => self.without.name_in(builder),
        }
    }

    /// Opens the database without the tablespace, and then with it. Returns what happened.
    fn run(&self, rng: &mut Rng) -> Result<Option<&'static str>, Violation> {
        let writer = self.history.plan.builder(rng);
        let is_refused = match self.write(self.named(writer.clone())) {
            Err(error) if names(&error, &self.name) => true,
            Err(Error::Corrupted { .. }) if self.gone == Gone::Bit => false,
            // It is log that is not needed: no checkpoint has the lane, or the bit is in an older segment.
            // The other device is the tablespace's from now on.
            Ok(db) if matches!(self.gone, Gone::Bit | Gone::Log) => {
                self.check_whole(Ok(db))?;
                return Ok(None);
            }
            opened => return Err(format!("opened to write: {:?}", opened.err())),
        };
        if is_refused {
            self.read_others()?;
            self.salvage().map_err(|what| format!("salvaged: {what}"))?;
        }
        let opened = self.write(self.all.name_in(writer));
        self.check_whole(opened)
            .map_err(|what| format!("it comes back: {what}"))?;
        Ok(is_refused.then(|| self.gone.event()))
    }

    /// Checks that an opened database has everything.
    fn check_whole(&self, opened: braid::Result<Database>) -> Result<(), Violation> {
        let found = opened.and_then(|db| Tables::existing(&db)?.found_in(&db.snapshot()));
        let found = found.map_err(|error| error.to_string())?;
        if found.state != self.whole.state || found.marks != self.whole.marks {
            return Err("the contents differ".to_owned());
        }
        Ok(())
    }

    /// Reads the other tablespaces.
    fn read_others(&self) -> Result<(), Violation> {
        let read = self.read(self.named(small())).and_then(|db| {
            let partial = Partial::existing(&db, &self.name)?;
            let found = partial.found_in(&db.snapshot())?;
            Ok((partial, found))
        });
        let (partial, found) = match read {
            // A crash tore the end of another lane, which looks like damage without the log that is gone.
            Err(Error::Tablespace(TablespaceError::Undecided { name, .. }))
                if self.is_without_log && name == self.name =>
            {
                return Ok(());
            }
            read => read.map_err(|error| format!("the others: {error}"))?,
        };
        // Without its log, they are read up to what is proven to be durable.
        compare(&partial, &found, &self.whole, !self.is_without_log)
    }
}

pub(super) fn small() -> Builder {
    Database::builder().pool_bytes(1 << 20)
}

/// Returns the devices without what is gone of a tablespace, which may have no log, and whether its log is
/// among that.
fn without(copies: &Spaces, number: usize, gone: &mut Gone, rng: &mut Rng) -> (Spaces, bool) {
    let device = copies.log_device(number);
    let files = device.list().unwrap_or_default().into_iter();
    let mut logs: Vec<String> = files.map(|file| file.name).collect();
    logs.retain(|name| name.ends_with(".seg"));
    if logs.is_empty() && matches!(gone, Gone::Log | Gone::Bit) {
        *gone = Gone::Emptied;
    }
    let other = match gone {
        // The place of the log.
        Gone::Log if copies.is_apart(number) && rng.bool() => SimDevice::new(rng.u64(..)),
        Gone::Log | Gone::Bit => device.after_kill(),
        _ => SimDevice::new(rng.u64(..)),
    };
    let is_there = |name: &&String| {
        other
            .list()
            .is_ok_and(|files| files.iter().any(|file| file.name == **name))
    };
    match gone {
        Gone::Log => logs.iter().filter(is_there).for_each(|name| {
            other.remove(name).expect("a new device works");
        }),
        Gone::Bit => {
            let name = &logs[rng.usize(..logs.len())];
            other.flip_bit(name, rng.usize(..64), rng.u32(..8));
        }
        _ => {}
    }
    let mut without = copies.clone();
    without.set(number, matches!(gone, Gone::Log | Gone::Bit), other);
    (without, !logs.is_empty())
}

/// Checks that the tables that are readable show a part of the whole that is closed under what it
/// contains, and with `all`, all of it.
fn compare(partial: &Partial, found: &Found, whole: &Found, all: bool) -> Result<(), Violation> {
    if partial.marks.is_none() {
        // Which transactions are there is not known.
        return if all {
            same(partial, found, whole)
        } else {
            Ok(())
        };
    }
    if let Some(id) = found.marks.difference(&whole.marks).next() {
        return Err(format!("it shows transaction {id}, which is not there"));
    }
    if all {
        if found.marks != whole.marks {
            return Err("a transaction is missing".to_owned());
        }
        return same(partial, found, whole);
    }
    for (key, version) in &found.state {
        if !found.marks.contains(&version.writer()) {
            return Err(format!("key {key} has {version}, which is not there"));
        }
    }
    for (key, version) in &whole.state {
        let is_there = partial.has(*key) && found.marks.contains(&version.writer());
        if is_there && found.state.get(key) != Some(version) {
            let shown = found.state.get(key);
            return Err(format!(
                "key {key} has {shown:?}, and transaction {version} is there"
            ));
        }
    }
    Ok(())
}

fn same(partial: &Partial, found: &Found, whole: &Found) -> Result<(), Violation> {
    let keys = found.state.keys().chain(whole.state.keys());
    let differs = |key: &&Key| partial.has(**key) && found.state.get(*key) != whole.state.get(*key);
    match keys.clone().find(differs) {
        Some(key) => Err(format!("key {key} differs")),
        None => Ok(()),
    }
}
