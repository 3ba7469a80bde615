//! Repetitions of the measurements in the papers of the protocols.
//! - P-WAL (Nakamura et al.): transactions, storage throughput and latency over threads (Figs. 7 to
//!   10 and 13), and sustained writes with and without trim (Fig. 15);
//! - GWSN: contention of the shared counter (Figs. 4 to 7), and the same question inside the
//!   engine, which the paper left open;
//! - NVWAL (Kim et al.): a log of page differences in persistent memory, by the memory's latency;
//! - GoldenX: checkpoints that write the cache lines that changed, and log and data on a disk or in
//!   persistent memory; data and logs on the memory nodes of a machine, and access by agents;
//! - NVWAL again, under SQLite: one-row transactions by the memory's latency, and by place;
//! - user-level NVMe: YCSB on a file system and on each path to a drive, by clients;
//! - servers for Redis clients: YCSB over their sockets, by clients.

mod checkpoints;
mod counter;
mod goldenx;
mod nvme;
mod nvwal;
mod places;
#[cfg(feature = "plots")]
mod plot;
mod protocols;
mod server;
#[cfg(all(unix, feature = "peer-sqlite"))]
mod sqlite;
mod sustained;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use braid::device::DeviceChoice;

use crate::BenchError;
use crate::compare::Spread;

pub use self::goldenx::Model;

/// Records of the engine's workloads, as in the papers of the protocols.
const RECORDS: u64 = 65_536;

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
    /// NVWAL: bytes and throughput of a log of page differences, by the memory's latency.
    Nvwal,
    /// GoldenX: checkpoints by cache line, and four combinations of places for log and data.
    GoldenxCla,
    /// GoldenX: data and logs on memory nodes, by threads.
    Goldenx,
    /// NVWAL: SQLite's transactions on a log of page differences, by the memory's latency.
    NvwalSqlite,
    /// User-level NVMe: YCSB load and A to D on each path to a drive, by clients.
    Nvme,
    /// Servers for Redis clients: YCSB load and A to F over their sockets, by clients.
    Server,
}

impl Figure {
    /// All figures.
    pub const ALL: [Self; 14] = [
        Self::PwalU1,
        Self::PwalU10,
        Self::PwalTrim,
        Self::GwsnPlacement,
        Self::GwsnNoLatency,
        Self::GwsnMemory,
        Self::GwsnFlash,
        Self::GwsnEngine,
        Self::Nvwal,
        Self::GoldenxCla,
        Self::Goldenx,
        Self::NvwalSqlite,
        Self::Nvme,
        Self::Server,
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
            Self::Nvwal => "nvwal",
            Self::GoldenxCla => "goldenx-cla",
            Self::Goldenx => "goldenx",
            Self::NvwalSqlite => "nvwal-sqlite",
            Self::Nvme => "nvme",
            Self::Server => "server",
        }
    }

    /// Whether this build can measure the figure: SQLite and a client are not in every build.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::NvwalSqlite => cfg!(all(unix, feature = "peer-sqlite")),
            Self::Server => crate::CONNECTS,
            _ => true,
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
            Self::Nvwal => "NVWAL: a log of page differences, by latency of the memory",
            Self::GoldenxCla => {
                "GoldenX: checkpoints by cache line; log and data on disk or in memory"
            }
            Self::Goldenx => {
                "GoldenX: data and logs on memory nodes, and access by agents, by threads"
            }
            Self::NvwalSqlite => "NVWAL under SQLite, by latency of the memory and by place",
            Self::Nvme => "user-level NVMe: YCSB load and A to D by path to the drive and clients",
            Self::Server => "servers for Redis clients: YCSB load and A to F by clients",
        }
    }

    /// Returns the numbers of threads of the figure's paper, or those that fit its question.
    #[must_use]
    pub fn default_threads(self) -> &'static [usize] {
        match self {
            Self::Nvme | Self::Server => &[1, 8, 16, 32, 64],
            _ => &[1, 2, 4, 8, 16],
        }
    }
}

