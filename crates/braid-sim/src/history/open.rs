//! Opening a database through crashes and faults.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use braid::tablespace::TablespaceError;
use braid::{Builder, Database, Error};
use braid_io::{Device, SimDevice};
use braid_rt::thread;

use super::{History, Phase};
use crate::check::Violation;
use crate::drive;
use crate::foreign::Planted;
use crate::record::{Found, TxId};
use crate::spaces::Spaces;
use crate::tables::Tables;

/// Attempts to open that may be disturbed. The next one must succeed, or report damage.
const DISTURBED: u32 = 3;

/// An open database, its tables, and their contents.
pub(super) struct Contents {
    pub(super) db: Database,
    pub(super) tables: Tables,
    pub(super) found: Found,
}

/// How an opening ended.
pub(super) enum Opened {
    Open(Contents),
    /// The engine reports damage of the medium, which is damaged.
    Refused,
}

/// What disturbs an attempt to open.
#[derive(Default)]
struct Disturbances {
    /// The task that cuts the power.
    power: Option<thread::JoinHandle>,
    /// The kind of an injected fault.
    fault: Option<&'static str>,
}

impl Disturbances {
    fn is_empty(&self) -> bool {
        self.power.is_none() && self.fault.is_none()
    }
}

impl History {
    /// Opens the database, retrying through all crashes, and checks everything.
    pub(super) fn open(&mut self) -> Result<Opened, Violation> {
        self.enter(Phase::Opening);
        let mut shown = BTreeSet::new();
        for attempt in 0..=DISTURBED {
            let opened = self.attempt(attempt < DISTURBED, &mut shown)?;
            if let Some(opened) = opened {
                return Ok(opened);
            }
        }
        unreachable!("the last attempt is not disturbed")
    }

    /// Opens the database once. Returns `None` if a new process must retry. `shown` contains the
    /// transactions that earlier attempts have shown.
    fn attempt(
        &mut self,
        may_disturb: bool,
        shown: &mut BTreeSet<TxId>,
    ) -> Result<Option<Opened>, Violation> {
        if may_disturb {
            self.open_without_a_tablespace()?;
        }
        if may_disturb && self.plan.crashes && self.plan.readers {
            self.look(shown);
        }
        let disturbances = if may_disturb {
            self.disturb_opening()
        } else {
            Disturbances::default()
        };
        self.choose_blocks();
        let (spaces, claims) = self.spaces.claim();
        let builder = spaces.name_in(self.builder());
        let planted = if may_disturb && disturbances.is_empty() {
            self.plant()
        } else {
            None
        };
        let (device, claim) = self.device.claim();
        let opened = self
            .medium(device)
            .and_then(|medium| builder.open_on_locked(medium, (claim, claims)));
        if let Some(planted) = planted {
            self.count(planted.what);
            planted.check(&self.device, &opened)?;
            if opened.is_err() {
                return Ok(None);
            }
        }
        if disturbances.is_empty() {
            self.check_one_page(&opened)?;
        }
        let opened = self.inspect(opened, &spaces)?;
        if let Ok(contents) = &opened {
            self.check_shown(&contents.found, shown)?;
        }
        let Disturbances { power, fault } = disturbances;
        if let Some(fault) = fault.filter(|_| self.faults() > 0) {
            self.count(fault);
        }
        if let Some(power) = power {
            self.lose_power(power, opened);
            return Ok(None);
        }
        match opened {
            Ok(contents) => {
                self.repair();
                self.background.spare.begin(spaces);
                if std::mem::take(&mut self.tampered) {
                    self.count("opened in spite of a tampered log file");
                }
                Ok(Some(Opened::Open(contents)))
            }
            Err(_) if fault.is_some() => {
                self.retry();
                Ok(None)
            }
            Err(error) => self.refused(&error).map(Some),
        }
    }

    /// Returns the device that contains the database's files.
    pub(super) fn medium(&self, device: SimDevice) -> braid::Result<Arc<dyn Device>> {
        if !self.plan.nvme {
            return Ok(Arc::new(device));
        }
        let seed = self.plan.seed ^ self.outcome.crashes;
        drive::open(&device, seed).map_err(|source| Error::Io {
            what: "cannot open the volume".into(),
            source: Arc::new(source),
        })
    }

    /// Lets the device be another one in most of the openings, as if the files had been moved: with
    /// blocks of 512 instead of 4,096 bytes, or with log, data or both in persistent memory, which
    /// has cache lines.
    fn choose_blocks(&mut self) {
        let number = self.plan.seed + self.outcome.crashes;
        let kind = if self.plan.nvme {
            [0, 6][(number % 2) as usize]
        } else if self.plan.pmem {
            [1, 2, 5, 3][(number % 4) as usize]
        } else {
            number % 8
        };
        let (data, log, what) = match kind {
            0 | 4 => (512, 512, Some("opened with small blocks")),
            1 | 5 => (64, 64, Some("opened in persistent memory")),
            2 => (4096, 64, Some("opened with the log in persistent memory")),
            3 => (64, 4096, Some("opened with the data in persistent memory")),
            _ => (4096, 4096, None),
        };
        for (device, number) in self.spaces.devices().iter().zip(number..) {
            device.set_block_size([4096, 512, 64][(number % 3) as usize]);
            if self.plan.has_logs() {
                // All parts of the log have flushes of the same units.
                device.set_log_block_size(log);
            }
        }
        self.device.set_block_size(data);
        self.device.set_log_block_size(log);
        if self.plan.nvme {
            self.count("opened on a volume");
        }
        what.into_iter().for_each(|what| self.count(what));
    }

