//! A queue that never moves its entries.

use std::collections::VecDeque;

/// Number of entries of a chunk.
const CHUNK: usize = 256;

type Chunk<T> = Box<[Option<T>; CHUNK]>;

/// A double-ended queue in chunks of the same length. It grows and shrinks by a chunk, while a
/// [`VecDeque`] copies all its entries when it grows, during which its lock is held.
#[derive(Debug)]
pub(crate) struct ChunkedQueue<T> {
    chunks: VecDeque<Chunk<T>>,
    /// Index of the first entry in the first chunk.
    head: usize,
    len: usize,
    /// An empty chunk for the next addition.
    spare: Option<Chunk<T>>,
}

impl<T> Default for ChunkedQueue<T> {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
            head: 0,
            len: 0,
            spare: None,
        }
    }
}

impl<T> ChunkedQueue<T> {
    /// Memory of an entry, in bytes.
    pub(crate) const ENTRY_BYTES: usize = size_of::<Option<T>>();

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns an empty chunk.
    fn chunk(&mut self) -> Chunk<T> {
        let spare = self.spare.take();
        spare.unwrap_or_else(|| Box::new([const { None }; CHUNK]))
    }

    fn slot(&self, at: usize) -> Option<&T> {
        let at = self.head + at;
        self.chunks.get(at / CHUNK)?[at % CHUNK].as_ref()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        self.chunks.front()?[self.head].as_ref()
    }

    /// The entries from index `from` on, at most `at_most`.
    pub(crate) fn range(&self, from: usize, at_most: usize) -> impl Iterator<Item = &T> {
        let until = self.len.min(from.saturating_add(at_most));
        (from..until).filter_map(|at| self.slot(at))
    }

    #[cold]
    fn add_chunk(&mut self) {
        let chunk = self.chunk();
        self.chunks.push_back(chunk);
    }

    #[inline]
    pub(crate) fn push_back(&mut self, entry: T) {
        let at = self.head + self.len;
        if at == self.chunks.len() * CHUNK {
            self.add_chunk();
        }
        self.chunks[at / CHUNK][at % CHUNK] = Some(entry);
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, entry: T) {
        if self.head == 0 {
            let chunk = self.chunk();
            self.chunks.push_front(chunk);
            self.head = CHUNK;
        }
        self.head -= 1;
        self.chunks[0][self.head] = Some(entry);
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.pop_front_if(|_| true)
    }

    /// Removes the first entry if it meets a condition.
    #[inline]
    pub(crate) fn pop_front_if(&mut self, condition: impl FnOnce(&T) -> bool) -> Option<T> {
        let first = &mut self.chunks.front_mut()?[self.head];
        let entry = first.take_if(|first| condition(first))?;
        self.advance(1);
        Some(entry)
    }

    /// Removes entries from the front, at most `at_most`, up to the first one that does not meet a
    /// condition, and passes them to `take`. Returns their number.
    #[inline]
    pub(crate) fn drain_front(
        &mut self,
        at_most: usize,
        condition: impl Fn(&T) -> bool,
        mut take: impl FnMut(T),
    ) -> usize {
        let mut drained = 0;
        while let Some(chunk) = self.chunks.front_mut() {
            let left = CHUNK.min(self.head + (at_most - drained));
            let mut removed = 0;
            for slot in &mut chunk[self.head..left] {
                let Some(entry) = slot.take_if(|entry| condition(entry)) else {
                    break;
                };
                take(entry);
                removed += 1;
            }
            drained += removed;
            self.advance(removed);
            if removed == 0 || drained == at_most || self.head > 0 {
                break;
            }
        }
        drained
    }

    /// Counts the removal of the first entries, all of which are in one chunk.
    #[inline]
    fn advance(&mut self, removed: usize) {
        self.head += removed;
        self.len -= removed;
        if self.head == CHUNK {
            self.head = 0;
            self.spare = self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_deque() {
        let (mut queue, mut model) = (ChunkedQueue::default(), VecDeque::new());
        let mut state = 1u64;
        for step in 0..20_000u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // The queue grows, and then shrinks until it is empty.
            let grows = step < 10_000;
            match (state >> 33) % 8 {
                0..=2 if grows => {
                    queue.push_back(step);
                    model.push_back(step);
                }
                3 | 4 if grows => {
                    queue.push_front(step);
                    model.push_front(step);
                }
                5 => {
                    let is_even = |first: &u64| first.is_multiple_of(2);
                    let first = model.front().copied().filter(is_even);
                    assert_eq!(queue.pop_front_if(is_even), first);
                    if first.is_some() {
                        model.pop_front();
                    }
                }
                6 => {
                    let at_most = (state >> 50) as usize % 400;
                    let is_old = |entry: &u64| step - entry > 100;
                    let mut drained = Vec::new();
                    let count = queue.drain_front(at_most, is_old, |entry| drained.push(entry));
                    assert_eq!(count, drained.len());
                    for entry in &drained {
                        assert_eq!(Some(*entry), model.pop_front());
                    }
                    let more = model.front().is_some_and(is_old);
                    assert!(count == at_most || !more, "step {step}");
                }
                _ => assert_eq!(queue.pop_front(), model.pop_front()),
            }
            assert_eq!(queue.len(), model.len());
            assert_eq!(queue.front(), model.front());
            let from = (state >> 40) as usize % 2_000;
            let expected = model.iter().skip(from).take(300);
            assert!(queue.range(from, 300).eq(expected), "step {step}");
        }
        assert_eq!(queue.len(), 0);
        assert!(queue.chunks.len() <= 1, "{}", queue.chunks.len());
    }

    #[test]
    fn keeps_one_empty_chunk() {
        let mut queue = ChunkedQueue::default();
        for entry in 0..10 * CHUNK {
            queue.push_back(entry);
        }
        while queue.pop_front().is_some() {}
        assert!(queue.chunks.is_empty() && queue.spare.is_some());
        queue.push_front(1);
        assert!(queue.spare.is_none());
        assert_eq!(queue.pop_front(), Some(1));
    }
}
