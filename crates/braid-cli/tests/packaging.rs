//! What package registries and users of the built programs see of each crate: where it comes from, its licences, and
//! example programs that do not overwrite each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

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
