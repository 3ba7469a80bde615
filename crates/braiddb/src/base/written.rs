//! Sequence numbers of the store's records.

use braid_log::SeqNo;
use braid_store::RecordMeta;

/// The store knows no transactions: what it calls the version of a record is the sequence number
/// of the transaction that wrote it.
pub(crate) trait Written {
    /// Returns the sequence number of the transaction that wrote the record.
    fn seqno(&self) -> SeqNo;
}

impl Written for RecordMeta {
    #[inline(always)]
    fn seqno(&self) -> SeqNo {
        SeqNo::new(self.version)
    }
}
