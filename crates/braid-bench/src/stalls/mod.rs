//! Stalls: what a steady load of small commits notices of everything else that a database does.
//!
//! Threads update random records at half of the measured rate of the machine, at times that are
//! fixed in advance ([`load`]). Meanwhile one disturbance after the other runs, each next to a new
//! database. The longest time without any commit, and the latencies, are compared with those of a
//! quiet run.

mod bare;
mod disturb_data;
mod disturb_readers;
mod disturb_versions;
mod disturb_writes;
#[cfg(feature = "plots")]
mod figure;
mod load;
mod peer;
mod report;
mod scenario;
mod services;
mod stage;
mod table;
mod window;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use braid::device::DeviceChoice;
use braid_io::Topology;

use self::load::{Outcome, Pace, Service};
use self::peer::PeerStage;
use self::scenario::{BOUND, Sizes};
use self::services::{Buffered, Waited, watch};
use self::stage::{Disturbance, Stage};
use self::window::Window;
use self::work::{Amounts, Work};
use crate::driver::Driver;
use crate::engines::KvEngine;
use crate::{BenchError, Engine, PROFILE, Spec, Workload};

pub use self::bare::BareStall;
pub use self::report::{
    DisturbanceReport, Hold, HotKey, Latency, StallRow, StallsReport, stalls_figure,
};
pub use self::scenario::Scenario;
pub use self::table::stalls_side_by_side;

/// Duration of the calibration.
const CALIBRATION: Duration = Duration::from_secs(3);

/// Longest time in which the load runs before its disturbance.
const LEAD: Duration = Duration::from_secs(1);

/// Share of the measured rate at which the load runs.
const SHARE: f64 = 0.5;

/// Name of the engine that this measures with all its abilities.
const BRAID: &str = "braid";

/// Parameters of the measurement.
#[derive(Clone, Debug)]
pub struct StallsSpec {
    /// Directory for the databases, one at a time, which are removed.
    pub dir: PathBuf,
    /// Device of the databases, which must store in files.
    pub device: DeviceChoice,
    /// Engine to measure; see [`peers`](crate::engines::peers).
    pub engine: String,
    /// Scenarios to measure after the quiet one.
    pub scenarios: Vec<Scenario>,
    /// Factor of all amounts of data.
    pub scale: f64,
    /// Duration of each measurement: that of repeated disturbances, and the time after the end of
    /// single ones.
    pub seconds: Duration,
    /// Number of threads of the load.
    pub threads: usize,
    /// Commits per second of the load; `None` for half of what the threads reach without a pause.
    pub rate: Option<f64>,
    /// Size of the buffer pool, in bytes; `None` for 256 MiB times the scale, at least 32 MiB.
    pub pool_bytes: Option<usize>,
}

/// Measures the scenarios one after the other. `progress` is called before each step, with its name
/// and the numbers of steps done and in total.
///
/// A scenario that fails is reported with its error, and the others are measured. So is a scenario
/// whose operation the engine lacks.
///
/// # Errors
/// Invalid parameters, an engine that this build lacks, or a failure of the calibration or of the
/// quiet run.
pub fn measure_stalls(
    spec: &StallsSpec,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<StallsReport, BenchError> {
    let load = spec.load()?;
    let driver = load.driver()?;
    let mut bench = Bench {
        spec,
        driver: driver.as_ref(),
        load: &load,
        sizes: Sizes::new(spec.scale, spec.pool_bytes),
        pace: Pace {
            threads: spec.threads,
            per_s: spec.rate.unwrap_or(0.0),
            lead: LEAD.min(spec.seconds),
        },
        idle: Amounts::default(),
    };
    let scenarios: Vec<Scenario> = Scenario::ALL
        .into_iter()
        .filter(|s| *s != Scenario::Quiet && spec.scenarios.contains(s))
        .collect();
    let steps = scenarios.len() + 2;
    let mut calibrated = None;
    if spec.rate.is_none() {
        progress("calibration", 0, steps);
        let most = bench.in_directory(|dir| bench.calibrate(dir))?;
        calibrated = Some(most);
        bench.pace.per_s = (most * SHARE).max(1.0);
    }
    progress(Scenario::Quiet.name(), 1, steps);
    let (quiet, idle) = bench.in_directory(|dir| bench.row(dir, Scenario::Quiet))?;
    bench.idle = idle;
    let mut rows = vec![quiet];
    for (done, scenario) in scenarios.into_iter().enumerate() {
        progress(scenario.name(), done + 2, steps);
        let row = bench.in_directory(|dir| bench.row(dir, scenario));
        rows.push(row.map_or_else(|error| StallRow::without(scenario, &error), |row| row.0));
    }
    report::judge(&mut rows);
    Ok(StallsReport {
        workload: "stalls",
        engine: spec.engine.clone(),
        profile: PROFILE,
        machine: Topology::read().to_string(),
        threads: spec.threads,
        calibrated_tx_per_s: calibrated,
        tx_per_s: bench.pace.per_s,
        scale: spec.scale,
        pool_bytes: bench.sizes.pool_bytes as u64,
        rows,
    })
}

impl StallsSpec {
    /// Returns the defaults in a directory: all scenarios with the full amounts of data.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        StallsSpec {
            dir: dir.into(),
            device: DeviceChoice::Auto,
            engine: BRAID.into(),
            scenarios: Scenario::ALL.into(),
            scale: 1.0,
            seconds: Duration::from_secs(10),
            threads: 8,
            rate: None,
            pool_bytes: None,
        }
    }

    /// Returns the parameters of the load: U-1.
    fn load(&self) -> Result<Spec, BenchError> {
        let invalid = |option, wanted: &str, given: String| BenchError::Option {
            option,
            wanted: wanted.into(),
            given,
        };
        if self.device == DeviceChoice::Memory {
            let given = self.device.to_string();
            return Err(invalid("device", "one that stores in files", given));
        }
        if !(self.scale > 0.0 && self.scale <= 100.0) {
            let given = self.scale.to_string();
            return Err(invalid("scale", "more than 0 and at most 100", given));
        }
        if self.rate.is_some_and(|rate| !(1.0..=1e9).contains(&rate)) {
            let given = self.rate.unwrap_or_default().to_string();
            return Err(invalid("rate", "from 1 to 1000000000", given));
        }
        let load = Spec {
            threads: self.threads,
            warm_up: CALIBRATION.min(self.seconds) / 3,
            measure: CALIBRATION.min(self.seconds),
            ..Spec::new(Workload::U1)
        };
        load.check()?;
        crate::engines::find(&self.engine)?;
        Ok(load)
    }
}

