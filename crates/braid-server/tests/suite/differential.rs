//! Random commands, sent to this server and to Redis: the replies are the same, byte by byte.
//!
//! `differential.txt` has the commands, and `differential_scripts.txt` the scripts. Long runs look for new differences, of which some are on purpose
//! and rare: `BRAID_SEED` selects the commands, `BRAID_COMMANDS` their number, and with `BRAID_GO_ON` all
//! differences are printed and the test fails at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::support::{TestServer, redis_server};

/// How two replies are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Exactly,
    Unordered,
    UnorderedPairs,
    /// Numbers to ten digits after the point.
    Rounded,
    Type,
}

/// A part of a command.
#[derive(Clone, Debug)]
enum Part {
    Word(String),
    Rule(String),
    Maybe(Vec<Part>),
    Some(Vec<Part>),
}

/// The commands of `differential.txt`.
struct Grammar {
    rules: BTreeMap<String, Vec<Vec<Part>>>,
    /// A command is there as often as its weight says.
    commands: Vec<(Compare, Vec<Part>)>,
    /// Commands that run once, at the beginning.
    first: Vec<(Compare, Vec<String>)>,
}

/// Parses words up to the end or a closing bracket.
fn parts(words: &mut impl Iterator<Item = String>) -> Vec<Part> {
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        found.push(match word.as_str() {
            "[" => Part::Maybe(parts(words)),
            "{" => Part::Some(parts(words)),
            "]" | "}" => break,
            "''" => Part::Word(String::new()),
            rule if rule.starts_with('<') && rule.ends_with('>') => {
                Part::Rule(rule[1..rule.len() - 1].to_owned())
            }
            _ => Part::Word(word),
        });
    }
    found
}

fn parse(text: &str) -> Vec<Part> {
    // Brackets of options touch what they contain, and those of patterns are escaped by not being at
    // an end of the word or by containing no capital and no rule.
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        let (mut word, mut closing) = (word, Vec::new());
        let is_option =
            |inner: &str| inner.starts_with(|c: char| c.is_ascii_uppercase() || "<=[{".contains(c));
        while let Some(bracket) = word.chars().next().filter(|c| "[{".contains(*c))
            && is_option(&word[1..])
        {
            words.push(bracket.to_string());
            word = &word[1..];
        }
        while let Some(bracket) = word.chars().last().filter(|c| "]}".contains(*c))
            && word.len() > 1
            && !word.starts_with(['[', '^'])
        {
            closing.push(bracket.to_string());
            word = &word[..word.len() - 1];
        }
        words.push(word.replace('·', " ").replace('¶', "\n"));
        words.extend(closing);
    }
    parts(&mut words.into_iter())
}

impl Grammar {
    fn new(text: &str) -> Grammar {
        let (mut commands, mut first) = (Vec::new(), Vec::new());
        let mut rules: BTreeMap<String, Vec<Vec<Part>>> = BTreeMap::new();
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            if let Some((name, alternatives)) = line
                .strip_prefix('<')
                .and_then(|line| line.split_once("= "))
            {
                let name = name.trim().trim_end_matches('>').to_owned();
                let alternatives = alternatives.split(" | ").map(parse).collect();
                let before = rules.insert(name, alternatives);
                assert!(before.is_none(), "a second rule of this name: {line}");
                continue;
            }
            let mut fields = line.splitn(3, ' ');
            let weight = fields.next().unwrap();
            let compare = match fields.next() {
                Some("=") => Compare::Exactly,
                Some("~") => Compare::Unordered,
                Some("%") => Compare::UnorderedPairs,
                Some("#") => Compare::Rounded,
                Some("?") => Compare::Type,
                _ => panic!("{line}"),
            };
            let command = fields.next().unwrap_or_else(|| panic!("{line}"));
            if weight == "*" {
                let mut parts = command.split(" ; ").map(parse);
                let each = every(&rules, &parts.next().unwrap());
                let then: Vec<_> = parts.flat_map(|parts| every(&rules, &parts)).collect();
                for words in each {
                    let words = std::iter::once(words).chain(then.iter().cloned());
                    first.extend(words.map(|words| (compare, words)));
                }
                continue;
            }
            let weight = weight.parse().unwrap_or_else(|_| panic!("{line}"));
            commands.extend(std::iter::repeat_n((compare, parse(command)), weight));
        }
        Grammar {
            rules,
            commands,
            first,
        }
    }

    fn command(&self, random: &mut fastrand::Rng) -> (Compare, Vec<String>) {
        let (compare, command) = random.choice(&self.commands).unwrap();
        let mut words = Vec::new();
        self.expand(command, random, &mut words);
        (*compare, words)
    }

    fn expand(&self, parts: &[Part], random: &mut fastrand::Rng, words: &mut Vec<String>) {
        for part in parts {
            match part {
                Part::Word(word) => words.push(word.clone()),
                Part::Rule(name) => {
                    let rule = self
                        .rules
                        .get(name)
                        .unwrap_or_else(|| panic!("no rule {name}"));
                    self.expand(random.choice(rule).unwrap(), random, words);
                }
                Part::Maybe(parts) if random.bool() => self.expand(parts, random, words),
                Part::Maybe(_) => {}
                Part::Some(parts) => {
                    for _ in 0..random.u8(1..4) {
                        self.expand(parts, random, words);
                    }
                }
            }
        }
    }
}

