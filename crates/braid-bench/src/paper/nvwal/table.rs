//! The pages of a table in SQLite's format, and what a change of one row does to them.
//!
//! A row is that of Mobibench: a key, a text of 100 bytes and a date. Rows that are inserted in the
//! order of their keys fill one leaf after the other. An update replaces the text in place. A
//! deletion removes the row's cell pointer and adds its cell to the leaf's free blocks. Unlike in
//! SQLite, deletions never merge leaves.

use fastrand::Rng;

pub(super) const PAGE: usize = 4096;

/// Bytes of a page in SQLite's own log, with the header of its frame.
pub(super) const FRAME_OF_SQLITE: usize = 24 + PAGE;

const HEADER: usize = 8;
const KEY: usize = 4;
const TEXT: usize = 100;

/// Key, length of the payload, header of the record, text, date.
const CELL: usize = 1 + KEY + 5 + TEXT + 10;

/// Rows of a leaf, each with its cell and a pointer.
const ROWS: usize = (PAGE - HEADER) / (CELL + 2);

/// Leaves below an interior page, each with a cell of a page number and a key, and a pointer.
const CHILDREN: usize = (PAGE - HEADER - 4) / (4 + KEY + 2);

/// The first page, which has the number of pages.
const FIRST: usize = 0;
const ROOT: usize = 1;

/// What a transaction does to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Insert,
    Update,
    Delete,
}

impl Operation {
    pub(super) const ALL: [Self; 3] = [Self::Insert, Self::Update, Self::Delete];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    pages: Vec<Box<[u8; PAGE]>>,
    /// Indexes of the leaves, and of the interior pages above them.
    leaves: Vec<usize>,
    parents: Vec<usize>,
    rows: usize,
    /// Indexes of the pages that changed since [`Self::take_changed`].
    changed: Vec<usize>,
    rng: Rng,
}

impl Table {
    /// A table with this many rows.
    pub(super) fn new(rows: usize, seed: u64) -> Self {
        let mut table = Self {
            pages: vec![Box::new([0; PAGE]), Box::new([0; PAGE])],
            leaves: Vec::new(),
            parents: Vec::new(),
            rows: 0,
            changed: Vec::new(),
            rng: Rng::with_seed(seed),
        };
        table.pages[FIRST][..16].copy_from_slice(b"SQLite format 3\0");
        for _ in 0..rows {
            table.insert();
        }
        table.changed.clear();
        table
    }

    /// Inserts the next row.
    pub(super) fn insert(&mut self) {
        let row = self.rows;
        self.rows += 1;
        if row / ROWS == self.leaves.len() {
            self.add_leaf(row);
        }
        let cell = self.cell(row);
        let index = self.leaves[row / ROWS];
        let leaf = self.change(index);
        let count = number(leaf, 3);
        let start = number(leaf, 5) - CELL;
        leaf[start..start + CELL].copy_from_slice(&cell);
        set(leaf, HEADER + 2 * count, start);
        set(leaf, 3, count + 1);
        set(leaf, 5, start);
    }

    /// Replaces the text of a row that is there.
    pub(super) fn update(&mut self, row: usize) {
        let cell = self.cell(row);
        let leaf = self.change(self.leaves[row / ROWS]);
        let start = number(leaf, pointer(leaf, row));
        leaf[start..start + CELL].copy_from_slice(&cell);
    }

    /// Removes a row that is there.
    pub(super) fn delete(&mut self, row: usize) {
        let leaf = self.change(self.leaves[row / ROWS]);
        let pointer = pointer(leaf, row);
        let start = number(leaf, pointer);
        let count = number(leaf, 3);
        leaf.copy_within(pointer + 2..HEADER + 2 * count, pointer);
        set(leaf, 3, count - 1);
        // The first of the list of free blocks: the next one, and the bytes.
        let next = number(leaf, 1);
        set(leaf, start, next);
        set(leaf, start + 2, CELL);
        set(leaf, 1, start);
    }

    /// Calls `each` with the number and the image of every page that changed since the last call.
    pub(super) fn take_changed<E>(
        &mut self,
        mut each: impl FnMut(u64, &[u8; PAGE]) -> Result<(), E>,
    ) -> Result<(), E> {
        for index in &self.changed {
            each(*index as u64 + 1, &self.pages[*index])?;
        }
        self.changed.clear();
        Ok(())
    }

    fn change(&mut self, index: usize) -> &mut [u8; PAGE] {
        if !self.changed.contains(&index) {
            self.changed.push(index);
        }
        &mut self.pages[index]
    }

    /// Appends a leaf, with its place in the page above.
    fn add_leaf(&mut self, row: usize) {
        if self.leaves.len().is_multiple_of(CHILDREN) {
            let parent = self.add_page(5);
            self.parents.push(parent);
            self.add_child(ROOT, parent, row);
        }
        let leaf = self.add_page(13);
        self.leaves.push(leaf);
        self.add_child(self.parents[self.parents.len() - 1], leaf, row);
    }

