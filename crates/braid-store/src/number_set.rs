//! Sets of block numbers and page ids: at most a bit for each number in use, and next to nothing
//! for long runs.
//!
//! Numbers are grouped in chunks. A chunk that is partly in the set has a list of its numbers if they
//! are few, and otherwise a bitmap. Chunks that are completely in the set are kept as runs, and all
//! other chunks take no memory. So a file of a
//! petabyte of which nearly all blocks are free, or nearly all are used, has a small set.

use std::collections::BTreeMap;
use std::ops::Range;

use braid_rt::narrow;

/// Numbers of a chunk: so many that a chunk with a single number takes next to nothing for each block.
const CHUNK_LEN: u16 = 1 << 14;
const CHUNK: u64 = CHUNK_LEN as u64;
const WORDS: usize = (CHUNK / 64) as usize;

/// Bitmap of a chunk.
type Bits = [u64; WORDS];

/// Most numbers of a chunk in a list, which then takes half of the memory of a bitmap.
const LISTED_MAX: u32 = 512;

/// Numbers of a chunk, counted from its beginning, of which some but not all are in the set.
#[derive(Clone, Debug)]
enum Chunk {
    /// Up to `LISTED_MAX` numbers in ascending order.
    List(Vec<u16>),
    Bitmap {
        bits: Box<Bits>,
        count: u32,
    },
}

fn place(number: u16) -> (usize, u64) {
    (usize::from(number / 64), 1 << (number % 64))
}

fn number_at(word: usize, bit: u32) -> u16 {
    narrow(word as u64 * 64 + u64::from(bit))
}

fn numbers_of(bits: &Bits) -> Vec<u16> {
    let set = |number: &u16| bits[place(*number).0] & place(*number).1 != 0;
    (0..CHUNK_LEN).filter(set).collect()
}

impl Chunk {
    const EMPTY: Self = Chunk::List(Vec::new());

    /// A chunk with these numbers. It becomes a list only when it has half of what a list may have,
    /// so that it does not change its form with every number.
    fn of(bits: Box<Bits>) -> Self {
        let count = bits.iter().map(|word| word.count_ones()).sum();
        if count > LISTED_MAX / 2 {
            return Chunk::Bitmap { bits, count };
        }
        Chunk::List(numbers_of(&bits))
    }

    fn bits(&self) -> Box<Bits> {
        match self {
            Chunk::List(numbers) => {
                let mut bits = Box::new([0; WORDS]);
                for (word, bit) in numbers.iter().map(|number| place(*number)) {
                    bits[word] |= bit;
                }
                bits
            }
            Chunk::Bitmap { bits, .. } => bits.clone(),
        }
    }

    fn count(&self) -> u32 {
        match self {
            Chunk::List(numbers) => narrow(numbers.len()),
            Chunk::Bitmap { count, .. } => *count,
        }
    }

    fn contains(&self, number: u16) -> bool {
        match self {
            Chunk::List(numbers) => numbers.binary_search(&number).is_ok(),
            Chunk::Bitmap { bits, .. } => bits[place(number).0] & place(number).1 != 0,
        }
    }

    fn insert(&mut self, number: u16) -> bool {
        match self {
            Chunk::List(numbers) => {
                let Err(at) = numbers.binary_search(&number) else {
                    return false;
                };
                if numbers.len() < LISTED_MAX as usize {
                    numbers.insert(at, number);
                    return true;
                }
                *self = Chunk::of(self.bits());
                self.insert(number)
            }
            Chunk::Bitmap { bits, count } => {
                let (word, bit) = place(number);
                let is_new = bits[word] & bit == 0;
                bits[word] |= bit;
                *count += u32::from(is_new);
                is_new
            }
        }
    }

    fn remove(&mut self, number: u16) -> bool {
        match self {
            Chunk::List(numbers) => {
                let at = numbers.binary_search(&number);
                at.map(|at| numbers.remove(at)).is_ok()
            }
            Chunk::Bitmap { bits, count } => {
                let (word, bit) = place(number);
                let was_there = bits[word] & bit != 0;
                bits[word] &= !bit;
                *count -= u32::from(was_there);
                if *count <= LISTED_MAX / 2 {
                    *self = Chunk::List(numbers_of(bits));
                }
                was_there
            }
        }
    }

    /// Adds another chunk's numbers. Returns how many are new.
    fn add(&mut self, other: &Self) -> u32 {
        let (before, mut bits) = (self.count(), self.bits());
        bits.iter_mut()
            .zip(*other.bits())
            .for_each(|(bits, more)| *bits |= more);
        *self = Chunk::of(bits);
        self.count() - before
    }

