//! What a superblock says about the database: how it was made and where its log begins.

use braid_log::{LogStart, ProtocolKind};

use crate::error::{Error, Result};

/// The format of everything above the store: meta, redo records, catalog.
const FORMAT: u16 = 2;
const MAGIC: [u8; 6] = *b"BRAIDm";
const FIXED_LEN: usize = 6 + 2 + 1 + 2 + 2;

/// The properties that were fixed when the database was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) protocol: ProtocolKind,
    pub(crate) strands: u16,
    pub(crate) lanes: u16,
}

impl Meta {
    /// The bytes for a superblock whose log begins at `start`.
    pub(crate) fn encode(&self, start: &LogStart) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.push(self.protocol.id());
        bytes.extend(self.strands.to_le_bytes());
        bytes.extend(self.lanes.to_le_bytes());
        bytes.extend(start.encode());
        bytes
    }

    /// Reads a superblock's bytes, whose checksum the store has verified.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, LogStart)> {
        let damaged = || Error::Corrupted {
            what: "the superblock's description of the database".into(),
            location: "data.braid, superblock".into(),
        };
        let fixed = bytes.get(..FIXED_LEN).ok_or_else(damaged)?;
        if fixed[..6] != MAGIC {
            return Err(damaged());
        }
        let u16_at = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        if u16_at(6) != FORMAT {
            return Err(Error::Incompatible {
                what: format!(
                    "the database has format {}, this build reads {FORMAT}; use a matching version",
                    u16_at(6)
                ),
            });
        }
        let Some(protocol) = ProtocolKind::from_id(fixed[8]) else {
            return Err(Error::Incompatible {
                what: format!(
                    "commit protocol number {} is unknown to this build",
                    fixed[8]
                ),
            });
        };
        let meta = Self {
            protocol,
            strands: u16_at(9),
            lanes: u16_at(11),
        };
        let start = LogStart::decode(&bytes[FIXED_LEN..]).map_err(|_| damaged())?;
        Ok((meta, start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        Meta {
            protocol: ProtocolKind::Glsn,
            strands: 7,
            lanes: 2,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let start = LogStart {
            number: 42,
            flush: 0,
            lanes: Vec::new(),
        };
        let (decoded, decoded_start) = Meta::decode(&meta().encode(&start)).unwrap();
        assert_eq!(decoded, meta());
        assert_eq!(decoded_start.number, 42);
    }

    #[test]
    fn another_format_is_named_and_damage_is_typed() {
        let mut bytes = meta().encode(&LogStart {
            number: 1,
            flush: 0,
            lanes: Vec::new(),
        });
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
