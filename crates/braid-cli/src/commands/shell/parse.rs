//! Command lines: words, some of them quoted, and semicolons between commands.

/// Splits a line into commands, and these into words. Quoted words keep their quotes and escapes,
/// so that `"7"` and `7` can have different meanings.
pub(super) fn commands(line: &str) -> Result<Vec<Vec<String>>, String> {
    let mut commands = vec![Vec::new()];
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        match first {
            '#' => break,
            ';' => {
                commands.push(Vec::new());
                rest = &rest[1..];
            }
            _ => {
                let plain_len = || {
                    rest.find(|c: char| c.is_whitespace() || c == ';')
                        .unwrap_or(rest.len())
                };
                let tuple = tuple_len(rest);
                let len = match first {
                    '"' | '\'' => quoted_len(rest, first)?,
                    _ => tuple.unwrap_or_else(plain_len),
                };
                let (word, after) = rest.split_at(len);
                let is_quoted = matches!(first, '"' | '\'') || tuple.is_some();
                if !is_quoted && word.contains(['"', '\'']) {
                    return Err(format!(
                        "cannot read {word}: it has a quote inside; quote the whole word"
                    ));
                }
                if is_quoted
                    && !after.starts_with([';', ' ', '\t', '\n', '\r'])
                    && !after.is_empty()
                {
                    return Err(format!(
                        "cannot read {word}: put a space or semicolon after the closing quote"
                    ));
                }
                let last = commands.last_mut().expect("there is always one");
                last.push(word.to_owned());
                rest = after;
            }
        }
        rest = rest.trim_start();
    }
    commands.retain(|command| !command.is_empty());
    Ok(commands)
}

/// Returns the length of the tuple at the start of `text`; `None` if there is no complete tuple.
fn tuple_len(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(c) = text[at..].chars().next() {
        let begins_part = || text[..at].trim_end().ends_with(['(', ',']);
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '"' | '\'' if begins_part() => {
                at += quoted_len(&text[at..], c).ok()?;
                continue;
            }
            _ => {}
        }
        at += c.len_utf8();
        if depth == 0 {
            return (at > 1).then_some(at).filter(|_| text.starts_with('('));
        }
    }
    None
}

/// Returns the length of the quoted word at the start of `text`.
fn quoted_len(text: &str, quote: char) -> Result<usize, String> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Ok(at + 1),
            _ => {}
        }
    }
    Err(format!("cannot read {text}: the quote is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_commands_are_distinguished() {
        let parsed = |line: &str| commands(line).map_err(|_| ());
        let words = |list: &[&[&str]]| {
            let owned = |words: &&[&str]| words.iter().map(|w| (*w).to_owned()).collect();
            Ok(list.iter().map(owned).collect::<Vec<Vec<String>>>())
        };
        assert_eq!(parsed("get t 7"), words(&[&["get", "t", "7"]]));
        assert_eq!(
            parsed(r#" put t "a;\" b" 'x"y';; tables # and "so on"#),
            words(&[&["put", "t", r#""a;\" b""#, r#"'x"y'"#], &["tables"]])
        );
        assert_eq!(
            parsed("put t é \"ü\""),
            words(&[&["put", "t", "é", "\"ü\""]])
        );
        assert_eq!(parsed(" ; # nothing"), words(&[]));
        assert_eq!(
            parsed("put t (\"a;) b\", (1, 'c')) 7; get t (a"),
            words(&[
                &["put", "t", "(\"a;) b\", (1, 'c'))", "7"],
                &["get", "t", "(a"]
            ])
        );
        for bad in [
            "get t \"a",
            "get t 'a\\'",
            "get t a\"b\"",
            "get t \"a\"b",
            "get t \"\\",
        ] {
            assert_eq!(parsed(bad), Err(()), "{bad}");
        }
    }
}
