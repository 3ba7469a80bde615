//! Runs mutants: in simulated histories that a mutant affects, then in the tests that reach it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::Places;
use crate::process::{Ended, bounded, finish};
use crate::tests::{SLOW, Tests};

/// Number of seeds in which the reach of each mutant is determined, without `--scan`.
const SCANNED: u64 = 3000;
/// Default of `--histories`: the number of affected histories to run.
const TRIED: usize = 300;
/// The same for a first pass over all mutants.
const QUICK_SCANNED: u64 = 100;
const QUICK_TRIED: usize = 20;
/// Processor time of the tests that a mutant runs in, without `--budget`.
const BUDGET: Duration = Duration::from_secs(60);
/// Maximum time in which no thread of the histories' process can run: they never wait.
const HISTORIES_IDLE: Duration = Duration::from_secs(20);

fn runner(places: &Places, seconds: u64) -> Command {
    let program = places.file("build/debug/examples/mutation_runner");
    bounded(&program, 3, seconds)
}

fn try_histories(places: &Places, id: usize, seeds: &[u64]) -> Ended {
    // Many times the duration of a history.
    let seconds = 3 + seeds.len() as u64 / 20;
    let mut child = runner(places, seconds)
        .args(["try", &id.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the runner starts");
    let seeds: Vec<_> = seeds.iter().map(u64::to_string).collect();
    let _ = child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(seeds.join(" ").as_bytes());
    finish(child, HISTORIES_IDLE, || false).0
}

/// Returns for each mutant the seeds whose history it affects.
fn reach(places: &Places, scanned: u64) -> BTreeMap<usize, Vec<u64>> {
    let path = places.file(&format!("reach-{scanned}.txt"));
    let runner_time = fs::metadata(places.file("build/debug/examples/mutation_runner"))
        .and_then(|m| m.modified());
    let fresh = fs::metadata(&path)
        .and_then(|m| m.modified())
        .is_ok_and(|at| runner_time.is_ok_and(|r| r < at));
    if !fresh {
        let output = runner(places, 3600)
            .args(["hits", "0", &scanned.to_string(), "5000"])
            .stderr(Stdio::inherit())
            .output()
            .expect("the runner starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        fs::write(&path, &*text).expect("a file");
    }
    let text = fs::read_to_string(&path).expect("the reach");
    text.lines()
        .filter_map(|line| {
            let (id, seeds) = line.split_once(' ')?;
            Some((
                id.parse().ok()?,
                seeds
                    .split(' ')
                    .filter_map(|seed| seed.parse().ok())
                    .collect(),
            ))
        })
        .collect()
}

fn one(
    places: &Places,
    id: usize,
    reach: &BTreeMap<usize, Vec<u64>>,
    tests: &Tests,
    budget: Duration,
) -> String {
    let mut hung = None;
    if let Some(seeds) = reach.get(&id).filter(|seeds| !seeds.is_empty()) {
        match try_histories(places, id, seeds) {
            Ended::Failed(how) => return format!("caught\tsimulate: {how}"),
            Ended::Hung => hung = Some("simulate".to_owned()),
            Ended::Passed => {}
        }
    }
    let reaching = tests.reaching(id, budget);
    for (binary, names) in &reaching {
        match binary.try_mutant(places, id, names) {
            Ended::Failed(how) => return format!("caught\t{how}"),
            Ended::Hung => hung = hung.or(Some(binary.name.clone())),
            Ended::Passed => {}
        }
    }
    if let Some(hung) = hung {
        return format!("hung\t{hung}");
    }
    match reach.get(&id) {
        None if reaching.is_empty() => "unreached\t".to_owned(),
        seeds => format!(
            "SURVIVED\t{} histories, {} tests",
            seeds.map_or(0, Vec::len),
            reaching.iter().map(|(_, names)| names.len()).sum::<usize>()
        ),
    }
}

/// Numbers from a seed (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn points(places: &Places) -> Vec<(usize, String)> {
    let text = fs::read_to_string(places.file("points.tsv")).expect("`mutate build` comes first");
    text.lines()
        .filter_map(|line| {
            let (id, rest) = line.split_once('\t')?;
            Some((id.parse().ok()?, rest.to_owned()))
        })
        .collect()
}

pub fn results(places: &Places) -> BTreeMap<usize, String> {
    let text = fs::read_to_string(places.file("results.tsv")).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (id, rest) = line.split_once('\t')?;
            Some((id.parse().ok()?, rest.to_owned()))
        })
        .collect()
}

