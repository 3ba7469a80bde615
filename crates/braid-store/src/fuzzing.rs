//! Ways in for the fuzz targets: the decoders of the data file's bytes, and its checksums.

use crate::file::Root;
use crate::node::{self, Contents, NewValue, Node};
use crate::page::{PAGE_SIZE, Page, WORDS, private};

/// Makes a block's checksum fit what it holds.
pub fn seal_block(block: &mut [u8]) {
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Whether the bytes are a root blob.
pub fn is_root(bytes: &[u8]) -> bool {
    let root = Root::decode(bytes, 1, Vec::new());
    // What was read came from the bytes: a length alone makes nothing large.
    root.is_some_and(|root| {
        assert!(
            root.leaf_places.len() * 8 + root.trees.len() * 12 + root.meta.len() <= bytes.len()
        );
        true
    })
}

/// Whether the bytes are a page of a tree. If so, whatever the tree does with one works, and leaves another.
///
/// # Panics
/// If it does not.
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
        // Such a one is never full.
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
        let place = node.search(key);
        if !node.admits(key, place) {
            continue;
        }
        let stored = vec![7; i * 97 % (node::INLINE_MAX + 1)];
        let value = NewValue {
            version: 9,
            flags: 0,
            len: stored.len(),
            stored: &stored,
        };
        if node.put(place, key, &value) {
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