    fn add_page(&mut self, kind: u8) -> usize {
        let index = self.pages.len();
        self.pages.push(Box::new([0; PAGE]));
        let page = self.change(index);
        page[0] = kind;
        set(page, 5, PAGE);
        let first = self.change(FIRST);
        first[28..32].copy_from_slice(&(index as u32 + 1).to_be_bytes());
        index
    }

    fn add_child(&mut self, parent: usize, child: usize, row: usize) {
        let page = self.change(parent);
        let count = number(page, 3);
        let start = PAGE - (count + 1) * (4 + KEY);
        page[start..start + 4].copy_from_slice(&(child as u32 + 1).to_be_bytes());
        page[start + 4..start + 4 + KEY].copy_from_slice(&(row as u32).to_be_bytes());
        set(page, HEADER + 4 + 2 * count, start);
        set(page, 3, count + 1);
        set(page, 5, start);
    }

    fn cell(&mut self, row: usize) -> [u8; CELL] {
        let mut cell = [0; CELL];
        cell[0] = (CELL - 1 - KEY) as u8;
        cell[1..=KEY].copy_from_slice(&(row as u32).to_be_bytes());
        let (header, text) = cell[1 + KEY..].split_at_mut(5);
        header.copy_from_slice(&[5, 0, 0x81, 0x55, 33]);
        let (text, date) = text.split_at_mut(TEXT);
        text.fill_with(|| self.rng.alphanumeric() as u8);
        date.copy_from_slice(b"2026-01-01");
        cell
    }
}

/// Offset of the pointer to the cell of a row of the leaf.
fn pointer(leaf: &[u8; PAGE], row: usize) -> usize {
    let (mut low, mut high) = (0, number(leaf, 3));
    while low < high {
        let middle = usize::midpoint(low, high);
        let start = number(leaf, HEADER + 2 * middle);
        let key = leaf[start + 1..].first_chunk::<KEY>();
        if key.is_some_and(|key| (u32::from_be_bytes(*key) as usize) < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    HEADER + 2 * low
}

/// Two bytes in SQLite's order.
fn number(page: &[u8; PAGE], at: usize) -> usize {
    usize::from(u16::from_be_bytes([page[at], page[at + 1]]))
}

fn set(page: &mut [u8; PAGE], at: usize, value: usize) {
    page[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys and texts of a leaf, in the order of its pointers.
    fn rows(leaf: &[u8; PAGE]) -> Vec<(usize, Vec<u8>)> {
        let cells = (0..number(leaf, 3)).map(|slot| number(leaf, HEADER + 2 * slot));
        cells
            .map(|start| {
                let key = u32::from_be_bytes(*leaf[start + 1..].first_chunk().unwrap());
                (key as usize, leaf[start + 10..][..TEXT].to_vec())
            })
            .collect()
    }

    #[test]
    fn pages_have_the_rows_that_were_written() {
        let mut table = Table::new(3 * ROWS, 1);
        let before = table.clone();
        table.update(ROWS + 5);
        table.delete(ROWS + 6);
        table.delete(2);
        let mut changed = Vec::new();
        table
            .take_changed(|page, _| {
                changed.push(page);
                Ok::<_, ()>(())
            })
            .unwrap();
        assert_eq!(changed.len(), 2, "{changed:?}");
        let leaf = |table: &Table, leaf: usize| rows(&table.pages[table.leaves[leaf]]);
        assert_eq!(leaf(&table, 2), leaf(&before, 2));
        let [old, new] = [leaf(&before, 1), leaf(&table, 1)];
        assert_eq!((old.len(), new.len()), (ROWS, ROWS - 1));
        assert_eq!((new[5].0, new[6].0), (ROWS + 5, ROWS + 7));
        assert_ne!(new[5], old[5]);
        assert_eq!(new[6..], old[7..]);
        assert_eq!(leaf(&table, 0).len(), ROWS - 1);
    }

    #[test]
    fn an_insert_changes_the_pages_above_only_with_a_new_leaf() {
        let mut table = Table::new(ROWS - 1, 1);
        let changed = |table: &mut Table| {
            table.insert();
            let mut count = 0;
            table
                .take_changed(|_, _| {
                    count += 1;
                    Ok::<_, ()>(())
                })
                .unwrap();
            count
        };
        assert_eq!(changed(&mut table), 1);
        // The leaf, the page above, and the first page.
        assert_eq!(changed(&mut table), 3);
        let mut table = Table::new(ROWS * CHILDREN, 1);
        // Also a second interior page, and the root instead of the first one.
        assert_eq!(changed(&mut table), 4);
    }
}
