//! `braid simulate`: runs the engine through simulated crashes, from seeds.

use std::ops::Range;
use std::time::Duration;

use braid::Protocol;
use braid_sim::{Failed, Spec, Summary};

use crate::failure::Failure;
use crate::numbers::{grouped, parse};
use crate::output::{self, Output};

#[derive(Debug, clap::Args)]
pub(crate) struct SimulateArgs {
    /// Seeds, one history each: A..B, or one number [default: 0..2000, or with --minutes as many as
    /// the time allows]
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Option<Range<u64>>,
    /// Commit protocol, or `all` in turn
    #[arg(long, value_name = "NAME", default_value = "all")]
    protocol: String,
    /// Where log and data are: on disks and in persistent memory, at least one of them in persistent
    /// memory, or in a volume on an NVMe drive
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Devices::Mixed)]
    device: Devices,
    /// Stop after this many minutes
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes)]
    minutes: Option<Duration>,
    /// Number of threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Override values that the seed decides, as in the plan that a failure prints:
    /// clients=2,rounds=1,...
    #[arg(long, value_name = "NAME=VALUE,...", value_delimiter = ',', value_parser = parse_pair)]
    with: Vec<(String, String)>,
    /// Search for a simpler history that fails, too, and print it
    #[arg(long)]
    shrink: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Devices {
    Mixed,
    Pmem,
    Nvme,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
    let seeds = match text.split_once("..") {
        Some((from, to)) => number(from)?..number(to)?,
        None => {
            let seed = number(text)?;
            seed..seed.checked_add(1).ok_or("too large")?
        }
    };
    if seeds.is_empty() {
        return Err("the range is empty; write A..B with A less than B".to_owned());
    }
    Ok(seeds)
}

fn parse_minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if minutes > 0.0 && minutes <= 1e6 {
        Ok(Duration::from_secs_f64(minutes * 60.0))
    } else {
        Err("must be more than 0 and at most 1000000 minutes".to_owned())
    }
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Returns the overridden values, with those that the device implies.
fn overrides(args: &SimulateArgs) -> Vec<(String, String)> {
    let implied = match args.device {
        Devices::Mixed => None,
        Devices::Pmem => Some("pmem"),
        Devices::Nvme => Some("nvme"),
    };
    let implied = implied.map(|name| (name.to_owned(), "true".to_owned()));
    args.with.iter().cloned().chain(implied).collect()
}

pub(crate) fn run(args: &SimulateArgs, output: &mut Output) -> Result<(), Failure> {
    let protocols =
        match args.protocol.as_str() {
            "all" => Protocol::ALL.to_vec(),
            name => vec![parse::<Protocol>(name).map_err(|error| {
                Failure::Usage(format!("invalid value for --protocol: {error}"))
            })?],
        };
    let jobs = args.jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let seeds = match (&args.seeds, args.minutes) {
        (Some(seeds), _) => seeds.clone(),
        (None, Some(_)) => 0..u64::MAX,
        (None, None) => 0..2_000,
    };
    let spec = Spec {
        seeds: seeds.clone(),
        protocols,
        time: args.minutes,
        jobs,
        with: overrides(args),
    };
    let (length, unit) = match args.minutes {
        Some(time) if args.seeds.is_none() => (time.as_millis() as u64, "time"),
        _ => (seeds.end - seeds.start, "histories"),
    };
    let bar = output::bar(length, unit);
    // Report failures once, below, rather than for each task that panics.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let summary = braid_sim::simulate(&spec, &mut |summary| {
        bar.set_position(match unit {
            "time" => summary.elapsed.as_millis() as u64,
            _ => summary.histories,
        });
        let crashes = grouped(summary.crashes);
        bar.set_message(format!(
            "{} histories, {crashes} crashes",
            grouped(summary.histories)
        ));
    });
    bar.finish_and_clear();
    let summary = summary.map_err(Failure::Usage);
    let shrunk = summary
        .as_ref()
        .ok()
        .and_then(|summary| summary.failed.clone());
    let shrunk = shrunk.filter(|_| args.shrink).map(|failed| {
        let spinner = output::spinner();
        let simpler = braid_sim::shrink(&failed, &mut |failed| {
            spinner.set_message(format!("simpler: {}", failed.plan));
        });
        spinner.finish_and_clear();
        simpler
    });
    std::panic::set_hook(hook);
    let summary = summary?;
    report(&summary, jobs, output)?;
    let Some(failed) = &summary.failed else {
        // Archives, readers and damaged files are not part of histories on a volume.
        let is_plain =
            args.protocol == "all" && args.with.is_empty() && args.device != Devices::Nvme;
        return if is_plain {
            covered(&summary, args.device == Devices::Pmem)
        } else {
            Ok(())
        };
    };
    show(failed, output)?;
    if let Some(simpler) = shrunk {
        output.line("\nsimpler:")?;
        show(&simpler, output)?;
    }
    Err(Failure::Failed(format!(
        "the history of seed {} with {} violated a rule: {}",
        failed.plan.seed, failed.plan.protocol, failed.violation
    )))
}

