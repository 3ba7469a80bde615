//! Repetitions of the measurements in the papers of the protocols.
//! - P-WAL (Nakamura et al.): transactions, storage throughput and latency over threads (Figs. 7 to
//!   10 and 13), and sustained writes with and without trim (Fig. 15);
//! - GWSN: contention of the shared counter (Figs. 4 to 7), and the same question inside the
//!   engine, which the paper left open.

mod counter;
#[cfg(feature = "plots")]
mod plot;
mod protocols;
mod sustained;

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid::device::DeviceChoice;

use crate::BenchError;
use crate::compare::Spread;

/// A figure to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Figure {
    /// P-WAL, Figs. 7, 8 and 13: U-1 over threads.
    PwalU1,
    /// P-WAL, Figs. 9 and 10: U-10 over threads.
    PwalU10,
    /// P-WAL, Fig. 15: sustained writes with and without trim.
    PwalTrim,
    /// GWSN, Fig. 4: one `fetch_add` per record, compact and balanced placement, no device.
    GwsnPlacement,
    /// GWSN, Fig. 5: one `fetch_add` for 1, 48, 128 records, no device.
    GwsnNoLatency,
    /// GWSN, Fig. 6: the same with a device of 150 ns.
    GwsnMemory,
    /// GWSN, Fig. 7: the same with a device of 30 µs.
    GwsnFlash,
    /// All protocols in the engine, on memory with an injected persist latency.
    GwsnEngine,
}

impl Figure {
    /// All figures.
    pub const ALL: [Self; 8] = [
        Self::PwalU1,
        Self::PwalU10,
        Self::PwalTrim,
        Self::GwsnPlacement,
        Self::GwsnNoLatency,
        Self::GwsnMemory,
        Self::GwsnFlash,
        Self::GwsnEngine,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PwalU1 => "pwal-u1",
            Self::PwalU10 => "pwal-u10",
            Self::PwalTrim => "pwal-15",
            Self::GwsnPlacement => "gwsn-4",
            Self::GwsnNoLatency => "gwsn-5",
            Self::GwsnMemory => "gwsn-6",
            Self::GwsnFlash => "gwsn-7",
            Self::GwsnEngine => "gwsn-engine",
        }
    }

    /// Returns what the figure shows.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::PwalU1 => "P-WAL Figs. 7, 8, 13: U-1 by threads",
            Self::PwalU10 => "P-WAL Figs. 9, 10: U-10 by threads",
            Self::PwalTrim => "P-WAL Fig. 15: sustained log writes, with and without trim",
            Self::GwsnPlacement => "GWSN Fig. 4: the counter, by placement",
            Self::GwsnNoLatency => "GWSN Fig. 5: the counter, without a device",
            Self::GwsnMemory => "GWSN Fig. 6: the counter, device of 150 ns",
            Self::GwsnFlash => "GWSN Fig. 7: the counter, device of 30 us",
            Self::GwsnEngine => "all protocols in memory, by persist latency",
        }
    }
}

/// Parameters of the measurements.
#[derive(Clone, Debug)]
pub struct PaperSpec {
    /// Directory of databases and logs.
    pub dir: PathBuf,
    /// How the medium is accessed.
    pub device: DeviceChoice,
    /// Duration of the measurement of each point.
    pub each: Duration,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Number of records of the engine's workloads; `None` for the papers' 65,536.
    pub records: Option<u64>,
    /// Commits that each thread keeps in flight.
    pub in_flight: usize,
    /// Number of log lanes of the protocols with several strands; 0 for one per thread, the papers'
    /// layout.
    pub lanes: usize,
    /// Number of measurements of each figure, one after the other. The result is each point's
    /// median.
    pub repeat: usize,
}

/// One point of a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Name of the curve.
    pub series: String,
    /// Horizontal position.
    pub x: f64,
    /// The value.
    pub y: f64,
}

/// A diagram.
#[derive(Clone, Debug)]
pub struct Diagram {
    /// Name of the diagram's files.
    pub name: String,
    /// Title, with the figure of the paper.
    pub title: String,
    /// Title of the horizontal axis.
    pub x: &'static str,
    /// Title of the vertical axis, with its unit.
    pub y: &'static str,
    /// Points, series by series.
    pub points: Vec<Point>,
}

