//! Copies, rewrites and builds the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::points::{Point, Rewritten, rewrite};
use crate::{Places, chosen};

/// Files that are mutated by default: the commit, its locks and versions, recovery, the log's
/// protocols, flushes and scans, and the checkpoint.
pub const CORE: &[&str] = &[
    "crates/braiddb/src/txn/commit/apply.rs",
    "crates/braiddb/src/txn/commit/dependencies.rs",
    "crates/braiddb/src/txn/commit/mod.rs",
    "crates/braiddb/src/txn/commit/precommit.rs",
    "crates/braiddb/src/txn/commit/validate.rs",
    "crates/braiddb/src/locks/table.rs",
    "crates/braiddb/src/locks/wait_graph.rs",
    "crates/braiddb/src/txn/lock_acquisition.rs",
    "crates/braiddb/src/locks/deferred.rs",
    "crates/braiddb/src/mvcc/versions.rs",
    "crates/braiddb/src/mvcc/gc.rs",
    "crates/braiddb/src/engine/collect.rs",
    "crates/braiddb/src/engine/unlock.rs",
    "crates/braiddb/src/mvcc/registry.rs",
    "crates/braiddb/src/mvcc/range_reads.rs",
    "crates/braiddb/src/recovery/meta.rs",
    "crates/braiddb/src/recovery/open.rs",
    "crates/braiddb/src/recovery/recover.rs",
    "crates/braiddb/src/recovery/replay.rs",
    "crates/braiddb/src/format/redo.rs",
    "crates/braiddb/src/services/publish.rs",
    "crates/braiddb/src/services/checkpoint.rs",
    "crates/braiddb/src/services/maintenance.rs",
    "crates/braid-log/src/protocol/mod.rs",
    "crates/braid-log/src/protocol/acknowledgement.rs",
    "crates/braid-log/src/protocol/aether.rs",
    "crates/braid-log/src/protocol/epoch.rs",
    "crates/braid-log/src/protocol/glsn.rs",
    "crates/braid-log/src/protocol/gsn.rs",
    "crates/braid-log/src/protocol/gwsn.rs",
    "crates/braid-log/src/protocol/prefix.rs",
    "crates/braid-log/src/protocol/serial.rs",
    "crates/braid-log/src/flush/core.rs",
    "crates/braid-log/src/buffer/commit_slots.rs",
    "crates/braid-log/src/flush/leader.rs",
    "crates/braid-log/src/commit/pending.rs",
    "crates/braid-log/src/flush/lane.rs",
    "crates/braid-log/src/recovery/cut.rs",
    "crates/braid-log/src/recovery/files.rs",
    "crates/braid-log/src/recovery/recovered.rs",
    "crates/braid-log/src/recovery/replay.rs",
    "crates/braid-log/src/recovery/scan/end.rs",
    "crates/braid-log/src/recovery/scan/found.rs",
    "crates/braid-log/src/recovery/scan/mod.rs",
    "crates/braid-log/src/recovery/scan/records.rs",
    "crates/braid-log/src/format/segment.rs",
    "crates/braid-store/src/checkpoint.rs",
];

/// Gets an additional module.
const RT: &str = "crates/braid-rt/src/lib.rs";
const MODULE: &str = "crates/braid-rt/src/mutation.rs";
const EXAMPLE: &str = "crates/braid-sim/examples/mutation_runner.rs";

const RUNNER: &[&str] = &[
    "build",
    "--profile",
    "test",
    "-p",
    "braid-sim",
    "--example",
    "mutation_runner",
];
const CRATES: &[&str] = &["braid-log", "braid-store", "braiddb", "braid-sim"];

/// A source file in the copy.
struct Source {
    name: String,
    original: String,
    first: usize,
    rewritten: Rewritten,
    points: Vec<Point>,
}

fn cargo(places: &Places) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(places.tree())
        .env("CARGO_TARGET_DIR", places.file("build"))
        .env_remove("RUSTFLAGS");
    cargo
}

