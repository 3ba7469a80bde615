//! `include/braid.h` agrees with the sources, and `docs/c-api.md` with both.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header_path() -> PathBuf {
    crate_dir().join("include/braid.h")
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(crate_dir().join("cbindgen.toml"));
    let bindings = cbindgen::Builder::new()
        .with_crate(crate_dir())
        .with_config(config.expect("cbindgen.toml fits this cbindgen"))
        .generate()
        .expect("cbindgen understands the sources");
    let mut header = Vec::new();
    bindings.write(&mut header);
    String::from_utf8(header).expect("the sources are UTF-8")
}

#[test]
fn the_header_is_made_from_the_sources() {
    let generated = generated();
    if std::env::var_os("BRAID_UPDATE_HEADER").is_some() {
        std::fs::write(header_path(), &generated).unwrap();
    }
    let committed = std::fs::read_to_string(header_path()).unwrap_or_default();
    if let Some((number, (is, should))) = committed
        .lines()
        .chain(std::iter::repeat("(nothing)"))
        .zip(generated.lines().chain(["(end)"]))
        .enumerate()
        .find(|(_, (is, should))| is != should && *should != "(end)")
    {
        panic!(
            "include/braid.h differs from the sources in line {}:\n  is      {is}\n  should be {should}\n\
             run BRAID_UPDATE_HEADER=1 cargo test -p braid-c --test header",
            number + 1
        );
    }
    assert_eq!(committed, generated);
}

/// Returns the names of the functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let code: String = header
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    code.split(';')
        .filter_map(|declaration| {
            let (before, _) = declaration.split_once('(')?;
            let name = before
                .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
                .next()?;
            let is_function = name.starts_with("braid_") && !declaration.contains("typedef");
            is_function.then(|| name.to_owned())
        })
        .collect()
}

/// Returns the names of the functions that Rust exports.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in ["src", "src/functions"] {
        for entry in std::fs::read_dir(crate_dir().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            for part in source.split("#[unsafe(no_mangle)]").skip(1) {
                let (_, rest) = part.split_once("fn ").unwrap();
                let name = rest.split('(').next().unwrap();
                names.insert(name.to_owned());
            }
        }
    }
    names
}

#[test]
fn the_header_has_every_function() {
    let header = std::fs::read_to_string(header_path()).unwrap();
    let exported = exported();
    assert!(exported.len() > 40, "{exported:?}");
    assert_eq!(declared(&header), exported);
}

/// Returns a text without line breaks and indentation.
fn joined(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace("( ", "(")
}

#[test]
fn the_manual_describes_every_function() {
    let manual = crate_dir().join("../../docs/c-api.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let mut described = BTreeSet::new();
    let header = joined(&std::fs::read_to_string(header_path()).unwrap());
    for section in manual.split("\n### `").skip(1) {
        let (name, text) = section.split_once('`').unwrap();
        let text = text.split("\n## ").next().unwrap();
        let synopsis = text
            .split("```c\n")
            .nth(1)
            .and_then(|t| t.split("```").next());
        let synopsis = joined(synopsis.unwrap_or_default());
        assert!(
            synopsis.contains(&format!("{name}(")),
            "{name} has no synopsis"
        );
        assert!(header.contains(&synopsis), "the header has no {synopsis}");
        for part in ["*Returns:*", "*Threads:*"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        described.insert(name.to_owned());
    }
    assert_eq!(described, exported());
    let sources = ["status", "functions/options", "functions/protocol"]
        .map(|module| crate_dir().join(format!("src/{module}.rs")));
    for source in sources {
        let source = std::fs::read_to_string(source).unwrap();
        let names = source
            .lines()
            .filter_map(|line| line.trim().split_once(" = "));
        for (name, _) in names.filter(|(name, _)| name.starts_with("BRAID_")) {
            assert!(
                manual.contains(&format!("| `{name}` |")),
                "{name} is missing"
            );
        }
    }
}

/// Returns a function's description in the manual, without code blocks and links.
fn description(section: &str) -> String {
    let text = section.split("*Returns:*").next().unwrap();
    let prose: String = text.split("```").step_by(2).collect();
    let mut plain = String::new();
    let mut rest = prose.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        let (before, label) = before.rsplit_once('[').unwrap();
        plain.extend([before, label]);
        rest = after.split_once(')').unwrap().1;
    }
    let paragraphs: Vec<String> = [&plain, rest].concat().split("\n\n").map(joined).collect();
    let mut description = String::new();
    for (n, paragraph) in paragraphs.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
        let introduces_list = paragraphs.get(n + 1).is_some_and(|p| p.starts_with("- "));
        // A sentence that introduces a code block in the manual stands alone in the header.
        match paragraph.strip_suffix(':') {
            Some(sentence) if !introduces_list => description.extend([sentence, "."]),
            _ => description += paragraph,
        }
        description.push(' ');
    }
    description.trim_end().to_owned()
}

/// Returns the comment above the line that begins with `item`, up to the section on safety.
fn comment_above(header: &str, item: &str) -> String {
    let lines: Vec<&str> = header.lines().map(str::trim_start).collect();
    let at = lines.iter().position(|line| line.starts_with(item));
    let at = at.unwrap_or_else(|| panic!("{item} is not in the header"));
    let first = lines[..at].iter().rposition(|line| !line.starts_with("//"));
    let comment = lines[first.map_or(0, |n| n + 1)..at].iter();
    let text: Vec<&str> = comment
        .map(|line| line.trim_start_matches('/').trim_start())
        .take_while(|line| *line != "# Safety")
        .collect();
    joined(&text.join("\n"))
}

#[test]
fn the_header_describes_as_the_manual_does() {
    let manual = std::fs::read_to_string(crate_dir().join("../../docs/c-api.md")).unwrap();
    let header = std::fs::read_to_string(header_path()).unwrap();
    for section in manual.split("\n### `").skip(1) {
        let (name, text) = section.split_once('`').unwrap();
        let text = text.split("\n## ").next().unwrap();
        let declaration = ["braid_status ", "const char *", "bool ", "int ", "void "]
            .map(|returned| format!("{returned}{name}("))
            .into_iter()
            .find(|declaration| header.contains(&format!("\n{declaration}")));
        let declaration = declaration.unwrap_or_else(|| panic!("{name} is not in the header"));
        assert_eq!(
            comment_above(&header, &declaration),
            description(text),
            "{name}"
        );
    }
    for row in manual.lines().filter(|line| line.starts_with("| `BRAID_")) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let name = cells[0].trim_matches('`');
        let meaning = *cells.last().unwrap();
        assert_eq!(
            comment_above(&header, &format!("{name} = ")),
            meaning,
            "{name}"
        );
    }
}

/// Nothing may unwind into C: every function that can panic runs its body in `call`.
#[test]
fn every_function_catches_panics() {
    // These call nothing that panics, and two of them return the error itself.
    let harmless = [
        "braid_error_message",
        "braid_status_is_retryable",
        "braid_status_name",
        "braid_value_free",
        "braid_version",
    ];
    for entry in std::fs::read_dir(crate_dir().join("src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for part in source.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, rest) = part.split_once("fn ").unwrap();
            let name = rest.split('(').next().unwrap();
            let body = rest.split("\n}\n").next().unwrap();
            let mut lines = body.lines().map(|line| line.trim().replace("move |", "|"));
            let calls = lines.any(|l| l.starts_with("call(|") || l.contains("= call(|"));
            assert!(calls || harmless.contains(&name), "{name} in {path:?}");
        }
    }
}
