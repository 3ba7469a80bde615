//! An incremental parser of requests.
//!
//! A request is an array of bulk strings, or one line of words (an *inline* command). The parser
//! keeps the arguments that are complete, so a request that arrives byte by byte costs one pass. A
//! parser that begins again with every packet, as the crates for this protocol do, needs quadratic
//! time for a large request of a slow client. Nothing is allocated because a length was announced:
//! memory grows with the bytes that arrived. Decision 0053 has the measurement.

use braid_rt::mutant;
use bytes::{Buf, Bytes, BytesMut};

use super::inline::split_words;
use super::spare::arguments;

/// Longest line: an inline command, or the digits of a length.
const LINE_MAX: usize = 64 * 1024;

/// Most digits of a short length.
const SHORT_DIGITS: usize = 9;

/// Most arguments of a request that is taken from the input at once.
const WHOLE_MAX: usize = 8;

/// Limits on requests. A connection that has not authenticated yet gets smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most arguments of a request.
    pub(crate) arguments: i64,
    /// Longest argument in bytes.
    pub(crate) bulk: i64,
}

impl Limits {
    /// Limits before authentication, as in Redis.
    pub(crate) const UNAUTHENTICATED: Limits = Limits {
        arguments: 10,
        bulk: 16 * 1024,
    };
}

/// A violation of the protocol. The connection answers with it, and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("Protocol error: invalid multibulk length")]
    Arguments,
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedArguments,
    #[error("Protocol error: invalid bulk length")]
    Bulk,
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulk,
    #[error("Protocol error: expected '$', got '{0}'")]
    NoBulk(char),
    #[error("Protocol error: too big inline request")]
    LongLine,
    #[error("Protocol error: too big mbulk count string")]
    LongArguments,
    #[error("Protocol error: too big bulk count string")]
    LongBulk,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// The part of a request that has been parsed.
#[derive(Debug, Default)]
enum State {
    /// Between requests.
    #[default]
    Start,
    /// The length of the next argument is expected.
    Length { missing: i64 },
    /// An argument of this many bytes is expected, and its line end.
    Argument { missing: i64, len: usize },
}

/// Parser of the requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct RequestParser {
    state: State,
    arguments: Vec<Bytes>,
    /// Bytes at the start of the buffer that contain no line end.
    searched: usize,
}

impl RequestParser {
    /// Removes the next complete request from `input`; `None` if it is incomplete. A request
    /// without arguments is an empty vector, which callers ignore.
    pub(crate) fn next(
        &mut self,
        input: &mut BytesMut,
        limits: Limits,
    ) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        if matches!(self.state, State::Start)
            && let Some(request) = whole_request(input, limits)
        {
            self.searched = 0;
            return Ok(Some(request));
        }
        loop {
            match self.state {
                State::Start => {
                    let Some(&first) = input.first() else {
                        return Ok(None);
                    };
                    if first != b'*' {
                        let Some(end) = self.line_end(input, ProtocolError::LongLine)? else {
                            return Ok(None);
                        };
                        let words = split_words(line(input, end)).ok_or(ProtocolError::Quotes);
                        input.advance(end + 1);
                        return words.map(Some);
                    }
                    let (wrong, long) = (ProtocolError::Arguments, ProtocolError::LongArguments);
                    let Some(count) = self.length(input, wrong, long)? else {
                        return Ok(None);
                    };
                    if count > limits.arguments {
                        return Err(if limits == Limits::UNAUTHENTICATED {
                            ProtocolError::UnauthenticatedArguments
                        } else {
                            ProtocolError::Arguments
                        });
                    }
                    if count <= 0 {
                        return Ok(Some(Vec::new()));
                    }
                    self.arguments = arguments(count as usize);
                    self.state = State::Length { missing: count };
                }
                State::Length { missing } => {
                    let Some(&first) = input.first() else {
                        return Ok(None);
                    };
                    if first != b'$' {
                        return Err(ProtocolError::NoBulk(first as char));
                    }
                    let (wrong, long) = (ProtocolError::Bulk, ProtocolError::LongBulk);
                    let Some(len) = self.length(input, wrong, long)? else {
                        return Ok(None);
                    };
                    let is_long = len > limits.bulk && !mutant!("server_take_any_length");
                    if len < 0 || is_long {
                        return Err(if limits == Limits::UNAUTHENTICATED && len > 0 {
                            ProtocolError::UnauthenticatedBulk
                        } else {
                            ProtocolError::Bulk
                        });
                    }
                    self.state = State::Argument {
                        missing,
                        len: len as usize,
                    };
                }
                State::Argument { missing, len } => {
                    if input.len() < len + 2 {
                        return Ok(None);
                    }
                    self.arguments.push(input.split_to(len).freeze());
                    // Redis does not check the two bytes of the line end either.
                    input.advance(2);
                    if missing == 1 {
                        self.state = State::Start;
                        return Ok(Some(std::mem::take(&mut self.arguments)));
                    }
                    self.state = State::Length {
                        missing: missing - 1,
                    };
                }
            }
        }
    }

    /// Removes a line with a length; `None` if it is incomplete.
    fn length(
        &mut self,
        input: &mut BytesMut,
        wrong: ProtocolError,
        too_long: ProtocolError,
    ) -> Result<Option<i64>, ProtocolError> {
        if let Some((length, end)) = short_length(input) {
            self.searched = 0;
            input.advance(end);
            return Ok(Some(length));
        }
        let Some(end) = self.line_end(input, too_long)? else {
            return Ok(None);
        };
        let length = parse_length(&line(input, end)[1..]).ok_or(wrong)?;
        input.advance(end + 1);
        Ok(Some(length))
    }

    /// Returns the position of the next line feed; `None` if the line is incomplete.
    fn line_end(
        &mut self,
        input: &[u8],
        too_long: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let Some(found) = memchr::memchr(b'\n', &input[self.searched..]) else {
            self.searched = input.len();
            return if input.len() > LINE_MAX {
                Err(too_long)
            } else {
                Ok(None)
            };
        };
        let end = self.searched + found;
        self.searched = 0;
        if end > LINE_MAX {
            return Err(too_long);
        }
        Ok(Some(end))
    }
}

