//! How often each kind of error was a reply.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Most kinds of errors that are counted apart: scripts choose the words of their errors.
const KINDS_MAX: usize = 128;

/// Longest name of a kind.
const NAME_MAX: usize = 32;

/// Counts errors that begin with no name, as in Redis.
const UNNAMED: &str = "ERR";

/// Counts errors of further kinds.
const FURTHER: &str = "FURTHER_KINDS";

/// Counts of errors by their first word. Only replies that are errors lock it.
#[derive(Debug, Default)]
pub(crate) struct ErrorStatistics {
    counts: Mutex<BTreeMap<Bytes, u64>>,
}

impl ErrorStatistics {
    /// Counts an error.
    pub(crate) fn count(&self, text: &str) {
        let name = name_of(text);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(name.as_bytes()) {
            *count += 1;
            return;
        }
        let name = if counts.len() < KINDS_MAX {
            Bytes::copy_from_slice(name.as_bytes())
        } else {
            Bytes::from_static(FURTHER.as_bytes())
        };
        *counts.entry(name).or_default() += 1;
    }

    /// Returns the kinds of errors with their counts, ordered by name.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |name: &Bytes| String::from_utf8_lossy(name).into_owned();
        counts
            .iter()
            .map(|(name, count)| (shown(name), *count))
            .collect()
    }

    /// Returns how many errors there were.
    pub(crate) fn total(&self) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.values().sum()
    }

    /// Sets all counts to zero.
    pub(crate) fn reset(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.clear();
    }
}

/// Returns the name of an error: its first word, unless that is long, or not followed by another one.
/// Characters that have a meaning in INFO do not belong to a name.
fn name_of(text: &str) -> &str {
    match text.split_once(' ') {
        Some((name, _))
            if (1..=NAME_MAX).contains(&name.len())
                && !name.contains([':', '=', '\r', '\n', ',']) =>
        {
            name
        }
        _ => UNNAMED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_their_first_word() {
        let errors = ErrorStatistics::default();
        for text in [
            "WRONGTYPE Operation against",
            "ERR syntax error",
            "nospace",
            " begins with a space",
            "a:b has a colon",
            "WRONGTYPE again",
        ] {
            errors.count(text);
        }
        errors.count(&format!("{} is long", "X".repeat(NAME_MAX + 1)));
        let all = errors.all();
        assert_eq!(
            all,
            [("ERR".to_owned(), 5), ("WRONGTYPE".to_owned(), 2)],
            "{all:?}"
        );
        assert_eq!(errors.total(), 7);
        errors.reset();
        assert_eq!(errors.all(), []);
    }

    #[test]
    fn scripts_cannot_make_the_counts_grow() {
        let errors = ErrorStatistics::default();
        for kind in 0..2 * KINDS_MAX {
            errors.count(&format!("KIND{kind} of a script"));
        }
        assert_eq!(errors.all().len(), KINDS_MAX + 1);
        let further = errors.all().into_iter().find(|(name, _)| name == FURTHER);
        assert_eq!(further, Some((FURTHER.to_owned(), KINDS_MAX as u64)));
        // A kind that is counted apart remains so.
        errors.count("KIND0 of a script");
        assert_eq!(errors.total(), 2 * KINDS_MAX as u64 + 1);
    }
}
