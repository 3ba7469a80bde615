//! A shared buffer: several threads fill it at once, each its own reservation.
//!
//! Reservations are handed out one after the other, so no two overlap. So it is sound to write them
//! without a latch. The whole buffer is read only when all reservations are filled.

use std::ops::Range;
use std::sync::Arc;

use braid_io::AlignedBuf;

use crate::base::sync::Backoff;

/// Length of a cache line, in bytes.
const LINE: usize = 64;

/// Maximum number of lines to prefetch for an append: the processor recognizes a longer one itself.
const PREFETCHED_MAX: usize = 4;

/// The buffer.
#[derive(Debug)]
pub(crate) struct SharedBuffer {
    /// Shared only with the reservations that are not filled yet.
    buf: Arc<AlignedBuf>,
    /// Whether a reservation was handed out since all were last known to be filled.
    is_shared: bool,
    size: usize,
    /// The bytes from here on belong to no reservation.
    end: usize,
    /// Bytes that were zeroes at the end of the last [`SharedBuffer::pad`] or
    /// [`SharedBuffer::reset`].
    zeroes: Range<usize>,
}

/// A reservation of a part of the buffer, which its owner fills.
#[derive(Debug)]
pub(crate) struct Reservation {
    buf: Arc<AlignedBuf>,
    at: usize,
    len: usize,
}

impl SharedBuffer {
    /// Creates a shared buffer from `buf`, which is zeroed, as a device's buffers are.
    pub(crate) fn new(buf: AlignedBuf) -> Self {
        let zeroes = 0..buf.len();
        Self {
            size: buf.len(),
            buf: Arc::new(buf),
            is_shared: false,
            end: 0,
            zeroes,
        }
    }

    /// The address and the length of the memory.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.buf.as_non_null().as_ptr().addr(), self.buf.len())
    }

    /// Bytes that are handed out.
    pub(crate) fn len(&self) -> usize {
        self.end
    }

    /// Bytes that are left.
    pub(crate) fn room(&self) -> usize {
        self.size - self.end
    }

    /// Limits the bytes that can be handed out to `size`.
    pub(crate) fn limit(&mut self, size: usize) {
        debug_assert!(self.end <= size && size <= self.buf.len());
        self.size = size;
    }

    /// Resets the buffer to its first `end` bytes. All reservations must be filled.
    pub(crate) fn reset(&mut self, end: usize) {
        let is_finished = !self.is_shared || Arc::get_mut(&mut self.buf).is_some();
        assert!(
            is_finished && end <= self.size,
            "a buffer is used again when it is finished"
        );
        self.is_shared = false;
        self.zeroes.start = self.zeroes.start.max(self.end);
        self.end = end;
    }

    /// Appends the bytes that `write` writes to the beginning of the `most` bytes passed to it.
    /// `write` returns their number, and leaves the other bytes unchanged.
    #[inline]
    pub(crate) fn append_with(&mut self, most: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        assert!(most <= self.room(), "there is room");
        // SAFETY: these bytes lie in the buffer and in no reservation; with `&mut self` no thread
        // can reserve them meanwhile, and no thread reads the whole buffer.
        let free = unsafe {
            let start = self.buf.as_non_null().as_ptr().add(self.end);
            std::slice::from_raw_parts_mut(start, most)
        };
        let len = write(free);
        assert!(len <= most, "what was written was given");
        self.end += len;
        self.prefetch(len);
    }

    /// Prefetches the cache lines that the next append of about `len` bytes begins. The last use of
    /// a buffer is so long ago that its lines have left the processor's caches.
    #[inline]
    fn prefetch(&self, len: usize) {
        let mut line = self.buf.as_non_null().as_ptr().wrapping_add(self.end);
        let mut left = (len / LINE + 1).min(PREFETCHED_MAX);
        while left > 0 {
            line = line.wrapping_add(LINE);
            braid_rt::prefetch_for_write(line);
            left -= 1;
        }
    }

    /// Hands out a reservation.
    pub(crate) fn reserve(&mut self, len: usize) -> Reservation {
        assert!(len <= self.room(), "there is room");
        let at = self.end;
        self.end += len;
        self.is_shared = true;
        Reservation {
            buf: Arc::clone(&self.buf),
            at,
            len,
        }
    }

    /// Whether `bytes` bytes have room at `at`, after what is handed out.
    pub(crate) fn has_room_at(&self, at: usize, bytes: usize) -> bool {
        self.end <= at && at + bytes <= self.size
    }

    /// Puts `bytes` at `at`, after what is handed out, with zeroes in between.
    pub(crate) fn append_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.has_room_at(at, bytes.len()), "there is room");
        self.pad(at);
        self.finished()[at..at + bytes.len()].copy_from_slice(bytes);
        self.zeroes.start = self.zeroes.start.max(at + bytes.len());
        self.end = at + bytes.len();
    }

    /// Fills the bytes after the reservations with zeroes, up to `to`, where they are not zero
    /// already.
    pub(crate) fn pad(&mut self, to: usize) {
        let end = self.end;
        let known = self.zeroes.start.clamp(end, to)..self.zeroes.end.clamp(end, to);
        let whole = self.finished();
        if known.is_empty() {
            whole[end..to].fill(0);
            self.zeroes = end..to;
        } else {
            whole[end..known.start].fill(0);
            whole[known.end..to].fill(0);
            self.zeroes = end..to.max(self.zeroes.end);
        }
    }

    /// Returns the whole buffer. Waits for reservations that are not filled yet: each is a copy
    /// that a thread has begun.
    pub(crate) fn finished(&mut self) -> &mut [u8] {
        if self.is_shared {
            self.wait_for_reservations();
        }
        let (start, len) = (self.buf.as_non_null().as_ptr(), self.buf.len());
        // SAFETY: the bytes are those of the buffer, which lives as long as `self`. All reservations
        // are filled and dropped, and with `&mut self` no other is handed out meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    #[cold]
    fn wait_for_reservations(&mut self) {
        let mut backoff = Backoff::default();
        // `get_mut` acquires the writes that the owners of the reservations released when they
        // dropped them.
        while Arc::get_mut(&mut self.buf).is_none() {
            backoff.wait();
        }
        self.is_shared = false;
    }
}