struct Options {
    jobs: u64,
    sample: usize,
    seed: u64,
    minutes: Option<u64>,
    scan: u64,
    histories: usize,
    budget: Duration,
    slow: u64,
    no_tests: bool,
    again: bool,
    ids: Vec<usize>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            jobs: 1,
            sample: usize::MAX,
            seed: 1,
            minutes: None,
            scan: SCANNED,
            histories: TRIED,
            budget: BUDGET,
            slow: SLOW,
            no_tests: false,
            again: false,
            ids: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut number = || -> Result<u64, String> {
                let value = rest.next().and_then(|value| value.parse().ok());
                value.ok_or_else(|| argument.clone())
            };
            match &argument[..] {
                "--jobs" => options.jobs = number()?,
                "--sample" => options.sample = number()? as usize,
                "--seed" => options.seed = number()?,
                "--minutes" => options.minutes = Some(number()?),
                "--scan" => options.scan = number()?,
                "--histories" => options.histories = number()? as usize,
                "--budget" => options.budget = Duration::from_secs(number()?),
                "--quick" => {
                    (options.scan, options.histories) = (QUICK_SCANNED, QUICK_TRIED);
                    (options.slow, options.budget) = (1, Duration::from_secs(2));
                }
                "--no-tests" => options.no_tests = true,
                "--again" => options.again = true,
                id => options.ids.push(id.parse().map_err(|_| argument.clone())?),
            }
        }
        Ok(options)
    }
}

pub fn run(places: &Places, arguments: &[String]) {
    let options = Options::parse(arguments).unwrap_or_else(|wrong| {
        eprintln!("unknown argument {wrong:?}\n{}", crate::USAGE);
        std::process::exit(2);
    });
    let until = options
        .minutes
        .map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut ids = options.ids.clone();
    let named = points(places);
    let known = results(places);
    if ids.is_empty() {
        ids = named.iter().map(|(id, _)| *id).collect();
        // In random order, so that the part that time allows is a sample.
        let mut state = options.seed;
        for i in (1..ids.len()).rev() {
            ids.swap(i, (random(&mut state) % (i as u64 + 1)) as usize);
        }
        ids.truncate(options.sample);
        ids.retain(|id| match known.get(id) {
            None => true,
            Some(result) => options.again && !result.starts_with("caught"),
        });
    }
    let named: BTreeMap<usize, String> = named.into_iter().collect();
    let mut reach = reach(places, options.scan);
    reach
        .values_mut()
        .for_each(|seeds| seeds.truncate(options.histories));
    let tests = match options.no_tests {
        true => Tests::default(),
        false => Tests::find(places, options.jobs, options.slow),
    };
    println!(
        "{} mutants; {} are reached by histories; {} tests",
        ids.len(),
        reach.len(),
        tests.len()
    );
    let budget = options.budget;
    let next = Mutex::new(ids.into_iter());
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(places.file("results.tsv"));
    let file = Mutex::new(file.expect("a file"));
    std::thread::scope(|scope| {
        for job in 0..options.jobs {
            let (next, file, named, reach, tests) = (&next, &file, &named, &reach, &tests);
            let work = move || {
                while until.is_none_or(|until| Instant::now() < until) {
                    let Some(id) = next.lock().expect("nobody panics with it").next() else {
                        return;
                    };
                    let result = one(places, id, reach, tests, budget);
                    let line = format!(
                        "{id}\t{result}\t{}\n",
                        named.get(&id).map_or("?", |name| name)
                    );
                    print!("{line}");
                    let _ = file
                        .lock()
                        .expect("nobody panics with it")
                        .write_all(line.as_bytes());
                }
            };
            let thread = std::thread::Builder::new().name(format!("job{job}"));
            thread.spawn_scoped(scope, work).expect("a thread");
        }
    });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for result in results(places).values() {
        *counts
            .entry(result.split('\t').next().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    println!("{counts:?}");
}