/// Returns a command with each choice of each of its rules.
fn every(rules: &BTreeMap<String, Vec<Vec<Part>>>, parts: &[Part]) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    for part in parts {
        let choices = match part {
            Part::Word(word) => vec![vec![word.clone()]],
            Part::Rule(name) => {
                let choices = rules.get(name).unwrap_or_else(|| panic!("no rule {name}"));
                choices
                    .iter()
                    .flat_map(|choice| every(rules, choice))
                    .collect()
            }
            Part::Maybe(_) | Part::Some(_) => panic!("{part:?} has no end of choices"),
        };
        let longer = commands.iter().flat_map(|command| {
            choices
                .iter()
                .map(move |choice| [&command[..], choice].concat())
        });
        commands = longer.collect();
    }
    commands
}

/// A reply as it came.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reply {
    /// A line with its first byte.
    Line(String),
    /// The first byte, and the text; `None` for the null of RESP2.
    Text(char, Option<String>),
    /// The first byte, and the elements; `None` for the null of RESP2.
    List(char, Option<Vec<Reply>>),
}

/// Leaves of a text that is a number ten digits after the point.
fn round(text: &mut String) {
    if let Ok(number) = text.parse::<f64>() {
        *text = format!("{number:.10}");
    }
}

impl Reply {
    /// Returns the reply in the form in which it is compared.
    fn comparable(mut self, compare: Compare) -> Reply {
        let is_error = matches!(&self, Reply::Line(line) if line.starts_with('-'));
        match (compare, &mut self) {
            (Compare::Type, Reply::List(first, Some(list))) => {
                return Reply::Line(format!("{first} empty: {}", list.is_empty()));
            }
            (Compare::Type, Reply::Text(first, text)) => {
                return Reply::Line(format!("{first} null: {}", text.is_none()));
            }
            (Compare::Type, Reply::Line(line)) if !is_error => {
                line.truncate(1);
            }
            (Compare::Rounded, Reply::List(_, Some(list))) => {
                let rounded = list.drain(..).map(|reply| reply.comparable(compare));
                *list = rounded.collect();
            }
            (Compare::Rounded, Reply::Text(_, Some(text))) => round(text),
            (Compare::Rounded, Reply::Line(line)) if line.starts_with(',') => {
                let mut number = line.split_off(1);
                round(&mut number);
                line.push_str(&number);
            }
            (Compare::Unordered, Reply::List(_, Some(list))) => list.sort(),
            (Compare::UnorderedPairs, Reply::List(first, Some(list))) if list.len() % 2 == 0 => {
                let pairs = list
                    .chunks(2)
                    .map(|pair| Reply::List(*first, Some(pair.to_vec())));
                *list = pairs.collect();
                list.sort();
            }
            (Compare::UnorderedPairs, Reply::List(_, Some(list))) => list.sort(),
            _ => {}
        }
        self
    }
}

