//! Tablespaces on disk: the list in the database's directory, and the metadata in the superblocks of
//! a tablespace's data file.
//!
//! A checkpoint of the database is one of all its tablespaces. Each checkpoint has a random number,
//! its *stamp*, which is in the superblocks of all. The main tablespace's superblock is published
//! last, so after a crash a tablespace has the stamp of the main one, or has a newer checkpoint that
//! follows the one with that stamp. Any other tablespace is of another state: an older copy, or one
//! that went on without the others.
//!
//! ```text
//! TABLESPACES, fields of a note: number of entries (u8), then for each
//!   number (u8, with 128 added if the tablespace has a log of its own, and 64 if that is in another place),
//!   identity (u128), bytes of pool (u64),
//!   lengths of name, directory and device (u16 each), name, directory, device;
//! if any has a memory node or its log in another place, then for each the system's number of the node,
//!   plus 1 (u16, 0 for none);
//! then for each with its log in another place: lengths of directory and device (u16 each), directory, device
//! ```

use std::path::PathBuf;

use braid_io::DeviceChoice;
use braid_log::SeqNo;
use braid_rt::numa::{self, Place};

use crate::error::{Error, Result};

const MAGIC: [u8; 6] = *b"BRAIDt";
const FORMAT: u16 = 1;
const META_LEN: usize = 6 + 2 + 16 + 1 + 8 + 8 + 8;

/// Metadata in a superblock of a tablespace other than the main one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceMeta {
    pub(crate) identity: u128,
    pub(crate) number: u8,
    /// The stamp of the checkpoint.
    pub(crate) stamp: u64,
    /// The stamp of the newest checkpoint of the main tablespace when this one began; 0 if that has
    /// none.
    pub(crate) follows: u64,
    /// Sequence number of the checkpoint.
    pub(crate) seqno: SeqNo,
}

impl SpaceMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(self.identity.to_le_bytes());
        bytes.push(self.number);
        bytes.extend(self.stamp.to_le_bytes());
        bytes.extend(self.follows.to_le_bytes());
        bytes.extend(self.seqno.get().to_le_bytes());
        bytes
    }

    /// Decodes a superblock's metadata, whose checksum the store has verified.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::Corrupted {
            what: "the description of the tablespace is malformed".into(),
            location: "data.braid, superblock".into(),
        };
        let format = bytes.get(6..8).ok_or_else(damaged)?;
        if bytes[..6] != MAGIC {
            return Err(damaged());
        }
        let format = u16::from_le_bytes([format[0], format[1]]);
        if format != FORMAT {
            return Err(Error::Incompatible {
                what: format!(
                    "cannot open the tablespace: it has format {format}, this build reads {FORMAT}; use a matching version"
                ),
            });
        }
        let bytes: &[u8; META_LEN] = bytes.try_into().map_err(|_| damaged())?;
        let u64_at = |at: usize| {
            let field = bytes[at..].first_chunk().expect("it is in bounds");
            u64::from_le_bytes(*field)
        };
        let identity = bytes[8..].first_chunk().expect("it is in bounds");
        Ok(Self {
            identity: u128::from_le_bytes(*identity),
            number: bytes[24],
            stamp: u64_at(25),
            follows: u64_at(33),
            seqno: SeqNo::new(u64_at(41)),
        })
    }
}

/// An entry of the list of tablespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedSpace {
    pub(crate) number: u8,
    pub(crate) identity: u128,
    pub(crate) pool_bytes: u64,
    pub(crate) name: String,
    /// The directory; empty on a device that the caller provides.
    pub(crate) directory: PathBuf,
    /// How the directory is accessed.
    pub(crate) access: DeviceChoice,
    /// Whether the tablespace has a log of its own.
    pub(crate) has_log: bool,
    /// The place of its log, if that is not with its data file.
    pub(crate) log: Option<ListedLog>,
    /// The system's number of the memory node that was chosen for it.
    pub(crate) node: Option<u16>,
}

/// The place of the log of a listed tablespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedLog {
    /// The directory; empty on a device that the caller provides.
    pub(crate) directory: PathBuf,
    /// How the directory is accessed.
    pub(crate) access: DeviceChoice,
}

impl ListedSpace {
    /// Returns where the tablespace's pages are to lie in memory: on its node, if the machine has that,
    /// and otherwise spread over all, if memory is placed at all.
    pub(crate) fn memory(&self, is_placed: bool) -> Place {
        let node = self.node.map(usize::from).and_then(numa::with_system_id);
        match node {
            _ if !is_placed => Place::System,
            Some(node) => Place::Node(node),
            None => Place::Spread,
        }
    }
}

/// Added to the number of a tablespace that has a log of its own. Earlier versions find no tablespace
/// of such a number.
const WITH_LOG: u8 = 128;

/// Added to the number of a tablespace whose log is in another place. Earlier versions, which would look for
/// the log with the data file, find no tablespace of such a number.
const WITH_LOG_PLACE: u8 = 64;

/// Appends texts, after their lengths; `None` if one is too long.
fn put_texts(fields: &mut Vec<u8>, texts: &[&str]) -> Option<()> {
    for text in texts {
        fields.extend(u16::try_from(text.len()).ok()?.to_le_bytes());
    }
    texts.iter().for_each(|text| fields.extend(text.as_bytes()));
    Some(())
}

