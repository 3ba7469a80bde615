//! The plan of a history, which its seed determines.

use std::fmt;

use braid::{Builder, Database, PmemCommit, Protocol};
use fastrand::Rng;

/// Most tablespaces of a history other than the main one.
pub(crate) const SPACES_MAX: u8 = 3;

/// A history's parameters. The same plan always produces the same history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of all decisions that the other fields leave open.
    pub seed: u64,
    /// The commit protocol to begin with.
    pub protocol: Protocol,
    /// How often the database is opened and left again.
    pub rounds: u32,
    /// Concurrent clients in a round.
    pub clients: u64,
    /// Most transactions of a client in a round.
    pub transactions: u32,
    /// Keys that clients use.
    pub keys: u8,
    /// Log buffers.
    pub strands: usize,
    /// Lanes of the log.
    pub lanes: usize,
    /// Whether transactions use snapshot isolation instead of serializability.
    pub snapshot: bool,
    /// Whether many values are large, so that the log and the pool are small for them.
    pub large: bool,
    /// Whether clients make checkpoints.
    pub checkpoints: bool,
    /// Whether the power may fail, and processes may be killed.
    pub crashes: bool,
    /// Whether reads, writes and syncs may fail, and the device may be full.
    pub errors: bool,
    /// Whether sectors may suffer media faults between two rounds.
    pub media_faults: bool,
    /// Whether a log file is cut, removed or replaced by an earlier copy between two rounds, once.
    /// Either nothing is lost by that, or the next opening refuses.
    pub tamper: bool,
    /// Whether transactions roll back some of their writes.
    pub savepoints: bool,
    /// Whether the table is compressed.
    pub compressed: bool,
    /// Whether transactions write entries with a time to live, too.
    pub leases: bool,
    /// Whether clients read named snapshots.
    pub named: bool,
    /// Whether tables are loaded past the log.
    pub loads: bool,
    /// Whether a consumer reads a change feed.
    pub feed: bool,
    /// Whether clients make backups, which are restored.
    pub copies: bool,
    /// Whether the log is archived. Then nothing is loaded past it, since no archive leads beyond
    /// that.
    pub archive: bool,
    /// Whether the database is closed and opened again while clients go on with their old handles.
    pub reopens: bool,
    /// Whether clients only run the transactions that reveal false absences: see `Client::seesaw`.
    pub seesaw: bool,
    /// Whether there are more values than the pool holds, so that commits load pages and evict
    /// others, and the device fails meanwhile.
    pub tight: bool,
    /// One in this many steps leaves its thread without a processor for a while; 0 for none.
    pub stalls: u16,
    /// Whether clients make typical mistakes of programs: callbacks, closures and the health
    /// listener panic.
    pub careless: bool,
    /// Whether clients read as other processes do, alongside the writing process.
    pub readers: bool,
    /// Whether some keys are long, with shared beginnings: see `keys`.
    pub long: bool,
    /// Whether the log has a limit that large transactions reach.
    pub limited: bool,
    /// Whether snapshots end as soon as old versions take more than a little memory.
    pub short_snapshots: bool,
    /// Whether clients compact the data file, next to the transactions of others.
    pub compacts: bool,
    /// Whether log, data or both are in persistent memory in every opening, instead of five in
    /// eight.
    pub pmem: bool,
    /// Whether the database lies in a volume on a drive: without readers in other processes, an
    /// archive, and changes to single files from outside, which a volume does not offer.
    pub nvme: bool,
    /// Whether each value nearly fills a log file, several flushes are in flight, and some of the
    /// device's operations take very long: so writes end in another order than they began.
    pub bulky: bool,
    /// Tablespaces other than the main one, each on a device of its own.
    pub spaces: u8,
    /// Whether those tablespaces have logs of their own, each on its device: without a limit for the
    /// log, and with a protocol that allows them.
    pub logs: bool,
    /// Whether those logs are on devices of their own.
    pub apart: bool,
    /// Whether those tablespaces have agents, which all threads use.
    pub agents: bool,
    /// Whether clients move tables between the tablespaces.
    pub moves: bool,
    /// Whether the device lies about durability: then the checker should report violations.
    pub lies: bool,
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn new(seed: u64, protocol: Protocol) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let mut plan = Self::draw(seed, protocol, &mut rng);
        // Together they are too much for the pool.
        plan.loads |= plan.large && rng.bool();
        if rng.u32(..12) == 0 {
            plan = plan.with_large_transactions();
        }
        if plan.reopens {
            // Handles of every kind. More rounds, since a further round must check the state that
            // the previous one left.
            plan.rounds = plan.rounds.max(2);
            plan.loads |= rng.u32(..3) == 0;
            plan.copies |= rng.u32(..4) == 0;
            plan.feed |= rng.u32(..4) == 0;
        }
        if plan.seesaw {
            plan.with_seesaw()
        } else if Rng::with_seed(seed ^ 0xc4b1).u32(..16) == 0 {
            // From its own generator, so that the plans of other seeds are unchanged.
            plan.with_crowd()
        } else if Rng::with_seed(seed ^ 0xb01c).u32(..24) == 0 {
            // From its own generator, too.
            plan.with_bulky_values()
        } else if rng.u32(..10) == 0 {
            plan.with_small_pool()
        } else {
            plan
        }
    }

    /// Draws each field independently of the others.
    fn draw(seed: u64, protocol: Protocol, rng: &mut Rng) -> Self {
        let one = protocol.forced_strands().is_some();
        let lanes = if one { 1 } else { [1, 1, 2, 3][rng.usize(..4)] };
        Self {
            seed,
            protocol,
            rounds: rng.u32(1..4),
            clients: rng.u64(1..5),
            transactions: rng.u32(2..12),
            keys: rng.u8(2..12),
            strands: if one { 1 } else { lanes + rng.usize(..3) },
            lanes,
            snapshot: rng.u32(..5) == 0,
            large: rng.u32(..6) == 0,
            checkpoints: rng.u32(..3) > 0,
            crashes: rng.u32(..12) > 0,
            errors: rng.u32(..3) == 0,
            media_faults: rng.u32(..8) == 0,
            // From a separate generator, so that the other fields of a seed are unchanged.
            tamper: Rng::with_seed(seed ^ 0x7a_3be2).u32(..8) == 0,
            savepoints: rng.u32(..4) == 0,
            compressed: rng.u32(..6) == 0,
            leases: rng.u32(..8) == 0,
            named: rng.u32(..8) == 0,
            loads: rng.u32(..12) == 0,
            feed: rng.u32(..8) == 0,
            copies: rng.u32(..20) == 0,
            archive: rng.u32(..20) == 0,
            seesaw: rng.u32(..16) == 0,
            stalls: [0, 0, 0, 0, 0, 0, 64, 512][rng.usize(..8)],
            careless: rng.u32(..8) == 0,
            tight: false,
            pmem: false,
            nvme: false,
            bulky: false,
            // From its own generator, so that the rest of a seed's plan is unchanged.
            spaces: match Rng::with_seed(seed ^ 0x5bace).u32(..24) {
                0 | 1 => 1,
                2 => 2,
                3 => SPACES_MAX,
                _ => 0,
            },
            logs: Rng::with_seed(seed ^ 0x1065).bool(),
            apart: Rng::with_seed(seed ^ 0x000a_9a47).bool(),
            agents: Rng::with_seed(seed ^ 0xa6e7).bool(),
            moves: Rng::with_seed(seed ^ 0x0003_07e5).u32(..3) > 0,
            lies: false,
            reopens: rng.u32(..8) == 0,
            // From its own generator, so that the rest of a seed's plan is unchanged.
            readers: Rng::with_seed(seed ^ 0x04ea_de45).u32(..8) == 0,
            long: Rng::with_seed(seed ^ 0x10_46e5).u32(..8) == 0,
            limited: Rng::with_seed(seed ^ 0x11317).u32(..4) > 0,
            short_snapshots: Rng::with_seed(seed ^ 0x5407).u32(..4) == 0,
            compacts: Rng::with_seed(seed ^ 0xc0_4ac7).u32(..12) == 0,
        }
    }

    /// A transaction larger than a buffer reaches the medium after nearly all earlier ones. So
    /// finding it there although it is discarded takes many such transactions, and threads that
    /// stop in the middle of one.
    fn with_large_transactions(self) -> Self {
        Self {
            rounds: 3,
            clients: 4,
            transactions: 8,
            keys: 6,
            large: true,
            crashes: true,
            stalls: 64,
            ..self
        }
    }

    /// Many short transactions that reveal false absences, and nothing else.
    fn with_seesaw(self) -> Self {
        Self {
            reopens: false,
            rounds: 1,
            clients: 4,
            transactions: 200,
            keys: 3,
            stalls: 64,
            snapshot: false,
            large: false,
            crashes: false,
            errors: false,
            ..self
        }
    }

    /// More clients and strands than flushes in flight: flushes of several strands, which depend on
    /// each other.
    fn with_crowd(self) -> Self {
        let one = self.protocol.forced_strands().is_some();
        Self {
            clients: 8,
            transactions: 20,
            strands: if one { 1 } else { self.lanes + 2 },
            crashes: true,
            loads: false,
            reopens: false,
            ..self
        }
    }

    /// Flushes that begin a log file each, and overtake each other. The order of the two writes of a
    /// file's header matters only if the later files are then missing, which is also checked.
    fn with_bulky_values(self) -> Self {
        Self {
            rounds: self.rounds.max(2),
            clients: 8,
            transactions: 24,
            keys: 8,
            strands: 1,
            lanes: 1,
            large: true,
            checkpoints: false,
            crashes: true,
            errors: false,
            media_faults: false,
            tamper: false,
            loads: false,
            feed: false,
            copies: false,
            archive: false,
            reopens: false,
            limited: false,
            bulky: true,
            spaces: 0,
            ..self
        }
    }

    /// More values than the pool holds.
    fn with_small_pool(self) -> Self {
        Self {
            clients: self.clients.max(2),
            transactions: self.transactions + 20,
            keys: self.keys.max(8),
            large: true,
            checkpoints: true,
            errors: true,
            tight: true,
            ..self
        }
    }

    /// Sets a field by its name, instead of the seed's value.
    ///
    /// # Errors
    /// A message, if there is no such field or the value is invalid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.set_all([(name, value)])
    }

    /// Sets several fields, which need to be consistent only when all are set.
    ///
    /// # Errors
    /// As [`Plan::set`].
    pub fn set_all<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), String> {
        let mut names = Vec::new();
        for (name, value) in fields {
            self.parse(name, value)?;
            names.push(name);
        }
        let fits = (1..=100).contains(&self.rounds)
            && (1..=15).contains(&self.clients)
            && (1..=10_000).contains(&self.transactions)
            && (1..=100).contains(&self.keys)
            && (1..=self.strands).contains(&self.lanes)
            && self.strands <= 16
            && self.spaces <= SPACES_MAX;
        fits.then_some(()).ok_or_else(|| {
            let names = names.join(", ");
            format!("what is set ({names}) is out of bounds, or does not fit to the rest: {self}")
        })
    }

    fn parse(&mut self, name: &str, value: &str) -> Result<(), String> {
        fn parse<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
            value
                .parse()
                .map_err(|_| format!("{value:?} is no value for {name}"))
        }
        match name {
            "seed" => self.seed = parse(name, value)?,
            "rounds" => self.rounds = parse(name, value)?,
            "clients" => self.clients = parse(name, value)?,
            "transactions" => self.transactions = parse(name, value)?,
            "keys" => self.keys = parse(name, value)?,
            "strands" => self.strands = parse(name, value)?,
            "lanes" => self.lanes = parse(name, value)?,
            "snapshot" => self.snapshot = parse(name, value)?,
            "large" => self.large = parse(name, value)?,
            "checkpoints" => self.checkpoints = parse(name, value)?,
            "crashes" => self.crashes = parse(name, value)?,
            "errors" => self.errors = parse(name, value)?,
            "media_faults" => self.media_faults = parse(name, value)?,
            "tamper" => self.tamper = parse(name, value)?,
            "savepoints" => self.savepoints = parse(name, value)?,
            "compressed" => self.compressed = parse(name, value)?,
            "leases" => self.leases = parse(name, value)?,
            "named" => self.named = parse(name, value)?,
            "loads" => self.loads = parse(name, value)?,
            "feed" => self.feed = parse(name, value)?,
            "copies" => self.copies = parse(name, value)?,
            "archive" => self.archive = parse(name, value)?,
            "reopens" => self.reopens = parse(name, value)?,
            "tight" => self.tight = parse(name, value)?,
            "seesaw" => self.seesaw = parse(name, value)?,
            "stalls" => self.stalls = parse(name, value)?,
            "careless" => self.careless = parse(name, value)?,
            "readers" => self.readers = parse(name, value)?,
            "long" => self.long = parse(name, value)?,
            "limited" => self.limited = parse(name, value)?,
            "short_snapshots" => self.short_snapshots = parse(name, value)?,
            "compacts" => self.compacts = parse(name, value)?,
            "pmem" => self.pmem = parse(name, value)?,
            "nvme" => self.nvme = parse(name, value)?,
            "bulky" => self.bulky = parse(name, value)?,
            "spaces" => self.spaces = parse(name, value)?,
            "logs" => self.logs = parse(name, value)?,
            "apart" => self.apart = parse(name, value)?,
            "agents" => self.agents = parse(name, value)?,
            "moves" => self.moves = parse(name, value)?,
            "lies" => self.lies = parse(name, value)?,
            _ => return Err(format!("a plan has no {name}")),
        }
        Ok(())
    }

    /// Whether the tablespaces have logs of their own.
    pub(crate) fn has_logs(&self) -> bool {
        self.logs && self.spaces > 0 && self.protocol.has_side_lanes()
    }

    /// Whether clients move tables between the tablespaces.
    pub(crate) fn has_moves(&self) -> bool {
        self.moves && self.spaces > 0
    }

    /// Returns the builder that opens the database.
    pub(crate) fn builder(&self, rng: &mut Rng) -> Builder {
        // All of a lane's buffers fit into a segment, as some protocols require.
        let segment =
            (self.strands.div_ceil(self.lanes) + 1).next_power_of_two() as u64 * (64 << 10);
        let due = 64 << 10 << rng.u32(..4);
        let builder = Database::builder()
            .protocol(self.protocol)
            .strands(self.strands)
            .lanes(self.lanes)
            .pool_bytes(1 << 20)
            .segment_bytes(segment)
            .pmem_commit(PmemCommit::ALL[(self.seed % 3) as usize])
            .pmem_lines(self.seed % 16 != 3)
            .pmem_in_place(self.seed % 16 != 11)
            .flushes_in_flight(rng.usize(1..4).max(if self.bulky { 2 } else { 1 }))
            .epoch(std::time::Duration::from_micros(rng.u64(50..2_000)));
        let builder = match self.max_log_bytes(segment) {
            None => builder.checkpoint_log_bytes(due),
            // Checkpoints begin early, so that commits slow down while one runs.
            Some(most) => builder
                .checkpoint_log_bytes(due.min(most / 16).max(64 << 10))
                .max_log_bytes(most),
        };
        let builder = if self.short_snapshots {
            // A few versions of small values, or of large ones, whose pages count. From its own
            // generator, as above.
            let mut rng = Rng::with_seed(self.seed ^ 0x5408);
            let most = if self.large && rng.bool() {
                80_000
            } else {
                400
            };
            builder.max_version_bytes(rng.usize(1..most))
        } else {
            builder
        };
        let builder = if self.careless {
            builder.on_health_change(|_| {
                braid_rt::coverage_point("the health listener panics");
                braid_rt::panic_deliberately();
            })
        } else {
            builder
        };
        match rng.u32(..8) {
            0 => builder.group_size(rng.u32(2..6)),
            1 => builder.discard(true),
            2 => builder.preallocated_log_bytes(rng.u64(1..8) * segment),
            _ => builder,
        }
    }

    /// Returns the limit of the log, if it has one: little more than it needs, so that large
    /// transactions fill it, slow down and wait for checkpoints. A feed would lose its position.
    fn max_log_bytes(&self, segment: u64) -> Option<u64> {
        // From its own generator, so that the other options of a seed are unchanged.
        let mut rng = Rng::with_seed(self.seed ^ 0xf12);
        let is_limited =
            self.limited && self.large && !self.tight && !self.feed && !self.has_logs();
        let strands = self.strands.div_ceil(self.lanes) as u64;
        let segments = (strands + 2) * 3 / 2 + 3 + rng.u64(..3);
        // A feed that an old handle left keeps up to a quarter.
        let kept = if self.reopens { segments / 3 + 1 } else { 0 };
        is_limited.then_some(self.lanes as u64 * (segments + kept) * segment)
    }

    /// Returns slightly simpler plans, the most promising first.
    pub fn simpler(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        let mut add = |change: &dyn Fn(&mut Plan)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                plans.push(plan);
            }
        };
        add(&|p| p.rounds = 1);
        add(&|p| p.rounds = p.rounds.saturating_sub(1).max(1));
        add(&|p| p.clients = (p.clients / 2).max(1));
        add(&|p| p.clients = (p.clients - 1).max(1));
        add(&|p| p.transactions = (p.transactions / 2).max(1));
        add(&|p| p.transactions = (p.transactions - 1).max(1));
        add(&|p| p.keys = (p.keys / 2).max(2));
        add(&|p| p.media_faults = false);
        add(&|p| p.tamper = false);
        add(&|p| p.savepoints = false);
        add(&|p| p.compressed = false);
        add(&|p| p.leases = false);
        add(&|p| p.named = false);
        add(&|p| p.loads = false);
        add(&|p| p.feed = false);
        add(&|p| p.copies = false);
        add(&|p| p.archive = false);
        add(&|p| p.reopens = false);
        add(&|p| p.readers = false);
        add(&|p| p.long = false);
        add(&|p| p.limited = false);
        add(&|p| p.short_snapshots = false);
        add(&|p| p.compacts = false);
        add(&|p| p.seesaw = false);
        add(&|p| p.bulky = false);
        add(&|p| p.moves = false);
        add(&|p| p.logs = false);
        add(&|p| p.agents = false);
        add(&|p| p.apart = false);
        add(&|p| p.spaces = 0);
        add(&|p| p.spaces = p.spaces.min(1));
        add(&|p| p.careless = false);
        add(&|p| p.tight = false);
        add(&|p| p.stalls = 0);
        add(&|p| p.errors = false);
        add(&|p| p.large = false);
        add(&|p| p.checkpoints = false);
        add(&|p| p.crashes = false);
        add(&|p| p.snapshot = false);
        add(&|p| (p.lanes, p.strands) = (1, p.strands.min(2)));
        add(&|p| (p.lanes, p.strands) = (1, 1));
        plans
    }
}

