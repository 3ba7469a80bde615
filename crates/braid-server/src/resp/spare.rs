//! Vectors for the arguments of requests, which a thread uses again.

use std::cell::RefCell;

use bytes::Bytes;

/// Most vectors for arguments that a thread keeps for its next requests, and most arguments that they
/// have room for.
const SPARE_MAX: usize = 128;
const SPARE_ARGUMENTS: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<Vec<Bytes>>> = const { RefCell::new(Vec::new()) };
}

/// Returns a vector for the arguments of a request.
pub(super) fn arguments(count: usize) -> Vec<Bytes> {
    let spare = SPARE.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| Vec::with_capacity(count.min(SPARE_ARGUMENTS)))
}

/// Keeps the vector of a request that was executed, for a later request of this thread: a pipeline has
/// more of them at once than the allocator keeps at hand.
pub(crate) fn reuse(mut arguments: Vec<Bytes>) {
    if arguments.capacity() > SPARE_ARGUMENTS || arguments.capacity() == 0 {
        return;
    }
    arguments.clear();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_MAX {
            spare.push(arguments);
        }
    });
}
