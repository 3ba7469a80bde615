//! The table of all commands.

use super::{
    Command, Control, Run, Subcommand, acl, bitfield, bits, clients, connection, diagnostics, dump,
    fields, geo, hashes, hyperloglog, info, introspection, keys, lists, memory, operations, pubsub,
    scan, server, sets, sort, sorted_sets, streams, strings, subcommands,
};
#[cfg(feature = "scripts")]
use super::{functions, scripting};
use crate::signature::{Flag, Signature, bits_of};

/// Returns all commands, ordered by name.
pub(crate) fn commands() -> &'static [Command] {
    COMMANDS
}

/// Finds a command by its name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_MAX {
        return None;
    }
    let word = word_of(name);
    let mut slot = slot_of(name, word);
    loop {
        let (number, known) = SLOTS[slot];
        let command = COMMANDS.get(usize::from(number))?;
        let own = command.name.as_bytes();
        let is_short = name.len() <= size_of::<u64>();
        // A word is all there is of a short name but its length.
        if known == word && own.len() == name.len() && (is_short || own.eq_ignore_ascii_case(name))
        {
            return Some(command);
        }
        slot = (slot + 1) % SLOT_COUNT;
    }
}

/// Longest name that is looked for; those of all commands are shorter.
const NAME_MAX: usize = 32;

/// Number of slots: several times the number of commands, so that most names have a slot of their own.
const SLOT_COUNT: usize = 1024;

/// A slot without a command.
const NO_COMMAND: (u16, u64) = (u16::MAX, 0);

/// Positions of the commands and the words of their names, each in the slot of its name or the next that
/// was free.
static SLOTS: [(u16, u64); SLOT_COUNT] = {
    let mut slots = [NO_COMMAND; SLOT_COUNT];
    let mut at = 0;
    while at < COMMANDS.len() {
        let name = COMMANDS[at].signature.name.as_bytes();
        let word = word_of(name);
        let mut slot = slot_of(name, word);
        while slots[slot].0 != NO_COMMAND.0 {
            slot = (slot + 1) % SLOT_COUNT;
        }
        slots[slot] = (at as u16, word);
        at += 1;
    }
    slots
};

/// Returns the last eight bytes of a name in lower case as a number.
const fn word_of(name: &[u8]) -> u64 {
    let mut word = 0;
    let mut at = name.len().saturating_sub(size_of::<u64>());
    while at < name.len() {
        let byte = name[at];
        let is_upper = byte.wrapping_sub(b'A') < 26;
        word = word << 8 | (byte | (is_upper as u8) << 5) as u64;
        at += 1;
    }
    word
}

/// Returns the slot of a name and its word: the upper bits of a product are mixed best.
const fn slot_of(name: &[u8], word: u64) -> usize {
    let mixed = (word ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 54) as usize % SLOT_COUNT
}

const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static [Flag],
    keys: (i32, i32, i32),
    group: &'static str,
    run: Run,
) -> Command {
    Command {
        number: 0,
        signature: Signature {
            name,
            arity,
            flags,
            flag_bits: bits_of(flags),
            keys,
            group,
        },
        subcommands: &[],
        run,
    }
}

impl Command {
    /// Adds the subcommands of a command.
    const fn with(mut self, subcommands: &'static [Subcommand]) -> Command {
        self.subcommands = subcommands;
        self
    }
}

/// Gives each command its position.
const fn numbered<const N: usize>(mut table: [Command; N]) -> [Command; N] {
    let mut at = 0;
    while at < N {
        table[at].number = at;
        at += 1;
    }
    table
}