    /// Occasionally reads the database without writing, as a process that ends before the next one
    /// opens it for writing, and before a loss of power. A failure to open is reported later.
    fn look(&mut self, shown: &mut BTreeSet<TxId>) {
        if self.decayed || self.tampered || self.plan.lies || self.rng.u32(..3) > 0 {
            return;
        }
        let builder = self.spaces.name_in(Database::builder().pool_bytes(1 << 20));
        let opened = self
            .medium(self.device.clone())
            .and_then(|medium| builder.open_read_only_on(medium));
        let found = opened.and_then(|db| Tables::existing(&db)?.found_in(&db.snapshot()));
        if let Ok(found) = found {
            self.count("looked at before it is opened to write");
            *shown = found.marks;
            if self.rng.bool() {
                self.replace_devices(SimDevice::after_crash);
                if let Some(archive) = &mut self.archive {
                    archive.restart(false);
                }
            }
        }
    }

    /// Occasionally lets the power or an operation of the device fail.
    fn disturb_opening(&mut self) -> Disturbances {
        let one_in = if self.was_killed { 2 } else { 4 };
        let armed = self.plan.crashes && self.rng.u32(..one_in) == 0;
        let power = armed.then(|| self.arm(Duration::from_millis(3)));
        let mut fault = None;
        if self.plan.errors && self.rng.u32(..12) == 0 {
            let n = self.rng.u64(1..20);
            let device = self.spaces.target(&self.device);
            fault = Some(match self.rng.u32(..3) {
                0 => {
                    device.fail_write_after(n);
                    "write error while opening"
                }
                1 => {
                    device.fail_sync_after(n);
                    "sync error while opening"
                }
                _ => {
                    device.fail_read_after(n);
                    "read error while opening"
                }
            });
        }
        Disturbances { power, fault }
    }

    fn builder(&mut self) -> Builder {
        let builder = self.plan.builder(&mut self.rng);
        match &mut self.archive {
            Some(archive) => archive.ask_for(builder, self.plan.feed, &mut self.rng),
            None => builder,
        }
    }

    /// Occasionally puts a foreign file into the directory.
    fn plant(&mut self) -> Option<Planted> {
        // The comparison of files reads whole blocks.
        let are_blocks = !self.outcome.counts.contains_key("a log file cut");
        if are_blocks && !self.plan.nvme {
            self.foreign.plant(&self.device)
        } else {
            None
        }
    }

    /// Checks that one damaged page leaves the rest of the database open.
    fn check_one_page(&mut self, opened: &braid::Result<Database>) -> Result<(), Violation> {
        if !self.one_page || self.tampered {
            return Ok(());
        }
        if let Err(error) = opened {
            return Err(format!("one damaged page closes all others: {error}"));
        }
        self.count("one page damaged, and the rest is open");
        Ok(())
    }

    /// Reads everything, and checks what does not depend on the last round.
    fn inspect(
        &self,
        opened: braid::Result<Database>,
        spaces: &Spaces,
    ) -> Result<braid::Result<Contents>, Violation> {
        let mut checked = Ok(());
        let opened = opened.and_then(|db| {
            let tables = Tables::open(&db, &self.plan, spaces)?;
            let found = again_if_ended(|| tables.found(&db))?;
            if !self.decayed {
                let check = || {
                    self.background
                        .check_opened(&self.plan, &db, &tables, &found)
                };
                checked = again_if_ended(check)?;
            }
            Ok(Contents { db, tables, found })
        });
        checked.map(|()| opened)
    }

    /// Checks that the transactions that an earlier attempt has shown are still there.
    fn check_shown(&self, found: &Found, shown: &mut BTreeSet<TxId>) -> Result<(), Violation> {
        if self.decayed || self.tampered || self.plan.lies {
            return Ok(());
        }
        if let Some(id) = shown.difference(&found.marks).next() {
            return Err(format!("an earlier opening has shown transaction {id}"));
        }
        shown.clone_from(&found.marks);
        Ok(())
    }

    /// Waits until the power fails, and restores it.
    fn lose_power(&mut self, power: thread::JoinHandle, opened: braid::Result<Contents>) {
        let mut opened = Some(opened);
        if matches!(opened, Some(Ok(_))) && self.rng.bool() {
            // The crash may still be pending; then it disturbs the close.
            opened = None;
        }
        power.join().expect("it does not panic");
        drop(opened);
        self.restart();
    }

    /// Ends the process after a fault of the device. A new one retries.
    fn retry(&mut self) {
        self.repair();
        self.replace_devices(SimDevice::after_kill);
        if let Some(archive) = &mut self.archive {
            archive.restart(true);
        }
    }

    /// Checks the error of an opening that nothing has disturbed.
    fn refused(&mut self, error: &Error) -> Result<Opened, Violation> {
        if !self.decayed && !self.tampered {
            return Err(format!("a working device can't be opened: {error}"));
        }
        match error {
            // A stale sector may make a stale page intact, which only its contents can reveal.
            Error::Corrupted { .. }
            | Error::Decode { .. }
            | Error::Incompatible { .. }
            | Error::NotADatabase { .. } => {
                self.count("damage reported when opening");
                Ok(Opened::Refused)
            }
            Error::Tablespace(
                TablespaceError::Damaged { .. }
                | TablespaceError::Foreign { .. }
                | TablespaceError::Missing { .. }
                | TablespaceError::OtherState { .. },
            ) => {
                self.count("damage of a tablespace reported when opening");
                Ok(Opened::Refused)
            }
            error => Err(format!("damage is reported as: {error}")),
        }
    }
}

/// Reads again if the engine ends the snapshot meanwhile, because its own threads remove entries.
fn again_if_ended<T>(mut read: impl FnMut() -> braid::Result<T>) -> braid::Result<T> {
    loop {
        match read() {
            Err(Error::SnapshotTooOld { .. }) => braid_rt::thread::yield_now(),
            read => return read,
        }
    }
}