/// The measurement, and the rate of its load.
struct Bench<'a> {
    spec: &'a StallsSpec,
    load: &'a Spec,
    driver: &'a dyn Driver,
    sizes: Sizes,
    pace: Pace,
    /// Work per second of the quiet run.
    idle: Amounts,
}

impl Bench<'_> {
    /// Calls `work` with a new directory, which is removed afterwards.
    fn in_directory<R>(
        &self,
        work: impl FnOnce(&Path) -> Result<R, BenchError>,
    ) -> Result<R, BenchError> {
        let dir = self.spec.dir.join("stalls");
        std::fs::create_dir_all(&self.spec.dir)
            .and_then(|()| std::fs::create_dir(&dir))
            .map_err(|error| BenchError::file("create", &dir, error))?;
        let result = work(&dir);
        let removed = std::fs::remove_dir_all(&dir);
        let result = result?;
        removed.map_err(|error| BenchError::file("remove", &dir, error))?;
        Ok(result)
    }

    fn engine(&self, dir: &Path) -> Engine {
        Engine {
            device: self.spec.device,
            ..Engine::new(dir, self.load)
        }
    }

    /// Opens a database with the records of the load.
    fn stage(&self, dir: &Path, scenario: Scenario) -> Result<Stage, BenchError> {
        let (engine, tables) = (self.engine(dir), self.driver.tables());
        let seconds = self.spec.seconds;
        let stage = Stage::open(scenario, dir, &engine, &tables, self.sizes, seconds)?;
        self.driver.load(&stage.engine, &mut |_| ())?;
        Ok(stage)
    }

    /// Opens another engine with the records of the load.
    fn peer_stage(&self, dir: &Path) -> Result<PeerStage, BenchError> {
        let (name, tables) = (&self.spec.engine, self.driver.tables());
        let stage = PeerStage::open(name, dir, &tables, self.sizes, self.spec.seconds)?;
        let needs = self.driver.needs();
        if let Some(ability) = stage.engine.abilities().missing(needs) {
            return Err(BenchError::Lacking {
                engine: name.clone(),
                ability,
                workload: self.driver.name().to_owned(),
            });
        }
        self.driver.load(&*stage.engine, &mut |_| ())?;
        Ok(stage)
    }

    /// Returns the commits per second of the load's threads without a pause.
    fn calibrate(&self, dir: &Path) -> Result<f64, BenchError> {
        let run = |engine: &dyn KvEngine| crate::run(engine, self.driver, self.load, &mut |_| ());
        let report = match self.spec.engine.as_str() {
            BRAID => run(&self.stage(dir, Scenario::Quiet)?.engine)?,
            _ => run(&*self.peer_stage(dir)?.engine)?,
        };
        Ok(report.tx_per_s)
    }

    /// Measures a scenario. Returns its row, and the work per second of the whole process.
    fn row(&self, dir: &Path, scenario: Scenario) -> Result<(StallRow, Amounts), BenchError> {
        let measured = match self.spec.engine.as_str() {
            BRAID => self.measure_braid(dir, scenario)?,
            _ => self.measure_peer(dir, scenario)?,
        };
        let mut row = StallRow::new(scenario, &measured.outcome, measured.disturbed.report);
        row.lateness = measured.lateness;
        row.hot_key = measured.hot_key;
        row.holds = measured.holds;
        let Some(work) = measured.disturbed.work else {
            return Ok((row, Amounts::default()));
        };
        let per_s = work.per_s();
        let work = match scenario {
            Scenario::Quiet => Work::none(work.length()),
            _ => work.beyond(self.idle),
        };
        row.add(work.total());
        if !scenario.is_buffered() {
            row.bare = Some(self.bare(dir, work)?);
        }
        Ok((row, per_s))
    }

    fn measure_braid(&self, dir: &Path, scenario: Scenario) -> Result<Measured, BenchError> {
        let stage = self.stage(dir, scenario)?;
        let mut disturbance = stage.prepare(scenario)?;
        let mut measured = if scenario.is_buffered() {
            self.measure_buffered(&stage, &mut disturbance)?
        } else {
            self.measure_waited(&stage.engine, &mut disturbance)?
        };
        // Its snapshots end before the database.
        drop(disturbance);
        let holds = stage.db().stats().gate_holds;
        measured.holds = holds.iter().map(Hold::new).collect();
        stage.engine.close()?;
        Ok(measured)
    }

    fn measure_peer(&self, dir: &Path, scenario: Scenario) -> Result<Measured, BenchError> {
        let stage = self.peer_stage(dir)?;
        let mut disturbance = stage.prepare(scenario)?;
        self.measure_waited(&*stage.engine, &mut disturbance)
    }

    fn measure_buffered(
        &self,
        stage: &Stage,
        disturbance: &mut Disturbance<'_>,
    ) -> Result<Measured, BenchError> {
        let db = stage.db();
        let table = &self.driver.tables()[0];
        let (service, commits) = Buffered::new(&db, table, self.load, BOUND)?;
        thread::scope(|scope| {
            let db = &db;
            let watcher = scope.spawn(move || watch(db, &commits));
            let measured = self.measure(&service, disturbance);
            drop(service);
            let lateness = watcher.join().map_err(|_| BenchError::Panicked)?;
            Ok(Measured {
                lateness: Some(Latency::new(&lateness)),
                ..measured?
            })
        })
    }

    fn measure_waited(
        &self,
        engine: &dyn KvEngine,
        disturbance: &mut Disturbance<'_>,
    ) -> Result<Measured, BenchError> {
        let service = Waited {
            engine,
            driver: self.driver,
            seed: self.load.seed,
        };
        self.measure(&service, disturbance)
    }

    /// Applies the load while the disturbance runs.
    fn measure(
        &self,
        service: &dyn Service,
        disturbance: &mut Disturbance<'_>,
    ) -> Result<Measured, BenchError> {
        let (outcome, disturbed) = load::run(service, self.pace, |window| {
            if let Some(before) = &mut disturbance.before {
                before()?;
            }
            self.disturb(window, disturbance)
        })?;
        Ok(Measured {
            outcome,
            disturbed,
            lateness: None,
            hot_key: disturbance.hot_key.as_ref().map(|figures| figures()),
            holds: Vec::new(),
        })
    }

    fn disturb(
        &self,
        window: &Window,
        disturbance: &mut Disturbance<'_>,
    ) -> Result<Disturbed, BenchError> {
        window.open();
        let (report, work) = Work::record(|| {
            let start = Instant::now();
            let mut report = DisturbanceReport::default();
            loop {
                let run = Instant::now();
                (disturbance.run)()?;
                report.add(run.elapsed());
                if !disturbance.repeats || start.elapsed() >= self.spec.seconds {
                    break;
                }
            }
            if !disturbance.repeats {
                thread::sleep(self.spec.seconds);
            }
            Ok::<_, BenchError>(report)
        });
        Ok(Disturbed {
            report: report?,
            work,
        })
    }

    fn bare(&self, dir: &Path, work: Work) -> Result<BareStall, BenchError> {
        let engine = self.engine(&dir.join("bare"));
        let device: Arc<_> = engine.open_device()?;
        bare::measure(&device, self.pace, self.load.log_record_bytes(), work)
    }
}

/// Results of one scenario.
struct Measured {
    outcome: Outcome,
    disturbed: Disturbed,
    lateness: Option<Latency>,
    hot_key: Option<HotKey>,
    holds: Vec<Hold>,
}

/// What a disturbance did.
struct Disturbed {
    report: DisturbanceReport,
    /// `None` if the system does not count it.
    work: Option<Work>,
}
