//! Tests of the copy: the mutants that each one reaches, and its duration.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::Places;
use crate::process::{Ended, bounded, finish};

/// Tests that take more seconds of processor time without a mutant are left out.
pub const SLOW: u64 = 20;
/// Maximum time in which no thread of a test can run.
const IDLE: Duration = Duration::from_secs(30);
/// Tests that repeat the simulator, slow ones, and the models, which have their own mutants.
const SKIPPED: &[&str] = &[
    "histories_of_every_protocol_keep_the_rules",
    "_is_caught",
    "_holds",
];

/// A test without a mutant.
struct Test {
    name: String,
    took: Duration,
    hits: BTreeSet<usize>,
}

pub struct TestBinary {
    pub name: String,
    binary: String,
    directory: String,
    tests: Vec<Test>,
}

/// All test binaries.
#[derive(Default)]
pub struct Tests(Vec<TestBinary>);

impl TestBinary {
    fn command(&self, seconds: u64) -> Command {
        let mut command = bounded(self.binary.as_ref(), 12, seconds);
        command
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env("BRAID_HISTORIES", "8")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        command
    }

    /// Runs tests by name; returns the failed ones.
    fn run(
        &self,
        places: &Places,
        names: &[&str],
        variable: (&str, &str),
        seconds: u64,
    ) -> (Ended, Duration) {
        let thread = std::thread::current();
        let log = places.file(&format!("test-{}.log", thread.name().unwrap_or("main")));
        let output = File::create(&log).expect("a file");
        let child = self
            .command(seconds)
            .args(names)
            .arg("--exact")
            .env(variable.0, variable.1)
            .stdout(output.try_clone().expect("a file"))
            .stderr(output)
            .spawn()
            .expect("the test starts");
        let failed = || {
            let text = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let failed = |line: &str| {
                let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
                Some(name.to_owned())
            };
            text.lines().filter_map(failed).collect::<BTreeSet<_>>()
        };
        let (ended, took) = finish(child, IDLE, || !failed().is_empty());
        let Ended::Failed(how) = ended else {
            return (ended, took);
        };
        let failed: Vec<_> = failed().into_iter().take(3).collect();
        let how = match failed.is_empty() {
            true => how,
            false => failed.join(", "),
        };
        (Ended::Failed(format!("{}: {how}", self.name)), took)
    }

    /// Runs tests with a mutant.
    pub fn try_mutant(&self, places: &Places, id: usize, names: &[&str]) -> Ended {
        let is_one = |test: &&Test| names.contains(&&test.name[..]);
        let took: Duration = self.tests.iter().filter(is_one).map(|test| test.took).sum();
        // Several times their duration without it.
        let seconds = 2 + 5 * took.as_millis().div_ceil(1000) as u64;
        self.run(places, names, ("BRAID_MUTATION", &id.to_string()), seconds)
            .0
    }

    fn file(&self, places: &Places) -> PathBuf {
        places.file(&format!("tests-{}.txt", self.name.replace('/', "-")))
    }

