//! Memory that one transaction after another of a thread uses for keys and values.

use std::cell::Cell;

/// Longest buffer that a thread keeps for its next transaction.
const KEPT_MAX: usize = 64 << 10;

thread_local! {
    static KEPT: Cell<(Vec<u8>, Vec<u8>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// Buffers of a transaction. Their content belongs to the transaction, their memory to the thread.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Key in `keys` of the key that a command used last: a command reads an entry, and then writes it.
    pub(super) place: Vec<u8>,
    /// The entry that was written last.
    pub(super) encoded: Vec<u8>,
}

impl Scratch {
    /// Returns buffers without content.
    pub(super) fn take() -> Scratch {
        let (place, encoded) = KEPT.take();
        Scratch { place, encoded }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let keep = |buffer: &mut Vec<u8>| {
            // The place depends on the secret of the keyspace, and the thread may serve several.
            buffer.clear();
            let kept = std::mem::take(buffer);
            if kept.capacity() <= KEPT_MAX {
                kept
            } else {
                Vec::new()
            }
        };
        let kept = (keep(&mut self.place), keep(&mut self.encoded));
        // Nothing is kept by a thread that is ending.
        let _ = KEPT.try_with(|cell| cell.set(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_short_buffers_without_their_content() {
        let mut scratch = Scratch::take();
        scratch.place.extend_from_slice(&[1; 100]);
        scratch.encoded.extend_from_slice(&[2; KEPT_MAX + 1]);
        let place = scratch.place.as_ptr();
        drop(scratch);
        let scratch = Scratch::take();
        assert_eq!(scratch.place.as_ptr(), place);
        assert!(scratch.place.is_empty() && scratch.encoded.is_empty());
        assert_eq!(scratch.encoded.capacity(), 0);
        // Two transactions at once have buffers of their own.
        let other = Scratch::take();
        assert_eq!(other.place.capacity(), 0);
    }
}
