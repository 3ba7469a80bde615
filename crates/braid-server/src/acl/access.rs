//! What commands do with their keys.

use bytes::Bytes;

use super::selector::Access;
use crate::signature::{Flag, Signature};

/// Commands that write their keys and answer with something of what was there.
const READS_AND_WRITES: [&str; 42] = [
    "bitfield",
    "blmove",
    "blmpop",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
    "decr",
    "decrby",
    "getdel",
    "getex",
    "getset",
    "hgetdel",
    "hgetex",
    "hincrby",
    "hincrbyfloat",
    "incr",
    "incrby",
    "incrbyfloat",
    "lmove",
    "lmpop",
    "lpop",
    "move",
    "rename",
    "renamenx",
    "rpop",
    "rpoplpush",
    "setbit",
    "smove",
    "spop",
    "xautoclaim",
    "xclaim",
    "xreadgroup",
    "zincrby",
    "zmpop",
    "zpopmax",
    "zpopmin",
    "pfcount",
    "georadius",
    "georadiusbymember",
];

/// Commands that read their first key, and write the second one.
const FROM_FIRST_TO_SECOND: [&str; 8] = [
    "blmove",
    "brpoplpush",
    "copy",
    "lmove",
    "rename",
    "renamenx",
    "rpoplpush",
    "smove",
];

/// Returns the pattern of a request of SORT that names keys by the elements: nothing says which keys
/// those are.
pub(super) fn pattern_of_keys<'a>(command: &Signature, args: &'a [Bytes]) -> Option<&'a Bytes> {
    if !matches!(command.name, "sort" | "sort_ro") {
        return None;
    }
    let is = |word: &Bytes, name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    // A target with the name of an option is taken for the option, which only refuses more.
    let options = args.get(2..)?.windows(2);
    let mut patterns = options.filter(|pair| {
        (is(&pair[0], "BY") && pair[1].contains(&b'*')) || (is(&pair[0], "GET") && pair[1] != "#")
    });
    patterns.next().map(|pair| &pair[1])
}

/// Returns what a command does with its `number`th key, counted from zero.
pub(super) fn access(command: &Signature, args: &[Bytes], number: usize) -> Access {
    let name = command.name;
    if matches!(name, "eval" | "evalsha" | "fcall") {
        return Access {
            reads: true,
            writes: true,
        };
    }
    if !command.is(Flag::Write) {
        return Access {
            reads: true,
            writes: false,
        };
    }
    let moves = FROM_FIRST_TO_SECOND.contains(&name);
    if number == 0 && matches!(name, "copy" | "sort") {
        return Access {
            reads: true,
            writes: false,
        };
    }
    if number > 0 && moves {
        return Access {
            reads: false,
            writes: true,
        };
    }
    // The result is stored under the first key, and the others are read.
    let stores = name.ends_with("store") || matches!(name, "bitop" | "pfmerge");
    if stores && number > 0 {
        return Access {
            reads: true,
            writes: false,
        };
    }
    let gets = name == "set"
        && args
            .iter()
            .skip(3)
            .any(|word| word.eq_ignore_ascii_case(b"GET"));
    Access {
        reads: gets || READS_AND_WRITES.contains(&name),
        writes: true,
    }
}