/// Removes a request that has arrived completely, has few arguments and keeps the limits, as nearly all
/// do: one pass finds its arguments. `None`, without a change, if it is another.
fn whole_request(input: &mut BytesMut, limits: Limits) -> Option<Vec<Bytes>> {
    if input.first() != Some(&b'*') {
        return None;
    }
    let (count, mut end) = short_length(input)?;
    let count = usize::try_from(count)
        .ok()
        .filter(|_| count <= limits.arguments)?;
    let mut places = [(0, 0); WHOLE_MAX];
    let places = places.get_mut(..count).filter(|_| count > 0)?;
    for place in &mut *places {
        let rest = input.get(end..)?;
        if rest.first() != Some(&b'$') {
            return None;
        }
        let (len, line) = short_length(rest)?;
        if len > limits.bulk {
            return None;
        }
        let start = end + line;
        *place = (start, start + len as usize);
        // Redis does not check the two bytes of the line end either.
        end = place.1 + 2;
        if input.len() < end {
            return None;
        }
    }
    let mut request = input.split_to(end).freeze();
    let mut arguments = arguments(count);
    let (&(start, end), others) = places.split_last()?;
    arguments.extend(others.iter().map(|&(start, end)| request.slice(start..end)));
    // The last argument takes the reference to the memory of all.
    request.truncate(end);
    request.advance(start);
    arguments.push(request);
    Some(arguments)
}

