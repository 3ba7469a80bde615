//! Entry points for the fuzz targets: the decoders of the data file's bytes, and its checksums.

use crate::data_file::{LEAF_ADDRESSES, Root, address_of, block_of, u64_at};
use crate::node::{self, Contents, NewValue, Node};
use crate::page::{PAGE_SIZE, Page, WORDS, private};

/// Recomputes a block's checksum.
pub fn seal_block(block: &mut [u8]) {
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Recomputes the checksums in the block addresses of a data file, from the pages up to the
/// superblocks, as far as these refer to blocks of the file. Seals blocks whose contents change.
pub fn bind_addresses(file: &mut [u8]) {
    for slot in 0..2 {
        let Some(superblock) = block(file, slot) else {
            return;
        };
        let (mut address, len) = (u64_at(superblock, 32), u64_at(superblock, 40));
        if bind_root(file, &mut address, len).is_some() {
            put(file, slot, 32, address);
        }
    }
}

fn block(file: &[u8], block: u64) -> Option<&[u8]> {
    let at = usize::try_from(block).ok()?.checked_mul(PAGE_SIZE)?;
    file.get(at..at.checked_add(PAGE_SIZE)?)
}

/// Sets a number in an existing block, and seals the block.
fn put(file: &mut [u8], block: u64, at: usize, number: u64) {
    let block = &mut file[braid_rt::to_usize(block) * PAGE_SIZE..][..PAGE_SIZE];
    if u64_at(block, at) != number {
        block[at..at + 8].copy_from_slice(&number.to_le_bytes());
        seal_block(block);
    }
}

/// Returns the correct block address of the block that a block address refers to.
fn bound(file: &[u8], address: u64) -> Option<u64> {
    let number = block_of(address);
    Some(address_of(
        number,
        block(file, number).filter(|_| number >= 2)?,
    ))
}

/// Binds the blocks of a root, and the root's block address.
fn bind_root(file: &mut [u8], address: &mut u64, len: u64) -> Option<()> {
    const HEAD: usize = 24;
    let per_block = PAGE_SIZE - HEAD;
    let (mut blocks, mut next) = (Vec::new(), *address);
    for _ in 0..len.div_ceil(per_block as u64).min(64) {
        let number = block_of(next);
        let contents = block(file, number).filter(|_| number >= 2)?;
        blocks.push(number);
        next = u64_at(contents, 16);
    }
    // Numbers lie at multiples of eight, in the blob and in each block.
    let at = |word: usize| {
        (
            blocks.get(word * 8 / per_block),
            HEAD + word * 8 % per_block,
        )
    };
    let leaves = match at(1) {
        (Some(&number), at) => u64_at(block(file, number)?, at),
        _ => return None,
    };
    for leaf in 0..leaves.min(1 << 16) as usize {
        let (Some(&number), at) = at(2 + leaf) else {
            break;
        };
        let leaf = u64_at(block(file, number)?, at);
        if let Some(leaf) = bind_leaf(file, leaf) {
            put(file, number, at, leaf);
        }
    }
    for i in (1..blocks.len()).rev() {
        let next = bound(file, blocks[i])?;
        put(file, blocks[i - 1], 16, next);
    }
    *address = bound(file, *blocks.first()?)?;
    Some(())
}

/// Binds the pages of a map leaf. Returns the leaf's block address.
fn bind_leaf(file: &mut [u8], leaf: u64) -> Option<u64> {
    let number = block_of(leaf);
    bound(file, leaf)?;
    for i in 0..LEAF_ADDRESSES {
        let page = u64_at(block(file, number)?, 16 + 8 * i);
        if page != 0
            && let Some(page) = bound(file, page)
        {
            put(file, number, 16 + 8 * i, page);
        }
    }
    bound(file, leaf)
}

/// Whether the bytes are a root blob.
pub fn is_root(bytes: &[u8]) -> bool {
    let root = Root::decode(bytes, 1, Vec::new());
    // The decoded parts come from the bytes: a length alone allocates no memory.
    root.is_some_and(|root| {
        assert!(
            root.leaf_addresses.len() * 8 + root.trees.len() * 12 + root.meta.len() <= bytes.len()
        );
        true
    })
}

/// Whether the bytes are a page of a tree. If so, every operation of the tree on the page works,
/// and leaves a valid page.
///
/// # Panics
/// If an operation fails or leaves an invalid page.
pub fn is_page(bytes: &[u8; PAGE_SIZE], keys: &[&[u8]]) -> bool {
    if node::check(bytes).is_err() {
        return false;
    }
    let words = private();
    let node = Node(Page(&words));
    node.0.copy_from(bytes);
    if node.kind() == node::KIND_OVERFLOW {
        return true;
    }
    for i in 0..node.len() {
        let key = node.key(i);
        assert_eq!(node.search(&key), Ok(i), "a key is found where it is");
        assert!(node.admits(&key, Ok(i)), "a key belongs where it is");
    }
    rewrite(node);
    if node.len() > 1 {
        halve(node);
    }
    if node.is_leaf() {
        change(node, keys);
    }
    true
}

fn assert_fits(node: Node<'_>) {
    let mut bytes = [0; PAGE_SIZE];
    node.0.copy_to(&mut bytes);
    assert_eq!(node::check(&bytes), Ok(()), "a change leaves a good node");
}

/// Compacts.
fn rewrite(node: Node<'_>) {
    let mut bytes = Vec::new();
    let contents = Contents::read(node, &mut bytes);
    let words = private();
    contents.write(Node(Page(&words)));
    assert_fits(Node(Page(&words)));
}

/// Splits, and merges again.
fn halve(node: Node<'_>) {
    let mut bytes = Vec::new();
    let mut left = Contents::read(node, &mut bytes);
    if !node.is_leaf() && left.entries.len() < 4 {
        // Such a node is never full.
        return;
    }
    let (separator, right) = left.split(b"\xff");
    for half in [&left, &right] {
        let words = private();
        half.write(Node(Page(&words)));
        assert_fits(Node(Page(&words)));
    }
    left.append(&separator, right);
    assert!(left.words() <= WORDS, "what was one node fits one");
}

/// Puts and removes.
fn change(node: Node<'_>, keys: &[&[u8]]) {
    for (i, key) in keys.iter().enumerate() {
        let address = node.search(key);
        if !node.admits(key, address) {
            continue;
        }
        let stored = vec![7; i * 97 % (node::INLINE_MAX + 1)];
        let value = NewValue {
            version: 9,
            flags: 0,
            len: stored.len(),
            stored: &stored,
        };
        if node.put(address, key, &value) {
            assert!(node.search(key).is_ok(), "what was put is found");
        }
        if i % 3 == 0
            && let Ok(i) = node.search(key)
        {
            node.remove(i);
        }
    }
    assert_fits(node);
}