    fn first(&self) -> Option<u16> {
        match self {
            Chunk::List(numbers) => numbers.first().copied(),
            Chunk::Bitmap { bits, .. } => {
                let word = bits.iter().position(|bits| *bits != 0)?;
                Some(number_at(word, bits[word].trailing_zeros()))
            }
        }
    }

    fn last(&self) -> Option<u16> {
        match self {
            Chunk::List(numbers) => numbers.last().copied(),
            Chunk::Bitmap { bits, .. } => {
                let word = bits.iter().rposition(|bits| *bits != 0)?;
                Some(number_at(word, bits[word].ilog2()))
            }
        }
    }

    /// Chunk with the numbers below `end` that this one lacks.
    fn inverted(&self, end: u16) -> Self {
        let mut bits = self.bits();
        for (first, bits) in (0..CHUNK_LEN).step_by(64).zip(bits.iter_mut()) {
            let below = match end.saturating_sub(first) {
                count @ 0..64 => (1 << count) - 1,
                64.. => u64::MAX,
            };
            *bits = !*bits & below;
        }
        Chunk::of(bits)
    }
}

/// The place of a number in its chunk.
fn in_chunk(number: u64) -> u16 {
    narrow(number % CHUNK)
}

/// A set of numbers; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberSet {
    /// Runs of chunks that are in the set: the first chunk, and the chunk after the last.
    full: BTreeMap<u64, u64>,
    partial: BTreeMap<u64, Chunk>,
    len: u64,
}

impl NumberSet {
    /// The number of numbers in the set.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the run that contains a chunk.
    fn run_of(&self, chunk: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.full.range(..=chunk).next_back()?;
        (chunk < end).then_some(start..end)
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        match self.partial.get(&(number / CHUNK)) {
            Some(chunk) => chunk.contains(in_chunk(number)),
            None => self.run_of(number / CHUNK).is_some(),
        }
    }

