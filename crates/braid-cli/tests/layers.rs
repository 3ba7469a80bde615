//! Imports point down: the blocks ```` ```layers CRATE ```` in `ARCHITECTURE.md` list the modules
//! of each crate, the highest first. A module imports only from modules on lines below its own.
//! Modules that import each other share a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of modules on one line, which may import each other.
const LONGEST_CYCLE: usize = 3;

/// Every crate that the test must find in `ARCHITECTURE.md`.
const CRATES: [&str; 14] = [
    "braid-rt",
    "braid-io",
    "braid-pmem",
    "braid-nvme",
    "braid-nvwal",
    "braid-sqlite",
    "braid-store",
    "braid-log",
    "braiddb",
    "braid-server",
    "braid-sim",
    "braid-fuzz",
    "braid-c",
    "braid-cli",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of `ARCHITECTURE.md`: folder of modules (`braid-log` or `braid-log/protocol`) to its
/// lines of names.
fn blocks(text: &str) -> BTreeMap<String, Vec<Vec<String>>> {
    let mut blocks = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.trim().strip_prefix("```layers ") else {
            continue;
        };
        let listed: Vec<Vec<String>> = lines
            .by_ref()
            .take_while(|line| line.trim() != "```")
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .filter(|names: &Vec<String>| !names.is_empty())
            .collect();
        blocks.insert(name.trim().to_owned(), listed);
    }
    blocks
}

/// One folder of modules whose order is listed.
struct Folder {
    /// Directory of its modules.
    path: PathBuf,
    /// Its path of modules from the crate's root: empty, or `["protocol"]`.
    inside: Vec<String>,
    /// Names that its own module re-exports, with the child that defines each.
    exported: BTreeMap<String, String>,
}

impl Folder {
    fn new(name: &str) -> Self {
        let mut parts = name.split('/');
        let member = parts.next().expect("a crate");
        let inside: Vec<String> = parts.map(str::to_owned).collect();
        let source = root().join("crates").join(member).join("src");
        let path = inside
            .iter()
            .fold(source.clone(), |path, part| path.join(part));
        let own = if inside.is_empty() {
            ["lib.rs", "main.rs"].map(|name| source.join(name))
        } else {
            [path.join("mod.rs"), path.with_extension("rs")]
        };
        let own = own
            .into_iter()
            .find(|file| file.exists())
            .expect("the folder's own module");
        let exported = exports(&code(&read(&own)), inside.len());
        Self {
            path,
            inside,
            exported,
        }
    }

    /// The modules in the folder, each with its files.
    fn modules(&self) -> BTreeMap<String, Vec<PathBuf>> {
        let mut modules: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for entry in fs::read_dir(&self.path).expect("a folder of modules") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_stem()
                .expect("a name")
                .to_str()
                .expect("UTF-8")
                .to_owned();
            if path.is_dir() {
                sources(&path, modules.entry(name).or_default());
            } else if path.extension().is_some_and(|e| e == "rs") && !is_exempt(&name) {
                modules.entry(name).or_default().push(path);
            }
        }
        modules.retain(|_, files| !files.is_empty());
        modules
    }

    /// The children of the folder that a file imports from.
    fn imports(&self, file: &Path) -> BTreeSet<String> {
        let relative = file.strip_prefix(&self.path).expect("a file of the folder");
        let mut module: Vec<String> = self.inside.clone();
        module.extend(
            relative
                .with_extension("")
                .iter()
                .map(|p| p.to_str().expect("UTF-8").to_owned()),
        );
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        paths(&code(&read(file)), &module)
            .into_iter()
            .filter_map(|path| path.strip_prefix(&self.inside[..])?.first().cloned())
            .map(|name| self.exported.get(&name).cloned().unwrap_or(name))
            .collect()
    }
}