/// Parameters of the measurements.
#[derive(Clone, Debug)]
pub struct PaperSpec {
    /// Directory of databases and logs.
    pub dir: PathBuf,
    /// Directory for files in emulated persistent memory: of a file system in memory, such as
    /// `/dev/shm`.
    pub memory_dir: PathBuf,
    /// How the medium is accessed.
    pub device: DeviceChoice,
    /// Duration of the measurement of each point.
    pub each: Duration,
    /// Drives with a volume, such as `nvme:/dev/nvme0n1` and `vfio:0000:00:04.0`, for the figure of
    /// user-level NVMe. If there is none, a file stands in for a drive.
    pub drives: Vec<String>,
    /// Servers for the figure of servers: the name of each in the figure, and its address.
    pub servers: Vec<(String, String)>,
    /// Model of a machine that is not there, for the figure of memory nodes.
    pub model: Option<Model>,
    /// Nanoseconds of a unit of the model's time: 3 for Optane.
    pub unit_nanos: u64,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Number of records of the engine's workloads, or rows of NVWAL's figures: between two checkpoints,
    /// or in SQLite's table; `None` for 65,536 (as in the papers) and 10,000.
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

impl PaperSpec {
    /// The device of figures that compare memory with a disk.
    fn disk(&self) -> DeviceChoice {
        match self.device {
            DeviceChoice::Uring | DeviceChoice::File => self.device,
            _ => DeviceChoice::Auto,
        }
    }
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
    /// Whether the vertical axis is logarithmic.
    pub is_log_y: bool,
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
            is_log_y: false,
            points: Vec::new(),
        }
    }

    fn with_log_y(mut self) -> Self {
        self.is_log_y = true;
        self
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
        let mut text = format!("series,{},{}\n", csv_field(self.x), csv_field(self.y));
        for Point { series, x, y } in &self.points {
            text += &format!("{},{x},{y}\n", csv_field(series));
        }
        text
    }
}

/// A field of comma-separated values, in quotation marks if it has a comma. Names have no quotation
/// marks.
fn csv_field(text: &str) -> Cow<'_, str> {
    if text.contains(',') {
        format!("\"{text}\"").into()
    } else {
        text.into()
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
        Figure::Nvwal => nvwal::figures(spec, progress),
        Figure::GoldenxCla => {
            let mut diagrams = checkpoints::by_updates(spec, progress)?;
            diagrams.extend(places::by_threads(spec, progress)?);
            Ok(diagrams)
        }
        Figure::Goldenx => goldenx::figures(spec, progress),
        #[cfg(all(unix, feature = "peer-sqlite"))]
        Figure::NvwalSqlite => sqlite::figures(spec, progress),
        #[cfg(not(all(unix, feature = "peer-sqlite")))]
        Figure::NvwalSqlite => Err(BenchError::Unavailable {
            name: "nvwal-sqlite",
            note: "built without SQLite; build with `--features peers`, or \
                   `--features braid-bench/peer-sqlite`"
                .to_owned(),
        }),
        Figure::Nvme => nvme::by_clients(spec, progress),
        Figure::Server => server::by_clients(spec, progress),
    }
}

/// Makes an empty directory.
fn new_directory(path: &Path) -> Result<(), BenchError> {
    if path.exists() {
        remove_directory(path)?;
    }
    std::fs::create_dir_all(path).map_err(|e| BenchError::io("cannot create a directory", e))
}

