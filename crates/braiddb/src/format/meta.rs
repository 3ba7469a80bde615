//! Metadata in a superblock: the database's fixed properties and where its log begins.

use braid_log::{CheckpointPosition, LogOptions, ProtocolKind};
use braid_rt::narrow;

use crate::error::{Error, Result};

/// Format of everything above the store: metadata, redo records, catalog.
const FORMAT: u16 = 2;

/// The same format with a second log position: the one from which log is kept.
const FORMAT_RETAINING: u16 = 3;

/// The format of a database with further tablespaces: the stamp of the checkpoint precedes the log
/// positions, of which the second may be absent.
const FORMAT_SPACES: u16 = 4;

/// As [`FORMAT_SPACES`]; the log positions have more lanes than the database, those of tablespaces.
const FORMAT_LOGS: u16 = 5;

/// As [`FORMAT_LOGS`], with tablespaces that have an older checkpoint than the main one. Both log
/// positions are there; [`Lagging`] follows: its position, the number of tablespaces (u8), and for each
/// its number (u8) and its stamps (u64 each).
const FORMAT_LAGGING: u16 = 6;
const MAGIC: [u8; 6] = *b"BRAIDm";
const FIXED_LEN: usize = 6 + 2 + 1 + 2 + 2;

/// Properties fixed when the database was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) protocol: ProtocolKind,
    pub(crate) strands: u16,
    pub(crate) lanes: u16,
}

/// Tablespaces that have an older checkpoint than the main one, because theirs could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lagging {
    /// The log position of the oldest of these checkpoints, or an older one: recovery replays the log
    /// from there.
    pub(crate) start: CheckpointPosition,
    pub(crate) spaces: Vec<LaggingSpace>,
}

/// A tablespace that has an older checkpoint than the main one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaggingSpace {
    pub(crate) number: u8,
    /// Stamps of which its data file has one: that of its checkpoint, and that of a later one whose
    /// superblock may have been written, or 0.
    pub(crate) stamps: [u64; 2],
}

impl Lagging {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.start.encode();
        bytes.push(narrow(self.spaces.len()));
        for space in &self.spaces {
            bytes.push(space.number);
            let stamps = space.stamps.iter();
            stamps.for_each(|stamp| bytes.extend(stamp.to_le_bytes()));
        }
        bytes
    }

    /// Decodes what [`Lagging::encode`] returns; `None` if it is malformed.
    fn decode(bytes: &[u8]) -> Option<Self> {
        const LEN: usize = 1 + 8 + 8;
        let (start, rest) = CheckpointPosition::decode_first(bytes).ok()?;
        let (&count, rest) = rest.split_first()?;
        if count == 0 || rest.len() != usize::from(count) * LEN {
            return None;
        }
        let (spaces, _) = rest.as_chunks::<LEN>();
        let u64_at = |space: &[u8; LEN], at: usize| {
            let field = space[at..].first_chunk().expect("it is in bounds");
            u64::from_le_bytes(*field)
        };
        let decode = |space: &[u8; LEN]| LaggingSpace {
            number: space[0],
            stamps: [u64_at(space, 1), u64_at(space, 9)],
        };
        let spaces = spaces.iter().map(decode).collect();
        Some(Self { start, spaces })
    }

    /// Returns the stamps that the data file of a tablespace may have if it lags.
    pub(crate) fn stamps(&self, number: u8) -> Option<[u64; 2]> {
        let mut spaces = self.spaces.iter();
        let found = spaces.find(|space| space.number == number);
        found.map(|space| space.stamps)
    }
}

impl Meta {
    /// Returns the options of the log that the database fixes, and defaults for the others.
    pub(crate) fn log_options(&self, side_lanes: usize) -> LogOptions {
        LogOptions {
            protocol: self.protocol,
            strands: self.strands.into(),
            lanes: self.lanes.into(),
            side_lanes,
            ..LogOptions::default()
        }
    }

    /// Encodes the metadata for a superblock whose log begins at `start`, and is kept from
    /// `retained` on, if that is another position. `stamp` is the checkpoint's if there are further
    /// tablespaces, otherwise 0.
    pub(crate) fn encode(
        &self,
        start: &CheckpointPosition,
        retained: Option<&CheckpointPosition>,
        stamp: u64,
    ) -> Vec<u8> {
        self.encode_with(start, retained, stamp, None)
    }

