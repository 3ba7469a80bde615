//! Words of inline commands, and of the first lines of scripts.

use bytes::Bytes;

/// Splits an inline command into words. Words in double quotes know the escapes `\n`, `\r`, `\t`,
/// `\b`, `\a` and `\xHH`; words in single quotes know `\'`. `None` if a quote is open at the end.
pub(crate) fn split_words(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while let [byte, tail @ ..] = rest
            && is_separator(*byte)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        let mut quote = None;
        loop {
            match (quote, rest) {
                (None, []) => break,
                (None, [byte, ..]) if is_separator(*byte) => break,
                (Some(_), []) => return None,
                (None, [open @ (b'"' | b'\''), tail @ ..]) => {
                    quote = Some(*open);
                    rest = tail;
                }
                (Some(open), [byte, tail @ ..]) if *byte == open => {
                    // A closing quote ends the word.
                    if tail.first().is_some_and(|next| !is_separator(*next)) {
                        return None;
                    }
                    rest = tail;
                    break;
                }
                (Some(b'"'), [b'\\', b'x', high, low, tail @ ..])
                    if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
                    word.push(digit(*high) << 4 | digit(*low));
                    rest = tail;
                }
                (Some(b'"'), [b'\\', escaped, tail @ ..]) => {
                    word.push(match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => *other,
                    });
                    rest = tail;
                }
                (Some(b'\''), [b'\\', b'\'', tail @ ..]) => {
                    word.push(b'\'');
                    rest = tail;
                }
                (_, [byte, tail @ ..]) => {
                    word.push(*byte);
                    rest = tail;
                }
            }
        }
        words.push(Bytes::from(word));
    }
}

/// Returns whether a byte separates words outside of quotes.
fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0)
}
