//! Properties of the packages for registries and users: origin, licences, example programs that do
//! not overwrite each other; manual pages and completions of the command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

mod common;

use common::{braid, expect_code, stderr, stdout};

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The packages of the workspace, as cargo sees them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

#[test]
fn published_crates_say_where_they_come_from() {
    let published: Vec<Value> = packages().into_iter().filter(is_published).collect();
    assert!(published.len() >= 9);
    for package in &published {
        let name = package["name"].as_str().unwrap();
        for field in ["description", "repository", "homepage", "documentation"] {
            let text = package[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {field}");
        }
        for field in ["keywords", "categories"] {
            let words = package[field].as_array().unwrap();
            assert!(
                (1..=5).contains(&words.len()),
                "{name} has {} {field}",
                words.len()
            );
        }
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let directory = manifest.parent().unwrap();
        let readme = package["readme"].as_str().unwrap_or_default();
        assert!(directory.join(readme).is_file(), "{name} has no readme");
        for licence in LICENCES {
            let own = fs::read(directory.join(licence));
            let own = own.unwrap_or_else(|error| panic!("{name}/{licence}: {error}"));
            assert_eq!(own, fs::read(root().join(licence)).unwrap(), "{name}");
        }
    }
}

/// Cargo puts the example programs of all crates into one directory.
#[test]
fn example_programs_have_names_of_their_own() {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        for target in package["targets"].as_array().unwrap() {
            if target["kind"] != serde_json::json!(["example"]) {
                continue;
            }
            let example = target["name"].as_str().unwrap().to_owned();
            if let Some(other) = owners.insert(example.clone(), name.to_owned()) {
                panic!("{other} and {name} both have an example {example}");
            }
        }
    }
    assert!(owners.len() > 10);
}

/// The subcommands that `braid --help` lists.
fn subcommands() -> Vec<String> {
    let help = braid(&["--help"]);
    let help = stdout(&help);
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let name = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    lines.map(name).filter(|name| name != "help").collect()
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("share/man1");
    expect_code(&braid(&["man", pages.to_str().unwrap()]), 0);
    let names = subcommands();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let page = fs::read_to_string(pages.join(format!("braid-{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    let first = fs::read_to_string(pages.join("braid.1")).unwrap();
    assert!(first.contains(".TH braid 1"), "{first}");
    assert!(first.contains("verify"), "{first}");
    let is_hidden = |name: &str| name.contains("demo-worker");
    for entry in fs::read_dir(&pages).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!is_hidden(&name), "{name}");
    }
    // A directory that cannot be written is named.
    let taken = dir.path().join("file");
    fs::write(&taken, "").unwrap();
    let output = braid(&["man", taken.to_str().unwrap()]);
    expect_code(&output, 1);
    let said = stderr(&output);
    let expected = format!("cannot write manual pages to {}", taken.display());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn shells_complete_subcommands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = braid(&["completions", shell]);
        expect_code(&output, 0);
        let script = stdout(&output);
        for name in subcommands() {
            assert!(script.contains(&name), "{shell} does not know {name}");
        }
    }
    let output = braid(&["completions", "csh"]);
    expect_code(&output, 2);
    assert!(stderr(&output).contains("zsh"), "{}", stderr(&output));
}

/// Returns bash's completions of a command line whose last word is unfinished.
#[test]
#[cfg(unix)]
fn bash_completes_a_word() {
    if Command::new("bash").arg("--version").output().is_err() {
        println!("SKIPPED: there is no bash");
        return;
    }
    let script = stdout(&braid(&["completions", "bash"]));
    for (words, expected) in [("veri", "verify"), ("verify --rep", "--repair")] {
        let line = format!(
            "{script}\nCOMP_WORDS=(braid {words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _braid braid \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"\n\
             echo \"${{COMPREPLY[@]}}\"\n"
        );
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        assert_eq!(stdout(&output).trim(), expected, "{}", stderr(&output));
    }
}