    /// As [`Meta::encode`], with the tablespaces that have an older checkpoint.
    pub(crate) fn encode_with(
        &self,
        start: &CheckpointPosition,
        retained: Option<&CheckpointPosition>,
        stamp: u64,
        lagging: Option<&Lagging>,
    ) -> Vec<u8> {
        let retained = match lagging {
            Some(_) => retained.or(Some(start)),
            None => retained.filter(|retained| *retained != start),
        };
        let mut positions = retained.into_iter().chain([start]);
        let has_side_lanes = positions.any(|at| at.lanes.len() > usize::from(self.lanes));
        let format = match retained {
            _ if lagging.is_some() => FORMAT_LAGGING,
            _ if has_side_lanes => FORMAT_LOGS,
            _ if stamp != 0 => FORMAT_SPACES,
            None => FORMAT,
            Some(_) => FORMAT_RETAINING,
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(format.to_le_bytes());
        bytes.push(self.protocol.id());
        bytes.extend(self.strands.to_le_bytes());
        bytes.extend(self.lanes.to_le_bytes());
        if format >= FORMAT_SPACES {
            bytes.extend(stamp.to_le_bytes());
        }
        bytes.extend(start.encode());
        bytes.extend(retained.map(CheckpointPosition::encode).unwrap_or_default());
        bytes.extend(lagging.map(Lagging::encode).unwrap_or_default());
        bytes
    }

    /// Decodes a superblock's metadata, whose checksum the store has verified.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, CheckpointPosition)> {
        Self::decode_all(bytes).map(|all| (all.meta, all.start))
    }

    /// As [`Meta::decode`], with the parts that only some databases have.
    pub(crate) fn decode_all(bytes: &[u8]) -> Result<Decoded> {
        let damaged = || Error::Corrupted {
            what: "the description of the database is malformed".into(),
            location: "data.braid, superblock".into(),
        };
        let fixed = bytes.get(..FIXED_LEN).ok_or_else(damaged)?;
        if fixed[..6] != MAGIC {
            return Err(damaged());
        }
        let u16_at = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        let format = u16_at(6);
        if !(FORMAT..=FORMAT_LAGGING).contains(&format) {
            return Err(Error::Incompatible {
                what: format!(
                    "cannot open the database: it has format {format}, this build reads {FORMAT_LAGGING}; use a matching version",
                ),
            });
        }
        let Some(protocol) = ProtocolKind::from_id(fixed[8]) else {
            return Err(Error::Incompatible {
                what: format!(
                    "cannot open the database: it uses commit protocol number {}, which this build does not know; use a matching version",
                    fixed[8]
                ),
            });
        };
        let meta = Self {
            protocol,
            strands: u16_at(9),
            lanes: u16_at(11),
        };
        let (stamp, rest) = match format {
            FORMAT_SPACES.. => {
                let (stamp, rest) = bytes[FIXED_LEN..].split_first_chunk().ok_or_else(damaged)?;
                (u64::from_le_bytes(*stamp), rest)
            }
            _ => (0, &bytes[FIXED_LEN..]),
        };
        let (start, rest) = CheckpointPosition::decode_first(rest).map_err(|_| damaged())?;
        if format == FORMAT_LAGGING {
            let (retained, rest) = CheckpointPosition::decode_first(rest).map_err(|_| damaged())?;
            return Ok(Decoded {
                meta,
                retained: Some(retained).filter(|retained| *retained != start),
                start,
                stamp,
                lagging: Some(Lagging::decode(rest).ok_or_else(damaged)?),
            });
        }
        let retained = match (format, rest) {
            (FORMAT | FORMAT_SPACES | FORMAT_LOGS, []) => None,
            (FORMAT_RETAINING | FORMAT_SPACES | FORMAT_LOGS, rest) => {
                Some(CheckpointPosition::decode(rest).map_err(|_| damaged())?)
            }
            _ => return Err(damaged()),
        };
        Ok(Decoded {
            meta,
            start,
            retained,
            stamp,
            lagging: None,
        })
    }
}

