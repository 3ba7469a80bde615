//! Runs mutants: simulated histories that a mutant makes a difference to, then test binaries that reach it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::Places;

/// Seeds in which the reach of each mutant is looked for, without `--scan`.
const SCANNED: u64 = 3000;
/// Of the histories that a mutant makes a difference to, so many are tried, without `--histories`.
const TRIED: usize = 300;
/// Ends a process that has used up its processor time.
const SIGXCPU: i32 = 24;
const HISTORY_LIMIT: Duration = Duration::from_secs(900);
/// Test binaries that take longer without a mutant are left out.
const SLOW: Duration = Duration::from_secs(60);
/// Repetitions of what the simulator does, slow ones, and the models, which have mutants of their own.
const SKIPPED: &[&str] = &["histories_of_every_protocol", "_is_caught", "_holds"];

struct TestBinary {
    name: String,
    binary: String,
    directory: String,
    took: Duration,
    hits: BTreeSet<usize>,
}

enum Ended {
    Passed,
    Failed(String),
    TimedOut,
}

fn finish(mut child: Child, limit: Duration) -> Ended {
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the process is ours") {
            break status;
        }
        if begun.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Ended::TimedOut;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut text = String::new();
    if let Some(mut output) = child.stdout.take() {
        let _ = output.read_to_string(&mut text);
    }
    match status.success() {
        true => Ended::Passed,
        false => Ended::Failed(match text.trim() {
            "" if status.signal() == Some(SIGXCPU) => "loops".to_owned(),
            "" => status.to_string(),
            text => text.chars().take(160).collect(),
        }),
    }
}

/// A program at low priority, with bounds on its address space and its processor time in seconds: some mutants
/// allocate or loop forever.
fn bounded(program: &std::path::Path, gibibytes: u64, seconds: u64) -> Command {
    let bounds = format!("ulimit -v {}; ulimit -t {seconds}", gibibytes << 20);
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{bounds}; exec nice -n 10 \"$0\" \"$@\"")])
        .arg(program);
    command
}

fn runner(places: &Places, seconds: u64) -> Command {
    let program = places.file("build/debug/examples/mutation_runner");
    bounded(&program, 3, seconds)
}

fn try_histories(places: &Places, id: usize, seeds: &[u64]) -> Ended {
    // Many times what a history takes.
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
    finish(child, HISTORY_LIMIT)
}

fn test(test: &TestBinary, places: &Places, variable: (&str, &str), limit: Duration) -> Ended {
    let log = places.file(&format!(
        "test-{}.log",
        std::thread::current().name().unwrap_or("main")
    ));
    let output = File::create(&log).expect("a file");
    let mut command = bounded(test.binary.as_ref(), 12, 300);
    SKIPPED.iter().for_each(|name| {
        command.args(["--skip", name]);
    });
    let child = command
        .current_dir(&test.directory)
        .env("CARGO_MANIFEST_DIR", &test.directory)
        .env("BRAID_HISTORIES", "30")
        .env("RUST_BACKTRACE", "0")
        .env(variable.0, variable.1)
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a file"))
        .stderr(output)
        .spawn()
        .expect("the test starts");
    let ended = finish(child, limit);
    let Ended::Failed(_) = ended else {
        return ended;
    };
    let text = fs::read(&log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let failed: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
        .collect();
    let names: Vec<_> = failed.into_iter().take(3).collect();
    Ended::Failed(format!(
        "{}: {}",
        test.name,
        if names.is_empty() {
            "aborted".to_owned()
        } else {
            names.join(", ")
        }
    ))
}

/// For each mutant the seeds that it makes a difference to.
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

/// The test binaries, with what they reach and how long they take.
fn tests(places: &Places) -> Vec<TestBinary> {
    let Ok(listed) = fs::read_to_string(places.file("tests.tsv")) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for line in listed.lines() {
        let mut parts = line.split('\t').map(str::to_owned);
        let (Some(name), Some(binary), Some(directory)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let file = |end: &str| places.file(&format!("hits-{}.{end}", name.replace('/', "-")));
        let mut one = TestBinary {
            name: name.clone(),
            binary,
            directory,
            took: SLOW,
            hits: BTreeSet::new(),
        };
        let known = fs::read_to_string(file("ms")).ok().and_then(|text| {
            let (binary, took) = text.split_once(' ')?;
            (binary == one.binary).then(|| Duration::from_millis(took.parse().unwrap_or(0)))
        });
        one.took = known.unwrap_or_else(|| {
            let _ = fs::remove_file(file("txt"));
            let begun = Instant::now();
            let path = file("txt");
            let ended = test(
                &one,
                places,
                ("BRAID_MUTATION_HITS", &path.to_string_lossy()),
                SLOW,
            );
            let took = match ended {
                Ended::Passed => begun.elapsed(),
                _ => {
                    println!("left out: {name} fails or is slow without a mutant");
                    SLOW
                }
            };
            let _ = fs::write(file("ms"), format!("{} {}", one.binary, took.as_millis()));
            took
        });
        let hits = fs::read_to_string(file("txt")).unwrap_or_default();
        one.hits = hits.lines().filter_map(|id| id.parse().ok()).collect();
        if one.took < SLOW {
            all.push(one);
        }
    }
    all.sort_by_key(|one| one.took);
    all
}

fn one(
    places: &Places,
    id: usize,
    reach: &BTreeMap<usize, Vec<u64>>,
    tests: &[TestBinary],
) -> String {
    let mut late = None;
    if let Some(seeds) = reach.get(&id).filter(|seeds| !seeds.is_empty()) {
        match try_histories(places, id, seeds) {
            Ended::Failed(how) => return format!("caught\tsimulate: {how}"),
            Ended::TimedOut => late = Some("simulate".to_owned()),
            Ended::Passed => {}
        }
    }
    let reaching: Vec<_> = tests
        .iter()
        .filter(|test| test.hits.contains(&id))
        .collect();
    for binary in &reaching {
        let limit = binary.took * 6 + Duration::from_secs(20);
        match test(binary, places, ("BRAID_MUTATION", &id.to_string()), limit) {
            Ended::Failed(how) => return format!("caught\t{how}"),
            Ended::TimedOut => late = late.or(Some(binary.name.clone())),
            Ended::Passed => {}
        }
    }
    if let Some(late) = late {
        return format!("time-out\t{late}");
    }
    match reach.get(&id) {
        None if reaching.is_empty() => "unreached\t".to_owned(),
        seeds => format!(
            "SURVIVED\t{} histories, {} test binaries",
            seeds.map_or(0, Vec::len),
            reaching.len()
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

fn points(places: &Places) -> Vec<(usize, String)> {
    let text = fs::read_to_string(places.file("points.tsv")).expect("`mutate build` comes first");
    text.lines()
        .filter_map(|line| {
            let (id, rest) = line.split_once('\t')?;
            Some((id.parse().ok()?, rest.to_owned()))
        })
        .collect()
}

fn results(places: &Places) -> BTreeMap<usize, String> {
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
        // In an order of chance, so that what time allows is a sample.
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
        true => Vec::new(),
        false => tests(places),
    };
    println!(
        "{} mutants; {} are reached by histories; {} test binaries",
        ids.len(),
        reach.len(),
        tests.len()
    );
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
                    let result = one(places, id, reach, tests);
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

pub fn survivors(places: &Places) {
    for (id, result) in results(places) {
        if !result.starts_with("caught") {
            println!("{id}\t{result}");
        }
    }
}