impl Diagram {
    fn new(name: &str, title: &str, x: &'static str, y: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            x,
            y,
            points: Vec::new(),
        }
    }

    fn add(&mut self, series: impl Into<String>, x: f64, y: f64) {
        let series = series.into();
        self.points.push(Point { series, x, y });
    }

    /// Writes `NAME.csv`, and in builds with the feature `plots` also `NAME.svg`, into a directory;
    /// returns their paths.
    ///
    /// # Errors
    /// [`BenchError::Io`].
    pub fn write(&self, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
        let path = |ending: &str| directory.join(format!("{}.{ending}", self.name));
        let csv = path("csv");
        std::fs::write(&csv, self.csv()).map_err(|e| BenchError::io("cannot write a table", e))?;
        #[cfg(feature = "plots")]
        return plot::svg(self, path("svg")).map(|svg| vec![csv, svg]);
        #[cfg(not(feature = "plots"))]
        Ok(vec![csv])
    }

    /// Returns the points as comma-separated values, one per line, with a heading.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = format!("series,{},{}\n", self.x, self.y);
        for Point { series, x, y } in &self.points {
            text += &format!("{series},{x},{y}\n");
        }
        text
    }
}

/// Measures a figure's diagrams. Calls `progress` before each measurement.
///
/// # Errors
/// Those of the database and the device.
pub fn measure_figure(
    figure: Figure,
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let mut diagrams = measure_once(figure, spec, progress)?;
    let mut others = Vec::new();
    for _ in 1..spec.repeat {
        others.extend(measure_once(figure, spec, progress)?);
    }
    for diagram in &mut diagrams {
        let others = others.iter().filter(|other| other.name == diagram.name);
        let others: Vec<&Point> = others.flat_map(|other| &other.points).collect();
        for point in &mut diagram.points {
            let same = |other: &&&Point| other.series == point.series && other.x == point.x;
            let again = others.iter().filter(same).map(|other| other.y);
            if let Some(all) = Spread::of(again.chain([point.y])) {
                point.y = all.median;
            }
        }
    }
    Ok(diagrams)
}

fn measure_once(
    figure: Figure,
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    match figure {
        Figure::PwalU1 => protocols::by_threads(crate::Workload::U1, spec, progress),
        Figure::PwalU10 => protocols::by_threads(crate::Workload::U10, spec, progress),
        Figure::PwalTrim => sustained::with_and_without_trim(spec, progress),
        Figure::GwsnPlacement => Ok(vec![counter::by_placement(spec, progress)]),
        Figure::GwsnNoLatency => Ok(vec![counter::by_group(
            "gwsn-5",
            Duration::ZERO,
            spec,
            progress,
        )]),
        Figure::GwsnMemory => {
            let latency = Duration::from_nanos(150);
            Ok(vec![counter::by_group("gwsn-6", latency, spec, progress)])
        }
        Figure::GwsnFlash => {
            let latency = Duration::from_micros(30);
            Ok(vec![counter::by_group("gwsn-7", latency, spec, progress)])
        }
        Figure::GwsnEngine => protocols::by_latency(spec, progress),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_gives_whole_curves() {
        let dir = tempfile::tempdir().unwrap();
        let spec = PaperSpec {
            dir: dir.path().join("db"),
            device: DeviceChoice::Memory,
            each: Duration::from_millis(10),
            threads: vec![1, 2],
            records: Some(500),
            in_flight: 8,
            lanes: 1,
            repeat: 2,
        };
        let protocols = braid::Protocol::ALL.len();
        let expected = |name: &str| match name {
            "pwal-7" | "pwal-8" | "pwal-9" | "pwal-10" | "pwal-13" => protocols * 2,
            "gwsn-4" => 2 * 2,
            "gwsn-5" | "gwsn-6" | "gwsn-7" => 3 * 2,
            "gwsn-engine-u1" | "gwsn-engine-u10" => protocols * 5,
            "pwal-15" => 2,
            name => panic!("{name}"),
        };
        for figure in Figure::ALL {
            let diagrams = measure_figure(figure, &spec, &mut |_| ()).unwrap();
            assert!(!diagrams.is_empty());
            for diagram in diagrams {
                let points = &diagram.points;
                assert!(
                    points.len() >= expected(&diagram.name),
                    "{}: {points:?}",
                    diagram.name
                );
                assert!(points.iter().all(|p| p.y >= 0.0 && p.y.is_finite()));
                assert!(points.iter().any(|p| p.y > 0.0));
                let written = diagram.write(dir.path()).unwrap();
                let lines = std::fs::read_to_string(&written[0]).unwrap();
                assert_eq!(lines.lines().count(), points.len() + 1);
                assert_eq!(written.len(), if crate::PLOTS { 2 } else { 1 });
                for svg in &written[1..] {
                    let svg = std::fs::read_to_string(svg).unwrap();
                    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                    assert!(points.iter().all(|p| svg.contains(&p.series)));
                }
            }
        }
    }
}
