//! How clients find the keys of a request: the key specifications of COMMAND INFO, as in Redis 7.0.

use bytes::Bytes;

use super::Command;
use super::introspection::{is_numbered, uses_of};
use crate::resp::Reply;

/// Where keys begin.
enum Begin {
    /// At this argument; the name of the command is the argument 0.
    At(i32),
    /// After a word, at or after an argument.
    After(&'static str, i32),
    Unknown,
}

/// Which arguments from there on are keys.
enum Keys {
    /// Up to an argument, counted from the first key, or from the end if negative; each `step`th. With a
    /// limit of 2, the first half of them.
    Range {
        last: i32,
        step: i32,
        limit: i32,
    },
    /// As many as the argument at the beginning says, after that argument.
    Counted,
    Unknown,
}

/// What a request does to keys, as Redis names it.
type Uses = &'static [&'static str];

const ONE: Keys = Keys::Range {
    last: 0,
    step: 1,
    limit: 0,
};

/// A pair of a reply in which names and values alternate.
fn pair(name: &'static str, value: Reply) -> [Reply; 2] {
    [Reply::copied(name), value]
}

fn number(name: &'static str, value: i32) -> [Reply; 2] {
    pair(name, Reply::Integer(i64::from(value)))
}

/// Returns a reply in which names and values alternate.
fn fields<const N: usize>(pairs: [[Reply; 2]; N]) -> Reply {
    let pairs = pairs.into_iter().map(|[name, value]| (name, value));
    Reply::Map(pairs.collect())
}

fn typed(name: &'static str, spec: Reply) -> Reply {
    fields([pair("type", Reply::copied(name)), pair("spec", spec)])
}

impl Begin {
    fn show(&self) -> Reply {
        match *self {
            Begin::At(index) => typed("index", fields([number("index", index)])),
            Begin::After(word, from) => {
                let word = pair("keyword", Reply::copied(word));
                typed("keyword", fields([word, number("startfrom", from)]))
            }
            Begin::Unknown => typed("unknown", fields([])),
        }
    }
}

impl Keys {
    fn show(&self) -> Reply {
        match *self {
            Keys::Range { last, step, limit } => typed(
                "range",
                fields([
                    number("lastkey", last),
                    number("keystep", step),
                    number("limit", limit),
                ]),
            ),
            Keys::Counted => typed(
                "keynum",
                fields([
                    number("keynumidx", 0),
                    number("firstkey", 1),
                    number("keystep", 1),
                ]),
            ),
            Keys::Unknown => typed("unknown", fields([])),
        }
    }
}

/// Returns the key specifications of a command. Those of a command with subcommands belong to these.
pub(super) fn key_specs(command: &Command) -> Reply {
    let name = command.name;
    if !command.subcommands.is_empty() {
        return Reply::Set(Vec::new());
    }
    // What these do with their keys depends on their arguments.
    let is_variable = matches!(name, "bitfield" | "set");
    let (first, others) = match uses_of(command, &[]) {
        _ if is_variable => {
            let uses: Uses = &["RW", "access", "update", "variable_flags"];
            (uses, uses)
        }
        [first, others] => (first, others),
    };
    let stores = name.ends_with("store");
    let specs = match name {
        _ if is_numbered(name) && stores => vec![
            (first, Begin::At(1), ONE),
            (others, Begin::At(2), Keys::Counted),
        ],
        _ if is_numbered(name) => {
            let is_script = matches!(command.group, "scripting");
            let at = if is_script || name.starts_with('b') {
                2
            } else {
                1
            };
            vec![(first, Begin::At(at), Keys::Counted)]
        }
        "xread" | "xreadgroup" => {
            let from = if name == "xread" { 1 } else { 4 };
            let streams = Keys::Range {
                last: -1,
                step: 1,
                limit: 2,
            };
            vec![(first, Begin::After("STREAMS", from), streams)]
        }
        "georadius" | "georadiusbymember" => {
            let from = if name == "georadius" { 6 } else { 5 };
            vec![
                (first, Begin::At(1), ONE),
                (others, Begin::After("STORE", from), ONE),
                (others, Begin::After("STOREDIST", from), ONE),
            ]
        }
        // Keys that elements name, and a target anywhere among the arguments.
        "sort" => vec![
            (first, Begin::At(1), ONE),
            (first, Begin::Unknown, Keys::Unknown),
            (others, Begin::Unknown, Keys::Unknown),
        ],
        "sort_ro" => vec![
            (first, Begin::At(1), ONE),
            (first, Begin::Unknown, Keys::Unknown),
        ],
        _ => ranges(command.keys, first, others),
    };
    show(specs)
}

/// Returns the key specifications of a subcommand, whose key is the argument at an index; 0 if it has
/// none.
pub(super) fn key_specs_of_subcommand(command: &Command, name: &'static str, key: i32) -> Reply {
    let args = [command.name, name].map(|word| Bytes::from_static(word.as_bytes()));
    let [uses, _] = uses_of(command, &args);
    show(ranges((key, key, 1), uses, uses))
}

fn show(specs: Vec<(Uses, Begin, Keys)>) -> Reply {
    let specs = specs.into_iter().map(|(uses, begin, keys)| {
        let uses = uses.iter().map(|name| Reply::Status(name)).collect();
        fields([
            pair("flags", Reply::Set(uses)),
            pair("begin_search", begin.show()),
            pair("find_keys", keys.show()),
        ])
    });
    Reply::Set(specs.collect())
}

/// Returns the specifications of keys at known places: a second one if the first key has other uses.
fn ranges(
    (first, last, step): (i32, i32, i32),
    of_first: Uses,
    of_others: Uses,
) -> Vec<(Uses, Begin, Keys)> {
    let from = |at: i32| Keys::Range {
        last: if last < 0 { last } else { last - at },
        step,
        limit: 0,
    };
    match first {
        0 => Vec::new(),
        _ if of_first == of_others || last == first => {
            vec![(of_first, Begin::At(first), from(first))]
        }
        _ => vec![
            (of_first, Begin::At(first), ONE),
            (of_others, Begin::At(first + 1), from(first + 1)),
        ],
    }
}
