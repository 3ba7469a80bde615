//! The layout of Redis' data types in ordered tables, so that one element costs one element.
//!
//! | table | key | value |
//! |---|---|---|
//! | `databases` | number of a database | its namespace |
//! | `keys` | namespace, hash, key | an [`Entry`](entry::Entry): type, expiration, and a string or a collection's identity |
//! | `elements` | identity of a collection, then what its type needs | see the type's module |
//! | `deadlines` | time of expiration, namespace, key | nothing |
//! | `field_deadlines` | earliest time of a field, namespace, key of the hash | nothing |
//! | `sizes` | namespace, stripe | number of keys that this stripe added |
//! | `garbage` | identity of a collection, a namespace, or a part of a collection | which of them |
//! | `meta` | name | secret of the hash, incarnation |
//!
//! Rules:
//!
//! - **S1** An identity or namespace is used once: it contains the number of the incarnation of the
//!   server, which is durable before the first identity is given out.
//! - **S2** A collection or database is deleted by one entry in `garbage`, in the transaction that
//!   makes it unreachable. A background thread removes the elements later, in small transactions.
//! - **S3** Every entry of `keys` with a time of expiration has an entry in `deadlines`, and the other
//!   way round, in every committed state.
//! - **S4** The sum of a namespace's stripes in `sizes` is the number of its entries in `keys`.
//!
//! S5 is in `fields`.
//!
//! Keys and members are ordered by a keyed hash first. A cursor of SCAN is therefore a position
//! among the hashes: it needs no memory in the server, survives restarts, and every element that
//! exists during the whole scan is returned. The same order gives fair random members.

mod anchors;
mod data;
mod effects;
mod elements;
mod entry;
mod fields;
mod hashed;
mod overwrite;
mod rank;
mod scratch;
mod sweep;
mod view;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid::{Database, Readable};
use bytes::Bytes;
use siphasher::sip::SipHasher13;

use anchors::KeptAnchors;

pub(crate) use crate::kind::Kind;
pub(crate) use anchors::Anchors;
pub(crate) use data::{Committed, Data, Scope};
#[cfg(feature = "scripts")]
pub(crate) use effects::Message;
pub(crate) use effects::{Arrival, Effects, Event};
pub(crate) use elements::Discarded;
pub(crate) use entry::{Body, Collection, Entry, StreamHead, read_u64, read_u128};
pub(crate) use rank::{RankIndex, height};
pub(crate) use sweep::Sweeper;
pub(crate) use view::Bucket;

/// Bits of an identity that count within one incarnation of the server.
const IDENTITY_BITS: u32 = 40;

/// The tables, and what is needed to find something in them.
#[derive(Debug)]
pub(crate) struct Keyspace {
    pub(crate) db: Database,
    pub(crate) databases: Bucket,
    pub(crate) keys: Bucket,
    pub(crate) elements: Bucket,
    pub(crate) deadlines: Bucket,
    pub(crate) field_deadlines: Bucket,
    pub(crate) sizes: Bucket,
    pub(crate) garbage: Bucket,
    /// Whether events of keys are recorded.
    pub(crate) notifies: AtomicBool,
    /// Whether changed keys are recorded.
    pub(crate) tracks: AtomicBool,
    /// Secret of the hash: clients cannot choose keys that collide.
    secret: [u8; 16],
    /// Next identity.
    next: AtomicU64,
    /// Parts of the rank indexes that were changed last.
    anchors: KeptAnchors,
}

impl Keyspace {
    /// Opens the tables, and begins a new incarnation, which is durable when this returns (S1).
    pub(crate) fn open(db: Database) -> braid::Result<Keyspace> {
        let meta: Bucket = db.open_table("meta")?;
        let (secret, incarnation) = db.transact(|tx| {
            let secret = match tx.get(&meta, &b"secret"[..])? {
                Some(secret) => secret,
                None => {
                    let secret = Bytes::copy_from_slice(&random_secret());
                    tx.insert(&meta, &b"secret"[..], &secret)?;
                    secret
                }
            };
            let last = tx.get(&meta, &b"incarnation"[..])?;
            let incarnation = last.map_or(0, |last| read_u64(&last)) + 1;
            tx.insert(&meta, &b"incarnation"[..], &incarnation.to_be_bytes()[..])?;
            Ok((secret, incarnation))
        })?;
        let secret = secret
            .first_chunk()
            .copied()
            .ok_or_else(|| braid::Error::Decode {
                type_name: "secret of the hash",
                reason: "it has fewer than 16 bytes".to_owned(),
            })?;
        Ok(Keyspace {
            databases: db.open_table("databases")?,
            keys: db.open_table("keys")?,
            elements: db.open_table("elements")?,
            deadlines: db.open_table("deadlines")?,
            field_deadlines: db.open_table("field_deadlines")?,
            sizes: db.open_table("sizes")?,
            garbage: db.open_table("garbage")?,
            notifies: AtomicBool::new(false),
            tracks: AtomicBool::new(false),
            secret,
            next: AtomicU64::new(incarnation << IDENTITY_BITS),
            anchors: KeptAnchors::default(),
            db,
        })
    }

    /// Returns an identity that was never used (S1).
    pub(crate) fn new_identity(&self) -> u64 {
        // Relaxed: the numbers only have to differ.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the keyed hash of a key or member.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        SipHasher13::new_with_key(&self.secret).hash(name)
    }

    /// Returns `prefix`, the hash of `name`, and `name`.
    pub(crate) fn hashed_key(&self, prefix: &[u8], name: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        self.hashed_key_to(prefix, name, &mut key);
        key
    }

    /// Replaces the content of `key` by what [`Keyspace::hashed_key`] returns.
    fn hashed_key_to(&self, prefix: &[u8], name: &[u8], key: &mut Vec<u8>) {
        key.clear();
        self.append_hashed_key(prefix, name, key);
    }

    /// Appends what [`Keyspace::hashed_key`] returns.
    fn append_hashed_key(&self, prefix: &[u8], name: &[u8], key: &mut Vec<u8>) {
        key.reserve(prefix.len() + 8 + name.len());
        key.extend_from_slice(prefix);
        key.extend_from_slice(&hashed::position(self.hash(name)).to_be_bytes());
        key.extend_from_slice(name);
    }
}

/// Returns bytes that clients cannot predict: the standard library seeds its hash maps from the
/// operating system.
fn random_secret() -> [u8; 16] {
    use std::hash::BuildHasher;
    let word = || std::collections::hash_map::RandomState::new().hash_one(0);
    (u128::from(word()) << 64 | u128::from(word())).to_be_bytes()
}

/// Returns the milliseconds since 1970.
fn now_ms() -> u64 {
    braid_rt::wall_clock().as_millis() as u64
}