    /// Adds a number. Returns whether it is new.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let index = number / CHUNK;
        if !self.partial.contains_key(&index) && self.run_of(index).is_some() {
            return false;
        }
        let chunk = self.partial.entry(index);
        let chunk = chunk.or_insert(Chunk::EMPTY);
        let is_new = chunk.insert(in_chunk(number));
        self.len += u64::from(is_new);
        if chunk.count() == u32::from(CHUNK_LEN) {
            self.partial.remove(&index);
            self.add_run(index..index + 1);
        }
        is_new
    }

    /// Adds chunks of which none is in the set.
    fn add_run(&mut self, mut chunks: Range<u64>) {
        if let Some(end) = self.full.remove(&chunks.end) {
            chunks.end = end;
        }
        if let Some((&start, &end)) = self.full.range(..chunks.start).next_back()
            && end == chunks.start
        {
            chunks.start = start;
        }
        self.full.insert(chunks.start, chunks.end);
    }

    /// Removes a number. Returns whether the set contained it.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        let index = number / CHUNK;
        if let Some(run) = self.run_of(index) {
            self.full.remove(&run.start);
            if run.start < index {
                self.full.insert(run.start, index);
            }
            if index + 1 < run.end {
                self.full.insert(index + 1, run.end);
            }
            self.partial
                .insert(index, Chunk::of(Box::new([u64::MAX; WORDS])));
        }
        let Some(chunk) = self.partial.get_mut(&index) else {
            return false;
        };
        let was_there = chunk.remove(in_chunk(number));
        self.len -= u64::from(was_there);
        if chunk.count() == 0 {
            self.partial.remove(&index);
        }
        was_there
    }

    /// Adds a range of numbers of which none is in the set.
    pub(crate) fn insert_range(&mut self, numbers: Range<u64>) {
        let whole = numbers.start.div_ceil(CHUNK)..numbers.end / CHUNK;
        if whole.start >= whole.end {
            numbers.for_each(|number| assert!(self.insert(number), "a new number"));
            return;
        }
        let (before, after) = (whole.start * CHUNK, whole.end * CHUNK);
        self.len += after - before;
        self.add_run(whole);
        for number in (numbers.start..before).chain(after..numbers.end) {
            assert!(self.insert(number), "a new number");
        }
    }

    /// Adds the numbers of another set.
    pub(crate) fn union(&mut self, other: &Self) {
        for (&start, &end) in &other.full {
            self.remove_chunks(start..end);
            self.len += (end - start) * CHUNK;
            self.add_run(start..end);
        }
        for (&index, more) in &other.partial {
            if self.run_of(index).is_some() {
                continue;
            }
            let chunk = self.partial.entry(index);
            let chunk = chunk.or_insert(Chunk::EMPTY);
            self.len += u64::from(chunk.add(more));
            if chunk.count() == u32::from(CHUNK_LEN) {
                self.partial.remove(&index);
                self.add_run(index..index + 1);
            }
        }
    }

    /// Removes chunks.
    fn remove_chunks(&mut self, chunks: Range<u64>) {
        let partial = self.partial.extract_if(chunks.clone(), |_, _| true);
        self.len -= partial
            .map(|(_, chunk)| u64::from(chunk.count()))
            .sum::<u64>();
        let first = self
            .run_of(chunks.start)
            .map_or(chunks.start, |run| run.start);
        let runs = self.full.extract_if(first..chunks.end, |_, _| true);
        for (start, end) in runs.collect::<Vec<_>>() {
            self.len -= (end.min(chunks.end) - start.max(chunks.start)) * CHUNK;
            if start < chunks.start {
                self.full.insert(start, chunks.start);
            }
            if chunks.end < end {
                self.full.insert(chunks.end, end);
            }
        }
    }

    /// The numbers below `end` of this set that are not in another one.
    pub(crate) fn difference(&self, other: &Self, end: u64) -> Self {
        let mut rest = self.complement(end);
        rest.union(other);
        rest.complement(end)
    }

    pub(crate) fn first(&self) -> Option<u64> {
        let partial = self.partial.first_key_value();
        let partial =
            partial.and_then(|(index, chunk)| Some(index * CHUNK + u64::from(chunk.first()?)));
        let full = self.full.first_key_value().map(|(start, _)| start * CHUNK);
        match (partial, full) {
            (Some(partial), Some(full)) => Some(partial.min(full)),
            (partial, full) => partial.or(full),
        }
    }

    pub(crate) fn last(&self) -> Option<u64> {
        let partial = self.partial.last_key_value();
        let partial =
            partial.and_then(|(index, chunk)| Some(index * CHUNK + u64::from(chunk.last()?)));
        let full = self.full.last_key_value().map(|(_, end)| end * CHUNK - 1);
        partial.max(full)
    }

    /// Removes the least number.
    pub(crate) fn pop_first(&mut self) -> Option<u64> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// Removes consecutive numbers up to and including `last`, which is the greatest one: as many as
    /// are in its chunk, or in its run of chunks. Returns the least one removed.
    pub(crate) fn pop_run(&mut self, last: u64) -> u64 {
        debug_assert_eq!(self.last(), Some(last));
        if let Some(run) = self.run_of(last / CHUNK) {
            self.full.remove(&run.start);
            self.len -= (run.end - run.start) * CHUNK;
            return run.start * CHUNK;
        }
        let mut first = last;
        self.remove(last);
        while !first.is_multiple_of(CHUNK) && self.remove(first - 1) {
            first -= 1;
        }
        first
    }

    /// The runs of chunks with numbers, in ascending order: the first chunk, the one after the last,
    /// and the chunk itself unless all of the run are full.
    fn parts(&self) -> Vec<(u64, u64, Option<&Chunk>)> {
        let partial = self.partial.iter();
        let partial = partial.map(|(&at, chunk)| (at, at + 1, Some(chunk)));
        let full = self.full.iter().map(|(&start, &end)| (start, end, None));
        let mut parts: Vec<_> = partial.chain(full).collect();
        parts.sort_unstable_by_key(|(start, ..)| *start);
        parts
    }

    /// The numbers below `end` that the set lacks.
    pub(crate) fn complement(&self, end: u64) -> Self {
        let mut other = Self::default();
        let mut next = 0;
        for (start, after, chunk) in self.parts() {
            if next < start {
                other.insert_range((next * CHUNK).min(end)..(start * CHUNK).min(end));
            }
            if let Some(chunk) = chunk {
                let end = end.saturating_sub(start * CHUNK).min(CHUNK);
                let chunk = chunk.inverted(narrow(end));
                other.len += u64::from(chunk.count());
                if chunk.count() > 0 {
                    other.partial.insert(start, chunk);
                }
            }
            next = after;
        }
        if next * CHUNK < end {
            other.insert_range(next * CHUNK..end);
        }
        other
    }

    /// The numbers in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts().into_iter().flat_map(|(start, end, chunk)| {
            let numbers = start * CHUNK..end * CHUNK;
            numbers
                .filter(move |number| chunk.is_none_or(|chunk| chunk.contains(in_chunk(*number))))
        })
    }
}