#[rustfmt::skip]
static COMMANDS: &[Command] = &numbered([
    command("acl", -2, &[Flag::Admin, Flag::Noscript], (0, 0, 0), "server", Run::Session(acl::acl)).with(subcommands::ACL),
    command("append", 3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::append)),
    command("auth", -2, &[Flag::Fast, Flag::Noscript, Flag::NoAuth], (0, 0, 0), "connection", Run::Session(connection::auth)),
    command("bgsave", -1, &[Flag::Admin, Flag::Noscript], (0, 0, 0), "server", Run::Session(operations::bgsave)),
    command("bitcount", -2, &[Flag::Readonly], (1, 1, 1), "bitmap", Run::Data(bits::bitcount)),
    command("bitfield", -2, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "bitmap", Run::Data(bitfield::bitfield)),
    command("bitfield_ro", -2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "bitmap", Run::Data(bitfield::bitfield_ro)),
    command("bitop", -4, &[Flag::Write, Flag::Denyoom], (2, -1, 1), "bitmap", Run::Data(bits::bitop)),
    command("bitpos", -3, &[Flag::Readonly], (1, 1, 1), "bitmap", Run::Data(bits::bitpos)),
    command("blmove", 6, &[Flag::Write, Flag::Denyoom, Flag::Blocking], (1, 2, 1), "list", Run::Data(lists::moving::blmove)),
    command("blmpop", -5, &[Flag::Write, Flag::Blocking], (0, 0, 0), "list", Run::Data(lists::moving::blmpop)),
    command("blpop", -3, &[Flag::Write, Flag::Blocking], (1, -2, 1), "list", Run::Data(lists::moving::blpop)),
    command("braid.archive", 1, &[Flag::Admin, Flag::Noscript], (0, 0, 0), "server", Run::Session(operations::archive)),
    command("braid.changes", -2, &[Flag::Admin, Flag::Noscript], (0, 0, 0), "server", Run::Session(operations::changes)),
    command("braid.durability", -1, &[Flag::Noscript], (0, 0, 0), "connection", Run::Session(connection::durability)),
    command("braid.feed", -2, &[Flag::Admin, Flag::Noscript], (0, 0, 0), "server", Run::Session(operations::feed)).with(subcommands::FEED),
    command("brpop", -3, &[Flag::Write, Flag::Blocking], (1, -2, 1), "list", Run::Data(lists::moving::brpop)),
    command("brpoplpush", 4, &[Flag::Write, Flag::Denyoom, Flag::Blocking], (1, 2, 1), "list", Run::Data(lists::moving::brpoplpush)),
    command("bzmpop", -5, &[Flag::Write, Flag::Blocking], (0, 0, 0), "sortedset", Run::Data(sorted_sets::pop::bzmpop)),
    command("bzpopmax", -3, &[Flag::Write, Flag::Blocking, Flag::Fast], (1, -2, 1), "sortedset", Run::Data(sorted_sets::pop::bzpopmax)),
    command("bzpopmin", -3, &[Flag::Write, Flag::Blocking, Flag::Fast], (1, -2, 1), "sortedset", Run::Data(sorted_sets::pop::bzpopmin)),
    command("client", -2, &[Flag::Noscript], (0, 0, 0), "connection", Run::Session(clients::client)).with(subcommands::CLIENT),
    command("command", -1, &[Flag::Loading], (0, 0, 0), "server", Run::Session(introspection::command)).with(subcommands::COMMAND),
    command("config", -2, &[Flag::Admin, Flag::Noscript], (0, 0, 0), "server", Run::Session(server::config)).with(subcommands::CONFIG),
    command("copy", -3, &[Flag::Write, Flag::Denyoom], (1, 2, 1), "keyspace", Run::Data(keys::copy)),
    command("dbsize", 1, &[Flag::Readonly, Flag::Fast], (0, 0, 0), "keyspace", Run::Data(keys::dbsize)),
    command("debug", -2, &[Flag::Admin, Flag::Noscript], (0, 0, 0), "server", Run::Session(server::debug)),
    command("decr", 2, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::decr)),
    command("decrby", 3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::decrby)),
    command("del", -2, &[Flag::Write], (1, -1, 1), "keyspace", Run::Data(keys::del)),
    command("discard", 1, &[Flag::Fast, Flag::Noscript], (0, 0, 0), "transactions", Run::Executor(Control::Discard)),
    command("dump", 2, &[Flag::Readonly], (1, 1, 1), "keyspace", Run::Data(dump::dump)),
    command("echo", 2, &[Flag::Fast], (0, 0, 0), "connection", Run::Session(connection::echo)),
    #[cfg(feature = "scripts")] command("eval", -3, &[Flag::Noscript], (0, 0, 0), "scripting", Run::Script(scripting::eval)),
    #[cfg(feature = "scripts")] command("eval_ro", -3, &[Flag::Readonly, Flag::Noscript], (0, 0, 0), "scripting", Run::Script(scripting::eval)),
    #[cfg(feature = "scripts")] command("evalsha", -3, &[Flag::Noscript], (0, 0, 0), "scripting", Run::Script(scripting::evalsha)),
    #[cfg(feature = "scripts")] command("evalsha_ro", -3, &[Flag::Readonly, Flag::Noscript], (0, 0, 0), "scripting", Run::Script(scripting::evalsha)),
    command("exec", 1, &[Flag::Fast, Flag::Noscript], (0, 0, 0), "transactions", Run::Executor(Control::Exec)),
    command("exists", -2, &[Flag::Readonly, Flag::Fast], (1, -1, 1), "keyspace", Run::Data(keys::exists)),
    command("expire", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::expire)),
    command("expireat", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::expireat)),
    command("expiretime", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::expiretime)),
    #[cfg(feature = "scripts")] command("fcall", -3, &[Flag::Noscript], (0, 0, 0), "scripting", Run::Script(scripting::fcall)),
    #[cfg(feature = "scripts")] command("fcall_ro", -3, &[Flag::Readonly, Flag::Noscript], (0, 0, 0), "scripting", Run::Script(scripting::fcall)),
    command("flushall", -1, &[Flag::Write], (0, 0, 0), "keyspace", Run::Data(keys::flushall)),
    command("flushdb", -1, &[Flag::Write], (0, 0, 0), "keyspace", Run::Data(keys::flushdb)),
    #[cfg(feature = "scripts")] command("function", -2, &[Flag::Noscript, Flag::NoMulti], (0, 0, 0), "scripting", Run::Session(functions::function)).with(subcommands::FUNCTION),
    command("geoadd", -5, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "geo", Run::Data(geo::geoadd)),
    command("geodist", -4, &[Flag::Readonly], (1, 1, 1), "geo", Run::Data(geo::geodist)),
    command("geohash", -2, &[Flag::Readonly], (1, 1, 1), "geo", Run::Data(geo::geohash)),
    command("geopos", -2, &[Flag::Readonly], (1, 1, 1), "geo", Run::Data(geo::geopos)),
    command("georadius", -6, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "geo", Run::Data(geo::georadius)),
    command("georadius_ro", -6, &[Flag::Readonly], (1, 1, 1), "geo", Run::Data(geo::georadius_ro)),
    command("georadiusbymember", -5, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "geo", Run::Data(geo::georadiusbymember)),
    command("georadiusbymember_ro", -5, &[Flag::Readonly], (1, 1, 1), "geo", Run::Data(geo::georadiusbymember_ro)),
    command("geosearch", -7, &[Flag::Readonly], (1, 1, 1), "geo", Run::Data(geo::geosearch)),
    command("geosearchstore", -8, &[Flag::Write, Flag::Denyoom], (1, 2, 1), "geo", Run::Data(geo::geosearchstore)),
    command("get", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::get)),
    command("getbit", 3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "bitmap", Run::Data(bits::getbit)),
    command("getdel", 2, &[Flag::Write, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::getdel)),
    command("getex", -2, &[Flag::Write, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::getex)),
    command("getrange", 4, &[Flag::Readonly], (1, 1, 1), "string", Run::Data(strings::getrange)),
    command("getset", 3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::getset)),
    command("hdel", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hdel)),
    command("hello", -1, &[Flag::Fast, Flag::Noscript, Flag::NoAuth], (0, 0, 0), "connection", Run::Session(connection::hello)),
    command("hexists", 3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hexists)),
    command("hexpire", -6, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hexpire)),
    command("hexpireat", -6, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hexpireat)),
    command("hexpiretime", -5, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hexpiretime)),
    command("hget", 3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hget)),
    command("hgetall", 2, &[Flag::Readonly], (1, 1, 1), "hash", Run::Data(hashes::hgetall)),
    command("hgetdel", -5, &[Flag::Write, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hgetdel)),
    command("hgetex", -5, &[Flag::Write, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hgetex)),
    command("hincrby", 4, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hincrby)),
    command("hincrbyfloat", 4, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hincrbyfloat)),
    command("hkeys", 2, &[Flag::Readonly], (1, 1, 1), "hash", Run::Data(hashes::hkeys)),
    command("hlen", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hlen)),
    command("hmget", -3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hmget)),
    command("hmset", -4, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hmset)),
    command("hpersist", -5, &[Flag::Write, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hpersist)),
    command("hpexpire", -6, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hpexpire)),
    command("hpexpireat", -6, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hpexpireat)),
    command("hpexpiretime", -5, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hpexpiretime)),
    command("hpttl", -5, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hpttl)),
    command("hrandfield", -2, &[Flag::Readonly], (1, 1, 1), "hash", Run::Data(hashes::hrandfield)),
    command("hscan", -3, &[Flag::Readonly], (1, 1, 1), "hash", Run::Data(scan::hscan)),
    command("hset", -4, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hset)),
    command("hsetex", -6, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::hsetex)),
    command("hsetnx", 4, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hsetnx)),
    command("hstrlen", 3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(hashes::hstrlen)),
    command("httl", -5, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "hash", Run::Data(fields::httl)),
    command("hvals", 2, &[Flag::Readonly], (1, 1, 1), "hash", Run::Data(hashes::hvals)),
    command("incr", 2, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::incr)),
    command("incrby", 3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::incrby)),
    command("incrbyfloat", 3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::incrbyfloat)),
    command("info", -1, &[Flag::Loading], (0, 0, 0), "server", Run::Session(info::info)),
    command("keys", 2, &[Flag::Readonly], (0, 0, 0), "keyspace", Run::Data(keys::keys)),
    command("lastsave", 1, &[Flag::Fast], (0, 0, 0), "server", Run::Session(operations::lastsave)),
    command("latency", -2, &[Flag::Admin, Flag::Noscript, Flag::Loading], (0, 0, 0), "server", Run::Session(diagnostics::latency)).with(subcommands::LATENCY),
    command("lcs", -3, &[Flag::Readonly], (1, 2, 1), "string", Run::Data(strings::lcs)),
    command("lindex", 3, &[Flag::Readonly], (1, 1, 1), "list", Run::Data(lists::lindex)),
    command("linsert", 5, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "list", Run::Data(lists::linsert)),
    command("llen", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "list", Run::Data(lists::llen)),
    command("lmove", 5, &[Flag::Write, Flag::Denyoom], (1, 2, 1), "list", Run::Data(lists::moving::lmove)),
    command("lmpop", -4, &[Flag::Write], (0, 0, 0), "list", Run::Data(lists::moving::lmpop)),
    command("lolwut", -1, &[Flag::Readonly, Flag::Fast], (0, 0, 0), "server", Run::Session(server::lolwut)),
    command("lpop", -2, &[Flag::Write, Flag::Fast], (1, 1, 1), "list", Run::Data(lists::lpop)),
    command("lpos", -3, &[Flag::Readonly], (1, 1, 1), "list", Run::Data(lists::lpos)),
    command("lpush", -3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "list", Run::Data(lists::lpush)),
    command("lpushx", -3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "list", Run::Data(lists::lpushx)),
    command("lrange", 4, &[Flag::Readonly], (1, 1, 1), "list", Run::Data(lists::lrange)),
    command("lrem", 4, &[Flag::Write], (1, 1, 1), "list", Run::Data(lists::lrem)),
    command("lset", 4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "list", Run::Data(lists::lset)),
    command("ltrim", 4, &[Flag::Write], (1, 1, 1), "list", Run::Data(lists::ltrim)),
    command("memory", -2, &[Flag::Readonly], (2, 2, 1), "server", Run::Data(memory::memory)).with(subcommands::MEMORY),
    command("mget", -2, &[Flag::Readonly, Flag::Fast], (1, -1, 1), "string", Run::Data(strings::mget)),
    command("monitor", 1, &[Flag::Admin, Flag::Noscript, Flag::NoMulti], (0, 0, 0), "server", Run::Session(diagnostics::monitor)),
    command("move", 3, &[Flag::Write, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::move_)),
    command("mset", -3, &[Flag::Write, Flag::Denyoom], (1, -1, 2), "string", Run::Data(strings::mset)),
    command("msetnx", -3, &[Flag::Write, Flag::Denyoom], (1, -1, 2), "string", Run::Data(strings::msetnx)),
    command("multi", 1, &[Flag::Fast, Flag::Noscript], (0, 0, 0), "transactions", Run::Executor(Control::Multi)),
    command("object", -2, &[Flag::Readonly], (2, -1, 1), "keyspace", Run::Data(keys::object)).with(subcommands::OBJECT),
    command("persist", 2, &[Flag::Write, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::persist)),
    command("pexpire", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::pexpire)),
    command("pexpireat", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::pexpireat)),
    command("pexpiretime", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::pexpiretime)),
    command("pfadd", -2, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "hyperloglog", Run::Data(hyperloglog::pfadd)),
    command("pfcount", -2, &[Flag::Readonly], (1, -1, 1), "hyperloglog", Run::Data(hyperloglog::pfcount)),
    command("pfmerge", -2, &[Flag::Write, Flag::Denyoom], (1, -1, 1), "hyperloglog", Run::Data(hyperloglog::pfmerge)),
    command("ping", -1, &[Flag::Fast], (0, 0, 0), "connection", Run::Session(connection::ping)),
    command("psetex", 4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "string", Run::Data(strings::psetex)),
    command("psubscribe", -2, &[Flag::Pubsub, Flag::Noscript], (0, 0, 0), "pubsub", Run::Session(pubsub::subscribe_patterns)),
    command("pttl", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::pttl)),
    command("publish", 3, &[Flag::Pubsub, Flag::Fast], (0, 0, 0), "pubsub", Run::Session(pubsub::publish)),
    command("pubsub", -2, &[Flag::Pubsub], (0, 0, 0), "pubsub", Run::Session(pubsub::pubsub)).with(subcommands::PUBSUB),
    command("punsubscribe", -1, &[Flag::Pubsub, Flag::Noscript], (0, 0, 0), "pubsub", Run::Session(pubsub::unsubscribe_patterns)),
    command("quit", -1, &[Flag::Fast, Flag::NoAuth], (0, 0, 0), "connection", Run::Session(connection::quit)),
    command("randomkey", 1, &[Flag::Readonly], (0, 0, 0), "keyspace", Run::Data(keys::randomkey)),
    command("rename", 3, &[Flag::Write], (1, 2, 1), "keyspace", Run::Data(keys::rename)),
    command("renamenx", 3, &[Flag::Write, Flag::Fast], (1, 2, 1), "keyspace", Run::Data(keys::renamenx)),
    command("reset", 1, &[Flag::Fast, Flag::Noscript, Flag::NoAuth], (0, 0, 0), "connection", Run::Session(connection::reset)),
    command("restore", -4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "keyspace", Run::Data(dump::restore)),
    command("role", 1, &[Flag::Fast, Flag::Noscript], (0, 0, 0), "server", Run::Session(server::role)),
    command("rpop", -2, &[Flag::Write, Flag::Fast], (1, 1, 1), "list", Run::Data(lists::rpop)),
    command("rpoplpush", 3, &[Flag::Write, Flag::Denyoom], (1, 2, 1), "list", Run::Data(lists::moving::rpoplpush)),
    command("rpush", -3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "list", Run::Data(lists::rpush)),
    command("rpushx", -3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "list", Run::Data(lists::rpushx)),
    command("sadd", -3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "set", Run::Data(sets::sadd)),
    command("save", 1, &[Flag::Admin, Flag::Noscript, Flag::NoMulti], (0, 0, 0), "server", Run::Session(operations::save)),
    command("scan", -2, &[Flag::Readonly], (0, 0, 0), "keyspace", Run::Data(scan::scan)),
    command("scard", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "set", Run::Data(sets::scard)),
    #[cfg(feature = "scripts")] command("script", -2, &[Flag::Noscript], (0, 0, 0), "scripting", Run::Session(scripting::script)).with(subcommands::SCRIPT),
    command("sdiff", -2, &[Flag::Readonly], (1, -1, 1), "set", Run::Data(sets::sdiff)),
    command("sdiffstore", -3, &[Flag::Write, Flag::Denyoom], (1, -1, 1), "set", Run::Data(sets::sdiffstore)),
    command("select", 2, &[Flag::Fast], (0, 0, 0), "connection", Run::Session(connection::select)),
    command("set", -3, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "string", Run::Data(strings::set)),
    command("setbit", 4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "bitmap", Run::Data(bits::setbit)),
    command("setex", 4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "string", Run::Data(strings::setex)),
    command("setnx", 3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::setnx)),
    command("setrange", 4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "string", Run::Data(strings::setrange)),
    command("shutdown", -1, &[Flag::Admin, Flag::Noscript, Flag::NoMulti], (0, 0, 0), "server", Run::Session(server::shutdown)),
    command("sinter", -2, &[Flag::Readonly], (1, -1, 1), "set", Run::Data(sets::sinter)),
    command("sintercard", -3, &[Flag::Readonly], (0, 0, 0), "set", Run::Data(sets::sintercard)),
    command("sinterstore", -3, &[Flag::Write, Flag::Denyoom], (1, -1, 1), "set", Run::Data(sets::sinterstore)),
    command("sismember", 3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "set", Run::Data(sets::sismember)),
    command("slowlog", -2, &[Flag::Admin, Flag::Loading], (0, 0, 0), "server", Run::Session(diagnostics::slowlog)).with(subcommands::SLOWLOG),
    command("smembers", 2, &[Flag::Readonly], (1, 1, 1), "set", Run::Data(sets::smembers)),
    command("smismember", -3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "set", Run::Data(sets::smismember)),
    command("smove", 4, &[Flag::Write, Flag::Fast], (1, 2, 1), "set", Run::Data(sets::smove)),
    command("sort", -2, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "keyspace", Run::Data(sort::sort)),
    command("sort_ro", -2, &[Flag::Readonly], (1, 1, 1), "keyspace", Run::Data(sort::sort_ro)),
    command("spop", -2, &[Flag::Write, Flag::Fast], (1, 1, 1), "set", Run::Data(sets::spop)),
    command("spublish", 3, &[Flag::Pubsub, Flag::Fast], (0, 0, 0), "pubsub", Run::Session(pubsub::spublish)),
    command("srandmember", -2, &[Flag::Readonly], (1, 1, 1), "set", Run::Data(sets::srandmember)),
    command("srem", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "set", Run::Data(sets::srem)),
    command("sscan", -3, &[Flag::Readonly], (1, 1, 1), "set", Run::Data(scan::sscan)),
    command("ssubscribe", -2, &[Flag::Pubsub, Flag::Noscript], (0, 0, 0), "pubsub", Run::Session(pubsub::subscribe_shards)),
    command("strlen", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "string", Run::Data(strings::strlen)),
    command("subscribe", -2, &[Flag::Pubsub, Flag::Noscript], (0, 0, 0), "pubsub", Run::Session(pubsub::subscribe_channels)),
    command("substr", 4, &[Flag::Readonly], (1, 1, 1), "string", Run::Data(strings::getrange)),
    command("sunion", -2, &[Flag::Readonly], (1, -1, 1), "set", Run::Data(sets::sunion)),
    command("sunionstore", -3, &[Flag::Write, Flag::Denyoom], (1, -1, 1), "set", Run::Data(sets::sunionstore)),
    command("sunsubscribe", -1, &[Flag::Pubsub, Flag::Noscript], (0, 0, 0), "pubsub", Run::Session(pubsub::unsubscribe_shards)),
    command("swapdb", 3, &[Flag::Write, Flag::Fast], (0, 0, 0), "keyspace", Run::Data(keys::swapdb)),
    command("time", 1, &[Flag::Fast], (0, 0, 0), "server", Run::Session(server::time)),
    command("touch", -2, &[Flag::Readonly, Flag::Fast], (1, -1, 1), "keyspace", Run::Data(keys::exists)),
    command("ttl", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::ttl)),
    command("type", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "keyspace", Run::Data(keys::type_)),
    command("unlink", -2, &[Flag::Write, Flag::Fast], (1, -1, 1), "keyspace", Run::Data(keys::del)),
    command("unsubscribe", -1, &[Flag::Pubsub, Flag::Noscript], (0, 0, 0), "pubsub", Run::Session(pubsub::unsubscribe_channels)),
    command("unwatch", 1, &[Flag::Fast, Flag::Noscript], (0, 0, 0), "transactions", Run::Executor(Control::Unwatch)),
    command("wait", 3, &[Flag::Blocking], (0, 0, 0), "server", Run::Session(server::wait)),
    command("waitaof", 4, &[Flag::Blocking], (0, 0, 0), "server", Run::Executor(Control::Waitaof)),
    command("watch", -2, &[Flag::Fast, Flag::Noscript], (1, -1, 1), "transactions", Run::Executor(Control::Watch)),
    command("xack", -4, &[Flag::Write, Flag::Fast], (1, 1, 1), "stream", Run::Data(streams::xack)),
    command("xadd", -5, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "stream", Run::Data(streams::xadd)),
    command("xautoclaim", -6, &[Flag::Write, Flag::Fast], (1, 1, 1), "stream", Run::Data(streams::xautoclaim)),
    command("xclaim", -6, &[Flag::Write, Flag::Fast], (1, 1, 1), "stream", Run::Data(streams::xclaim)),
    command("xdel", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "stream", Run::Data(streams::xdel)),
    command("xgroup", -2, &[Flag::Write, Flag::Denyoom], (2, 2, 1), "stream", Run::Data(streams::xgroup)).with(subcommands::XGROUP),
    command("xinfo", -2, &[Flag::Readonly], (2, 2, 1), "stream", Run::Data(streams::xinfo)).with(subcommands::XINFO),
    command("xlen", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "stream", Run::Data(streams::xlen)),
    command("xpending", -3, &[Flag::Readonly], (1, 1, 1), "stream", Run::Data(streams::xpending)),
    command("xrange", -4, &[Flag::Readonly], (1, 1, 1), "stream", Run::Data(streams::xrange)),
    command("xread", -4, &[Flag::Readonly, Flag::Blocking], (0, 0, 0), "stream", Run::Data(streams::xread)),
    command("xreadgroup", -7, &[Flag::Write, Flag::Blocking], (0, 0, 0), "stream", Run::Data(streams::xreadgroup)),
    command("xrevrange", -4, &[Flag::Readonly], (1, 1, 1), "stream", Run::Data(streams::xrevrange)),
    command("xsetid", -3, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "stream", Run::Data(streams::xsetid)),
    command("xtrim", -4, &[Flag::Write], (1, 1, 1), "stream", Run::Data(streams::xtrim)),
    command("zadd", -4, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::add::zadd)),
    command("zcard", 2, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::zcard)),
    command("zcount", 4, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zcount)),
    command("zdiff", -3, &[Flag::Readonly], (0, 0, 0), "sortedset", Run::Data(sorted_sets::combine::zdiff)),
    command("zdiffstore", -4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "sortedset", Run::Data(sorted_sets::combine::zdiffstore)),
    command("zincrby", 4, &[Flag::Write, Flag::Denyoom, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::add::zincrby)),
    command("zinter", -3, &[Flag::Readonly], (0, 0, 0), "sortedset", Run::Data(sorted_sets::combine::zinter)),
    command("zintercard", -3, &[Flag::Readonly], (0, 0, 0), "sortedset", Run::Data(sorted_sets::combine::zintercard)),
    command("zinterstore", -4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "sortedset", Run::Data(sorted_sets::combine::zinterstore)),
    command("zlexcount", 4, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zlexcount)),
    command("zmpop", -4, &[Flag::Write], (0, 0, 0), "sortedset", Run::Data(sorted_sets::pop::zmpop)),
    command("zmscore", -3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::zmscore)),
    command("zpopmax", -2, &[Flag::Write, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::pop::zpopmax)),
    command("zpopmin", -2, &[Flag::Write, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::pop::zpopmin)),
    command("zrandmember", -2, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(sorted_sets::zrandmember)),
    command("zrange", -4, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zrange)),
    command("zrangebylex", -4, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zrangebylex)),
    command("zrangebyscore", -4, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zrangebyscore)),
    command("zrangestore", -5, &[Flag::Write, Flag::Denyoom], (1, 2, 1), "sortedset", Run::Data(sorted_sets::range::zrangestore)),
    command("zrank", -3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::zrank)),
    command("zrem", -3, &[Flag::Write, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::zrem)),
    command("zremrangebylex", 4, &[Flag::Write], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zremrangebylex)),
    command("zremrangebyrank", 4, &[Flag::Write], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zremrangebyrank)),
    command("zremrangebyscore", 4, &[Flag::Write], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zremrangebyscore)),
    command("zrevrange", -4, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zrevrange)),
    command("zrevrangebylex", -4, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zrevrangebylex)),
    command("zrevrangebyscore", -4, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(sorted_sets::range::zrevrangebyscore)),
    command("zrevrank", -3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::zrevrank)),
    command("zscan", -3, &[Flag::Readonly], (1, 1, 1), "sortedset", Run::Data(scan::zscan)),
    command("zscore", 3, &[Flag::Readonly, Flag::Fast], (1, 1, 1), "sortedset", Run::Data(sorted_sets::zscore)),
    command("zunion", -3, &[Flag::Readonly], (0, 0, 0), "sortedset", Run::Data(sorted_sets::combine::zunion)),
    command("zunionstore", -4, &[Flag::Write, Flag::Denyoom], (1, 1, 1), "sortedset", Run::Data(sorted_sets::combine::zunionstore)),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for (number, command) in COMMANDS.iter().enumerate() {
            assert_eq!(command.number, number);
            let upper = command.name.to_uppercase();
            assert_eq!(
                find(upper.as_bytes()).map(|found| found.name),
                Some(command.name)
            );
            assert_eq!(
                command.is(Flag::Write) as u8 + command.is(Flag::Readonly) as u8,
                u8::from(matches!(command.run, Run::Data(_)))
                    .max(u8::from(command.is(Flag::Readonly))),
                "{} reads or writes",
                command.name
            );
        }
        assert!(find(b"nosuchcommand").is_none());
        // Each has the word of another name.
        for other in [&b"\0get"[..], b"xexpiretime", b"rgeoradius_ro", b""] {
            assert!(find(other).is_none(), "{other:?}");
        }
        assert!(find(&[b'a'; 1000]).is_none());
    }

    #[test]
    fn every_command_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server.md");
        let book = std::fs::read_to_string(path).unwrap();
        for command in COMMANDS {
            let name = format!("`{}`", command.name.to_uppercase());
            assert!(book.contains(&name), "docs/server.md does not list {name}");
        }
    }
}