fn is_exempt(name: &str) -> bool {
    matches!(name, "lib" | "main" | "mod" | "fuzzing")
        || name.ends_with("loom_tests")
        || name.ends_with("tests")
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .expect("a name")
            .to_str()
            .expect("UTF-8")
            .to_owned();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs")
            && (name == "mod" || !is_exempt(&name))
        {
            files.push(path);
        }
    }
}

/// A file without comments, strings and test modules.
fn code(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if trimmed.starts_with("//") {
            continue;
        }
        let for_tests = trimmed.starts_with("#[cfg(") && trimmed.contains("test");
        if for_tests
            && lines
                .peek()
                .is_some_and(|next| next.contains("mod ") && next.contains('{'))
        {
            // Test modules end a file.
            break;
        }
        let line = line.split(" // ").next().unwrap_or(line);
        let mut quoted = false;
        kept.extend(line.chars().filter(|c| {
            quoted ^= *c == '"';
            !quoted
        }));
        kept.push('\n');
    }
    kept
}

/// Splits `a::{b, c::{d, e}}` into `a::b`, `a::c::d` and `a::c::e`.
fn expanded(path: &str) -> Vec<String> {
    let Some((front, rest)) = path.split_once('{') else {
        return vec![path.trim().to_owned()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    parts
        .into_iter()
        .filter(|part| !part.trim().is_empty())
        .flat_map(|part| expanded(&format!("{}{}", front.trim(), part.trim())))
        .collect()
}

/// The text of a path that begins at `from`, with its braces.
fn path_at(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' if text[..at].ends_with("::") || depth > 0 => depth += 1,
            '}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return &text[..=at];
                }
            }
            ' ' if text[at..].starts_with(" as ") || text[..at].ends_with(" as") => {}
            _ if depth > 0 || c == ':' || c == '_' || c.is_alphanumeric() => {}
            _ => return &text[..at],
        }
    }
    text
}

/// The paths inside the crate that a module's code names, from the crate's root.
fn paths(code: &str, module: &[String]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c == ':' || c == '$' || c == '_' || c.is_alphanumeric()) {
                continue;
            }
            for path in expanded(path_at(&code[at..])) {
                let mut names: Vec<&str> = path
                    .split("::")
                    .map(|n| n.split_whitespace().next().unwrap_or(""))
                    .collect();
                let mut base: &[String] = &[];
                if names[0] == "crate" {
                    names.remove(0);
                } else {
                    base = module;
                    while names.first() == Some(&"super") {
                        names.remove(0);
                        base = &base[..base.len().saturating_sub(1)];
                    }
                }
                let whole = base
                    .iter()
                    .cloned()
                    .chain(names.iter().map(|n| (*n).to_owned()));
                found.insert(whole.collect());
            }
        }
    }
    found
}

/// The names that `pub use` or `use` statements of a folder's own module bring into it, with the
/// child that defines each.
fn exports(code: &str, depth: usize) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for (at, _) in code.match_indices("use ") {
        let path = path_at(&code[at + 4..]);
        for path in expanded(path) {
            let whole = path.replace("self::", "");
            let names: Vec<&str> = whole.split("::").collect();
            let child = if names[0] == "crate" {
                names.get(1 + depth)
            } else {
                names.first()
            };
            let (Some(child), Some(last)) = (child, names.last()) else {
                continue;
            };
            let name = last.rsplit(" as ").next().unwrap_or(last).trim();
            if name != *child {
                exported.insert(name.to_owned(), (*child).to_owned());
            }
        }
    }
    exported
}