impl Reply {
    /// Returns the reply with errors that end before these words.
    fn cut(mut self, words: Option<&str>) -> Reply {
        match (&mut self, words) {
            (Reply::Line(line), Some(words)) if line.starts_with('-') => {
                line.truncate(line.find(words).unwrap_or(line.len()));
            }
            (Reply::List(_, Some(list)), Some(_)) => {
                *list = list.drain(..).map(|reply| reply.cut(words)).collect();
            }
            _ => {}
        }
        self
    }

    /// Returns the reply to EXEC with each of its parts in the form in which it is compared.
    fn replies_to(mut self, queued: &[Compare]) -> Reply {
        if let Reply::List(_, Some(list)) = &mut self {
            for (reply, compare) in list.iter_mut().zip(queued) {
                *reply = reply.clone().comparable(*compare);
            }
        }
        self
    }
}

/// A connection to one of the servers.
struct Peer<S: Read + Write> {
    stream: BufReader<S>,
}

impl<S: Read + Write> Peer<S> {
    fn ask(&mut self, words: &[String]) -> Reply {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        loop {
            // Of changes of keys that CLIENT TRACKING keeps, the servers tell at different times.
            match self.reply() {
                Reply::List('>', _) => {}
                reply => return reply,
            }
        }
    }

    fn reply(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let first = line.chars().next().expect("the connection is open");
        let len = || line[1..].parse::<i64>().unwrap();
        match first {
            '$' | '=' => {
                let text = usize::try_from(len()).ok().map(|len| {
                    let mut text = vec![0; len + 2];
                    self.stream.read_exact(&mut text).unwrap();
                    text.truncate(len);
                    let text = text.escape_ascii().to_string();
                    // Redis 7.0 shows this flag of users only after ACL SETUSER has named it.
                    text.replace(" sanitize-payload", "")
                });
                Reply::Text(first, text)
            }
            '*' | '~' | '%' | '>' => {
                let count = usize::try_from(len()).ok();
                let elements = if first == '%' { 2 } else { 1 };
                let list = count.map(|count| {
                    let replies = (0..count * elements).map(|_| self.reply());
                    let is_shown = |reply: &Reply| {
                        *reply != Reply::Text('$', Some("sanitize-payload".to_owned()))
                    };
                    replies.filter(is_shown).collect()
                });
                Reply::List(first, list)
            }
            _ => Reply::Line(line.to_owned()),
        }
    }
}

/// Requests that make a key of each type.
const SEED: &[&str] = &[
    "SET s text",
    "SET s2 abc",
    "SET n 7",
    "HSET h a 1 b 2 c 3",
    "HSET h2 d 1",
    "RPUSH l 1 2 10 3 1",
    "RPUSH l2 a b c a",
    "SADD t a b c 1",
    "SADD t2 1 2 10",
    "ZADD z 1 a 2 b 3 c",
    "ZADD z2 0 a 0 b 0 c 0 hello",
    "ZADD zl 0 a 0 b 0 c 0 hello",
    "ZADD zu 1 a 2 b -inf d",
    "ZADD zu2 1.5 a 3 c",
    "SADD tu a b e",
    "XADD x 1-1 a v",
    "XADD x 3-5 b w c w",
    "XGROUP CREATE x g1 0",
    "GEOADD g 13.361389 38.115556 a 15.087269 37.502669 b",
    "PFADD p a b",
];

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Commands to compare, and how.
struct Comparison {
    /// File with the commands.
    grammar: &'static str,
    /// Number of commands without `BRAID_COMMANDS`.
    commands: u64,
    /// Requests that make a connection's state the same on both servers.
    begin: &'static [&'static str],
    /// What of an error is not compared: from these words on.
    errors_to: Option<&'static str>,
}

#[test]
fn replies_are_those_of_redis() {
    compare(&Comparison {
        grammar: "differential.txt",
        commands: 1_500,
        begin: &[],
        errors_to: None,
    });
}

#[test]
#[cfg(feature = "scripts")]
fn replies_to_scripts_are_those_of_redis() {
    compare(&Comparison {
        grammar: "differential_scripts.txt",
        commands: 1_500,
        begin: &["FUNCTION FLUSH", "SCRIPT FLUSH"],
        errors_to: Some(" script: "),
    });
}

