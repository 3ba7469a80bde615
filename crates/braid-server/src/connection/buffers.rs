//! Memory for requests that arrive and replies that leave: connections without either hold none.
//!
//! Thousands of connections wait for their clients at any time. A connection therefore returns memory of
//! replies that it has emptied to its thread, which keeps it for the connection that needs it next.
//! Requests of all connections of a thread arrive in blocks that they share: a request takes no
//! memory of its own, and a block is used again when all requests in it are gone. So what outlives its
//! request is a copy, such as the name of a subscription.

use std::cell::RefCell;
use std::mem::take;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};

/// Most bytes that one read takes, and that an empty buffer which a thread keeps has room for.
const READ_LEN: usize = 16 << 10;

/// Bytes of a block that requests of several connections share: a client that waits holds one.
const BLOCK_LEN: usize = 4 << 10;

/// Room for the first replies of a connection: as much as those to a short transaction take.
const FIRST_REPLIES: usize = 256;

/// Memory of one thread.
struct Spare {
    /// What the thread reads into first: a connection that waits needs no memory for what may come.
    arriving: Box<[u8]>,
    /// The rest of the block for the next requests, without content.
    block: BytesMut,
    output: BytesMut,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::new(Spare {
        arriving: vec![0; READ_LEN].into(),
        block: BytesMut::new(),
        output: BytesMut::new(),
    });
}

/// Adds what has arrived to `input`; returns how many bytes, 0 at the end of the connection.
pub(super) fn read<R: AsyncRead + Unpin>(
    reader: &mut R,
    input: &mut BytesMut,
    context: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    SPARE.with_borrow_mut(|spare| {
        let mut buffer = ReadBuf::new(&mut spare.arriving);
        ready!(Pin::new(reader).poll_read(context, &mut buffer))?;
        let arrived = buffer.filled();
        if input.is_empty() {
            *input = place(&mut spare.block, arrived);
        } else {
            input.extend_from_slice(arrived);
        }
        Ok(arrived.len()).into()
    })
}

/// Copies bytes into the rest of a block, or into a new one.
fn place(block: &mut BytesMut, bytes: &[u8]) -> BytesMut {
    if block.capacity() < bytes.len() {
        // Takes the same block again if no request is in it any more.
        block.reserve(bytes.len().max(BLOCK_LEN));
    }
    block.extend_from_slice(bytes);
    block.split()
}

/// Gives a connection without replies memory for the first one.
pub(super) fn begin_output(output: &mut BytesMut) {
    if output.is_empty() {
        *output = SPARE.with_borrow_mut(|spare| take(&mut spare.output));
        // Other connections hold replies, too: those of a transaction wait for its commit.
        output.reserve(FIRST_REPLIES);
    }
}

/// Returns the memory of requests if all are executed.
pub(super) fn release_input(input: &mut BytesMut) {
    // Even without room it may refer to a block.
    if input.is_empty() {
        *input = BytesMut::new();
    }
}

/// Returns the memory of replies if all are written.
pub(super) fn release_output(output: &mut BytesMut) {
    if output.is_empty() {
        SPARE.with_borrow_mut(|spare| keep(take(output), &mut spare.output));
    }
}

/// Keeps an empty buffer as the thread's, or frees it.
fn keep(mut buffer: BytesMut, spare: &mut BytesMut) {
    // What was split from a buffer counts as room again when it is gone. A buffer that is larger than
    // usual is freed, however little of it is left.
    if spare.capacity() == 0 && !buffer.try_reclaim(READ_LEN + 1) {
        *spare = buffer;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Executes a request: takes it from the input, and leaves a reply.
    fn serve(input: &mut BytesMut, output: &mut BytesMut) {
        let request = input.split();
        begin_output(output);
        output.extend_from_slice(&request);
    }

    #[test]
    fn an_idle_connection_holds_no_memory_and_its_thread_one_buffer_of_each_kind() {
        let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut request = &[b'x'; 1000][..];
            let mut context = Context::from_waker(std::task::Waker::noop());
            let arrived = read(&mut request, &mut input, &mut context);
            assert!(matches!(arrived, Poll::Ready(Ok(1000))));
            let begin = input.as_ptr();
            serve(&mut input, &mut output);
            places.insert((begin, output.as_ptr()));
            output.clear();
            release_input(&mut input);
            release_output(&mut output);
            assert_eq!((input.capacity(), output.capacity()), (0, 0));
        }
        // All requests were in one block, and all replies in one buffer.
        assert_eq!(places.len(), BLOCK_LEN / 1000, "{places:?}");
    }

    #[test]
    fn a_request_remains_when_its_block_is_full() {
        let mut block = BytesMut::new();
        let request = |number: u8| vec![number; BLOCK_LEN / 3];
        let mut kept: Vec<Bytes> = Vec::new();
        for number in 0..10 {
            let arrived = place(&mut block, &request(number)).freeze();
            if number % 4 == 0 {
                kept.push(arrived);
            }
        }
        let long = place(&mut block, &[10; 3 * BLOCK_LEN]);
        for (at, kept) in kept.iter().enumerate() {
            assert_eq!(kept[..], request(4 * at as u8));
        }
        assert_eq!(long[..], [10; 3 * BLOCK_LEN]);
    }

    #[test]
    fn a_thread_keeps_no_large_buffer() {
        let mut spare = BytesMut::new();
        let mut large = BytesMut::with_capacity(READ_LEN + 1);
        large.extend_from_slice(&[0; READ_LEN]);
        // Nearly all of it was an argument of a request.
        drop(large.split());
        keep(large, &mut spare);
        assert_eq!(spare.capacity(), 0);
        keep(BytesMut::with_capacity(READ_LEN), &mut spare);
        assert_eq!(spare.capacity(), READ_LEN);
    }
}