impl Extend<u64> for NumberSet {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, numbers: T) {
        for number in numbers {
            self.insert(number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The set behaves like the standard library's, at chunks' boundaries, too.
    #[test]
    fn it_is_like_an_ordered_set() {
        for seed in 0..if cfg!(miri) { 1 } else { 6 } {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut set, mut plain) = (NumberSet::default(), BTreeSet::new());
            for _ in 0..if cfg!(miri) { 15 } else { 100 } {
                let number = CHUNK * rng.u64(1..5) + rng.u64(..4) - rng.u64(..4);
                match rng.u32(..11) {
                    // About as many as a list has, so that lists become bitmaps, and these lists.
                    10 => {
                        let chunk = number / CHUNK * CHUNK;
                        let count = rng.u64(..3 * u64::from(LISTED_MAX));
                        for number in (0..count).map(|_| chunk + rng.u64(..CHUNK)) {
                            assert_eq!(set.insert(number), plain.insert(number));
                        }
                        let left = rng.u64(..CHUNK);
                        for number in chunk + left..chunk + CHUNK {
                            assert_eq!(set.remove(number), plain.remove(&number));
                        }
                    }
                    0..3 => assert_eq!(set.insert(number), plain.insert(number)),
                    3..5 => assert_eq!(set.remove(number), plain.remove(&number)),
                    5 => assert_eq!(set.pop_first(), plain.pop_first()),
                    6 => {
                        if let Some(last) = set.last() {
                            let first = set.pop_run(last);
                            assert!((first..=last).all(|number| plain.remove(&number)));
                        }
                    }
                    7 => {
                        let end = number + rng.u64(..3 * CHUNK);
                        if (number..end).all(|number| !plain.contains(&number)) {
                            set.insert_range(number..end);
                            plain.extend(number..end);
                        }
                    }
                    _ => {
                        let other = set.complement(number);
                        let lacking = (0..number).filter(|number| !plain.contains(number));
                        let lacking: BTreeSet<u64> = lacking.collect();
                        assert!(other.iter().eq(lacking.iter().copied()), "seed {seed}");
                        assert_eq!(other.len(), lacking.len() as u64);
                        let (mut both, from) = (set.clone(), number + rng.u64(..2 * CHUNK));
                        let mut more = NumberSet::default();
                        more.insert_range(number..from);
                        both.union(&more);
                        let all: BTreeSet<u64> =
                            plain.iter().copied().chain(number..from).collect();
                        assert!(both.iter().eq(all.iter().copied()), "seed {seed}");
                        assert_eq!(both.len(), all.len() as u64);
                        let rest = set.difference(&more, 16 * CHUNK);
                        let left = plain.iter().filter(|n| !(number..from).contains(n));
                        assert!(rest.iter().eq(left.copied()), "seed {seed}");
                    }
                }
                assert_eq!(set.contains(number), plain.contains(&number));
                assert_eq!(set.len(), plain.len() as u64, "seed {seed}");
                let ends = (plain.first().copied(), plain.last().copied());
                assert_eq!((set.first(), set.last()), ends, "seed {seed}");
            }
            assert!(set.iter().eq(plain.iter().copied()), "seed {seed}");
        }
    }

    #[test]
    fn a_chunk_has_the_form_that_takes_less_memory() {
        let mut chunk = Chunk::EMPTY;
        let is_list = |chunk: &Chunk| matches!(chunk, Chunk::List(_));
        let many: Vec<u16> = (0..600).map(|number| number * 7).collect();
        for (before, &number) in many.iter().enumerate() {
            assert!(chunk.insert(number) && !chunk.insert(number));
            assert_eq!(is_list(&chunk), before < LISTED_MAX as usize);
        }
        assert_eq!((chunk.first(), chunk.last()), (Some(0), Some(599 * 7)));
        for (left, &number) in many.iter().enumerate().rev() {
            assert!(chunk.remove(number) && !chunk.remove(number));
            assert_eq!(is_list(&chunk), left <= LISTED_MAX as usize / 2);
        }
        assert_eq!(
            (chunk.count(), chunk.first(), chunk.last()),
            (0, None, None)
        );
        let all = chunk.inverted(CHUNK_LEN);
        assert!(!is_list(&all) && is_list(&all.inverted(CHUNK_LEN)));
        for end in [0, 1, 63, 64, 65, CHUNK_LEN - 1, CHUNK_LEN] {
            assert_eq!(chunk.inverted(end).count(), u32::from(end));
        }
    }

    #[test]
    fn long_runs_take_no_memory() {
        let mut set = NumberSet::default();
        set.insert_range(5..1 << 50);
        assert!(set.remove(1 << 40) && !set.contains(1 << 40));
        assert_eq!(set.len(), (1 << 50) - 6);
        assert_eq!((set.full.len(), set.partial.len()), (2, 2));
        let other = set.complement(1 << 50);
        assert!(other.iter().eq([0, 1, 2, 3, 4, 1 << 40]));
        assert!(set.insert(1 << 40));
        assert_eq!((set.full.len(), set.partial.len()), (1, 1));
        assert_eq!(set.pop_run((1 << 50) - 1), CHUNK);
        assert_eq!(set.last(), Some(CHUNK - 1));
    }
}