/// The format that [`Plan::set`] reads, except for the protocol.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            protocol: _,
            rounds,
            clients,
            transactions,
            keys,
            strands,
            lanes,
            snapshot,
            large,
            checkpoints,
            crashes,
            errors,
            media_faults,
            tamper,
            savepoints,
            compressed,
            leases,
            named,
            loads,
            feed,
            copies,
            archive,
            reopens,
            seesaw,
            tight,
            stalls,
            careless,
            readers,
            long,
            limited,
            short_snapshots,
            compacts,
            pmem,
            nvme,
            bulky,
            spaces,
            logs,
            apart,
            agents,
            moves,
            lies,
        } = self;
        write!(
            f,
            "seed={seed},rounds={rounds},clients={clients},transactions={transactions},keys={keys},\
             strands={strands},lanes={lanes},snapshot={snapshot},large={large},checkpoints={checkpoints},\
             crashes={crashes},errors={errors},media_faults={media_faults},tamper={tamper},\
             savepoints={savepoints},compressed={compressed},leases={leases},named={named},loads={loads},\
             feed={feed},copies={copies},archive={archive},reopens={reopens},seesaw={seesaw},tight={tight},stalls={stalls},\
             careless={careless},readers={readers},long={long},limited={limited},\
             short_snapshots={short_snapshots},compacts={compacts},pmem={pmem},nvme={nvme},bulky={bulky},spaces={spaces},logs={logs},apart={apart},agents={agents},moves={moves},lies={lies}"
        )
    }
}

/// Returns the transactions of a protocol that survive. Only protocols that wait for gaps keep a
/// prefix of the numbers. The others keep a prefix of the log or of the flushes, where transactions
/// that do not depend on each other may lie in another order than that of their numbers.
pub(crate) fn survival(protocol: Protocol) -> crate::check::Survival {
    match protocol {
        Protocol::Glsn | Protocol::Epoch => crate::check::Survival::Prefix,
        _ => crate::check::Survival::Closed,
    }
}
