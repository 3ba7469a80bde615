//! Workloads and measurements for the Braid storage engine.
//!
//! A [`Spec`] says what to measure; [`load`] fills a database with the records that it needs and
//! [`run`] measures it and gives a [`Report`]. Every transaction is durable when it is counted.
//!
//! ```no_run
//! use braid_bench::{Engine, Spec, Workload};
//!
//! let spec = Spec { threads: 2, in_flight: 1_000, ..Spec::new(Workload::U1) };
//! let engine = Engine::new("bench-dir", &spec);
//! let db = engine.open()?;
//! braid_bench::load(&db, &spec, &mut |_| ())?;
//! let report = braid_bench::run(&db, &engine, &spec, &mut |_| ())?;
//! println!("{:.0} transactions a second", report.tx_per_s);
//! # Ok::<(), braid_bench::BenchError>(())
//! ```

mod bare_log;
mod device;
mod engine;
pub mod engines;
mod error;
mod load;
mod paper;
mod report;
mod runner;
mod spec;
mod usage;
mod worker;
mod workload;
mod zipf;

pub use bare_log::{BareLogReport, bare_log};
pub use device::{DeviceReport, DeviceRow, measure_device};
pub use engine::Engine;
pub use error::BenchError;
pub use load::{LoadProgress, load};
pub use paper::{Diagram, Figure, PaperSpec, Point, measure_figure};
pub use report::{Limit, Report};
pub use runner::{Progress, run};
pub use spec::Spec;
pub use usage::Usage;
pub use workload::{MAX_SCAN, Workload};
pub use zipf::{Zipf, scatter};

/// Compiles the examples of the project's front page.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;