/// Encodes the list of tablespaces; `None` if a directory's name is not valid UTF-8, or a name is too
/// long.
pub(crate) fn encode_list(spaces: &[ListedSpace]) -> Option<Vec<u8>> {
    let mut fields = vec![u8::try_from(spaces.len()).ok()?];
    for space in spaces {
        let with_log = if space.has_log { WITH_LOG } else { 0 };
        let with_place = space.log.as_ref().map_or(0, |_| WITH_LOG_PLACE);
        fields.push(space.number | with_log | with_place);
        fields.extend(space.identity.to_le_bytes());
        fields.extend(space.pool_bytes.to_le_bytes());
        let access = space.access.to_string();
        let texts = [&space.name, space.directory.to_str()?, &access];
        put_texts(&mut fields, &texts)?;
    }
    let mut logs = spaces.iter().filter_map(|space| space.log.as_ref());
    if logs.clone().next().is_some() || spaces.iter().any(|space| space.node.is_some()) {
        for space in spaces {
            let field = space.node.map_or(Some(0), |node| node.checked_add(1))?;
            fields.extend(field.to_le_bytes());
        }
    }
    logs.try_for_each(|log| {
        let access = log.access.to_string();
        put_texts(&mut fields, &[log.directory.to_str()?, &access])
    })?;
    Some(fields)
}

/// The fields of a list that are not decoded yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, after) = self.0.split_at_checked(len)?;
        self.0 = after;
        Some(field)
    }

    /// Returns texts, which follow their lengths.
    fn texts<const N: usize>(&mut self) -> Option<[&'a str; N]> {
        let mut lens = [0; N];
        for len in &mut lens {
            *len = usize::from(u16::from_le_bytes(self.take(2)?.try_into().ok()?));
        }
        let mut texts = [""; N];
        for (text, len) in texts.iter_mut().zip(lens) {
            *text = std::str::from_utf8(self.take(len)?).ok()?;
        }
        Some(texts)
    }
}

/// Decodes the list of tablespaces; `None` if it is malformed.
pub(crate) fn decode_list(fields: &[u8]) -> Option<Vec<ListedSpace>> {
    let (&count, rest) = fields.split_first()?;
    let mut rest = Fields(rest);
    let mut spaces = Vec::new();
    // Indices of those with their logs in other places.
    let mut placed = Vec::new();
    for index in 0..usize::from(count) {
        let number = rest.take(1)?[0];
        let identity = u128::from_le_bytes(rest.take(16)?.try_into().ok()?);
        let pool_bytes = u64::from_le_bytes(rest.take(8)?.try_into().ok()?);
        let [name, directory, access] = rest.texts()?;
        placed.extend((number & WITH_LOG_PLACE != 0).then_some(index));
        spaces.push(ListedSpace {
            number: number & !(WITH_LOG | WITH_LOG_PLACE),
            has_log: number & WITH_LOG != 0,
            identity,
            pool_bytes,
            name: name.to_owned(),
            directory: directory.into(),
            access: access.parse().ok()?,
            log: None,
            node: None,
        });
    }
    // Nothing follows if no tablespace has a node or such a log, except the zeroes of a note.
    let nodes = 2 * spaces.len();
    let nodes = match rest.take(nodes) {
        Some(nodes) => nodes,
        None if placed.is_empty() => rest.0,
        None => return None,
    };
    for (space, field) in spaces.iter_mut().zip(nodes.chunks_exact(2)) {
        space.node = u16::from_le_bytes([field[0], field[1]]).checked_sub(1);
    }
    for index in placed {
        let [directory, access] = rest.texts()?;
        spaces[index].log = Some(ListedLog {
            directory: directory.into(),
            access: access.parse().ok()?,
        });
    }
    Some(spaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_decoded_as_it_was_encoded_and_nothing_shorter_is() {
        let meta = SpaceMeta {
            identity: 7 << 90 | 3,
            number: 63,
            stamp: u64::MAX - 1,
            follows: 17,
            seqno: SeqNo::new(42),
        };
        let mut bytes = meta.encode();
        assert_eq!(SpaceMeta::decode(&bytes).unwrap(), meta);
        for len in 0..bytes.len() {
            let decoded = SpaceMeta::decode(&bytes[..len]);
            assert!(matches!(decoded, Err(Error::Corrupted { .. })), "{len}");
        }
        bytes[6] = 9;
        let error = SpaceMeta::decode(&bytes).unwrap_err();
        assert!(matches!(&error, Error::Incompatible { what } if what.contains("format 9")));
    }

    #[test]
    fn a_list_is_decoded_as_it_was_encoded_and_nothing_shorter_is() {
        let space = |number, directory: &str| ListedSpace {
            number,
            identity: u128::from(number) << 100,
            pool_bytes: 1 << 33,
            name: format!("space {number}"),
            directory: directory.into(),
            access: DeviceChoice::PmemEmulated { line_latency: 437 },
            has_log: number == 63,
            log: (number == 63).then(|| ListedLog {
                directory: "/logs/three".into(),
                access: DeviceChoice::Uring,
            }),
            node: (number == 63).then_some(u16::MAX - 1),
        };
        for spaces in [
            Vec::new(),
            vec![space(1, "/one")],
            vec![space(1, ""), space(63, "/tablespaces/three")],
        ] {
            let fields = encode_list(&spaces).unwrap();
            assert_eq!(decode_list(&fields), Some(spaces.clone()));
            let padded = [&fields[..], &[0; 100]].concat();
            assert_eq!(decode_list(&padded), Some(spaces.clone()));
            // A list with a log's place is whole, and one without nodes has none.
            for len in 0..fields.len() {
                assert_eq!(decode_list(&fields[..len]), None, "{len}");
            }
        }
    }
}