/// Returns the differences between a listing and the sources.
fn faults(name: &str, lines: &[Vec<String>]) -> Vec<String> {
    let folder = Folder::new(name);
    let modules = folder.modules();
    let mut faults = Vec::new();
    let mut layer = BTreeMap::new();
    for (line, names) in lines.iter().enumerate() {
        for module in names {
            if !modules.contains_key(module) {
                faults.push(format!(
                    "{name}: ARCHITECTURE.md lists {module}, which does not exist"
                ));
            }
            if layer.insert(module.as_str(), line).is_some() {
                faults.push(format!("{name}: ARCHITECTURE.md lists {module} twice"));
            }
        }
    }
    let mut arrows: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (module, files) in &modules {
        let Some(own) = layer.get(module.as_str()) else {
            faults.push(format!("{name}: ARCHITECTURE.md does not list {module}"));
            continue;
        };
        for file in files {
            for import in folder.imports(file) {
                let Some(other) = layer.get(import.as_str()) else {
                    continue;
                };
                if other < own {
                    let path = file
                        .strip_prefix(&folder.path)
                        .expect("a file of the folder");
                    faults.push(format!(
                        "{name}: {} imports from {import}, which is above {module}",
                        path.display()
                    ));
                }
                if other == own && import != *module {
                    arrows.entry(module).or_default().insert(import);
                }
            }
        }
    }
    let cycles = cycles(&arrows);
    for (module, imports) in &arrows {
        let own = cycles
            .iter()
            .find(|cycle| cycle.iter().any(|m| m == module));
        for import in imports {
            if !own.is_some_and(|cycle| cycle.contains(import)) {
                faults.push(format!(
                    "{name}: {module} imports from {import}: list {import} on a line below {module}"
                ));
            }
        }
    }
    for cycle in cycles.iter().filter(|cycle| cycle.len() > LONGEST_CYCLE) {
        let (count, names) = (cycle.len(), cycle.join(", "));
        faults.push(format!("{name}: a cycle of {count} modules: {names}"));
    }
    faults
}

/// The sets of modules that import each other, directly or through others.
fn cycles(arrows: &BTreeMap<&str, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from.to_owned()];
        while let Some(module) = next.pop() {
            for import in arrows.get(module.as_str()).into_iter().flatten() {
                if seen.insert(import.clone()) {
                    next.push(import.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<String>> = arrows.keys().map(|m| (*m, reached(m))).collect();
    arrows
        .keys()
        .filter(|module| all[**module].contains(**module))
        .map(|module| {
            let back =
                |other: &&String| all.get(other.as_str()).is_some_and(|r| r.contains(*module));
            all[*module].iter().filter(back).cloned().collect()
        })
        .collect()
}

#[test]
fn imports_point_down() {
    let blocks = blocks(&read(&root().join("ARCHITECTURE.md")));
    for member in CRATES {
        assert!(
            blocks.contains_key(member),
            "ARCHITECTURE.md has no block ```layers {member}"
        );
    }
    let faults: Vec<String> = blocks
        .iter()
        .flat_map(|(name, lines)| faults(name, lines))
        .collect();
    assert!(
        faults.is_empty(),
        "{} imports break the layers:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn every_form_of_import_is_seen() {
    let module = ["tree".to_owned(), "scan".to_owned()];
    let source = "use crate::page::{Page, kind::{A, B}};\nuse super::super::pool::Pool;\nlet x = crate::file::open();\n\
                  use super::position;\n// use crate::comment::X;\nlet s = \"crate::string::X\";\n\
                  #[cfg(test)]\nmod tests {\n use crate::top::X;\n}\n";
    let found = paths(&code(source), &module);
    let first: BTreeSet<&str> = found.iter().map(|path| path[0].as_str()).collect();
    assert_eq!(first, BTreeSet::from(["page", "pool", "file", "tree"]));
    let exported = exports(
        "pub use error::{Error, Result};\npub use crate::node::Node as Leaf;",
        0,
    );
    assert_eq!(exported["Error"], "error");
    assert_eq!(exported["Leaf"], "node");
}

#[test]
fn a_cycle_is_found() {
    let arrow = |to: &[&str]| to.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
    let arrows = BTreeMap::from([
        ("a", arrow(&["b"])),
        ("b", arrow(&["c"])),
        ("c", arrow(&["a", "d"])),
        ("d", arrow(&["e"])),
    ]);
    let found: Vec<Vec<String>> = cycles(&arrows).into_iter().collect();
    assert_eq!(found, [["a", "b", "c"].map(str::to_owned).to_vec()]);
}
