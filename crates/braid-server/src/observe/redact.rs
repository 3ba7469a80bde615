//! Arguments that may be shown: without passwords.

use std::borrow::Cow;

use bytes::Bytes;

const REDACTED: &[u8] = b"(redacted)";

/// Returns the arguments of a request with passwords replaced; `name` is the command's.
pub(crate) fn shown<'a>(name: &str, args: &'a [Bytes]) -> Cow<'a, [Bytes]> {
    let is = |at: usize, word: &str| {
        let arg = args.get(at);
        arg.is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    };
    let position = |word: &str| (1..args.len()).find(|at| is(*at, word));
    let secret = match name {
        "auth" => 1..args.len(),
        "hello" => position("AUTH").map_or(0..0, |at| at + 1..at + 3),
        "acl" if is(1, "SETUSER") => 3..args.len(),
        "config" if is(1, "SET") => position("requirepass").map_or(0..0, |at| at + 1..at + 2),
        _ => 0..0,
    };
    if secret.is_empty() {
        return Cow::Borrowed(args);
    }
    let mut shown = args.to_vec();
    for arg in shown.iter_mut().take(secret.end).skip(secret.start) {
        *arg = Bytes::from_static(REDACTED);
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (request, expected) in [
            ("auth secret", "auth (redacted)"),
            ("auth ann secret", "auth (redacted) (redacted)"),
            (
                "hello 3 AUTH ann secret SETNAME x",
                "hello 3 AUTH (redacted) (redacted) SETNAME x",
            ),
            ("hello 3 auth", "hello 3 auth"),
            (
                "acl setuser ann >secret on",
                "acl setuser ann (redacted) (redacted)",
            ),
            ("acl list", "acl list"),
            (
                "config set timeout 1 requirepass secret",
                "config set timeout 1 requirepass (redacted)",
            ),
            ("config set requirepass", "config set requirepass"),
            ("set auth secret", "set auth secret"),
        ] {
            let args: Vec<Bytes> = request
                .split(' ')
                .map(|word| Bytes::from_static(word.as_bytes()))
                .collect();
            let name = request.split(' ').next().unwrap();
            let shown: Vec<_> = shown(name, &args)
                .iter()
                .map(|arg| String::from_utf8_lossy(arg).into_owned())
                .collect();
            assert_eq!(shown.join(" "), expected);
        }
    }
}
