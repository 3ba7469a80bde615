//! Replies, and their encoding in both versions of the protocol.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};

use super::number::format_f64;

/// Version of the protocol, which a connection selects with HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

impl Protocol {
    pub(crate) fn number(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }
}

/// A message to a client that keeps what it has read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Notice {
    /// These keys have changed; any keys if there are none.
    Changed {
        keys: Option<Vec<Bytes>>,
        /// Whether the client gets the message for another one.
        is_redirected: bool,
    },
    /// The client that got the messages is gone.
    Broken(u64),
}

/// Channel of the messages to clients of RESP2.
pub(crate) const CHANGED_CHANNEL: &[u8] = b"__redis__:invalidate";

/// A reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// A short text such as `OK`.
    Status(&'static str),
    /// A short text that is not known at compile time. Line ends in it become spaces.
    Simple(Bytes),
    /// An error, beginning with its code. Line ends in it become spaces.
    Error(Cow<'static, str>),
    Integer(i64),
    Double(f64),
    /// A truth value; in RESP2 an integer. Only scripts return it.
    #[cfg_attr(not(feature = "scripts"), allow(dead_code))]
    Boolean(bool),
    /// Digits of an integer of any size; in RESP2 a bulk string. Line ends in it become spaces. Only
    /// scripts return it.
    #[cfg_attr(not(feature = "scripts"), allow(dead_code))]
    BigNumber(Bytes),
    Bulk(Bytes),
    /// A text for people, and the three letters that name its format.
    Verbatim([u8; 3], Bytes),
    /// No value.
    Null,
    /// No list; differs from `Null` in RESP2 only.
    NullArray,
    Array(Vec<Reply>),
    /// Pairs; in RESP2 a list of alternating keys and values.
    Map(Vec<(Reply, Reply)>),
    /// Pairs; in RESP2 a list of lists of two.
    Pairs(Vec<(Reply, Reply)>),
    /// A list without order; in RESP2 a list.
    Set(Vec<Reply>),
    /// A message that answers no command; in RESP2 a list.
    Push(Vec<Reply>),
    /// Members with scores: a list of pairs in RESP3, alternating members and scores in RESP2.
    Scored(Vec<(Bytes, f64)>),
    /// A message about keys that a client keeps; in RESP2 a message of a channel.
    Tracking(Notice),
    /// Several replies to one command, as SUBSCRIBE gives.
    Several(Vec<Reply>),
    /// A reply in the version that its connection had selected when the command ran.
    Encoded(Bytes),
}

impl Reply {
    pub(crate) const OK: Reply = Reply::Status("OK");

    /// Returns a plain text for people.
    pub(crate) fn text(text: impl Into<String>) -> Reply {
        Reply::Verbatim(*b"txt", text.into().into())
    }

    /// Returns a bulk string with a copy of the bytes.
    pub(crate) fn copied(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(Bytes::copy_from_slice(bytes.as_ref()))
    }

    /// Returns a bulk string, or `Null`.
    pub(crate) fn optional(value: Option<Bytes>) -> Reply {
        value.map_or(Reply::Null, Reply::Bulk)
    }

    /// Returns a list of bulk strings.
    pub(crate) fn bulks(values: impl IntoIterator<Item = Bytes>) -> Reply {
        Reply::Array(values.into_iter().map(Reply::Bulk).collect())
    }

    pub(crate) fn error(text: impl Into<Cow<'static, str>>) -> Reply {
        Reply::Error(text.into())
    }

    /// Returns about how many bytes the reply takes.
    pub(crate) fn weight(&self) -> usize {
        const EACH: usize = 32;
        let pairs = |pairs: &[(Reply, Reply)]| {
            let weights = pairs
                .iter()
                .map(|(key, value)| key.weight() + value.weight());
            weights.sum::<usize>()
        };
        let list = |list: &[Reply]| list.iter().map(Reply::weight).sum::<usize>();
        let content = match self {
            Reply::Simple(bytes)
            | Reply::Bulk(bytes)
            | Reply::BigNumber(bytes)
            | Reply::Encoded(bytes)
            | Reply::Verbatim(_, bytes) => bytes.len(),
            Reply::Error(text) => text.len(),
            Reply::Array(replies)
            | Reply::Set(replies)
            | Reply::Push(replies)
            | Reply::Several(replies) => list(replies),
            Reply::Map(entries) | Reply::Pairs(entries) => pairs(entries),
            Reply::Scored(members) => members.iter().map(|(member, _)| member.len() + EACH).sum(),
            Reply::Tracking(Notice::Changed {
                keys: Some(keys), ..
            }) => keys.iter().map(|key| key.len() + EACH).sum(),
            _ => 0,
        };
        content + EACH
    }

    /// Encodes the reply in a version whatever is selected later, unless it is the same in both versions.
    pub(crate) fn fix(&mut self, protocol: Protocol) {
        let is_same = matches!(
            self,
            Reply::Status(_)
                | Reply::Simple(_)
                | Reply::Error(_)
                | Reply::Integer(_)
                | Reply::Bulk(_)
                | Reply::Encoded(_)
        );
        if !is_same {
            let mut encoded = BytesMut::new();
            self.encode(protocol, &mut encoded);
            *self = Reply::Encoded(encoded.freeze());
        }
    }

    /// Appends the encoded reply.
    pub(crate) fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let resp3 = protocol == Protocol::Resp3;
        match self {
            // Most replies to writes, and to commands of MULTI.
            Reply::Status("OK") => out.put_slice(b"+OK\r\n"),
            Reply::Status("QUEUED") => out.put_slice(b"+QUEUED\r\n"),
            Reply::Status(text) => put_line(out, b'+', text.as_bytes()),
            Reply::Simple(text) => put_line(out, b'+', &without_line_ends(text)),
            Reply::Error(text) if text.contains(['\r', '\n']) => {
                put_line(out, b'-', text.replace(['\r', '\n'], " ").as_bytes());
            }
            Reply::Error(text) => put_line(out, b'-', text.as_bytes()),
            Reply::Integer(number) => put_number(out, b':', *number),
            Reply::Double(number) if resp3 => put_line(out, b',', format_f64(*number).as_bytes()),
            Reply::Double(number) => put_bulk(out, format_f64(*number).as_bytes()),
            Reply::Boolean(truth) if resp3 => {
                out.put_slice(if *truth { b"#t\r\n" } else { b"#f\r\n" });
            }
            Reply::Boolean(truth) => put_number(out, b':', i64::from(*truth)),
            Reply::BigNumber(digits) if resp3 => put_line(out, b'(', &without_line_ends(digits)),
            Reply::BigNumber(digits) => put_bulk(out, &without_line_ends(digits)),
            Reply::Bulk(bytes) => put_bulk(out, bytes),
            Reply::Verbatim(format, text) if resp3 => {
                put_number(out, b'=', text.len() as i64 + 4);
                out.put_slice(format);
                out.put_u8(b':');
                out.put_slice(text);
                out.put_slice(b"\r\n");
            }
            Reply::Verbatim(_, text) => put_bulk(out, text),
            Reply::Null | Reply::NullArray if resp3 => out.put_slice(b"_\r\n"),
            Reply::Null => out.put_slice(b"$-1\r\n"),
            Reply::NullArray => out.put_slice(b"*-1\r\n"),
            Reply::Array(list) => put_list(out, b'*', list, protocol),
            Reply::Set(list) => put_list(out, if resp3 { b'~' } else { b'*' }, list, protocol),
            Reply::Push(list) => put_list(out, if resp3 { b'>' } else { b'*' }, list, protocol),
            Reply::Map(pairs) => {
                if resp3 {
                    put_number(out, b'%', pairs.len() as i64);
                } else {
                    put_number(out, b'*', pairs.len() as i64 * 2);
                }
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Reply::Pairs(pairs) => {
                put_number(out, if resp3 { b'%' } else { b'*' }, pairs.len() as i64);
                for (key, value) in pairs {
                    if !resp3 {
                        put_number(out, b'*', 2);
                    }
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Reply::Scored(members) => {
                let fields = if resp3 { 1 } else { 2 };
                put_number(out, b'*', (members.len() * fields) as i64);
                for (member, score) in members {
                    if resp3 {
                        put_number(out, b'*', 2);
                    }
                    put_bulk(out, member);
                    Reply::Double(*score).encode(protocol, out);
                }
            }
            Reply::Tracking(notice) => notice.encode(protocol, out),
            Reply::Several(replies) => put_all(out, replies, protocol),
            Reply::Encoded(bytes) => out.put_slice(bytes),
        }
    }
}

impl Notice {
    fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let text = |text: &'static [u8]| Reply::Bulk(Bytes::from_static(text));
        let resp3 = protocol == Protocol::Resp3;
        let parts = match self {
            Notice::Changed {
                keys,
                is_redirected,
            } => {
                let keys = match keys {
                    Some(keys) => Reply::bulks(keys.iter().cloned()),
                    None => Reply::Null,
                };
                if resp3 {
                    vec![text(b"invalidate"), keys]
                } else if *is_redirected {
                    vec![text(b"message"), text(CHANGED_CHANNEL), keys]
                } else {
                    // Such a client has no place for messages.
                    return;
                }
            }
            Notice::Broken(client) if resp3 => {
                let client = Reply::Integer(*client as i64);
                vec![text(b"tracking-redir-broken"), client]
            }
            Notice::Broken(_) => return,
        };
        Reply::Push(parts).encode(protocol, out);
    }
}

/// Returns a text with spaces instead of line ends, which would end the reply.
fn without_line_ends(text: &[u8]) -> Cow<'_, [u8]> {
    let is_end = |byte: u8| matches!(byte, b'\r' | b'\n');
    if !text.iter().copied().any(is_end) {
        return Cow::Borrowed(text);
    }
    let spaced = text
        .iter()
        .map(|&byte| if is_end(byte) { b' ' } else { byte });
    Cow::Owned(spaced.collect())
}

fn put_line(out: &mut BytesMut, mark: u8, text: &[u8]) {
    out.reserve(text.len() + 3);
    out.put_u8(mark);
    out.put_slice(text);
    out.put_slice(b"\r\n");
}

fn put_number(out: &mut BytesMut, mark: u8, number: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    put_line(out, mark, &digits[at..]);
}

fn put_bulk(out: &mut BytesMut, bytes: &[u8]) {
    put_number(out, b'$', bytes.len() as i64);
    out.reserve(bytes.len() + 2);
    out.put_slice(bytes);
    out.put_slice(b"\r\n");
}

fn put_list(out: &mut BytesMut, mark: u8, list: &[Reply], protocol: Protocol) {
    put_number(out, mark, list.len() as i64);
    put_all(out, list, protocol);
}

fn put_all(out: &mut BytesMut, mut list: &[Reply], protocol: Protocol) {
    const OK: &[u8] = b"+OK\r\n";
    // Replies to a pipeline of writes, or to a transaction, which are copied together.
    const MANY: &[u8] = b"+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n";
    while let Some((first, rest)) = list.split_first() {
        let alike = list.iter().take(MANY.len() / OK.len());
        let alike = alike.take_while(|reply| matches!(reply, Reply::Status("OK")));
        match alike.count() {
            0 => {
                first.encode(protocol, out);
                list = rest;
            }
            count => {
                out.put_slice(&MANY[..count * OK.len()]);
                list = &list[count..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(reply: &Reply, protocol: Protocol) -> String {
        let mut out = BytesMut::new();
        reply.encode(protocol, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn replies_that_are_alike_follow_each_other() {
        let mut replies = vec![Reply::OK; 20];
        replies.insert(9, Reply::Null);
        replies.push(Reply::Status("QUEUED"));
        let (before, after) = ("+OK\r\n".repeat(9), "+OK\r\n".repeat(11));
        let expected = format!("{before}$-1\r\n{after}+QUEUED\r\n");
        assert_eq!(encoded(&Reply::Several(replies), Protocol::Resp2), expected);
    }

    #[test]
    fn both_versions() {
        let reply = Reply::Map(vec![(Reply::copied("a"), Reply::Double(1.5))]);
        assert_eq!(
            encoded(&reply, Protocol::Resp2),
            "*2\r\n$1\r\na\r\n$3\r\n1.5\r\n"
        );
        assert_eq!(
            encoded(&reply, Protocol::Resp3),
            "%1\r\n$1\r\na\r\n,1.5\r\n"
        );
        let reply = Reply::Pairs(vec![(Reply::copied("a"), Reply::Integer(1))]);
        assert_eq!(
            encoded(&reply, Protocol::Resp2),
            "*1\r\n*2\r\n$1\r\na\r\n:1\r\n"
        );
        assert_eq!(encoded(&reply, Protocol::Resp3), "%1\r\n$1\r\na\r\n:1\r\n");
        assert_eq!(encoded(&Reply::Null, Protocol::Resp2), "$-1\r\n");
        assert_eq!(encoded(&Reply::NullArray, Protocol::Resp2), "*-1\r\n");
        assert_eq!(encoded(&Reply::NullArray, Protocol::Resp3), "_\r\n");
        assert_eq!(
            encoded(&Reply::Integer(i64::MIN), Protocol::Resp2),
            ":-9223372036854775808\r\n"
        );
        assert_eq!(
            encoded(&Reply::error("ERR a\r\nb"), Protocol::Resp2),
            "-ERR a  b\r\n"
        );
        assert_eq!(
            encoded(&Reply::Simple("a\r\nb".into()), Protocol::Resp2),
            "+a  b\r\n"
        );
        assert_eq!(
            encoded(&Reply::text("x"), Protocol::Resp3),
            "=5\r\ntxt:x\r\n"
        );
        let big = Reply::BigNumber("1\n2".into());
        assert_eq!(encoded(&big, Protocol::Resp3), "(1 2\r\n");
        assert_eq!(encoded(&big, Protocol::Resp2), "$3\r\n1 2\r\n");
        assert_eq!(encoded(&Reply::Boolean(true), Protocol::Resp3), "#t\r\n");
        assert_eq!(encoded(&Reply::Boolean(false), Protocol::Resp2), ":0\r\n");
    }
}
