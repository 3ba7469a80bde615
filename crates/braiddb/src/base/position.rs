//! Position in the sequence of committed transactions, for readers of changes.

use std::fmt;

use braid_log::SeqNo;

/// Position in the order of a database's transactions, after one of them, from which a consumer of
/// changes resumes. Valid for the lifetime of the database; a restored database has other
/// positions.
///
/// Can be stored as text (`Display`, `FromStr`) or as bytes:
///
/// ```
/// # fn main() -> braid::Result<()> {
/// use braid::changes::Position;
///
/// let db = braid::Database::in_memory()?;
/// let position = db.position();
/// assert_eq!(Position::from_bytes(position.to_bytes()), position);
/// assert_eq!(position.to_string().parse::<Position>()?, position);
/// assert_eq!(position.seqno(), db.durable_seqno());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    pub(crate) identity: u128,
    pub(crate) seqno: SeqNo,
}

impl Position {
    /// Returns the sequence number of the transaction before the position.
    pub fn seqno(&self) -> u64 {
        self.seqno.get()
    }

    /// Encodes the position as 24 bytes.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.identity.to_le_bytes());
        bytes[16..].copy_from_slice(&self.seqno.get().to_le_bytes());
        bytes
    }

    /// Decodes the bytes of [`Position::to_bytes`].
    pub fn from_bytes(bytes: [u8; 24]) -> Self {
        let word = |at: usize| {
            bytes[at..at + 8]
                .iter()
                .rev()
                .fold(0, |n, b| n << 8 | u64::from(*b))
        };
        Self {
            identity: u128::from(word(0)) | u128::from(word(8)) << 64,
            seqno: SeqNo::new(word(16)),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}:{}", self.identity, self.seqno)
    }
}