fn remove_directory(path: &Path) -> Result<(), BenchError> {
    std::fs::remove_dir_all(path).map_err(|e| BenchError::io("cannot remove a directory", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of points that a diagram has at least.
    fn expected(name: &str, spec: &PaperSpec) -> usize {
        let (protocols, threads) = (braid::Protocol::ALL.len(), spec.threads.len());
        match name {
            "pwal-7" | "pwal-8" | "pwal-9" | "pwal-10" | "pwal-13" => protocols * threads,
            "gwsn-4" => 2 * threads,
            "gwsn-5" | "gwsn-6" | "gwsn-7" => 3 * threads,
            "gwsn-engine-u1" | "gwsn-engine-u10" => protocols * 5,
            "pwal-15" => 2,
            "nvwal-bytes" | "nvwal-order" => 6 * 6,
            "nvwal-insert" | "nvwal-update" | "nvwal-delete" => 8 * 5,
            "goldenx-cla-bytes" => 2 * 6,
            "goldenx-cla-time" => 4 * 6,
            "nvwal-sqlite-insert" | "nvwal-sqlite-update" | "nvwal-sqlite-delete" => 7 * 5,
            "nvwal-sqlite-places" => 8 * 3,
            "nvwal-sqlite-bytes" => 3 * 3,
            name if name.starts_with("nvme-") => threads,
            name if name.starts_with("goldenx-ycsb-") || name == "goldenx-tpcb" => 4 * threads,
            name => panic!("{name}"),
        }
    }

    fn spec(dir: &Path) -> PaperSpec {
        PaperSpec {
            dir: dir.join("db"),
            memory_dir: dir.join("memory"),
            device: DeviceChoice::Memory,
            drives: Vec::new(),
            servers: Vec::new(),
            model: None,
            unit_nanos: 3,
            each: Duration::from_millis(10),
            threads: vec![1, 2],
            records: Some(500),
            in_flight: 8,
            lanes: 1,
            repeat: 2,
        }
    }

    /// Measures and writes a figure, and checks that its curves are whole.
    fn draw(figure: Figure, spec: &PaperSpec, dir: &Path) -> Vec<Diagram> {
        let diagrams = measure_figure(figure, spec, &mut |_| ()).unwrap();
        assert!(!diagrams.is_empty());
        for diagram in &diagrams {
            let points = &diagram.points;
            assert!(
                points.len() >= expected(&diagram.name, spec),
                "{}: {points:?}",
                diagram.name
            );
            assert!(points.iter().all(|p| p.y >= 0.0 && p.y.is_finite()));
            assert!(points.iter().any(|p| p.y > 0.0));
            let written = diagram.write(dir).unwrap();
            let lines = std::fs::read_to_string(&written[0]).unwrap();
            assert_eq!(lines.lines().count(), points.len() + 1);
            assert_eq!(written.len(), if crate::PLOTS { 2 } else { 1 });
            for svg in &written[1..] {
                let svg = std::fs::read_to_string(svg).unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                assert!(points.iter().all(|p| svg.contains(&p.series)));
            }
        }
        diagrams
    }

    #[test]
    fn commas_in_names_divide_no_values() {
        let mut diagram = Diagram::new("name", "title", "1 insert, 2 update", "us");
        diagram.add("whole pages, eager", 1.0, 2.5);
        diagram.add("differences", 1.0, 2.0);
        assert_eq!(
            diagram.csv(),
            "series,\"1 insert, 2 update\",us\n\"whole pages, eager\",1,2.5\ndifferences,1,2\n"
        );
    }

    #[test]
    fn every_figure_of_the_protocols_gives_whole_curves() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path());
        for figure in Figure::ALL {
            if !matches!(
                figure,
                Figure::Nvwal
                    | Figure::GoldenxCla
                    | Figure::Goldenx
                    | Figure::NvwalSqlite
                    | Figure::Server
            ) {
                draw(figure, &spec, dir.path());
            }
        }
    }

    /// A figure of persistent memory, drawn from a short run that must leave nothing.
    #[cfg(unix)]
    fn in_memory(figure: Figure) -> Vec<Diagram> {
        let dir = tempfile::tempdir().unwrap();
        let spec = PaperSpec {
            each: Duration::from_millis(20),
            threads: vec![1],
            records: Some(200),
            repeat: 1,
            ..spec(dir.path())
        };
        let diagrams = draw(figure, &spec, dir.path());
        for place in [&spec.dir, &spec.memory_dir] {
            let left = std::fs::read_dir(place).unwrap().count();
            assert_eq!(left, 0, "{} is empty again", place.display());
        }
        diagrams
    }

    #[cfg(unix)]
    fn named<'a>(diagrams: &'a [Diagram], name: &str) -> &'a Diagram {
        let found = diagrams.iter().find(|diagram| diagram.name == name);
        found.unwrap_or_else(|| panic!("{name} is missing"))
    }

    #[cfg(unix)]
    fn y(diagram: &Diagram, series: &str, x: f64) -> f64 {
        let mut points = diagram.points.iter();
        let found = points.find(|p| p.series == series && p.x == x);
        found
            .unwrap_or_else(|| panic!("{series} at {x} is missing"))
            .y
    }

    #[cfg(unix)]
    #[test]
    fn the_figures_of_nvwal_show_what_differences_save() {
        let diagrams = in_memory(Figure::Nvwal);
        let bytes = named(&diagrams, "nvwal-bytes");
        for operation in ["insert", "update", "delete"] {
            let of = |scheme| y(bytes, &format!("{operation}, {scheme}"), 1.0);
            // A frame and a commit record, and sometimes the pages above a leaf.
            let whole = of("whole pages");
            assert!((4_168.0..4_600.0).contains(&whole), "{operation}: {whole}");
            assert!(of("differences") < whole / 2.0, "{operation}");
            let name = format!("nvwal-{operation}");
            let rates = named(&diagrams, &name);
            let slow = y(rates, "whole pages", 1_942.0);
            // 65 lines, one after the other.
            assert!(slow < 1e9 / (65.0 * 1_942.0), "{operation}: {slow}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_figures_of_goldenx_show_what_line_tracking_saves() {
        let diagrams = in_memory(Figure::GoldenxCla);
        let bytes = named(&diagrams, "goldenx-cla-bytes");
        let [whole, lines] = ["whole pages", "changed lines"].map(|series| y(bytes, series, 0.5));
        assert!(lines < whole / 2.0, "{lines} of {whole} KiB");
    }

    /// The command's tests measure the figure, in a directory in memory.
    #[test]
    fn the_figure_of_memory_nodes_needs_several_or_a_model() {
        let dir = tempfile::tempdir().unwrap();
        if braid_rt::numa::nodes() == 1 {
            let spec = spec(dir.path());
            let error = measure_figure(Figure::Goldenx, &spec, &mut |_| ()).unwrap_err();
            assert!(error.to_string().contains("--model must be"), "{error}");
        }
        let model: Model = "remote-latency".parse().unwrap();
        assert_eq!(
            (model, model.to_string()),
            (Model::RemoteLatency, "remote-latency".into())
        );
        assert!("remote".parse::<Model>().is_err());
    }

    #[cfg(all(unix, feature = "peer-sqlite"))]
    #[test]
    fn the_figures_of_nvwal_under_sqlite_show_what_the_log_saves() {
        let diagrams = in_memory(Figure::NvwalSqlite);
        let bytes = named(&diagrams, "nvwal-sqlite-bytes");
        for operation in [1.0, 2.0, 3.0] {
            let of = |series| y(bytes, series, operation);
            // A frame, and sometimes the pages above a leaf.
            let stock = of("SQLite");
            assert!((4_120.0..9_000.0).contains(&stock), "{operation}: {stock}");
            assert!(of("recommended") < stock / 2.0, "{operation}");
        }
    }

    #[test]
    fn a_figure_of_servers_without_servers_says_how_to_name_them() {
        let dir = tempfile::tempdir().unwrap();
        let error = measure_figure(Figure::Server, &spec(dir.path()), &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("--server braid="), "{error}");
    }

    #[cfg(not(all(unix, feature = "peer-sqlite")))]
    #[test]
    fn a_build_without_sqlite_says_what_is_missing() {
        assert!(!Figure::NvwalSqlite.is_available());
        let dir = tempfile::tempdir().unwrap();
        let error = measure_figure(Figure::NvwalSqlite, &spec(dir.path()), &mut |_| ());
        assert!(error.unwrap_err().to_string().contains("peer-sqlite"));
    }
}
