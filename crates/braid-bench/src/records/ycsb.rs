//! A client of YCSB.

use std::hint::black_box;

use fastrand::Rng;

use super::RECORDS;
use super::plan::{Generator, Op};
use crate::driver::{Access, Client, Step};
use crate::engines::{Order, Session, Stop, Transaction};

/// Bytes of a YCSB field, the part of a record that an update changes.
const FIELD_BYTES: usize = 100;

/// Token of a transaction that inserts no record.
const NONE: u64 = u64::MAX;

pub(super) struct YcsbClient {
    generator: Generator,
    /// The operation drawn last.
    op: Op,
    /// Its key.
    key: [u8; 8],
    /// The value to write, kept so that no transaction allocates one.
    value: Vec<u8>,
    /// Generator of the values to write.
    values: Rng,
    /// New content of an updated field.
    fresh: u8,
    /// Start of that field.
    field: usize,
    writes: u64,
}

/// Reads every byte of a value, because YCSB's reads and scans return all fields. Engines that
/// return pointers would otherwise never load the data.
#[inline]
fn consume(value: &[u8]) {
    let (words, rest) = value.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let rest = rest.iter().map(|byte| u64::from(*byte));
    black_box(words.chain(rest).fold(0, |all, word| all ^ word));
}

impl YcsbClient {
    pub(super) fn new(generator: Generator, value_size: usize) -> Self {
        let mut values = super::unseeded();
        let mut value = vec![0; value_size];
        values.fill(&mut value);
        YcsbClient {
            generator,
            op: Op::Read(0),
            key: [0; 8],
            value,
            values,
            fresh: 0,
            field: 0,
            writes: 0,
        }
    }

    fn key_of(&self, ordinal: u64) -> [u8; 8] {
        self.generator.plan().key(ordinal).to_be_bytes()
    }

    /// Makes the value differ from all others that this thread has written.
    #[inline]
    fn next_value(&mut self) {
        self.writes += 1;
        self.value[..8].copy_from_slice(&self.writes.to_le_bytes());
    }

    fn written(&self) -> Step {
        Step {
            token: NONE,
            ..Step::write(self.value.len() + 8)
        }
    }
}

impl Client for YcsbClient {
    #[inline]
    fn draw(&mut self) -> Option<Step> {
        self.op = self.generator.next();
        Some(match self.op {
            Op::Modify(ordinal) => {
                self.key = self.key_of(ordinal);
                let fields = (self.value.len() / FIELD_BYTES).max(1);
                self.field = self.generator.rng().usize(0..fields) * FIELD_BYTES;
                self.fresh = self.values.u8(..);
                self.written()
            }
            Op::Insert(ordinal) => {
                self.key = self.key_of(ordinal);
                self.next_value();
                Step {
                    token: ordinal,
                    ..self.written()
                }
            }
            Op::Read(ordinal) => {
                self.key = self.key_of(ordinal);
                Step::read(Access::Get)
            }
            Op::Scan { from, .. } => {
                self.key = self.key_of(from);
                Step::read(Access::Read)
            }
        })
    }

    #[inline]
    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        match self.op {
            Op::Insert(_) => tx.put(RECORDS, &self.key, &self.value),
            Op::Modify(_) => {
                let value = &mut self.value;
                tx.get_for_update(RECORDS, &self.key, &mut |old| {
                    if old.len() == value.len() {
                        value.copy_from_slice(old);
                    }
                })?;
                let end = value.len().min(self.field + FIELD_BYTES);
                value[self.field..end].fill(self.fresh);
                tx.put(RECORDS, &self.key, value)
            }
            Op::Scan { len, .. } => {
                let mut left = len;
                let end = [0xff; 9];
                tx.scan(
                    RECORDS,
                    &self.key,
                    &end,
                    Order::Ascending,
                    &mut |_, value| {
                        consume(value);
                        left -= 1;
                        left > 0
                    },
                )
            }
            Op::Read(_) => tx
                .get(RECORDS, &self.key, &mut |value| {
                    consume(value);
                })
                .map(|_| ()),
        }
    }

    #[inline]
    fn get(&mut self, session: &mut dyn Session) -> Result<bool, Stop> {
        session.get(RECORDS, &self.key, &mut |value| {
            consume(value);
        })
    }

    #[inline]
    fn acknowledged(&mut self, token: u64) {
        if token != NONE {
            self.generator.plan().inserted(token);
        }
    }
}