/// The metadata of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) meta: Meta,
    /// Where the log begins.
    pub(crate) start: CheckpointPosition,
    /// The position from which log is kept beyond what recovery needs.
    pub(crate) retained: Option<CheckpointPosition>,
    /// The checkpoint's stamp if there are further tablespaces, otherwise 0.
    pub(crate) stamp: u64,
    pub(crate) lagging: Option<Lagging>,
}

impl Decoded {
    /// Returns where recovery begins to read the log.
    pub(crate) fn replay_from(&self) -> &CheckpointPosition {
        self.lagging
            .as_ref()
            .map_or(&self.start, |lagging| &lagging.start)
    }
}

#[cfg(test)]
mod tests {
    use braid_log::SeqNo;

    use super::*;

    fn meta() -> Meta {
        Meta {
            protocol: ProtocolKind::Glsn,
            strands: 7,
            lanes: 2,
        }
    }

    #[test]
    fn encoded_bytes_are_decoded() {
        let start = CheckpointPosition {
            seqno: SeqNo::new(42),
            flush: braid_log::FlushNo::NONE,
            lanes: Vec::new(),
        };
        let (decoded, decoded_start) =
            Meta::decode(&meta().encode(&start, Some(&start), 0)).unwrap();
        let older = CheckpointPosition {
            seqno: SeqNo::new(17),
            ..start.clone()
        };
        let without_end = meta().encode(&start, None, 7).len();
        for (retained, stamp) in [(None, 7), (Some(older.clone()), 0), (Some(older), 7)] {
            let bytes = meta().encode(&start, retained.as_ref(), stamp);
            let expected = Decoded {
                meta: meta(),
                start: start.clone(),
                retained: retained.clone(),
                stamp,
                lagging: None,
            };
            assert_eq!(Meta::decode_all(&bytes).unwrap(), expected);
            for len in (0..bytes.len()).filter(|len| stamp == 0 || *len != without_end) {
                assert!(Meta::decode(&bytes[..len]).is_err(), "{len}");
            }
        }
        assert_eq!(decoded, meta());
        assert_eq!(decoded_start.seqno.get(), 42);
    }

    #[test]
    fn tablespaces_with_an_older_checkpoint_are_decoded_and_nothing_shorter_is() {
        let at = |seqno| CheckpointPosition {
            seqno: SeqNo::new(seqno),
            flush: braid_log::FlushNo::NONE,
            lanes: Vec::new(),
        };
        let space = |number| LaggingSpace {
            number,
            stamps: [u64::from(number) << 40, 7],
        };
        for (retained, spaces) in [(42, vec![space(1)]), (3, vec![space(2), space(63)])] {
            let lagging = Lagging {
                start: at(17),
                spaces,
            };
            let (start, retained) = (at(42), at(retained));
            let bytes = meta().encode_with(&start, Some(&retained), 9, Some(&lagging));
            let decoded = Meta::decode_all(&bytes).unwrap();
            assert_eq!(decoded.replay_from(), &at(17));
            assert_eq!(lagging.stamps(63).is_some(), lagging.spaces.len() == 2);
            let expected = Decoded {
                meta: meta(),
                retained: Some(retained).filter(|retained| *retained != start),
                start,
                stamp: 9,
                lagging: Some(lagging),
            };
            assert_eq!(decoded, expected);
            for len in 0..bytes.len() {
                assert!(Meta::decode(&bytes[..len]).is_err(), "{len}");
            }
            assert!(Meta::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn another_format_is_named_and_damage_is_typed() {
        let start = CheckpointPosition {
            seqno: SeqNo::new(1),
            flush: braid_log::FlushNo::NONE,
            lanes: Vec::new(),
        };
        let mut bytes = meta().encode(&start, None, 0);
        for len in 0..bytes.len() {
            assert!(
                matches!(Meta::decode(&bytes[..len]), Err(Error::Corrupted { .. })),
                "{len}"
            );
        }
        bytes[6] = 9;
        let error = Meta::decode(&bytes).unwrap_err();
        assert!(matches!(&error, Error::Incompatible { what } if what.contains("format 9")));
    }
}
