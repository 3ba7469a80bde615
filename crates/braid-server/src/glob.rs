//! Patterns of KEYS, SCAN, PSUBSCRIBE and CONFIG GET.

/// Returns whether a text matches a pattern with `*`, `?`, `[a-c]`, `[^x]`, and `\` before a
/// character that is meant literally. Takes time proportional to the product of the lengths at most.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to continue when the part after the last star does not match: one byte later.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        if t < text.len()
            && let Some(len) = one(&pattern[p..], text[t])
        {
            p += len;
            t += 1;
            continue;
        }
        match star {
            Some((after, at)) if at < text.len() => {
                star = Some((after, at + 1));
                (p, t) = (after, at + 1);
            }
            _ => return false,
        }
    }
}

/// Returns the length of the pattern's first element if a byte matches it.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', ..] => class(pattern, byte),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Matches a byte against a class in brackets; a class without an end reaches to the pattern's end.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let mut at = 1;
    let negated = pattern.get(at) == Some(&b'^');
    if negated {
        at += 1;
    }
    let mut found = false;
    loop {
        match &pattern[at.min(pattern.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                let (low, high) = (from.min(to), from.max(to));
                found |= (low..=high).contains(&&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("[abc", "c", true),
            ("", "", true),
            ("", "a", false),
            ("a", "ab", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn many_stars_end_soon() {
        let pattern = "a*".repeat(40) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(10_000).as_bytes()));
    }
}