/// Copies tracked and new files, except those that are `rewritten`, leaves unchanged files alone,
/// so that cargo rebuilds less, and removes files that the workspace no longer has.
fn copy(places: &Places, rewritten: &[String]) {
    let listed = Command::new("git")
        .current_dir(&places.workspace)
        .args(["ls-files", "-co", "--exclude-standard"])
        .output()
        .expect("git lists the files");
    let listed = String::from_utf8(listed.stdout).expect("names are UTF-8");
    let is_copied = |name: &&str| {
        let is_rewritten = *name == RT || rewritten.iter().any(|n| n == name);
        !name.starts_with("tools/") && !is_rewritten
    };
    for name in listed.lines().filter(is_copied) {
        let (from, to) = (places.workspace.join(name), places.tree().join(name));
        if from.is_file() {
            write(&to, &fs::read(&from).expect("a source file"));
        }
    }
    let names = listed.lines().chain([MODULE, EXAMPLE]);
    let kept = names.map(|name| places.tree().join(name));
    remove_others(&places.tree(), &kept.collect());
}

/// Removes the files below `folder` that are not `kept`. A module that moved would otherwise exist
/// twice.
fn remove_others(folder: &Path, kept: &BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the copy") {
        let path = entry.expect("an entry of the copy").path();
        if path.is_dir() {
            remove_others(&path, kept);
        } else if !kept.contains(&path) {
            fs::remove_file(&path).expect("a file of the copy");
        }
    }
}

fn write(path: &Path, contents: &[u8]) {
    if fs::read(path).is_ok_and(|before| before == contents) {
        return;
    }
    fs::create_dir_all(path.parent().expect("it has a directory")).expect("directories");
    fs::write(path, contents).expect("a file of the copy");
}

fn rewrite_all(
    places: &Places,
    originals: &[(String, String)],
    disabled: &BTreeSet<usize>,
) -> Vec<Source> {
    let mut first = 0;
    let mut sources = Vec::new();
    for (name, original) in originals {
        let original = original.clone();
        let (rewritten, points) = rewrite(&original, first, &|id| disabled.contains(&id));
        write(&places.tree().join(name), rewritten.text.as_bytes());
        let (_, all) = rewrite(&original, first, &|_| false);
        let begin = first;
        first = all.last().map_or(first, |point| point.id + 1);
        sources.push(Source {
            name: name.clone(),
            original,
            first: begin,
            rewritten,
            points,
        });
    }
    let module = format!("{}\nconst COUNT: usize = {first};\n", chosen::SOURCE);
    write(&places.tree().join(MODULE), module.as_bytes());
    let lib = fs::read_to_string(places.workspace.join(RT)).expect("lib.rs");
    let lib = format!("{lib}\n#[allow(missing_docs)]\npub mod mutation;\n");
    write(&places.tree().join(RT), lib.as_bytes());
    write(&places.tree().join(EXAMPLE), include_bytes!("runner.rs"));
    sources
}

/// Compiles the copy once; returns the points that do not compile.
fn check(places: &Places, sources: &[Source]) -> BTreeSet<usize> {
    let mut command = cargo(places);
    command.args(RUNNER).arg("--message-format=json");
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut wrong = BTreeSet::new();
    let mut unknown = Vec::new();
    for message in text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        let message = &message["message"];
        if message["level"] != "error" || message["spans"].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        let mut spans: Vec<&Value> = message["spans"].as_array().into_iter().flatten().collect();
        spans.sort_by_key(|span| span["is_primary"] != true);
        match spans.into_iter().find_map(|span| at_fault(sources, span)) {
            Some(id) => {
                wrong.insert(id);
            }
            None => match deletions_around(sources, &message["spans"]) {
                deletions if deletions.is_empty() => {
                    unknown.push(message["rendered"].as_str().unwrap_or_default().to_owned());
                }
                deletions => wrong.extend(deletions),
            },
        }
    }
    if wrong.is_empty() && !output.status.success() {
        panic!("the copy does not compile:\n{}", unknown.join("\n"));
    }
    wrong
}

/// Returns the innermost point around a position of the rewritten text.
fn at_fault(sources: &[Source], span: &Value) -> Option<usize> {
    let file = span["file_name"].as_str()?;
    let source = sources.iter().find(|source| source.name == file)?;
    let (begin, end) = (
        span["byte_start"].as_u64()? as usize,
        span["byte_end"].as_u64()? as usize,
    );
    let ranges = &source.rewritten.ranges;
    let around = ranges.iter().filter(|(_, b, e)| *b <= begin && end <= *e);
    let within = || {
        ranges
            .iter()
            .rev()
            .find(|(_, b, e)| begin <= *b && *e <= end)
    };
    around
        .min_by_key(|(_, b, e)| e - b)
        .or_else(within)
        .map(|(id, ..)| *id)
}

/// Bytes after an error in which the deletion of an exit may be its cause.
const EXIT_MAX: usize = 400;

