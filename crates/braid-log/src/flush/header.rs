//! The order of the two writes to a segment's header block.

use std::sync::Arc;

use braid_io::AlignedBuf;

use crate::base::sync::Mutex;

/// Lets the header of a segment reach the device before its successor mark.
///
/// The segment's first flush writes the header block. The first flush of the next segment writes it
/// again, with the mark, and both flushes may be in flight. A device performs two such writes in any
/// order, so the mark could be overwritten. The second flush therefore leaves the mark to the first
/// one, if that is not finished: nothing of the second is acknowledged before the first is.
#[derive(Clone, Debug)]
pub(crate) struct HeaderOrder(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    Writing,
    /// The header is not written, and the mark must follow it.
    Marked(AlignedBuf),
    Written,
}

impl HeaderOrder {
    /// Of a header that its segment's first flush will write.
    pub(crate) fn unwritten() -> Self {
        Self(Arc::new(Mutex::new(State::Writing)))
    }

    /// Of a header that the device has.
    pub(crate) fn written() -> Self {
        Self(Arc::new(Mutex::new(State::Written)))
    }

    /// Notes that the header is written. Returns the block with the mark if the caller must write it.
    pub(crate) fn finish(&self) -> Option<AlignedBuf> {
        match std::mem::replace(&mut *self.0.lock(), State::Written) {
            State::Marked(block) => Some(block),
            State::Writing | State::Written => None,
        }
    }

    /// Returns the block with the mark if the caller must write it; otherwise the first flush does.
    pub(crate) fn mark(&self, block: AlignedBuf) -> Option<AlignedBuf> {
        let mut state = self.0.lock();
        if matches!(*state, State::Written) || braid_rt::mutant!("mark_an_unwritten_header") {
            return Some(block);
        }
        *state = State::Marked(block);
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn block(byte: u8) -> AlignedBuf {
        let mut block = AlignedBuf::new(4096);
        block.fill(byte);
        block
    }

    #[test]
    fn a_mark_is_written_after_its_header() {
        let order = HeaderOrder::unwritten();
        let first_flush = order.clone();
        assert!(order.mark(block(1)).is_none());
        let left = first_flush.finish().expect("the mark that was left");
        assert_eq!(left[0], 1);
        assert!(first_flush.finish().is_none());

        let order = HeaderOrder::unwritten();
        assert!(order.finish().is_none());
        assert_eq!(order.mark(block(2)).expect("the header is written")[0], 2);
        assert!(HeaderOrder::written().mark(block(3)).is_some());
    }
}
