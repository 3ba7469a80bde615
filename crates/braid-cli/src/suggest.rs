//! Suggestions for misspelt names.

/// Returns the nearest of `names`, if it differs from `asked` by at most a third of its letters.
pub(crate) fn nearest<'a>(
    asked: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let most = (asked.chars().count() / 3).max(1);
    let distances = names.into_iter().map(|name| (distance(asked, name), name));
    let near = distances.filter(|(distance, _)| *distance <= most);
    let letters = |name: &str| {
        let mut letters: Vec<char> = name.chars().collect();
        letters.sort_unstable();
        letters
    };
    // Transposed letters are more likely than a wrong letter.
    near.min_by_key(|(distance, name)| (*distance, letters(name) != letters(asked)))
        .map(|(_, name)| name)
}

/// Returns a suggestion for the end of a message; empty if no name is near.
pub(crate) fn suggestion<'a>(asked: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let name = nearest(asked, names);
    name.map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// The edit distance: letters changed, added, removed or swapped with their neighbour
/// (Damerau-Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (
        from.to_lowercase().chars().collect(),
        to.to_lowercase().chars().collect(),
    );
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for i in 0..from.len() {
        let mut next = vec![i + 1];
        for j in 0..to.len() {
            let changed = row[j] + usize::from(from[i] != to[j]);
            let mut best = changed.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && from[i] == to[j - 1] && from[i - 1] == to[j] {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_if_it_is_near() {
        let names = ["string", "u64", "books", "authors"];
        for (asked, meant) in [
            ("strng", Some("string")),
            ("sting", Some("string")),
            ("u46", Some("u64")),
            ("Boosk", Some("books")),
            ("author", Some("authors")),
            ("x", None),
            ("letters", None),
        ] {
            assert_eq!(nearest(asked, names), meant, "{asked}");
        }
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
    }
}