/// Returns the deletions between an error's positions, of drops if there are any: a guard lives
/// longer without its drop.
fn deletions_around(sources: &[Source], spans: &Value) -> Vec<usize> {
    let spans: Vec<&Value> = spans.as_array().into_iter().flatten().collect();
    let file = spans.first().and_then(|span| span["file_name"].as_str());
    let Some(source) = sources.iter().find(|source| Some(&source.name[..]) == file) else {
        return Vec::new();
    };
    let begin = spans
        .iter()
        .filter_map(|span| span["byte_start"].as_u64())
        .min();
    let end = spans
        .iter()
        .filter_map(|span| span["byte_end"].as_u64())
        .max();
    let (begin, end) = (begin.unwrap_or(0) as usize, end.unwrap_or(0) as usize);
    let of = |what: &str, end: usize| -> Vec<usize> {
        let points = source
            .points
            .iter()
            .filter(|point| point.what.starts_with(what));
        let ranges = &source.rewritten.ranges;
        let is_between = |id| {
            ranges
                .iter()
                .any(|(of, b, e)| *of == id && begin <= *b && *e <= end)
        };
        points
            .map(|point| point.id)
            .filter(|&id| is_between(id))
            .collect()
    };
    let exits = ["without: return", "without: continue"];
    match of("without: drop(", end) {
        drops if drops.is_empty() => match of("without", end) {
            // An exit after the move of a value.
            none if none.is_empty() => exits.map(|exit| of(exit, end + EXIT_MAX)).concat(),
            deletions => deletions,
        },
        drops => drops,
    }
}

pub fn build(places: &Places, arguments: &[String]) {
    let tests = arguments.iter().any(|argument| argument == "--tests");
    let mut names: Vec<String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with("--"))
        .cloned()
        .collect();
    if names.is_empty() {
        names = CORE.iter().map(|name| (*name).to_owned()).collect();
    }
    fs::create_dir_all(places.tree()).expect("the directory of the copy");
    copy(places, &names);
    let read = |name: String| {
        let text = fs::read_to_string(places.workspace.join(&name)).expect("a source file");
        (name, text)
    };
    let originals: Vec<_> = names.into_iter().map(read).collect();
    let mut disabled = BTreeSet::new();
    let sources = loop {
        let sources = rewrite_all(places, &originals, &disabled);
        let wrong = check(places, &sources);
        println!("{} points do not compile", wrong.len());
        if wrong.is_empty() {
            break sources;
        }
        disabled.extend(wrong);
    };
    let points: String = sources
        .iter()
        .flat_map(|source| source.points.iter().map(move |p| (source, p)))
        .map(|(source, p)| {
            format!(
                "{}\t{}:{}\t{}\t{}\n",
                p.id, source.name, p.line, p.function, p.what
            )
        })
        .collect();
    // Results of other points have no meaning.
    if fs::read_to_string(places.file("points.tsv")).ok().as_ref() != Some(&points) {
        let _ = fs::remove_file(places.file("results.tsv"));
    }
    fs::write(places.file("points.tsv"), &points).expect("a file");
    println!(
        "{} mutants in {} files, {} bytes",
        points.lines().count(),
        sources.len(),
        sources.iter().map(|s| s.original.len()).sum::<usize>()
    );
    debug_assert!(sources.is_sorted_by_key(|source| source.first));
    if tests {
        build_tests(places);
    }
}

fn build_tests(places: &Places) {
    let mut command = cargo(places);
    command.args([
        "test",
        "--no-run",
        "--message-format=json",
        "--lib",
        "--tests",
    ]);
    CRATES.iter().for_each(|name| {
        command.args(["-p", name]);
    });
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "the tests of the copy do not compile"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let mut tests = BTreeMap::new();
    for message in text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        if message["reason"] == "compiler-artifact"
            && let Some(binary) = message["executable"].as_str()
            && let Some(manifest) = message["manifest_path"].as_str()
            && message["profile"]["test"] == true
        {
            let directory = Path::new(manifest).parent().expect("a directory");
            let of = directory.file_name().expect("a name").to_string_lossy();
            let name = format!(
                "{of}/{}",
                message["target"]["name"].as_str().unwrap_or("lib")
            );
            tests.insert(name, format!("{binary}\t{}", directory.display()));
        }
    }
    let text: String = tests
        .iter()
        .map(|(name, test)| format!("{name}\t{test}\n"))
        .collect();
    fs::write(places.file("tests.tsv"), text).expect("a file");
}