/// Returns the line that ends at a line feed, without its line end.
fn line(input: &[u8], end: usize) -> &[u8] {
    let line = &input[..end];
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the number after `*` or `$` and the end of its line, if that is as short as nearly all are:
/// one pass finds both. `None` if the line is long, incomplete or wrong.
#[inline]
fn short_length(input: &[u8]) -> Option<(i64, usize)> {
    let digit = |byte: &u8| i64::from(byte - b'0');
    match input {
        [_, one @ b'0'..=b'9', b'\r', b'\n', ..] => Some((digit(one), 4)),
        [_, ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((10 * digit(ten) + digit(one), 5))
        }
        _ => longer_length(input),
    }
}

#[inline(never)]
fn longer_length(input: &[u8]) -> Option<(i64, usize)> {
    let mut number = 0;
    for (at, byte) in input.iter().enumerate().skip(1).take(SHORT_DIGITS + 1) {
        match byte {
            b'0'..=b'9' if at == 1 || number > 0 => number = number * 10 + i64::from(byte - b'0'),
            b'\r' if at > 1 && input.get(at + 1) == Some(&b'\n') => return Some((number, at + 2)),
            _ => return None,
        }
    }
    None
}

/// Parses the decimal number after `*` or `$`.
fn parse_length(digits: &[u8]) -> Option<i64> {
    super::number::parse_i64(digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        arguments: 1024 * 1024,
        bulk: 512 << 20,
    };

    fn parse_all(input: &[u8]) -> Result<Vec<Vec<Bytes>>, ProtocolError> {
        let mut buffer = BytesMut::from(input);
        let mut parser = RequestParser::default();
        let mut requests = Vec::new();
        while let Some(request) = parser.next(&mut buffer, LIMITS)? {
            requests.push(request);
        }
        Ok(requests)
    }

    fn words(list: &[&str]) -> Vec<Bytes> {
        list.iter()
            .map(|w| Bytes::copy_from_slice(w.as_bytes()))
            .collect()
    }

    #[test]
    fn a_short_length_is_what_the_whole_line_says() {
        let numbers = [
            "0",
            "5",
            "10",
            "007",
            "01",
            "00",
            "",
            "-1",
            "+1",
            "1x",
            "x",
            "1 ",
            "999999999",
            "1234567890",
        ];
        for number in numbers {
            for end in ["\r\n", "\n", "\r", "", "\r\r\n", "\r\nx"] {
                let text = format!("${number}{end}");
                let Some((length, end)) = short_length(text.as_bytes()) else {
                    continue;
                };
                let line = text[..end].strip_suffix("\r\n").expect("a whole line");
                assert_eq!(
                    Some(length),
                    parse_length(&line.as_bytes()[1..]),
                    "{text:?}"
                );
            }
        }
        assert_eq!(short_length(b"$0\r\n"), Some((0, 4)));
        assert_eq!(short_length(b"*999999999\r\nx"), Some((999_999_999, 12)));
        assert_eq!(short_length(b"*1234567890\r\n"), None);
    }

    #[test]
    fn requests_follow_each_other() {
        let requests =
            parse_all(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n*1\r\n$4\r\nPING\r\n*1\r\n$9");
        assert_eq!(
            requests.unwrap(),
            [words(&["GET", "a"]), words(&["PING"]), words(&["PING"])]
        );
    }

    #[test]
    fn inline_words_may_be_quoted() {
        let requests = parse_all(b"SET \"a b\\x41\\n\" 'it\\'s'  \r\n");
        assert_eq!(requests.unwrap(), [words(&["SET", "a bA\n", "it's"])]);
        // A byte that ends a word and is skipped nowhere would be an endless loop.
        assert_eq!(
            parse_all(b"a\0b\x0cc\r\n").unwrap(),
            [words(&["a", "b\x0cc"])]
        );
        assert_eq!(parse_all(b"SET \"a\r\n"), Err(ProtocolError::Quotes));
        assert_eq!(parse_all(b"SET \"a\"b\r\n"), Err(ProtocolError::Quotes));
    }

    #[test]
    fn limits_hold_before_bytes_arrive() {
        assert_eq!(parse_all(b"*1048577\r\n"), Err(ProtocolError::Arguments));
        assert_eq!(parse_all(b"*x\r\n"), Err(ProtocolError::Arguments));
        assert_eq!(parse_all(b"*1\r\n$536870913\r\n"), Err(ProtocolError::Bulk));
        assert_eq!(parse_all(b"*1\r\n$-1\r\n"), Err(ProtocolError::Bulk));
        assert_eq!(parse_all(b"*1\r\n:1\r\n"), Err(ProtocolError::NoBulk(':')));
        let long = vec![b'1'; LINE_MAX + 1];
        assert_eq!(parse_all(&long), Err(ProtocolError::LongLine));
        let mut parser = RequestParser::default();
        let mut input = BytesMut::from(&b"*11\r\n"[..]);
        assert_eq!(
            parser.next(&mut input, Limits::UNAUTHENTICATED),
            Err(ProtocolError::UnauthenticatedArguments)
        );
    }

    proptest! {
        #[test]
        fn packets_do_not_matter(
            requests in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..5), 0..5),
            cut in 1usize..7,
        ) {
            let mut input = Vec::new();
            for request in &requests {
                input.extend(format!("*{}\r\n", request.len()).into_bytes());
                for argument in request {
                    input.extend(format!("${}\r\n", argument.len()).into_bytes());
                    input.extend(argument);
                    input.extend(b"\r\n");
                }
            }
            let mut parser = RequestParser::default();
            let mut buffer = BytesMut::new();
            let mut parsed: Vec<Vec<Vec<u8>>> = Vec::new();
            for packet in input.chunks(cut) {
                buffer.extend_from_slice(packet);
                while let Some(request) = parser.next(&mut buffer, LIMITS).unwrap() {
                    parsed.push(request.iter().map(|a| a.to_vec()).collect());
                }
            }
            prop_assert_eq!(parsed, requests);
        }

        #[test]
        fn any_bytes_end_in_requests_or_an_error(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_all(&input);
        }
    }
}
