//! `braid serve`, killed under load: clients that record every answer, of every kind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, Sender};

use fastrand::Rng;

use crate::common::{braid, expect_code};
use crate::serve::{Client, command, serve, stop};

const WRITERS: usize = 3;

/// Requests that a writer sends before it reads their answers.
const BATCH: usize = 6;

/// Data of one writer that changes by one request at a time.
#[derive(Clone, Debug, PartialEq)]
enum Datum {
    /// A string that is set and deleted.
    Text(Option<u64>),
    /// A list that grows at its end and shrinks at its start.
    List(VecDeque<u64>),
    /// A hash whose fields are set and deleted.
    Fields(BTreeMap<u64, u64>),
    /// A counter, a set and a stream that MULTI changes together.
    Together(u64),
}

impl Datum {
    /// Changes the datum; returns the request and its answers.
    fn change(&mut self, name: &str, number: u64, rng: &mut Rng) -> (String, Vec<String>) {
        match self {
            Datum::Text(text) if rng.u8(..4) == 0 => {
                let existed = u8::from(text.take().is_some());
                (format!("DEL {name}"), vec![format!(":{existed}")])
            }
            Datum::Text(text) => {
                *text = Some(number);
                (format!("SET {name} {number}"), vec!["+OK".to_owned()])
            }
            Datum::List(list) if rng.bool() => {
                let first = list.pop_front();
                (format!("LPOP {name}"), vec![shown(first)])
            }
            Datum::List(list) => {
                list.push_back(number);
                let len = list.len();
                (format!("RPUSH {name} {number}"), vec![format!(":{len}")])
            }
            Datum::Fields(fields) => {
                let field = rng.u64(..5);
                if rng.u8(..3) == 0 {
                    let existed = u8::from(fields.remove(&field).is_some());
                    (format!("HDEL {name} {field}"), vec![format!(":{existed}")])
                } else {
                    let is_new = u8::from(fields.insert(field, number).is_none());
                    let request = format!("HSET {name} {field} {number}");
                    (request, vec![format!(":{is_new}")])
                }
            }
            Datum::Together(count) => {
                *count += 1;
                let request = format!(
                    "MULTI\r\nINCR {name}\r\nSADD {name}:set {count}\r\nXADD {name}:stream {count} f v\r\nEXEC"
                );
                let mut answers = vec!["+OK".to_owned()];
                answers.extend(vec!["+QUEUED".to_owned(); 3]);
                answers.push(format!("[:{count} :1 {count}-0]"));
                (request, answers)
            }
        }
    }

    /// Returns the requests that read the datum, and their answers.
    fn reading(&self, name: &str) -> Vec<(String, String)> {
        match self {
            Datum::Text(text) => vec![(format!("GET {name}"), shown(*text))],
            Datum::List(list) => vec![(format!("LRANGE {name} 0 -1"), listed(list))],
            Datum::Fields(fields) => (0..5)
                .map(|field| {
                    let value = shown(fields.get(&field).copied());
                    (format!("HGET {name} {field}"), value)
                })
                .collect(),
            Datum::Together(count) => vec![
                (format!("GET {name}"), shown((*count > 0).then_some(*count))),
                (format!("SCARD {name}:set"), format!(":{count}")),
                (format!("XLEN {name}:stream"), format!(":{count}")),
            ],
        }
    }
}

fn shown(value: Option<u64>) -> String {
    value.map_or("nil".to_owned(), |value| value.to_string())
}

fn listed(list: &VecDeque<u64>) -> String {
    let items: Vec<String> = list.iter().map(u64::to_string).collect();
    format!("[{}]", items.join(" "))
}

/// What a writer knows of its data.
#[derive(Clone, Debug)]
struct Record {
    name: String,
    answered: Datum,
    /// The states after each request that was sent and not answered.
    unanswered: VecDeque<Datum>,
}

impl Record {
    fn newest(&self) -> Datum {
        self.unanswered.back().unwrap_or(&self.answered).clone()
    }

