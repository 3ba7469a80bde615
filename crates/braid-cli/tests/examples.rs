//! Every item of the public interface of `braiddb` has an example: code in a doc comment, the book
//! or an example program uses it, or the text around such code links to it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose documentation is part of the interface; `braiddb` re-exports items of all.
const SOURCES: [&str; 4] = [
    "crates/braiddb/src",
    "crates/braid-io/src",
    "crates/braid-log/src",
    "crates/braid-store/src",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files with an extension in a folder and below it.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

/// Returns the identifier at the beginning of a text; empty if there is none.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase)
}

/// A public item: a module, type, trait, function, method or constant.
#[derive(Debug, PartialEq)]
struct Item {
    /// The type or trait of a method or constant.
    owner: Option<String>,
    name: String,
    /// Whether code can use it only after `.` or `::`.
    is_qualified: bool,
}

/// Returns a path without generic parameters, and without the arguments or type that follow it.
fn plain(path: &str) -> String {
    let mut depth = 0;
    let mut found = String::new();
    for c in path.replace("->", "").chars() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ' ' | '(' if depth == 0 => break,
            c if depth == 0 => found.push(c),
            _ => {}
        }
    }
    found
}

/// Returns the items of `public-api.txt`. Fields and variants are described with their type, and
/// implementations with their trait.
fn items(listed: &str) -> Vec<Item> {
    const KINDS: [&str; 8] = [
        "fn ", "struct ", "enum ", "trait ", "type ", "mod ", "use ", "const ",
    ];
    let mut found = Vec::new();
    let mut is_of_impl = false;
    for line in listed.lines() {
        if line.starts_with("impl") {
            is_of_impl = line.contains(" for ");
        }
        let Some((_, item)) = line.split_once("pub ") else {
            continue;
        };
        let Some((kind, path)) = KINDS
            .iter()
            .find_map(|kind| Some((*kind, item.strip_prefix(kind)?)))
        else {
            continue;
        };
        let Some(path) = path.strip_prefix("braid") else {
            continue;
        };
        let path = plain(path);
        let mut names = path.trim_end_matches(':').rsplit("::");
        let Some(name) = names.next().filter(|name| !name.is_empty()) else {
            continue;
        };
        let owner = names.next().filter(|owner| is_type(owner));
        if owner.is_none() {
            is_of_impl = false;
        } else if is_of_impl {
            continue;
        }
        found.push(Item {
            owner: owner.map(str::to_owned),
            name: name.to_owned(),
            is_qualified: matches!(kind, "fn " | "mod "),
        });
    }
    found
}

/// Documentation with an example, or an example program.
#[derive(Debug, Default)]
struct Example {
    /// The type or trait that is documented, or whose item is.
    owner: String,
    item: String,
    code: String,
    prose: String,
}

impl Example {
    /// Splits a text at its fences; returns `None` if no code is in one of these languages.
    fn of(text: &str, languages: &[&str]) -> Option<Self> {
        let mut example = Self::default();
        let mut fence: Option<&str> = None;
        for line in text.lines() {
            let mark = line.trim().strip_prefix("```");
            match (fence, mark) {
                (None, Some(language)) => fence = Some(language),
                (Some(_), Some(_)) => fence = None,
                (None, None) => example.prose += &format!("{line}\n"),
                (Some(language), None) if languages.contains(&language) => {
                    example.code += &format!("{line}\n");
                }
                (Some(_), None) => {}
            }
        }
        (!example.code.is_empty()).then_some(example)
    }

    /// Returns whether the code uses an item. A name that several types have counts only where the
    /// item's own type is documented or named.
    fn uses(&self, item: &Item, is_unique: bool) -> bool {
        let is_used = self.code.match_indices(&item.name).any(|(at, name)| {
            let before = &self.code[..at];
            let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                && identifier(&self.code[at..]) == name;
            let is_qualified = [".", "::", "fn "].iter().any(|mark| before.ends_with(mark));
            is_word && (is_qualified || !item.is_qualified)
        });
        let is_about = |owner: &String| {
            self.owner == *owner
                || words(&self.code)
                    .chain(words(&self.prose))
                    .any(|w| w == owner)
        };
        is_used && (is_unique || item.owner.as_ref().is_none_or(is_about))
    }

