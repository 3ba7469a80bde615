//! `braid serve`, killed under load: clients that record every answer, of every kind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, Sender};

use fastrand::Rng;

use crate::common::{braid, expect_code};
use crate::serve::{Client, command, serve, stop};

const WRITERS: usize = 3;

/// Requests that a writer sends before it reads their answers.
const BATCH: usize = 6;

/// With it, the server answers a write before it is durable, and no timer flushes it during the test.
const BUFFERED: &str = "BRAID.DURABILITY buffered 60000";

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
    /// The state that survives a kill.
    durable: Datum,
    /// The states after each request that was sent and may not be durable.
    later: VecDeque<Datum>,
}

impl Record {
    fn newest(&self) -> &Datum {
        self.later.back().unwrap_or(&self.durable)
    }

    /// Reads the datum.
    fn found(&self, client: &mut Client) -> std::io::Result<Vec<String>> {
        let reading = self.durable.reading(&self.name);
        let requests = reading.into_iter().map(|(request, _)| request);
        requests
            .map(|request| {
                client.send(&format!("{request}\r\n"))?;
                client.reply()
            })
            .collect()
    }

    /// Returns whether reading a state would have found this.
    fn explains(&self, state: &Datum, found: &[String]) -> bool {
        let expected = state.reading(&self.name);
        expected.iter().map(|(_, answer)| answer).eq(found)
    }

    /// Finds the state in which the datum survived; it becomes the durable one.
    fn settle(&mut self, client: &mut Client) {
        let found = self.found(client).unwrap();
        let mut candidates = std::iter::once(&self.durable).chain(&self.later).rev();
        let survivor = candidates.find(|state| self.explains(state, &found));
        self.durable = survivor
            .unwrap_or_else(|| panic!("found {found:?} of {self:?}"))
            .clone();
        self.later.clear();
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
    .map(|(name, durable)| Record {
        name: format!("{name}{writer}"),
        durable,
        later: VecDeque::new(),
    })
    .into()
}

/// What a writer was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Change,
    /// That everything which it wrote is durable.
    Waitaof,
}

/// Changes data at random until the server is killed, and compares every answer.
fn write(
    address: &str,
    records: &mut [Record],
    rng: &mut Rng,
    is_buffered: bool,
    answered: &Sender<Answer>,
) -> std::io::Result<()> {
    let mut client = Client::connect(address);
    if is_buffered {
        client.send(&format!("{BUFFERED}\r\n"))?;
        assert_eq!(client.reply()?, "buffered 60000");
    }
    loop {
        let mut batch = String::new();
        let mut sent = Vec::new();
        for _ in 0..rng.usize(1..=BATCH) {
            let which = rng.usize(..records.len());
            let record = &mut records[which];
            let mut datum = record.newest().clone();
            let (request, answers) = datum.change(&record.name, rng.u64(..), rng);
            record.later.push_back(datum);
            batch += &format!("{request}\r\n");
            sent.push((which, answers));
        }
        client.send(&batch)?;
        for (which, answers) in sent {
            for answer in answers {
                assert_eq!(client.reply()?, answer);
            }
            if !is_buffered {
                let record = &mut records[which];
                record.durable = record.later.pop_front().expect("it was sent");
            }
            let _ = answered.send(Answer::Change);
        }
        if is_buffered && rng.bool() {
            client.send("WAITAOF 1 0 0\r\n")?;
            assert_eq!(client.reply()?, "[:1 :0]");
            for record in &mut *records {
                record.durable = record.newest().clone();
                record.later.clear();
            }
            let _ = answered.send(Answer::Waitaof);
        } else if rng.u8(..4) == 0 {
            // A connection sees its own writes, also those that are not durable yet.
            let record = rng.choice(&*records).expect("there are some");
            let found = record.found(&mut client)?;
            let newest = record.newest();
            assert!(
                record.explains(newest, &found),
                "{found:?}, not {newest:?} of {}",
                record.name
            );
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
            // None of the writers has its answers before they are durable, all have, or one has.
            let buffered = [0, WRITERS, 1][round % 3];
            for (writer, records) in all.iter_mut().enumerate() {
                let (mut rng, answered) = (rng.fork(), answered.clone());
                let is_buffered = writer < buffered;
                // Ends with the connection's error when the server is killed.
                scope.spawn(move || {
                    write(address, records, &mut rng, is_buffered, &answered).unwrap_err()
                });
            }
            drop(answered);
            let seen = &mut seen;
            scope.spawn(move || read(address, seen).unwrap_err());
            // Fewer if all writers have failed: the kill ends the other threads, and the test fails.
            let count = 200 + rng.usize(..400);
            answers.iter().take(count).for_each(drop);
            // A kill right after WAITAOF finds out whether its answer was right.
            let last = if buffered > 0 {
                Answer::Waitaof
            } else {
                Answer::Change
            };
            // If the writer that sends it has failed, the others still report changes.
            answers.iter().take(10_000).find(|answer| *answer == last);
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
                if let Datum::Together(count) = record.durable {
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