    /// Finds the state in which the datum survived; it becomes the answered one.
    fn settle(&mut self, client: &mut Client) {
        let found: Vec<String> = self
            .answered
            .reading(&self.name)
            .iter()
            .map(|(request, _)| {
                client.send(&format!("{request}\r\n")).unwrap();
                client.reply().unwrap()
            })
            .collect();
        let candidates = std::iter::once(&self.answered).chain(&self.unanswered);
        let matches = |datum: &&Datum| {
            let expected = datum.reading(&self.name);
            expected.iter().map(|(_, answer)| answer).eq(&found)
        };
        let survivor = candidates.rev().find(matches).cloned();
        self.answered = survivor.unwrap_or_else(|| panic!("found {found:?} of {self:?}"));
        self.unanswered.clear();
    }
}

fn records(writer: usize) -> Vec<Record> {
    [
        ("s", Datum::Text(None)),
        ("t", Datum::Text(None)),
        ("l", Datum::List(VecDeque::new())),
        ("h", Datum::Fields(BTreeMap::new())),
        ("m", Datum::Together(0)),
    ]
    .map(|(name, answered)| Record {
        name: format!("{name}{writer}"),
        answered,
        unanswered: VecDeque::new(),
    })
    .into()
}

/// Changes data at random until the server is killed, and compares every answer.
fn write(
    address: &str,
    records: &mut [Record],
    rng: &mut Rng,
    answered: &Sender<()>,
) -> std::io::Result<()> {
    let mut client = Client::connect(address);
    loop {
        let mut batch = String::new();
        let mut sent = Vec::new();
        for _ in 0..rng.usize(1..=BATCH) {
            let which = rng.usize(..records.len());
            let record = &mut records[which];
            let mut datum = record.newest();
            let (request, answers) = datum.change(&record.name, rng.u64(..), rng);
            record.unanswered.push_back(datum);
            batch += &format!("{request}\r\n");
            sent.push((which, answers));
        }
        client.send(&batch)?;
        for (which, answers) in sent {
            for answer in answers {
                assert_eq!(client.reply()?, answer);
            }
            let record = &mut records[which];
            record.answered = record.unanswered.pop_front().expect("it was sent");
            let _ = answered.send(());
        }
    }
}

/// Reads the writers' counters until the server is killed, and notes what it was answered.
fn read(address: &str, seen: &mut [u64; WRITERS]) -> std::io::Result<()> {
    let mut client = Client::connect(address);
    loop {
        for (writer, seen) in seen.iter_mut().enumerate() {
            client.send(&format!("GET m{writer}\r\n"))?;
            let now = client.reply()?.parse().unwrap_or(0);
            assert!(now >= *seen, "the counter went from {seen} back to {now}");
            *seen = now;
        }
    }
}

#[test]
fn every_kind_of_answer_survives_kills() {
    let seed = std::env::var("BRAID_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("BRAID_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("served");
    let mut all: Vec<Vec<Record>> = (0..WRITERS).map(records).collect();
    let mut seen = [0; WRITERS];
    for round in 0..6 {
        let mut served = serve(&path);
        let (answered, answers) = mpsc::channel();
        std::thread::scope(|scope| {
            let address = &served.address;
            for records in &mut all {
                let (mut rng, answered) = (rng.fork(), answered.clone());
                // Ends with the connection's error when the server is killed.
                scope.spawn(move || write(address, records, &mut rng, &answered).unwrap_err());
            }
            drop(answered);
            let seen = &mut seen;
            scope.spawn(move || read(address, seen).unwrap_err());
            for _ in 0..200 + rng.usize(..400) {
                answers.recv().expect("the writers work");
            }
            served.child.kill().unwrap();
        });
        served.child.wait().unwrap();
        if round % 2 == 1 {
            // The next one is killed while it starts and recovers.
            let mut starting = command(&path, &["--port", "0"]).spawn().unwrap();
            starting.kill().unwrap();
            starting.wait().unwrap();
        }
        let mut served = serve(&path);
        let mut client = Client::connect(&served.address);
        for (records, seen) in all.iter_mut().zip(&seen) {
            for record in records {
                record.settle(&mut client);
                if let Datum::Together(count) = record.answered {
                    assert!(count >= *seen, "{seen} was read, and {count} survived");
                }
            }
        }
        if round % 3 == 2 {
            stop(&mut served, "SHUTDOWN");
        } else {
            served.child.kill().unwrap();
            served.child.wait().unwrap();
        }
    }
    expect_code(&braid(&["verify", path.to_str().unwrap()]), 0);
}
