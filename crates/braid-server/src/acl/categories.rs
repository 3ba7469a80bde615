//! Categories of commands, as rules and COMMAND INFO name them.

use crate::signature::{Flag, Signature};

/// All categories.
pub(crate) const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Commands that take long or tell much, although they change no setting.
const DANGEROUS: [&str; 10] = [
    "client", "flushall", "flushdb", "info", "keys", "restore", "role", "sort", "sort_ro", "swapdb",
];

/// Returns whether a command belongs to a category.
pub(crate) fn belongs(command: &Signature, category: &str) -> bool {
    match category {
        "read" => command.is(Flag::Readonly),
        "write" => command.is(Flag::Write),
        "admin" => command.is(Flag::Admin),
        "fast" => command.is(Flag::Fast),
        "slow" => !command.is(Flag::Fast),
        "blocking" => command.is(Flag::Blocking),
        "dangerous" => command.is(Flag::Admin) || DANGEROUS.contains(&command.name),
        "transaction" => command.group == "transactions",
        group => command.group == group,
    }
}

/// Returns the categories of a command.
pub(crate) fn categories(command: &Signature) -> impl Iterator<Item = &'static str> {
    CATEGORIES
        .into_iter()
        .filter(|category| belongs(command, category))
}