    /// Returns the names of its tests.
    fn list(&self) -> Vec<String> {
        let output = self
            .command(60)
            .args(["--list", "--format", "terse"])
            .output()
            .expect("the test binary starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        names
            .filter(|name| SKIPPED.iter().all(|skipped| !name.ends_with(skipped)))
            .map(str::to_owned)
            .collect()
    }

    /// Returns what an earlier run of the same binary recorded about its tests.
    fn known(&self, places: &Places, slow: u64) -> Option<Vec<Test>> {
        let text = fs::read_to_string(self.file(places)).ok()?;
        let (head, tests) = text.split_once('\n')?;
        let (seconds, binary) = head.split_once(' ')?;
        let is_complete = seconds.parse::<u64>().ok()? >= slow;
        let test = |line: &str| {
            let mut words = line.split(' ');
            Some(Test {
                name: words.next()?.to_owned(),
                took: Duration::from_millis(words.next()?.parse().ok()?),
                hits: words.filter_map(|id| id.parse().ok()).collect(),
            })
        };
        (is_complete && binary == self.binary).then(|| tests.lines().filter_map(test).collect())
    }

    /// Runs a test without a mutant, unless it fails or is slow.
    fn measure(&self, places: &Places, name: &str, slow: u64) -> Option<Test> {
        let thread = std::thread::current();
        let path = places.file(&format!("{}.hits", thread.name().unwrap_or("main")));
        let _ = fs::remove_file(&path);
        let variable = ("BRAID_MUTATION_HITS", &*path.to_string_lossy());
        let (ended, took) = self.run(places, &[name], variable, slow);
        let hits = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        if !matches!(ended, Ended::Passed) {
            println!(
                "left out: {}: {name} fails or is slow without a mutant",
                self.name
            );
            return None;
        }
        let hits = hits.lines().filter_map(|id| id.parse().ok()).collect();
        let name = name.to_owned();
        Some(Test { name, took, hits })
    }

    /// Records its tests for later runs of the tool.
    fn record(&self, places: &Places, slow: u64) {
        let mut text = format!("{slow} {}\n", self.binary);
        for Test { name, took, hits } in &self.tests {
            let hits: Vec<_> = hits.iter().map(usize::to_string).collect();
            text.push_str(&format!("{name} {} {}\n", took.as_millis(), hits.join(" ")));
        }
        fs::write(self.file(places), text).expect("a file");
    }
}

impl Tests {
    /// Returns the tests of all binaries of the build that take at most `slow` seconds; runs each
    /// once without a mutant, unless that was done before.
    pub fn find(places: &Places, jobs: u64, slow: u64) -> Self {
        let listed = fs::read_to_string(places.file("tests.tsv")).unwrap_or_default();
        let binary = |line: &str| {
            let mut parts = line.split('\t').map(str::to_owned);
            Some(TestBinary {
                name: parts.next()?,
                binary: parts.next()?,
                directory: parts.next()?,
                tests: Vec::new(),
            })
        };
        let mut binaries: Vec<_> = listed.lines().filter_map(binary).collect();
        let mut unknown = Vec::new();
        for (at, binary) in binaries.iter_mut().enumerate() {
            match binary.known(places, slow) {
                Some(tests) => binary.tests = tests,
                None => unknown.push(at),
            }
        }
        let names = |&at: &usize| binaries[at].list().into_iter().map(move |name| (at, name));
        let waiting: Vec<_> = unknown.iter().flat_map(names).collect();
        let waiting = Mutex::new(waiting.into_iter());
        let measured = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for job in 0..jobs {
                let (waiting, measured, binaries) = (&waiting, &measured, &binaries);
                let work = move || {
                    loop {
                        let next = waiting.lock().expect("nobody panics with it").next();
                        let Some((at, name)) = next else { return };
                        if let Some(test) = binaries[at].measure(places, &name, slow) {
                            let mut measured = measured.lock().expect("nobody panics with it");
                            measured.push((at, test));
                        }
                    }
                };
                let thread = std::thread::Builder::new().name(format!("job{job}"));
                thread.spawn_scoped(scope, work).expect("a thread");
            }
        });
        for (at, test) in measured.into_inner().expect("nobody panics with it") {
            binaries[at].tests.push(test);
        }
        for at in unknown {
            binaries[at].record(places, slow);
        }
        Self(binaries)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|binary| binary.tests.len()).sum()
    }

    /// Returns the tests that reach a mutant, the fastest first, as many as the budget of processor
    /// time allows; by binary.
    pub fn reaching(&self, id: usize, budget: Duration) -> Vec<(&TestBinary, Vec<&str>)> {
        let mut reaching: Vec<_> = self
            .0
            .iter()
            .enumerate()
            .flat_map(|(at, binary)| binary.tests.iter().map(move |test| (test.took, at, test)))
            .filter(|(_, _, test)| test.hits.contains(&id))
            .collect();
        reaching.sort_by_key(|(took, at, _)| (*took, *at));
        let mut left = budget;
        let mut chosen: BTreeMap<usize, (Duration, Vec<&str>)> = BTreeMap::new();
        for (took, at, test) in reaching {
            let Some(rest) = left.checked_sub(took) else {
                break;
            };
            left = rest;
            let (sum, names) = chosen.entry(at).or_default();
            *sum += took;
            names.push(&test.name);
        }
        let mut chosen: Vec<_> = chosen.into_iter().collect();
        chosen.sort_by_key(|(_, (took, _))| *took);
        let name = |(at, (_, names)): (usize, (_, Vec<_>))| (&self.0[at], names);
        chosen.into_iter().map(name).collect()
    }
}
