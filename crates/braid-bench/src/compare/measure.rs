//! The measurements of a comparison.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use braid_io::DeviceKind;

use super::order::visits;
use super::row::{BARE_LOG, Row, Table};
use super::run::{DeviceLimit, EngineInfo, LeftOut, Run, WorkloadInfo};
use super::stages::{LogWrites, NotedWrites, Staged};
use super::{CompareSpec, Load, Machine, RUN, TABLE};
use crate::driver::Driver;
use crate::engines::{KvEngine, Mode, Order, PeerInfo, Stop, Wait, peers};
use crate::{BenchError, Engine, PROFILE, Report, Spec, Workload, bare_log, measure_device};

/// Number of threads that read the data once before an engine is measured.
const WARMERS: u8 = 8;

/// Size of the log files that Braid creates when it is opened: what it would keep after a while
/// with its default distance between checkpoints, as `docs/tuning.md` advises. (Those of
/// raft-engine are also created in advance.)
const PREALLOCATED_LOG_BYTES: u64 = 512 << 20;

/// Progress of a comparison.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The device is measured: what, the number of the test, and the number of tests.
    Device(&'a str, usize, usize),
    /// An engine is loaded: the engine, the workload, records so far and in total.
    Loading(&'a str, Workload, u64, u64),
    /// An engine's data is read once, so that its cache is as it is in service.
    Warming(&'a str, Workload),
    /// A load is measured.
    Measuring {
        /// The engine.
        engine: &'a str,
        /// The workload.
        workload: Workload,
        /// Number of threads.
        threads: usize,
        /// Number of finished measurements, including the finished part of this one.
        done: f64,
        /// Total number of measurements.
        total: usize,
    },
    /// A measurement has finished.
    Measured(&'a Row),
    /// A measurement was skipped, or failed.
    LeftOut(&'a LeftOut),
}

/// Runs a comparison and records it in [`CompareSpec::out`]; [`draw`](super::draw) makes the
/// report.
///
/// An engine that fails is left out of the rest of the workload, and the comparison continues.
///
/// # Errors
///
/// Those of [`CompareSpec::check`], files that cannot be written, and the device's errors.
pub fn compare(spec: &CompareSpec, progress: &mut dyn FnMut(Event<'_>)) -> Result<Run, BenchError> {
    spec.check()?;
    for dir in [&spec.out, &spec.dir] {
        fs::create_dir_all(dir).map_err(|error| BenchError::file("create", dir, error))?;
    }
    let mut comparison = Comparison {
        spec,
        engines: spec.chosen()?,
        table: Table::create(spec.out.join(TABLE))?,
        run: describe(spec)?,
        sequence: 0,
        total: 0,
        progress,
    };
    comparison.leave_out_what_is_not_here();
    comparison.measure_device()?;
    comparison.measure_all()?;
    Ok(comparison.run)
}

fn describe(spec: &CompareSpec) -> Result<Run, BenchError> {
    let workload = |workload: &Workload| {
        let of = spec.spec(*workload, spec.loads()[0], 1);
        WorkloadInfo {
            name: workload.name().into(),
            about: workload.description().into(),
            records: of.records,
            value_size: of.value_size,
            read_only: workload.is_read_only(),
            finite: workload.is_finite(),
        }
    };
    let engine = |peer: &&PeerInfo| EngineInfo {
        name: peer.name.into(),
        about: peer.about.into(),
        version: peer.version.clone().unwrap_or_default(),
        setting: String::new(),
        serializable: peer.abilities.serializable,
    };
    let optimized = !cfg!(debug_assertions);
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
    Ok(Run {
        began: now.to_string(),
        machine: Machine::read(&spec.dir),
        build: format!("Braid {}, profile {PROFILE}", env!("CARGO_PKG_VERSION")),
        optimized,
        seconds: spec.each.as_secs_f64(),
        warm_up: spec.warm_up.as_secs_f64(),
        repeats: spec.repeats,
        data_over_pool: spec.data_over_pool,
        workloads: spec.workloads.iter().map(workload).collect(),
        engines: spec.chosen()?.iter().map(engine).collect(),
        ..Run::default()
    })
}

struct Comparison<'a> {
    spec: &'a CompareSpec,
    engines: Vec<&'static PeerInfo>,
    table: Table,
    run: Run,
    /// Numbers of finished and of planned measurements.
    sequence: usize,
    total: usize,
    progress: &'a mut dyn FnMut(Event<'_>),
}

/// An engine or the bare log, and its loads for a workload.
struct Entrant {
    /// `None` is the bare log.
    peer: Option<&'static PeerInfo>,
    driver: Box<dyn Driver>,
    loads: Vec<Load>,
    /// Result of [`Driver::present`] right after the load.
    present: Option<u64>,
}

impl Entrant {
    fn name(&self) -> &'static str {
        self.peer.map_or(BARE_LOG, |peer| peer.name)
    }
}

impl Comparison<'_> {
    fn leave_out_what_is_not_here(&mut self) {
        if !self.spec.engines.is_empty() {
            return;
        }
        for peer in peers() {
            if let Err(why) = &peer.version {
                self.leave_out(peer.name, "everything", why);
            }
        }
    }

    fn leave_out(&mut self, engine: &str, workload: &str, why: &str) {
        let left_out = LeftOut {
            engine: engine.into(),
            workload: workload.into(),
            why: why.into(),
        };
        (self.progress)(Event::LeftOut(&left_out));
        self.run.left_out.push(left_out);
    }

    fn record_run(&self) -> Result<(), BenchError> {
        self.run.write(&self.spec.out.join(RUN))
    }

    fn measure_device(&mut self) -> Result<(), BenchError> {
        let engine = self.braid(&self.spec.dir.join("device"), self.spec.workloads[0]);
        let device = engine.open_device()?;
        let each = self.spec.each.min(std::time::Duration::from_secs(1));
        let report = measure_device(&device, each, &mut |what, step, steps| {
            (self.progress)(Event::Device(what, step, steps));
        })?;
        drop(device);
        self.run.device = DeviceLimit::all_of(&report);
        remove(&engine.dir)?;
        self.record_run()
    }

    fn measure_all(&mut self) -> Result<(), BenchError> {
        let mut entrants = Vec::new();
        for &workload in &self.spec.workloads {
            let of_workload = self.entrants(workload)?;
            let loads: usize = of_workload.iter().map(|e| e.loads.len()).sum();
            self.total += loads * self.spec.repeats;
            entrants.push(of_workload);
        }
        for (i, mut entrants) in entrants.into_iter().enumerate() {
            let workload = self.spec.workloads[i];
            // Remove the files of an interrupted comparison.
            for entrant in &entrants {
                remove(&self.spec.dir.join(entrant.name()))?;
            }
            for visit in visits(self.spec.repeats, entrants.len()) {
                let entrant = &mut entrants[visit.engine];
                let Err(error) = self.visit(workload, entrant, visit.repeat) else {
                    continue;
                };
                if matches!(error, BenchError::File { .. }) {
                    return Err(error);
                }
                let left = self.spec.repeats - visit.repeat + 1;
                self.total -= (entrant.loads.len() * left).min(self.total - self.sequence);
                entrant.loads.clear();
                self.leave_out(entrant.name(), workload.name(), &error.to_string());
            }
            for entrant in entrants {
                remove(&self.spec.dir.join(entrant.name()))?;
            }
            self.record_run()?;
        }
        Ok(())
    }

    /// Returns the engines that take part in a workload.
    fn entrants(&mut self, workload: Workload) -> Result<Vec<Entrant>, BenchError> {
        let mut loads = self.spec.loads();
        if workload.is_read_only() {
            // Keep the loads without commits in flight.
            loads.truncate(self.spec.threads.len());
        }
        let Some(&largest) = loads.iter().max_by_key(|load| load.threads) else {
            return Ok(Vec::new());
        };
        let spec = self.spec.spec(workload, largest, 1);
        let mut entrants = Vec::new();
        for peer in self.engines.clone() {
            let driver = spec.driver()?;
            if let Some(ability) = peer.abilities.missing(driver.needs()) {
                self.leave_out(peer.name, workload.name(), &format!("it has no {ability}"));
                continue;
            }
            let mut its = loads.clone();
            its.retain(|load| load.in_flight == 1 || peer.abilities.in_flight);
            if its.len() < loads.len() {
                let why = "several commits in flight: each call waits";
                self.leave_out(peer.name, workload.name(), why);
            }
            entrants.push(Entrant {
                peer: Some(peer),
                driver,
                loads: its,
                present: None,
            });
        }
        if !workload.is_read_only() && !workload.is_finite() {
            entrants.push(Entrant {
                peer: None,
                driver: spec.driver()?,
                loads,
                present: None,
            });
        }
        Ok(entrants)
    }

    fn visit(
        &mut self,
        workload: Workload,
        entrant: &mut Entrant,
        repeat: usize,
    ) -> Result<(), BenchError> {
        if entrant.loads.is_empty() {
            return Ok(());
        }
        let dir = self.spec.dir.join(entrant.name());
        let Some(peer) = entrant.peer else {
            return self.visit_bare_log(workload, &dir, &entrant.loads, repeat);
        };
        if workload.is_finite() || workload.only_inserts() {
            return entrant.loads.iter().try_for_each(|&load| {
                remove(&dir)?;
                self.visit_with_new_data(workload, peer, &dir, load, repeat)
            });
        }
        let engine = self.open(peer, &dir, workload, entrant.driver.as_ref())?;
        let driver = entrant.driver.as_ref();
        self.load(&engine, driver, workload)?;
        if repeat == 1 {
            entrant.present = driver.present(&engine)?;
        }
        for &load in &entrant.loads {
            let spec = self.spec.spec(workload, load, repeat);
            let from = Instant::now() + spec.warm_up;
            let report = self.run(&engine, driver, &spec)?;
            self.record(repeat, Row::of_report(&report, engine.take(from)))?;
        }
        self.check(&engine, driver, entrant.present)
    }

    /// Measures a workload that adds data: each load starts with a new database.
    fn visit_with_new_data(
        &mut self,
        workload: Workload,
        peer: &PeerInfo,
        dir: &Path,
        load: Load,
        repeat: usize,
    ) -> Result<(), BenchError> {
        let spec = self.spec.spec(workload, load, repeat);
        let driver = spec.driver()?;
        let engine = self.open(peer, dir, workload, driver.as_ref())?;
        self.load(&engine, driver.as_ref(), workload)?;
        let present = driver.present(&engine)?;
        let (row, from): (fn(&_, _) -> _, _) = if workload.is_finite() {
            (Row::of_load, Instant::now())
        } else {
            (Row::of_report, Instant::now() + spec.warm_up)
        };
        let report = self.run(&engine, driver.as_ref(), &spec)?;
        self.record(repeat, row(&report, engine.take(from)))?;
        self.check(&engine, driver.as_ref(), present)
    }

    /// Loads missing data, and reads all data once.
    fn load(
        &mut self,
        engine: &Staged,
        driver: &dyn Driver,
        workload: Workload,
    ) -> Result<(), BenchError> {
        let name = engine.name();
        driver.load(engine, &mut |p| {
            (self.progress)(Event::Loading(name, workload, p.loaded, p.records));
        })?;
        (self.progress)(Event::Warming(name, workload));
        read_all(engine, driver.tables().len())
    }

    fn run(
        &mut self,
        engine: &Staged,
        driver: &dyn Driver,
        spec: &Spec,
    ) -> Result<Report, BenchError> {
        let (sequence, total) = (self.sequence, self.total);
        let name = engine.name();
        crate::run(engine, driver, spec, &mut |p| {
            // The progress of a workload that ends by itself is unknown.
            let part = if driver.is_finite() {
                0.0
            } else {
                p.elapsed.as_secs_f64() / p.total.as_secs_f64()
            };
            (self.progress)(Event::Measuring {
                engine: name,
                workload: spec.workload,
                threads: spec.threads,
                done: sequence as f64 + part.min(1.0),
                total,
            });
        })
    }

    fn check(
        &mut self,
        engine: &Staged,
        driver: &dyn Driver,
        present: Option<u64>,
    ) -> Result<(), BenchError> {
        let (name, workload) = (engine.name(), driver.name());
        for check in crate::check(engine, driver, present)? {
            if let Some(complaint) = check.complaint() {
                let violation = format!("{name}, {workload}: {complaint}");
                self.run.violations.push(violation);
            }
        }
        Ok(())
    }

    fn visit_bare_log(
        &mut self,
        workload: Workload,
        dir: &Path,
        loads: &[Load],
        repeat: usize,
    ) -> Result<(), BenchError> {
        let mut engine = self.braid(dir, workload);
        engine.dir = dir.to_owned();
        let device = engine.open_device()?;
        for &load in loads {
            (self.progress)(Event::Measuring {
                engine: BARE_LOG,
                workload,
                threads: load.threads,
                done: self.sequence as f64,
                total: self.total,
            });
            let spec = self.spec.spec(workload, load, repeat);
            let report = bare_log(
                &device,
                load.threads,
                load.in_flight,
                spec.log_record_bytes(),
                spec.measure,
            )?;
            let row = Row::of_bare_log(&report, workload.name(), spec.measure.as_secs_f64());
            self.record(repeat, row)?;
        }
        Ok(())
    }

    fn record(&mut self, repeat: usize, row: Row) -> Result<(), BenchError> {
        let row = Row {
            sequence: self.sequence,
            repeat,
            ..row
        };
        self.sequence += 1;
        self.table.add(&row)?;
        (self.progress)(Event::Measured(&row));
        Ok(())
    }

    /// Returns Braid's options.
    fn braid(&self, dir: &Path, workload: Workload) -> Engine {
        let spec = self.spec.spec(workload, self.spec.loads()[0], 1);
        let mut engine = Engine::new(dir, &spec);
        engine.device = self.spec.device;
        engine.preallocated_log_bytes = PREALLOCATED_LOG_BYTES;
        if let Some(ratio) = self.spec.data_over_pool {
            engine.set_data_over_pool(&spec, ratio);
        }
        engine
    }

    /// Opens an engine, and records its setting.
    fn open(
        &mut self,
        peer: &PeerInfo,
        dir: &Path,
        workload: Workload,
        driver: &dyn Driver,
    ) -> Result<Staged, BenchError> {
        let tables = driver.tables();
        let options = self.braid(dir, workload);
        let engine = if peer.name == "braid" {
            let device = options.open_device()?;
            // A write to memory takes no longer than recording it: the records would be measured.
            let is_memory = matches!(device.kind(), DeviceKind::Pmem | DeviceKind::PmemEmulated);
            if is_memory {
                let engine = options.open_tables_on(device, &tables)?;
                Staged::new(Box::new(engine), None)
            } else {
                let device = LogWrites::over(device, NotedWrites::default());
                let engine = options.open_tables_on(Arc::new(device.clone()), &tables)?;
                Staged::new(Box::new(engine), Some(&device))
            }
        } else {
            let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
            let engine = crate::engines::open(peer.name, dir, &tables, options.pool_bytes)?;
            Staged::new(engine, None)
        };
        let setting = engine.setting();
        if let Some(info) = self.run.engines.iter_mut().find(|e| e.name == peer.name) {
            info.setting = format!("{}, on {}", setting.protocol, setting.device);
        }
        Ok(engine)
    }
}

/// Reads all data once, if the engine can.
fn read_all(engine: &dyn KvEngine, tables: usize) -> Result<(), BenchError> {
    if !engine.abilities().scans {
        return Ok(());
    }
    let read_part = |part: u8| -> Result<(), BenchError> {
        let width = u8::MAX / WARMERS + 1;
        let from = [part * width];
        let to = (part + 1)
            .checked_mul(width)
            .map_or(vec![u8::MAX; 64], |to| vec![to]);
        let mut session = engine.session()?;
        let outcome = session.transact(Mode::ReadOnly, Wait::Durable, &mut |tx| {
            (0..tables).try_for_each(|table| {
                tx.scan(table, &from, &to, Order::Ascending, &mut |_, value| {
                    std::hint::black_box(value.len());
                    true
                })
            })
        });
        match outcome {
            // A reader's conflict is harmless: the data it read is in the cache.
            Ok(_) | Err(Stop::Conflict | Stop::RolledBack) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
        }
    };
    thread::scope(|scope| {
        let read_part = &read_part;
        let readers: Vec<_> = (0..WARMERS)
            .map(|part| scope.spawn(move || read_part(part)))
            .collect();
        readers
            .into_iter()
            .try_for_each(|reader| reader.join().map_err(|_| BenchError::Panicked)?)
    })
}

fn remove(dir: &PathBuf) -> Result<(), BenchError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(BenchError::file("remove", dir, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn small(dir: &Path, workloads: &[Workload]) -> CompareSpec {
        CompareSpec {
            workloads: workloads.into(),
            engines: vec!["braid".into()],
            threads: vec![1, 2],
            repeats: 2,
            each: Duration::from_millis(10),
            warm_up: Duration::ZERO,
            records: Some(100),
            ..CompareSpec::new(dir.join("db"), dir.join("out"))
        }
    }

    #[test]
    fn caches_are_as_small_as_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let spec = CompareSpec {
            data_over_pool: Some(100.0),
            ..small(dir.path(), &[Workload::YcsbC])
        };
        let run = compare(&spec, &mut |_| ()).unwrap();
        let reason = &run.left_out[0].why;
        assert!(
            reason.contains("pool_bytes"),
            "no pool is that small: {reason}"
        );
    }

    #[test]
    fn each_measurement_of_a_growing_workload_starts_with_a_new_database() {
        let dir = tempfile::tempdir().unwrap();
        let spec = small(dir.path(), &[Workload::YcsbInsert, Workload::U1]);
        let mut loaded = Vec::new();
        let run = compare(&spec, &mut |event| {
            if let Event::Warming(_, workload) = event {
                loaded.push(workload);
            }
        });
        assert!(run.unwrap().violations.is_empty());
        let times = |workload| loaded.iter().filter(|&&of| of == workload).count();
        assert_eq!(times(Workload::YcsbInsert), 4);
        assert_eq!(times(Workload::U1), 2);
    }
}
