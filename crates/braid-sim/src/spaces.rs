//! The devices of a history: the main one, and one for each tablespace, which may fail alone.

use std::sync::Arc;

use braid::offline::Salvage;
use braid::tablespace::{AgentHook, AgentWork, RemoteAccess, TablespaceOptions};
use braid::{Builder, Database, Health, Result};
use braid_io::{Claim, SimDevice};
use fastrand::Rng;

use crate::plan::Plan;

/// The tablespace that clients create and drop, if there are others.
pub(crate) const SPARE: &str = "spare";

/// The name of a tablespace, by its number from 1.
pub(crate) fn name(number: usize) -> String {
    format!("space-{number}")
}

/// A machine on which all threads are on another node than the tablespaces.
struct AllAreRemote;

impl AgentHook for AllAreRemote {
    fn is_remote(&self, _tablespace: u8) -> bool {
        true
    }

    fn worked(&self, work: AgentWork) {
        if work.by_agent {
            braid_rt::coverage_point("an agent reads or writes a record");
        }
    }
}

/// The devices of the tablespaces other than the main one; see the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Spaces {
    /// Those of the data files, and then, if logs are apart, those of the logs.
    devices: Vec<SimDevice>,
    /// The number of tablespaces.
    count: usize,
    /// Whether tablespaces have logs of their own.
    logs: bool,
    /// Whether each such log is on a device of its own.
    apart: bool,
    /// Whether tablespaces have agents.
    agents: bool,
    /// Decides which of the devices a fault strikes, independently of a seed's other decisions.
    rng: Rng,
}

impl Spaces {
    pub(crate) fn new(plan: &Plan) -> Self {
        // One more for the tablespace that clients create.
        let count = match plan.spaces {
            0 => 0,
            spaces => u64::from(spaces) + 1,
        };
        let device = |number| SimDevice::new(plan.seed ^ (0x5bace << 20) ^ number);
        let apart = plan.has_logs() && plan.apart;
        let devices = if apart { 2 * count } else { count };
        Self {
            devices: (1..=devices).map(device).collect(),
            count: count as usize,
            logs: plan.has_logs(),
            apart,
            agents: plan.agents,
            rng: Rng::with_seed(plan.seed ^ 0x7ab1e),
        }
    }

    pub(crate) fn devices(&self) -> &[SimDevice] {
        &self.devices
    }

    /// Replaces each device, as a crash or a new process does.
    pub(crate) fn replace(&mut self, with: impl Fn(&SimDevice) -> SimDevice) {
        self.devices = self.devices.iter().map(with).collect();
    }

    /// Returns the device that an event strikes, the main one among them.
    pub(crate) fn target(&mut self, main: &SimDevice) -> SimDevice {
        match self.rng.usize(..=self.devices.len()) {
            0 => main.clone(),
            number => self.devices[number - 1].clone(),
        }
    }

    /// Whether this is the device of a tablespace other than the main one.
    pub(crate) fn has(&self, device: &SimDevice) -> bool {
        self.devices.iter().any(|one| one.is_same(device))
    }

    /// Returns the devices for one opener, and their claims.
    pub(crate) fn claim(&self) -> (Self, Vec<Claim>) {
        let (devices, claims) = self.devices.iter().map(SimDevice::claim).unzip();
        let spaces = Self {
            devices,
            rng: self.rng.clone(),
            ..*self
        };
        (spaces, claims)
    }

    /// Returns the device of a tablespace's log, by its number from 1.
    pub(crate) fn log_device(&self, number: usize) -> &SimDevice {
        let first = if self.apart { self.count } else { 0 };
        &self.devices[first + number - 1]
    }

    /// Whether the log of a tablespace is on a device of its own.
    pub(crate) fn is_apart(&self, number: usize) -> bool {
        self.apart && self.has_log(number)
    }

    /// Whether a tablespace has a log of its own: one of them shares the log.
    fn has_log(&self, number: usize) -> bool {
        self.logs && !(number + 1).is_multiple_of(3)
    }

    /// Replaces the device of a tablespace, or that of its log.
    pub(crate) fn set(&mut self, number: usize, of_log: bool, device: SimDevice) {
        let first = if of_log && self.apart { self.count } else { 0 };
        self.devices[first + number - 1] = device;
    }

    /// Names the devices of all tablespaces for an opening.
    pub(crate) fn name_in(&self, builder: Builder) -> Builder {
        self.name_in_except(builder, 0)
    }

    /// As [`Spaces::name_in`], except for that of one tablespace.
    pub(crate) fn name_in_except(&self, mut builder: Builder, except: usize) -> Builder {
        if self.agents {
            let by_agents = builder.remote_access(RemoteAccess::Agent);
            builder = by_agents.agent_hook(Arc::new(AllAreRemote));
        }
        (1..=self.count).fold(builder, |mut builder, number| {
            let name = self.name_of(number);
            if number != except {
                let device = Arc::new(self.devices[number - 1].clone());
                builder = builder.tablespace_device(&name, device);
            }
            if self.is_apart(number) {
                let log = Arc::new(self.log_device(number).clone());
                builder = builder.tablespace_log_on(&name, log);
            }
            builder
        })
    }

    /// Names the devices of all tablespaces except for that of one, for salvage.
    pub(crate) fn salvage_except(&self, except: usize) -> Salvage {
        (1..=self.count).fold(Salvage::new(), |mut salvage, number| {
            let name = self.name_of(number);
            if number != except {
                let device = Arc::new(self.devices[number - 1].clone());
                salvage = salvage.tablespace_device(&name, device);
            }
            if self.is_apart(number) {
                let log = Arc::new(self.log_device(number).clone());
                salvage = salvage.tablespace_log_on(&name, log);
            }
            salvage
        })
    }

    fn name_of(&self, number: usize) -> String {
        if number == self.count {
            return SPARE.to_owned();
        }
        name(number)
    }

    /// Creates the tablespaces that do not exist, except for the spare one.
    pub(crate) fn create_missing(&self, db: &Database) -> Result<()> {
        // Opened read-only, perhaps without a tablespace: opening its tables says why.
        if matches!(db.health(), Health::Damaged { .. }) {
            return Ok(());
        }
        let existing = db.tablespace_names();
        for number in 1..self.count {
            let name = name(number);
            if !existing.contains(&name) {
                db.create_tablespace(&name, self.options(number))?;
            }
        }
        Ok(())
    }

    /// Creates the spare tablespace.
    pub(crate) fn create_spare(&self, db: &Database) -> Result<()> {
        db.create_tablespace(SPARE, self.options(self.count))
    }

    fn options(&self, number: usize) -> TablespaceOptions {
        let device = Arc::new(self.devices[number - 1].clone());
        let options = TablespaceOptions::on_device(device)
            .pool_bytes(1 << 20)
            .own_log(self.has_log(number));
        if !self.is_apart(number) {
            return options;
        }
        braid_rt::coverage_point("a tablespace's log on a device of its own");
        options.log_on(Arc::new(self.log_device(number).clone()))
    }
}
