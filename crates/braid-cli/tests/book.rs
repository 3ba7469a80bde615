//! The book is consistent: its links have targets, among the sources and in the HTML that mdBook
//! makes of `docs`, and its contents list every page. (Doctests compile its Rust examples, see
//! `braiddb/src/lib.rs`.)

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages outside of `docs`.
const FRONT_PAGES: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];

const BOOK: &str = "docs/";
const CONTENTS: &str = "docs/SUMMARY.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the Markdown files in a folder and below it, by their paths from the root.
fn pages_under(folder: &str) -> Vec<String> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            pages.extend(pages_under(&path));
        } else if path.ends_with(".md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the lines outside of fenced code.
fn prose(text: &str) -> Vec<&str> {
    let fence_of = |line: &str| {
        let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let len = line.chars().take_while(|c| *c == mark).count();
        (len >= 3).then_some((mark, len))
    };
    let mut open: Option<(char, usize)> = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim();
        match (open, fence_of(trimmed)) {
            (None, None) => lines.push(line),
            (None, fence) => open = fence,
            (Some((mark, len)), Some((closing, closing_len))) => {
                let only_marks = trimmed.chars().all(|c| c == mark);
                if closing == mark && closing_len >= len && only_marks {
                    open = None;
                }
            }
            (Some(_), None) => {}
        }
    }
    lines
}

/// Returns a line without inline code.
fn without_code(line: &str) -> String {
    let mut rest = line;
    let mut kept = String::new();
    while let Some(at) = rest.find('`') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let len = rest.len() - rest.trim_start_matches('`').len();
        let (mark, after) = rest.split_at(len);
        rest = match after.find(mark) {
            Some(end) => &after[end + len..],
            None => after,
        };
    }
    kept + rest
}

/// Returns the targets of a page's links and images, as written.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        let line = without_code(line);
        for after in line.split("](").skip(1) {
            let target = after.split([')', ' ']).next().unwrap_or_default();
            links.push(target.to_owned());
        }
        // `[name]: target`, a definition that other links of the page refer to.
        if line.starts_with('[')
            && let Some((_, target)) = line.split_once("]: ")
        {
            let target = target.split(' ').next().unwrap_or_default();
            links.push(target.to_owned());
        }
    }
    links
}

/// Returns the anchors that GitHub (and mdBook) give to the headings of a page.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut anchors = Vec::new();
    for line in prose(text) {
        let level = line.len() - line.trim_start_matches('#').len();
        let Some(heading) = line[level..].strip_prefix(' ') else {
            continue;
        };
        if !(1..=6).contains(&level) {
            continue;
        }
        let anchor = anchor(heading);
        let times = seen.entry(anchor.clone()).or_default();
        anchors.push(match *times {
            0 => anchor,
            n => format!("{anchor}-{n}"),
        });
        *times += 1;
    }
    anchors
}

/// Converts a heading to an anchor: lower case, spaces as hyphens, no other punctuation; of a link
/// only the text.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading.trim();
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let kept = text.to_lowercase();
    let kept = kept.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c),
        _ => None,
    });
    kept.collect()
}

/// Resolves a relative path in a page to a path from the root; `None` if it leads out of the
/// project.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns whether a target exists in the HTML: mdBook makes a page of each Markdown file under
/// `docs` except the contents, and copies other files, but nothing from outside and no directory
/// listing.
fn is_in_html(path: &str, is_file: bool) -> bool {
    path.starts_with(BOOK) && path != CONTENTS && is_file
}

/// Returns the broken links of a page. `exists`, `is_file` and `read` take paths from the root.
fn broken(
    page: &str,
    text: &str,
    exists: impl Fn(&str) -> bool,
    is_file: impl Fn(&str) -> bool,
    read: impl Fn(&str) -> String,
) -> Vec<String> {
    let is_of_book = page.starts_with(BOOK) && page != CONTENTS;
    let mut broken = Vec::new();
    for link in links(text) {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (target, anchor) = match link.split_once('#') {
            Some((target, anchor)) => (target, Some(anchor)),
            None => (link.as_str(), None),
        };
        let path = match target {
            "" => Some(page.to_owned()),
            target if target.starts_with('/') => None,
            target => resolve(page, target),
        };
        let Some(path) = path.filter(|path| exists(path)) else {
            broken.push(format!("{page}: {link} leads nowhere"));
            continue;
        };
        if is_of_book && !is_in_html(&path, is_file(&path)) {
            broken.push(format!(
                "{page}: {link} leads out of the book: name the path as `code` instead"
            ));
            continue;
        }
        if let Some(anchor) = anchor
            && path.ends_with(".md")
            && !anchors(&read(&path)).iter().any(|known| known == anchor)
        {
            broken.push(format!("{page}: {path} has no heading for {link}"));
        }
    }
    broken
}

