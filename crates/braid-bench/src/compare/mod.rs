//! Comparison of Braid with other engines and with the device's own limit: the same workloads on
//! every engine in one run, engine by engine in turn. The results are a table, and in builds with
//! the feature `plots` also plots and a report.

#[cfg(feature = "plots")]
mod drawing;
mod machine;
mod measure;
mod order;
mod row;
mod run;
mod spread;
mod stages;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid::device::DeviceChoice;

#[cfg(feature = "plots")]
pub(crate) use self::drawing::use_font;
pub use self::machine::Machine;
pub use self::measure::{Event, compare};
pub use self::row::{BARE_LOG, Row};
pub use self::run::{DeviceLimit, EngineInfo, LeftOut, Run, WorkloadInfo};
pub use self::spread::Spread;
pub use self::summary::{Loss, Metric, Point, Summary};

use crate::engines::{PeerInfo, peers};
use crate::{BenchError, Spec, Workload};

const TABLE: &str = "measurements.csv";
const RUN: &str = "run.json";

/// The parameters of a comparison.
#[derive(Clone, Debug)]
pub struct CompareSpec {
    /// Workloads, in the order in which they run.
    pub workloads: Vec<Workload>,
    /// Names of the engines; empty for all that this build and this machine have.
    pub engines: Vec<String>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Commits that each thread keeps in flight; engines that always wait are measured with 1 only.
    pub in_flight: Vec<usize>,
    /// Number of repetitions of each measurement.
    pub repeats: usize,
    /// Duration of each measurement.
    pub each: Duration,
    /// Duration of the run before each measurement.
    pub warm_up: Duration,
    /// Number of records to load; `None` for the workload's default.
    pub records: Option<u64>,
    /// Size of the data relative to the engines' caches; `None` for caches of three times the data.
    pub data_over_pool: Option<f64>,
    /// Directory of the databases; subdirectories with an engine's name are removed.
    pub dir: PathBuf,
    /// Device of Braid and the bare log.
    pub device: DeviceChoice,
    /// Directory of the results.
    pub out: PathBuf,
}

/// A load of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    threads: usize,
    in_flight: usize,
}

impl CompareSpec {
    /// Returns the defaults: the update workloads, 1 to 32 waiting threads, three repeats of five
    /// seconds, all engines.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, out: impl Into<PathBuf>) -> Self {
        CompareSpec {
            workloads: vec![Workload::U1, Workload::U10],
            engines: Vec::new(),
            threads: vec![1, 2, 4, 8, 16, 32],
            in_flight: vec![1],
            repeats: 3,
            each: Duration::from_secs(5),
            warm_up: Duration::from_secs(1),
            records: None,
            data_over_pool: None,
            dir: dir.into(),
            device: DeviceChoice::Auto,
            out: out.into(),
        }
    }

    /// Checks the parameters, and that the named engines are available.
    ///
    /// # Errors
    ///
    /// [`BenchError::Option`] names the first invalid parameter, such as an output directory that
    /// already contains results; [`BenchError::UnknownEngine`] and [`BenchError::Unavailable`] name
    /// an engine.
    pub fn check(&self) -> Result<(), BenchError> {
        let wrong = |option, wanted: &str, given: String| {
            Err(BenchError::Option {
                option,
                wanted: wanted.into(),
                given,
            })
        };
        if self.workloads.is_empty() {
            return wrong("workloads", "at least one", "none".into());
        }
        if self.threads.is_empty() {
            return wrong("threads", "at least one number", "none".into());
        }
        if self.in_flight.is_empty() {
            return wrong("in-flight", "at least one number", "none".into());
        }
        if !(1..=1_000).contains(&self.repeats) {
            return wrong("repeat", "from 1 to 1000", self.repeats.to_string());
        }
        if let Some(ratio) = self.data_over_pool
            && !(ratio.is_finite() && ratio > 0.0)
        {
            return wrong("data-over-pool", "a number above 0", ratio.to_string());
        }
        for &workload in &self.workloads {
            for load in self.loads() {
                self.spec(workload, load, 1).check()?;
            }
        }
        self.chosen()?;
        let table = self.out.join(TABLE);
        if table.exists() {
            let wanted = "a directory without results (--redraw makes their report again)";
            return wrong("out", wanted, table.display().to_string());
        }
        Ok(())
    }

    /// Returns all loads, those without commits in flight first.
    fn loads(&self) -> Vec<Load> {
        let of = |&in_flight: &usize| {
            let load = move |&threads| Load { threads, in_flight };
            self.threads.iter().map(load)
        };
        self.in_flight.iter().flat_map(of).collect()
    }

    fn spec(&self, workload: Workload, load: Load, repeat: usize) -> Spec {
        let defaults = Spec::new(workload);
        Spec {
            threads: load.threads,
            in_flight: load.in_flight,
            warm_up: self.warm_up,
            measure: self.each,
            records: self.records.unwrap_or(defaults.records),
            seed: defaults.seed + repeat as u64,
            ..defaults
        }
    }

    /// Returns the engines to measure, Braid first.
    fn chosen(&self) -> Result<Vec<&'static PeerInfo>, BenchError> {
        let all = peers();
        if self.engines.is_empty() {
            return Ok(all.iter().filter(|peer| peer.version.is_ok()).collect());
        }
        for name in &self.engines {
            let Some(peer) = all.iter().find(|peer| peer.name == name) else {
                let known: Vec<_> = all.iter().map(|peer| peer.name).collect();
                return Err(BenchError::UnknownEngine {
                    name: name.clone(),
                    known: known.join(", "),
                });
            };
            if let Err(note) = &peer.version {
                return Err(BenchError::Unavailable {
                    name: peer.name,
                    note: note.clone(),
                });
            }
        }
        let is_chosen = |peer: &&PeerInfo| self.engines.iter().any(|name| name == peer.name);
        Ok(all.iter().filter(is_chosen).collect())
    }
}

/// Makes the plots and the report of the measurements recorded in `out`; returns the paths of what
/// was written, the report first.
///
/// # Errors
/// [`BenchError::File`] if there are no measurements, or if a file cannot be written;
/// [`BenchError::NoPlots`] in a build without the feature `plots`.
///
/// # Examples
/// ```no_run
/// let written = braid_bench::compare::draw("results".as_ref())?;
/// println!("see {}", written[0].display());
/// # Ok::<(), braid_bench::BenchError>(())
/// ```
pub fn draw(out: &Path) -> Result<Vec<PathBuf>, BenchError> {
    crate::check_plots(out)?;
    #[cfg(feature = "plots")]
    return drawing::draw(out);
    #[cfg(not(feature = "plots"))]
    Ok(Vec::new())
}
