//! Which commands a selector allows.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::categories::{CATEGORIES, belongs};
use crate::command::{Command, commands, find};

/// The commands that a selector allows.
#[derive(Clone, Debug)]
pub(super) struct CommandRules {
    /// Whether each command is allowed, in the order of the table.
    allowed: Vec<bool>,
    /// By the position of a command: what is different if its first argument is this word.
    subcommands: BTreeMap<usize, BTreeMap<String, bool>>,
    /// The rules as they were given, without those that later ones replace.
    rules: Vec<String>,
}

impl Default for CommandRules {
    /// Allows nothing.
    fn default() -> Self {
        CommandRules {
            allowed: vec![false; commands().len()],
            subcommands: BTreeMap::new(),
            rules: vec!["-@all".to_owned()],
        }
    }
}

fn position(command: &Command) -> Option<usize> {
    commands()
        .binary_search_by_key(&command.name, |known| known.name)
        .ok()
}

impl CommandRules {
    pub(super) fn allow_all(&mut self, allow: bool) {
        self.allowed.fill(allow);
        self.subcommands.clear();
        self.rules = vec![if allow { "+@all" } else { "-@all" }.to_owned()];
    }

    /// Applies `+NAME`, `-NAME`, `+NAME|WORD`, `+@CATEGORY` and the like; `rule` is the part after
    /// the sign. Returns `false` if there is no such command or category.
    pub(super) fn apply(&mut self, allow: bool, rule: &str) -> bool {
        let rule = rule.to_ascii_lowercase();
        if rule == "@all" {
            self.allow_all(allow);
            return true;
        }
        if let Some(category) = rule.strip_prefix('@') {
            if !CATEGORIES.contains(&category) {
                return false;
            }
            for (at, command) in commands().iter().enumerate() {
                if belongs(command, category) {
                    self.allowed[at] = allow;
                    self.subcommands.remove(&at);
                }
            }
        } else {
            let (name, word) = match rule.split_once('|') {
                Some((name, word)) => (name, Some(word)),
                None => (rule.as_str(), None),
            };
            let Some(at) = find(name.as_bytes()).and_then(position) else {
                return false;
            };
            match word {
                None => {
                    self.allowed[at] = allow;
                    self.subcommands.remove(&at);
                }
                Some("") => return false,
                Some(word) => {
                    let words = self.subcommands.entry(at).or_default();
                    words.insert(word.to_owned(), allow);
                }
            }
        }
        let replaces = |old: &String| {
            let old = &old[1..];
            old == rule
                || old
                    .strip_prefix(&rule)
                    .is_some_and(|rest| rest.starts_with('|'))
        };
        self.rules.retain(|old| !replaces(old));
        self.rules
            .push(format!("{}{rule}", if allow { '+' } else { '-' }));
        true
    }

    pub(super) fn allows(&self, command: &Command, args: &[Bytes]) -> bool {
        let Some(at) = position(command) else {
            return false;
        };
        let word = self.subcommands.get(&at).zip(args.get(1));
        word.and_then(|(words, first)| {
            let first = String::from_utf8_lossy(first).to_ascii_lowercase();
            words.get(&first).copied()
        })
        .unwrap_or(self.allowed[at])
    }

    pub(super) fn allows_all(&self) -> bool {
        self.rules == ["+@all"]
    }

    pub(super) fn describe(&self) -> String {
        self.rules.join(" ")
    }
}