#[test]
fn links_lead_somewhere() {
    let mut pages = pages_under("docs");
    pages.extend(FRONT_PAGES.map(str::to_owned));
    let exists = |path: &str| root().join(path).exists();
    let is_file = |path: &str| root().join(path).is_file();
    let broken: Vec<String> = pages
        .iter()
        .flat_map(|page| broken(page, &read(page), exists, is_file, read))
        .collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_contents_list_every_page_once() {
    let mut listed: Vec<String> = links(&read(CONTENTS))
        .iter()
        .map(|link| resolve(CONTENTS, link).expect("a page of the book"))
        .collect();
    listed.sort();
    let mut pages = pages_under("docs");
    pages.retain(|page| page != CONTENTS);
    assert_eq!(listed, pages, "left: in {CONTENTS}; right: the pages");
}

/// Returns the paths of sources that a page names: inline code that begins with `crates/`.
fn named_sources(text: &str) -> Vec<String> {
    let spans = prose(text)
        .into_iter()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = spans
        .filter(|span| span.starts_with("crates/") && !span.contains([' ', '*', '{', '<', '…']));
    paths.map(str::to_owned).collect()
}

#[test]
fn named_sources_exist() {
    let mut pages = pages_under("docs");
    // Records and decisions name sources of their time.
    pages.retain(|page| !page.starts_with("docs/results/") && !page.starts_with("docs/decisions/"));
    pages.extend(FRONT_PAGES.map(str::to_owned));
    let missing: Vec<String> = pages
        .iter()
        .flat_map(|page| {
            named_sources(&read(page))
                .into_iter()
                .map(move |path| format!("{page}: {path}"))
        })
        .filter(|named| !root().join(named.split_once(": ").unwrap().1).exists())
        .collect();
    assert!(
        missing.is_empty(),
        "sources that do not exist:\n{}",
        missing.join("\n")
    );
    assert_eq!(
        named_sources(
            "`crates/a/src/b.rs` and `x` (`crates/c`)\n```\n`crates/d`\n```\n`crates/*/e`"
        ),
        ["crates/a/src/b.rs", "crates/c"]
    );
}

#[test]
fn a_broken_link_is_noticed() {
    let pages = HashMap::from([
        (
            "docs/a/one.md",
            "# One `thing`\n\n[two](../two.md#a-b) [two](../two.md#a-b-1) ![p](p.svg) [x](https://x)\n",
        ),
        (
            "docs/two.md",
            "# A, B\n\n```sh\n# No heading\n[no](link.md)\n```\n\n## [A](z.md) b\n`[no](link.md)`\n",
        ),
    ]);
    let is_file = |path: &str| {
        let others = ["docs/a/p.svg", CONTENTS, "README.md", "src/a.rs"];
        pages.contains_key(path) || others.contains(&path)
    };
    let exists = |path: &str| is_file(path) || path == "docs/a";
    let read = |path: &str| pages[path].to_owned();
    let check = |text: &str| broken("docs/a/one.md", text, exists, is_file, read);

    assert_eq!(check(pages["docs/a/one.md"]), Vec::<String>::new());
    assert_eq!(links(pages["docs/two.md"]), ["z.md"]);
    assert_eq!(anchors(pages["docs/two.md"]), ["a-b", "a-b-1"]);
    assert_eq!(
        check("[one](#one-thing) [`code`](../two.md)"),
        Vec::<String>::new()
    );
    for wrong in [
        "[a](two.md)",
        "[a](../two.md#no-heading)",
        "[a](#two)",
        "![a](../p.svg)",
        "[a](../../../../two.md)",
        "[a](/docs/two.md)",
        "[a]: three.md",
        // The file exists, but not in the HTML.
        "[a](../../src/a.rs)",
        "[a](../../README.md)",
        "[a](../SUMMARY.md)",
        "[a](../a)",
    ] {
        assert_eq!(check(wrong).len(), 1, "{wrong}");
    }
    let front = |text: &str| broken("README.md", text, exists, is_file, read);
    let both = "[a](src/a.rs) [a](docs/a) [a](docs/SUMMARY.md) [a](docs/two.md#a-b)";
    assert_eq!(front(both), Vec::<String>::new());
    assert_eq!(front("[a](src/b.rs)").len(), 1);
}

/// Names that decision 0025 replaced. Names that are also English words are listed by their items.
const OLD_NAMES: &[&str] = &[
    "Bell",
    "BRAID_UNTIL_NUMBER",
    "Codec",
    "EntrySlot",
    "FillBuf",
    "FileDecay",
    "Follower",
    "Garbage",
    "HeldLocks",
    "InFlight",
    "Lent",
    "LogStart",
    "MAX_ENTRIES",
    "PieceHeader",
    "PieceKind",
    "PoisonTold",
    "Spot",
    "Spots",
    "TicketHome",
    "VOID_ALONE",
    "arm_bell",
    "backup_number",
    "braid_db_durable_horizon",
    "braid_garbage_versions",
    "braid_snapshot_number",
    "braid_ticket_number",
    "codec",
    "collect_garbage",
    "consolidated_pieces",
    "durable_horizon",
    "durable_place",
    "expiry",
    "footprint",
    "give_back",
    "hand_on",
    "inflight",
    "into_number",
    "last_number",
    "leaf_places",
    "let_go",
    "log_start",
    "mend",
    "spots",
    "until_number",
    "vacate",
    "write_locks",
];

/// Words that no identifier contains: the field has better ones (reported, after, again,
/// alongside).
const OLD_WORDS: [&str; 6] = ["anew", "behind", "beside", "for_ever", "told", "whoever"];

/// Returns whether an identifier of several words contains an old one.
fn has_old_word(name: &str) -> bool {
    let name = format!("_{name}_");
    OLD_WORDS
        .iter()
        .any(|word| name != format!("_{word}_") && name.contains(&format!("_{word}_")))
}

/// Returns the files below a folder that contain names and prose: sources, pages and scripts.
fn texts_under(folder: &str) -> Vec<String> {
    const KINDS: [&str; 9] = ["rs", "md", "sh", "h", "c", "py", "pyi", "toml", "svg"];
    let mut texts = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        let path = format!("{folder}/{name}");
        let is_text = |kind: &&str| name.ends_with(&format!(".{kind}"));
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.starts_with('.') {
                texts.extend(texts_under(&path));
            }
        } else if KINDS.iter().any(is_text) {
            texts.push(path);
        }
    }
    texts
}

/// Returns the identifiers of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[test]
fn no_old_name_returns() {
    let is_record = |path: &String| {
        path.starts_with("docs/decisions/")
            || path.starts_with("docs/results/")
            || path == "crates/braid-cli/tests/book.rs"
    };
    let folders = ["crates", "docs", "fuzz", "python", "scripts", "tools"];
    let mut texts: Vec<String> = folders.into_iter().flat_map(texts_under).collect();
    texts.retain(|path| !is_record(path));
    texts.extend(FRONT_PAGES.map(str::to_owned));
    assert!(texts.len() > 300, "{} texts", texts.len());
    let mut found = Vec::new();
    for path in texts {
        let text = read(&path);
        found.extend(
            words(&text)
                .filter(|word| OLD_NAMES.contains(word) || has_old_word(word))
                .map(|word| format!("{path}: {word}")),
        );
    }
    assert!(
        found.is_empty(),
        "old names, see decision 0025:\n{}",
        found.join("\n")
    );
    assert!(words("the `LogStart`, mend_it").any(|word| OLD_NAMES.contains(&word)));
    assert!(has_old_word("is_told") && has_old_word("kept_for_ever") && !has_old_word("behind"));
}