/// Connects to this server and to Redis.
fn connect(server: &TestServer, client: &redis::Client) -> (Peer<TcpStream>, Peer<UnixStream>) {
    let redis::ConnectionAddr::Unix(socket) = client.get_connection_info().addr() else {
        panic!("Redis has a Unix socket");
    };
    let ours = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let theirs = UnixStream::connect(socket).unwrap();
    let (ours, theirs) = (BufReader::new(ours), BufReader::new(theirs));
    (Peer { stream: ours }, Peer { stream: theirs })
}

fn compare(comparison: &Comparison) {
    let Some((client, _redis)) = redis_server() else {
        println!("SKIPPED: redis-server is not installed");
        return;
    };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("BRAID_SEED").unwrap_or(1);
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (count, goes_on) = (
        number("BRAID_COMMANDS").unwrap_or(comparison.commands),
        number("BRAID_GO_ON").is_some(),
    );
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/");
    let text = std::fs::read_to_string(format!("{directory}{}", comparison.grammar)).unwrap();
    let grammar = Grammar::new(&text);
    let server = TestServer::new();
    let mut peers = Peers {
        server: &server,
        client: &client,
        comparison,
        goes_on,
        differences: BTreeSet::new(),
    };
    for resp3 in [false, true] {
        peers.compare_session(resp3, false, &mut grammar.first.iter().cloned());
    }
    for _ in 0..count.div_ceil(SESSION) {
        let resp3 = random.bool();
        let commands = std::iter::repeat_with(|| grammar.command(&mut random));
        peers.compare_session(resp3, true, &mut commands.take(SESSION as usize));
    }
    assert!(peers.differences.is_empty(), "{:?}", peers.differences);
}

/// Random commands that a connection sends before another one begins with other data.
const SESSION: u64 = 150;

/// The servers whose replies are compared.
struct Peers<'a> {
    server: &'a TestServer,
    client: &'a redis::Client,
    comparison: &'a Comparison,
    /// Whether a difference is noted, instead of ending the test.
    goes_on: bool,
    /// Names of commands with other replies.
    differences: BTreeSet<String>,
}

impl Peers<'_> {
    /// Sends commands to both servers on connections of their own. With `ends`, none follows a
    /// difference, after which the servers may have other data.
    fn compare_session(
        &mut self,
        resp3: bool,
        ends: bool,
        commands: &mut dyn Iterator<Item = (Compare, Vec<String>)>,
    ) {
        let (mut ours, mut theirs) = connect(self.server, self.client);
        let mut log = Vec::new();
        let mut both = |words: &[String]| (ours.ask(words), theirs.ask(words));
        both(&["FLUSHALL".to_owned()]);
        for line in self.comparison.begin {
            both(&words(line));
        }
        if resp3 {
            both(&words("HELLO 3"));
        }
        for line in SEED {
            let (ours, theirs) = both(&words(line));
            assert_eq!(ours, theirs, "{line}");
        }
        let mut queued: Vec<Compare> = Vec::new();
        for (compare, words) in commands {
            log.push(
                words
                    .iter()
                    .map(|word| format!("{word:?} "))
                    .collect::<String>(),
            );
            let (mut ours, mut theirs) = both(&words);
            if ours == Reply::Line("+QUEUED".to_owned()) && ours == theirs {
                queued.push(compare);
                continue;
            }
            if words[0] == "EXEC" {
                (ours, theirs) = (ours.replies_to(&queued), theirs.replies_to(&queued));
            }
            if matches!(words[0].as_str(), "EXEC" | "DISCARD" | "RESET") {
                queued.clear();
            }
            let shown = |reply: Reply| reply.cut(self.comparison.errors_to).comparable(compare);
            let (ours, theirs) = (shown(ours), shown(theirs));
            if ours == theirs {
                continue;
            }
            if !self.goes_on {
                let before = log.join("\n");
                panic!("after\n{before}\nBraid: {ours:?}\nRedis: {theirs:?}");
            }
            self.differences.insert(words[0].clone());
            println!(
                "{}\n  Braid: {ours:?}\n  Redis: {theirs:?}",
                log.last().unwrap()
            );
            if ends {
                break;
            }
        }
    }
}