impl Reservation {
    /// Splits off the first `len` bytes.
    pub(crate) fn split_front(&mut self, len: usize) -> Reservation {
        assert!(len <= self.len, "a part of the part");
        let front = Reservation {
            buf: Arc::clone(&self.buf),
            at: self.at,
            len,
        };
        self.at += len;
        self.len -= len;
        front
    }

    /// Fills the reservation with `log_records`, which have its length.
    pub(crate) fn fill<'a>(self, log_records: impl Iterator<Item = &'a [u8]>) {
        // SAFETY: the bytes lie in the buffer and, since reservations do not overlap, belong to
        // this reservation only; the buffer is not read before the reservation is dropped.
        let mut rest = unsafe {
            let start = self.buf.as_non_null().as_ptr().add(self.at);
            std::slice::from_raw_parts_mut(start, self.len)
        };
        for log_record in log_records {
            let (to, after) = rest.split_at_mut(log_record.len());
            to.copy_from_slice(log_record);
            rest = after;
        }
        assert!(rest.is_empty(), "a part is filled completely");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_padded_with_zeroes() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut buf = SharedBuffer::new(AlignedBuf::new(1024));
        for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
            buf.reset(8);
            for _ in 0..rng.usize(..4) {
                let len = rng.usize(..=buf.room().min(200));
                buf.append_with(len, |free| {
                    free.fill(7);
                    len
                });
            }
            if rng.bool() {
                let to = rng.usize(buf.len()..=1024);
                buf.pad(to);
                let end = buf.len();
                assert!(buf.finished()[8..end].iter().all(|&byte| byte == 7));
                assert!(buf.finished()[end..to].iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn parts_are_filled_by_their_threads() {
        let mut buf = SharedBuffer::new(AlignedBuf::new(4096));
        buf.reset(72);
        for round in 0..20u8 {
            let mut all = buf.reserve(96);
            let reservations: Vec<Reservation> = (0..8).map(|_| all.split_front(12)).collect();
            drop(all);
            buf.append_with(10, |free| {
                free[..4].fill(round);
                4
            });
            std::thread::scope(|scope| {
                for (i, reservation) in (0..).zip(reservations) {
                    let bytes = [round ^ i; 12];
                    scope.spawn(move || reservation.fill([&bytes[..5], &bytes[5..]].into_iter()));
                }
                let end = buf.len();
                let whole = &buf.finished()[end - 100..end];
                for (i, reservation) in (0..).zip(whole[..96].chunks(12)) {
                    assert_eq!(reservation, [round ^ i; 12]);
                }
                assert_eq!(whole[96..], [round; 4]);
            });
        }
        assert_eq!((buf.len(), buf.room()), (2072, 2024));
    }
}
