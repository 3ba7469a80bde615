//! Messages read well: every error of the workspace and every help text follows the rules, which
//! are checked in the sources and in the output of the binary.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{braid, expect_code, stdout};

/// Words that a reader of messages would have to translate.
const PRIVATE_WORDS: [&str; 12] = [
    "anew",
    "behind",
    "beside",
    "besides",
    "for ever",
    "goes on",
    "go on",
    "nobody",
    "put aside",
    "somebody",
    "whoever",
    "whereof",
];

/// Code before string literals that no user sees.
const INTERNAL: [&str; 9] = [
    "coverage_point(",
    "reach_if(",
    "mutant!(",
    "expect(",
    "unreachable!(",
    "debug_assert!(",
    "assert!(",
    "reason =",
    "feature =",
];

/// Sources whose messages users see; those of the simulator are for developers.
const SOURCES: [&str; 14] = [
    "crates/braiddb/src",
    "crates/braiddb-derive/src",
    "crates/braid-io/src",
    "crates/braid-nvme/src",
    "crates/braid-nvwal/src",
    "crates/braid-pmem/src",
    "crates/braid-sqlite/src",
    "crates/braid-log/src",
    "crates/braid-store/src",
    "crates/braid-rt/src",
    "crates/braid-bench/src",
    "crates/braid-c/src",
    "crates/braid-cli/src",
    "python/src",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_str().unwrap();
    name == "tests" || name.ends_with("_tests") || name == "fuzzing"
}

/// A string literal, and the code before it.
struct Literal {
    before: String,
    text: String,
}

impl Literal {
    /// Returns whether it belongs to an attribute of `thiserror`.
    fn is_error(&self) -> bool {
        self.before.ends_with("#[error(")
    }

    fn is_internal(&self) -> bool {
        INTERNAL.iter().any(|word| self.before.ends_with(word))
    }
}

/// Returns the string literals of a source before its tests. Handles comments, escapes and
/// characters, as far as the sources of this workspace use them.
fn literals(source: &str) -> Vec<Literal> {
    let end = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test"]
        .iter()
        .filter_map(|tests| source.find(tests))
        .min();
    let source: Vec<char> = source[..end.unwrap_or(source.len())].chars().collect();
    let mut found = Vec::new();
    let mut code = String::new();
    let mut at = 0;
    while at < source.len() {
        match source[at] {
            '/' if source.get(at + 1) == Some(&'/') => {
                while at < source.len() && source[at] != '\n' {
                    at += 1;
                }
            }
            '\'' if source.get(at + 1) == Some(&'\\') => {
                at += 3;
                while source[at] != '\'' {
                    at += 1;
                }
                at += 1;
            }
            '\'' if source.get(at + 2) == Some(&'\'') => at += 3,
            '"' => {
                let is_raw = code.ends_with(['r', '#']);
                let hashes = code.chars().rev().take_while(|c| *c == '#').count();
                let mut text = String::new();
                at += 1;
                loop {
                    match source[at] {
                        '\\' if !is_raw && source[at + 1] == '\n' => {
                            at += 1;
                            while source[at].is_whitespace() {
                                at += 1;
                            }
                        }
                        '\\' if !is_raw => {
                            text.push(source[at + 1]);
                            at += 2;
                        }
                        '"' if source[at + 1..].iter().take_while(|c| **c == '#').count()
                            >= hashes
                            || !is_raw =>
                        {
                            at += 1;
                            break;
                        }
                        c => {
                            text.push(c);
                            at += 1;
                        }
                    }
                }
                let before = code.trim_end().to_owned();
                found.push(Literal { before, text });
                code.clear();
            }
            c => {
                code.push(c);
                at += 1;
            }
        }
    }
    found
}

fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !is_letter(text[..at].chars().next_back())
            && !is_letter(text[at + word.len()..].chars().next())
    })
}

fn private_words(text: &str) -> Vec<&'static str> {
    let text = text.to_lowercase();
    let words = PRIVATE_WORDS.into_iter();
    words.filter(|word| has_word(&text, word)).collect()
}

#[test]
fn errors_begin_small_have_no_full_stop_and_use_plain_words() {
    let mut files = Vec::new();
    SOURCES
        .iter()
        .for_each(|folder| rust_files(&root().join(folder), &mut files));
    let (mut errors, mut wrong) = (0, Vec::new());
    for path in files.iter().filter(|path| !is_test(path)) {
        for literal in literals(&fs::read_to_string(path).unwrap()) {
            let text = &literal.text;
            let mut complain = |what: &str| {
                let path = path.strip_prefix(root()).unwrap_or(path).display();
                wrong.push(format!("{path}: {text:?} {what}"));
            };
            if literal.is_error() {
                errors += 1;
                if text.starts_with(char::is_uppercase) {
                    complain("begins with a capital");
                }
                if text.ends_with(['.', '!']) {
                    complain("ends with a full stop");
                }
            }
            // A single word is a name, not a message.
            if text.contains(' ') && !literal.is_internal() {
                for word in private_words(text) {
                    complain(&format!("contains {word:?}"));
                }
            }
        }
    }
    assert!(errors > 80, "only {errors} errors were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn literals_are_found_with_the_code_before_them() {
    let source = r##"
        // "no"
        #[error("cannot {0}")]
        let c = ('"', '\'', "a \
            b\"");
        coverage_point("r"); let raw = r#"x "y" z"#;
#[cfg(test)]
mod tests { "not this" }
"##;
    let found = literals(source);
    let texts: Vec<_> = found.iter().map(|literal| literal.text.as_str()).collect();
    assert_eq!(texts, ["cannot {0}", "a b\"", "r", "x \"y\" z"]);
    assert!(found[0].is_error() && !found[1].is_error());
    assert!(found[2].is_internal() && !found[1].is_internal());
    assert_eq!(private_words("Go on behind it"), ["behind", "go on"]);
    assert!(private_words("cargo only").is_empty());
}

/// The names of the subcommands in a help text.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names
        .filter(|name| !name.is_empty() && *name != "help")
        .map(str::to_owned)
        .collect()
}

/// The help of a command and of those below it, by their names.
fn helps(path: &[&str], form: &str, found: &mut Vec<(String, String)>) {
    let output = braid(&[path, &[form]].concat());
    expect_code(&output, 0);
    let help = stdout(&output);
    for name in subcommands(&help) {
        helps(&[path, &[&name]].concat(), form, found);
    }
    found.push((path.join(" "), help));
}

#[test]
fn help_texts_use_plain_words_and_capital_placeholders() {
    let mut found = Vec::new();
    for form in ["-h", "--help"] {
        helps(&[], form, &mut found);
    }
    assert!(found.len() >= 2 * 20, "{} help texts", found.len());
    let mut wrong = Vec::new();
    for (command, help) in &found {
        let about = help.lines().next().unwrap_or_default();
        if !about.starts_with(char::is_uppercase) || about.ends_with('.') {
            wrong.push(format!("braid {command}: {about:?} is not a plain line"));
        }
        for word in private_words(help) {
            wrong.push(format!("braid {command}: the help contains {word:?}"));
        }
        for line in help
            .lines()
            .filter(|line| line.trim_start().starts_with('-'))
        {
            let placeholder = line
                .split_once('<')
                .and_then(|(_, rest)| rest.split_once('>'));
            if let Some((name, _)) = placeholder.filter(|(name, _)| *name != name.to_uppercase()) {
                wrong.push(format!("braid {command}: <{name}> is not in capitals"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
