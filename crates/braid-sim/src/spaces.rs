//! The devices of a history: the main one, and one for each tablespace, which may fail alone.

use std::sync::Arc;

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
    devices: Vec<SimDevice>,
    /// Whether tablespaces have logs of their own.
    logs: bool,
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
        Self {
            devices: (1..=count).map(device).collect(),
            logs: plan.has_logs(),
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

    /// Replaces the device of a tablespace, by its number from 1.
    pub(crate) fn set(&mut self, number: usize, device: SimDevice) {
        self.devices[number - 1] = device;
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
        let numbers = (1..=self.devices.len()).filter(|number| *number != except);
        numbers.fold(builder, |builder, number| {
            let device = Arc::new(self.devices[number - 1].clone());
            builder.tablespace_device(&self.name_of(number), device)
        })
    }

    fn name_of(&self, number: usize) -> String {
        if number == self.devices.len() {
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
        for number in 1..self.devices.len() {
            let name = name(number);
            if !existing.contains(&name) {
                db.create_tablespace(&name, self.options(number))?;
            }
        }
        Ok(())
    }

    /// Creates the spare tablespace.
    pub(crate) fn create_spare(&self, db: &Database) -> Result<()> {
        db.create_tablespace(SPARE, self.options(self.devices.len()))
    }

    fn options(&self, number: usize) -> TablespaceOptions {
        let device = Arc::new(self.devices[number - 1].clone());
        // One of them shares the log.
        let own_log = self.logs && !(number + 1).is_multiple_of(3);
        TablespaceOptions::on_device(device)
            .pool_bytes(1 << 20)
            .own_log(own_log)
    }
}
