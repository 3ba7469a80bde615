//! Completion: commands, then tables, then types.

use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::session::COMMANDS;

/// Types that the shell offers for new tables.
const TYPES: &[&str] = &[
    "bytes", "string", "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128", "f32",
    "f64",
];

const SCAN_WORDS: &[&str] = &["from", "to", "limit", "reverse"];

pub(super) struct Completion {
    tables: Vec<String>,
}

impl Completion {
    pub(super) fn new(tables: Vec<String>) -> Self {
        Completion { tables }
    }

    /// Returns the candidates at the end of `before`, and the start of the word there.
    fn candidates(&self, before: &str) -> (usize, Vec<String>) {
        let command = before.rfind(';').map_or(0, |at| at + 1);
        let word = before.rfind([' ', '\t', ';']).map_or(0, |at| at + 1);
        let words: Vec<&str> = before[command..word].split_whitespace().collect();
        let fixed = |list: &[&str]| list.iter().map(|&word| word.to_owned()).collect();
        let all: Vec<String> = match words.as_slice() {
            [] | ["help"] => COMMANDS.iter().map(|c| c.name.to_owned()).collect(),
            ["create", _] | ["create", _, _] => fixed(TYPES),
            [command]
                if COMMANDS
                    .iter()
                    .any(|c| c.name == *command && c.words.starts_with("TABLE")) =>
            {
                self.tables.clone()
            }
            ["scan" | "count", ..] => fixed(SCAN_WORDS),
            _ => Vec::new(),
        };
        let typed = &before[word..];
        (
            word,
            all.into_iter().filter(|c| c.starts_with(typed)).collect(),
        )
    }
}

impl Helper for Completion {}
impl Highlighter for Completion {}
impl Hinter for Completion {
    type Hint = String;
}
impl Validator for Completion {}

impl Completer for Completion {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.candidates(&line[..pos]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_words_are_offered() {
        let completion = Completion::new(vec!["books".into(), "boots".into()]);
        for (before, at, offered) in [
            ("che", 0, &["checkpoint"][..]),
            ("get bo", 4, &["books", "boots"]),
            ("tables; scan boot", 13, &["boots"]),
            ("create x st", 9, &["string"]),
            ("scan books re", 11, &["reverse"]),
            ("help sn", 5, &["snapshot"]),
            ("get books k", 10, &[]),
        ] {
            let (found_at, found) = completion.candidates(before);
            assert_eq!(
                (found_at, &found[..]),
                (
                    at,
                    &offered.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..]
                ),
                "{before}"
            );
        }
    }
}