    /// Returns whether the text is the item's own or links to it.
    fn documents(&self, item: &Item) -> bool {
        let own = match &item.owner {
            Some(owner) => owner,
            None if is_type(&item.name) => &item.name,
            None => "",
        };
        if self.item == item.name && self.owner == own {
            return true;
        }
        let mut links = targets(&self.prose).map(|target| target.trim_end_matches("()"));
        links.any(|link| {
            let mut names = link.rsplit("::");
            let is_named = names.next() == Some(&item.name);
            let of = names.next();
            is_named && item.owner.as_deref().is_none_or(|owner| of == Some(owner))
        })
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Returns the paths that intra-doc links name: in [`path`] and [text](path).
fn targets(prose: &str) -> impl Iterator<Item = &str> {
    let of = |open: &'static str, close: &'static str| {
        let rests = prose.split(open).skip(1);
        rests.filter_map(move |rest| Some(rest.split_once(close)?.0))
    };
    of("[`", "`]").chain(of("](", ")"))
}

/// Returns the documentation of a source that contains examples.
fn examples(source: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let (mut owner, mut doc) = (String::new(), String::new());
    for line in source.lines() {
        let code = line.trim();
        if let Some(text) = ["///", "//!"]
            .iter()
            .find_map(|mark| code.strip_prefix(mark))
        {
            doc += &format!("{text}\n");
            continue;
        }
        if code.is_empty() || code.starts_with(['#', ')']) {
            continue;
        }
        let words: Vec<&str> = code.split(' ').filter(|word| *word != "pub").collect();
        let name = words.get(1).map_or("", |name| identifier(name));
        // The types of this workspace are formatted: only a type, trait or `impl` begins there.
        if !line.starts_with(' ') {
            owner = match words[0] {
                "struct" | "enum" | "trait" => name.to_owned(),
                word if word.starts_with("impl") => {
                    let of = code.split_once(" for ").map_or(code, |(_, of)| of);
                    let of = of.trim_start_matches("impl").trim_start();
                    let of = match of.strip_prefix('<') {
                        Some(rest) => rest.split_once("> ").map_or("", |(_, of)| of),
                        None => of,
                    };
                    identifier(of.rsplit("::").next().unwrap()).to_owned()
                }
                _ => String::new(),
            };
        }
        found.extend(Example::of(&doc, &["", "no_run"]).map(|example| Example {
            owner: owner.clone(),
            item: name.to_owned(),
            ..example
        }));
        doc.clear();
    }
    found
}

fn all_examples() -> Vec<Example> {
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let sources = SOURCES
        .iter()
        .flat_map(|folder| files(&root().join(folder), "rs"));
    let mut found: Vec<Example> = sources.flat_map(|path| examples(&read(&path))).collect();
    let mut pages = files(&root().join("docs"), "md");
    pages.retain(|page| !page.components().any(|part| part.as_os_str() == "results"));
    pages.push(root().join("README.md"));
    let pages = pages.iter().map(read);
    found.extend(pages.filter_map(|page| Example::of(&page, &["rust", "rust,no_run"])));
    for program in files(&root().join("crates/braiddb/examples"), "rs") {
        found.push(Example {
            code: read(&program),
            ..Example::default()
        });
    }
    found
}

/// Returns the items that no example uses or links.
fn missing(items: &[Item], examples: &[Example]) -> Vec<String> {
    let mut times: HashMap<&str, usize> = HashMap::new();
    for item in items {
        *times.entry(&item.name).or_default() += 1;
    }
    let is_shown = |item: &&Item| {
        let is_unique = times[&item.name[..]] == 1;
        let mut shown = examples.iter();
        shown.any(|example| example.uses(item, is_unique) || example.documents(item))
    };
    let missing = items.iter().filter(|item| !is_shown(item));
    missing
        .map(|item| {
            format!(
                "{}::{}",
                item.owner.as_deref().unwrap_or("braid"),
                item.name
            )
        })
        .collect()
}

#[test]
fn every_public_item_has_an_example_or_is_linked_from_one() {
    let listed = fs::read_to_string(root().join("crates/braiddb/public-api.txt")).unwrap();
    let (items, examples) = (items(&listed), all_examples());
    assert!(items.len() > 200, "only {} items were found", items.len());
    assert!(examples.len() > 150, "only {} examples", examples.len());
    let missing = missing(&items, &examples);
    assert!(
        missing.is_empty(),
        "no example uses or links these items:\n{}",
        missing.join("\n")
    );
}

#[test]
fn an_item_without_an_example_is_noticed() {
    let listed = "\
pub mod braid
pub use braid::Bytes
#[non_exhaustive] pub enum braid::stats::Level
pub braid::stats::Level::High
pub struct braid::Loader<K: braid::Key>
impl<K: braid::Key> braid::Loader<K>
pub fn braid::Loader<K>::len(&self) -> u64
pub fn braid::Loader<K>::add<F: Fn() -> u64>(&self, F) -> braid::Result<()>
impl core::fmt::Debug for braid::Loader<K>
pub fn braid::Loader<K>::fmt(&self) -> core::fmt::Result
pub fn braid::open(&str) -> braid::Range<'_, u8>
pub struct braid::Range<'a, K>
impl<'a, K> braid::Range<'a, K>
pub fn braid::Range<'a, K>::len(&self) -> u64
pub const braid::MAX: usize";
    let all = [
        "braid::Bytes",
        "braid::Level",
        "braid::Loader",
        "Loader::len",
        "Loader::add",
        "braid::open",
        "braid::Range",
        "Range::len",
        "braid::MAX",
    ];
    let items = items(listed);
    assert_eq!(missing(&items, &[]), all);

    // No example, and code that is not Rust.
    let source =
        "/// A Range of [`MAX`].\npub struct Range;\n/// ```text\n/// MAX\n/// ```\nfn f() {}";
    assert_eq!(missing(&items, &examples(source)), all);

    let source = "\
/// Opens what a [`Loader`](crate::Loader) or [a level](stats::Level) has.
///
/// ```
/// let bytes = open(Bytes::new()).len();
/// # let add = MAXIMUM;
/// ```
#[inline]
pub fn open() {}

impl<'a, K: Key> Range<'a, K> {

    /// ```
    /// Range::len(MAX);
    /// ```
    pub fn len(&self) {}
}";
    assert_eq!(missing(&items, &examples(source)), ["Loader::add"]);
    let source = source.replace("[`Loader`]", "[loader](crate::Loader::add) [`Loader`]");
    let source = source.replace("`Loader`](crate::Loader)", "`other`]");
    assert_eq!(missing(&items, &examples(&source)), ["braid::Loader"]);
}
