//! Workloads and measurements for the Braid storage engine.
//!
//! A [`Spec`] says what to measure and returns a [`Driver`], which loads the data into an engine.
//! [`run`] measures the engine and returns a [`Report`]. Every transaction is durable when it is
//! counted. The engine is any implementation of [`engines::KvEngine`].
//!
//! ```no_run
//! use braid_bench::{Engine, Spec, Workload};
//!
//! let spec = Spec { threads: 2, in_flight: 1_000, ..Spec::new(Workload::U1) };
//! let driver = spec.driver()?;
//! let engine = Engine::new("bench-dir", &spec).open_tables(&driver.tables())?;
//! driver.load(&engine, &mut |_| ())?;
//! let report = braid_bench::run(&engine, driver.as_ref(), &spec, &mut |_| ())?;
//! println!("{:.0} transactions a second", report.tx_per_s);
//! # Ok::<(), braid_bench::BenchError>(())
//! ```

mod bank;
mod bare_log;
pub mod compare;
mod device;
mod driver;
mod engine;
pub mod engines;
mod error;
mod exchange;
mod ledger;
mod load;
mod paper;
mod records;
pub mod remote;
mod report;
mod runner;
mod spec;
mod stalls;
mod sum;
mod tablespaces;
mod tally;
mod tpcb;
mod tpcc;
mod usage;
mod worker;
mod workload;
#[cfg(test)]
mod workload_tests;
mod zipf;

pub use bare_log::{BareLogReport, bare_log};
pub use device::{DeviceReport, DeviceRow, measure_device};
pub use driver::{Access, Check, Client, Driver, Step, check};
pub use engine::Engine;
pub use error::BenchError;
pub use load::LoadProgress;
pub use paper::{Diagram, Figure, Model, PaperSpec, Point, measure_figure};
pub use records::MAX_SCAN;
pub use report::{KindReport, Limit, Report};
pub use runner::{Progress, run};
pub use spec::Spec;
pub use stalls::{
    BareStall, DisturbanceReport, Hold, HotKey, Latency, Scenario, StallRow, StallsReport,
    StallsSpec, measure_stalls, stalls_figure, stalls_side_by_side,
};
pub use tablespaces::{CrossingRow, TablespacesReport, TablespacesSpec, measure_tablespaces};
pub use usage::Usage;
pub use workload::Workload;
pub use zipf::{Zipf, scatter};

/// Profile that this build was compiled with: `fat`, `release`, `dist`, or `debug` (unoptimized).
/// Compare figures of one profile only.
pub const PROFILE: &str = env!("BRAID_PROFILE");

/// Whether this build measures servers over a socket: the feature `connect`.
pub const CONNECTS: bool = cfg!(feature = "connect");

/// Whether this build draws plots: the feature `plots`.
pub const PLOTS: bool = cfg!(feature = "plots");

/// Checks that this build can draw the plots for a file or directory.
///
/// # Errors
///
/// [`BenchError::NoPlots`] in a build without the feature `plots`.
pub fn check_plots(path: &std::path::Path) -> Result<(), BenchError> {
    if PLOTS {
        return Ok(());
    }
    Err(BenchError::NoPlots {
        path: path.to_owned(),
    })
}

/// Compiles the examples of the project's front page.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;