/// Fails if a required coverage point was not reached.
fn covered(summary: &Summary, pmem: bool) -> Result<(), Failure> {
    let missing = summary.missing(pmem);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "no rule was violated, but {} histories should have reached: {}",
        grouped(summary.histories),
        missing.join("; ")
    )))
}

fn report(summary: &Summary, jobs: usize, output: &mut Output) -> Result<(), Failure> {
    let seconds = summary.elapsed.as_secs_f64();
    let processor = summary.processor.as_secs_f64();
    let a_second = |count: u64| grouped((count as f64 / processor) as u64);
    output.line(format_args!(
        "{} histories, {} of them with {} crashes, {} commits, {} steps in {seconds:.1} s on {jobs} threads, \
         {processor:.1} s of them on a processor",
        grouped(summary.histories),
        grouped(summary.with_crashes),
        grouped(summary.crashes),
        grouped(summary.commits),
        grouped(summary.steps),
    ))?;
    output.line(format_args!(
        "a second of a processor: {} histories, {} of them with {} crashes",
        a_second(summary.histories),
        a_second(summary.with_crashes),
        a_second(summary.crashes)
    ))?;
    output.line(
        "A history is one run of the engine from a seed; a step is one choice of the scheduler. Below: how often \
                  each fault happened and each branch of opening and recovery was taken, and in how many histories. A fault or \
                  branch that never happened is a gap in the run, not in the engine.",
    )?;
    output.line(format_args!(
        "{:>14} {:>14}  what happened",
        "times", "histories"
    ))?;
    for (what, count) in summary.coverage() {
        output.line(format_args!(
            "{:>14} {:>14}  {what}",
            grouped(count.times),
            grouped(count.histories)
        ))?;
    }
    Ok(())
}

fn show(failed: &Failed, output: &mut Output) -> Result<(), Failure> {
    output.line(format_args!("violation: {}", failed.violation))?;
    if !failed.history.is_empty() {
        output.line(&failed.history)?;
    }
    output.line(format_args!(
        "again: braid simulate --seeds {} --protocol {} --with {}",
        failed.plan.seed, failed.plan.protocol, failed.plan
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_fails_if_something_never_happened() {
        let mut summary = Summary {
            histories: braid_sim::coverage::LONG - 1,
            ..Summary::default()
        };
        assert!(covered(&summary, false).is_ok(), "it is short");
        summary.histories += 1;
        let all = summary.coverage();
        summary.counts.clone_from(&all);
        assert!(covered(&summary, false).is_ok());
        summary.counts.remove("recovery: replay fails");
        let Err(Failure::Failed(why)) = covered(&summary, false) else {
            panic!("it lacks something");
        };
        assert!(
            why.contains("14,000") && why.ends_with(": recovery: replay fails"),
            "{why}"
        );
        // It is listed nevertheless.
        assert_eq!(
            summary.coverage()["recovery: replay fails"],
            braid_sim::Count::default()
        );
        assert_eq!(all.len(), braid_sim::coverage::HAPPENS.len());
    }
}
