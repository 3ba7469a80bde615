//! Which commands a selector allows.

use bytes::Bytes;

use super::categories::{CATEGORIES, belongs};
use crate::signature::Signature;

/// Whether there is a command with a name.
pub(crate) type Knows = fn(&str) -> bool;

/// What a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    All,
    Category(String),
    /// A command, or the part of it whose first argument is this word.
    Command(String, Option<String>),
}

/// A rule, as it was given in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    allow: bool,
    text: String,
    subject: Subject,
}

impl Rule {
    fn all(allow: bool) -> Rule {
        Rule {
            allow,
            text: "@all".to_owned(),
            subject: Subject::All,
        }
    }

    fn covers(&self, command: &Signature, args: &[Bytes]) -> bool {
        match &self.subject {
            Subject::All => true,
            Subject::Category(category) => belongs(command, category),
            Subject::Command(name, word) => {
                let is_word = |word: &String| {
                    let first = args.get(1);
                    first.is_some_and(|first| first.eq_ignore_ascii_case(word.as_bytes()))
                };
                command.name == name && word.as_ref().is_none_or(is_word)
            }
        }
    }
}

/// The commands that a selector allows: the last rule that covers a request decides.
#[derive(Clone, Debug)]
pub(super) struct CommandRules {
    /// The first one covers all requests.
    rules: Vec<Rule>,
}

impl Default for CommandRules {
    /// Allows nothing.
    fn default() -> Self {
        CommandRules {
            rules: vec![Rule::all(false)],
        }
    }
}

impl CommandRules {
    pub(super) fn allow_all(&mut self, allow: bool) {
        self.rules = vec![Rule::all(allow)];
    }

    /// Applies `+NAME`, `-NAME`, `+NAME|WORD`, `+@CATEGORY` and the like; `text` is the part after
    /// the sign. Returns `false` if there is no such command or category.
    pub(super) fn apply(&mut self, allow: bool, text: &str, knows: Knows) -> bool {
        let text = text.to_ascii_lowercase();
        let subject = match text.strip_prefix('@') {
            Some("all") => {
                self.allow_all(allow);
                return true;
            }
            Some(category) if CATEGORIES.contains(&category) => {
                Subject::Category(category.to_owned())
            }
            Some(_) => return false,
            None => {
                let (name, word) = match text.split_once('|') {
                    Some((name, word)) => (name, Some(word.to_owned())),
                    None => (text.as_str(), None),
                };
                if !knows(name) || word.as_deref() == Some("") {
                    return false;
                }
                Subject::Command(name.to_owned(), word)
            }
        };
        // The new rule decides wherever one of these did.
        let is_replaced = |old: &str| {
            let rest = old.strip_prefix(&text);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        };
        self.rules.retain(|old| !is_replaced(&old.text));
        self.rules.push(Rule {
            allow,
            text,
            subject,
        });
        true
    }

    pub(super) fn allows(&self, command: &Signature, args: &[Bytes]) -> bool {
        let mut newest_first = self.rules.iter().rev();
        newest_first
            .find(|rule| rule.covers(command, args))
            .is_some_and(|rule| rule.allow)
    }

    pub(super) fn allows_all(&self) -> bool {
        self.rules == [Rule::all(true)]
    }

    pub(super) fn describe(&self) -> String {
        let shown = |rule: &Rule| format!("{}{}", if rule.allow { '+' } else { '-' }, rule.text);
        let rules: Vec<_> = self.rules.iter().map(shown).collect();
        rules.join(" ")
    }
}
