//! Damaged data files: superblocks, root blob, page map, nodes, large values.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use braid_io::MemoryDevice;
use braid_store::{Change, Direction, PAGE_SIZE, Store, StoreError, StoreOptions, Tree};

use super::Target;
use crate::edit::{Image, Input, Outcome};

/// The tree whose keys are in layers.
const LAYERED: u32 = 9;

const SMALL_POOL: StoreOptions = StoreOptions::of_pool(512 << 10);

/// More leaves than any image has pages: a longer scan runs in a cycle.
const LEAVES_MAX: usize = 1_000;

type Records = Vec<(Vec<u8>, Vec<u8>)>;

type Contents = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

/// An undamaged file, and its contents at its checkpoints.
struct Base {
    image: Image,
    states: Vec<(Vec<u8>, Contents)>,
}

pub(super) const STORE: Target = Target {
    name: "store",
    run,
    corpus: super::scripts,
    runs: 600,
};

pub(super) const NODE: Target = Target {
    name: "node",
    run: run_node,
    corpus: super::scripts,
    runs: 20_000,
};

/// Reads one page of a tree: the block that the second byte says.
fn run_node(bytes: &[u8]) {
    let (Some(&[mode, block]), edits) = (bytes.first_chunk(), bytes.get(2..).unwrap_or_default())
    else {
        return;
    };
    let pages = &base().image.files[0].1.as_chunks::<PAGE_SIZE>().0[2..];
    let page = pages[usize::from(block) % pages.len()];
    let mut image = Image {
        removed: Default::default(),
        files: vec![("page".into(), page.to_vec())],
        block: PAGE_SIZE,
    };
    image.edit(&mut Input(&[&[mode], edits].concat()));
    let Some(page) = image.files[0].1.first_chunk() else {
        return;
    };
    let (short, long) = (key(u32::from(mode)), long_key(u32::from(mode)));
    let keys: Vec<&[u8]> = vec![
        &short,
        &long,
        &[],
        b"key 00100",
        edits,
        b"key 00150x",
        &long[..896],
    ];
    braid_store::fuzzing::is_page(page, &keys);
}

fn put(tree: &Tree, key: &[u8], version: u64, value: &[u8]) -> Result<(), StoreError> {
    tree.modify(key, |_| (Change::Put { version, value }, ()))
}

fn checkpoint(store: &Store, meta: &[u8]) -> Result<(), StoreError> {
    let mut checkpoint = store.begin_checkpoint(meta.to_vec())?;
    checkpoint.write(&|_| {})?;
    checkpoint.publish().map(drop)
}

/// Writes a tree of small records with a few large values, one of long keys, which is three levels
/// high, and one whose keys are in layers.
fn make() -> Result<Base, StoreError> {
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device.clone(), SMALL_POOL)?;
    let (short, long) = (store.tree(1)?, store.tree(7)?);
    let layered = store.tree(LAYERED)?;
    for i in 0..200u32 {
        let len = match i % 50 {
            7 => 20_000,
            n => n as usize * 6,
        };
        put(&short, &key(i), 1, &vec![i as u8; len])?;
    }
    for i in 0..60u32 {
        put(&long, &long_key(i), 1, &[])?;
    }
    for i in 0..50u32 {
        put(
            &layered,
            &layered_key(i),
            1,
            &vec![i as u8; i as usize * 60],
        )?;
    }
    checkpoint(&store, b"first")?;
    let first = contents(&store)?;
    for i in (0..200).step_by(3) {
        put(&short, &key(i), 2, b"newer")?;
    }
    for i in (0..60).step_by(5) {
        long.modify(&long_key(i), |_| (Change::Remove, ()))?;
    }
    for i in (0..50).step_by(4) {
        layered.modify(&layered_key(i), |_| (Change::Remove, ()))?;
    }
    checkpoint(&store, b"second")?;
    let second = contents(&store)?;
    Ok(Base {
        image: Image::of(&*device, PAGE_SIZE),
        states: vec![(b"first".to_vec(), first), (b"second".to_vec(), second)],
    })
}

fn key(i: u32) -> Vec<u8> {
    format!("key {i:05}").into()
}

fn long_key(i: u32) -> Vec<u8> {
    let mut key = i.to_be_bytes().to_vec();
    key.resize(900, b'-');
    // Separators end where keys differ; this makes them long, too.
    key.rotate_left(4);
    key
}

/// Returns the key of a number in a tree; the tree of short keys uses another number.
fn key_of(tree: u32, i: u32, short: u32) -> Vec<u8> {
    match tree {
        7 => long_key(i),
        LAYERED => layered_key(i),
        _ => key(short),
    }
}

/// Returns keys of several layers, most of which share a prefix, with some short ones among them.
fn layered_key(i: u32) -> Vec<u8> {
    let len = [4, 1_024, 1_030, 2_050, 5_000][i as usize % 5];
    let mut key = vec![b'a' + (i / 20) as u8; len];
    key.extend(i.to_be_bytes());
    key
}

fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| make().expect("a store in memory"))
}

/// Returns all records, read forward; a reverse scan returns the same.
fn contents(store: &Store) -> Result<Contents, StoreError> {
    let mut all = Contents::new();
    for id in store.tree_ids() {
        let tree = store.tree(id)?;
        let forward = scan(&tree, Direction::Forward)?;
        scan(&tree, Direction::Reverse)?;
        all.extend(forward.into_iter().map(|(key, value)| ((id, key), value)));
    }
    Ok(all)
}

fn scan(tree: &Tree, direction: Direction) -> Result<Records, StoreError> {
    let mut records = Records::new();
    let (mut from, mut position) = (Bound::Unbounded, None);
    for _ in 0..LEAVES_MAX {
        let bound = from.as_ref().map(|key: &Vec<u8>| &key[..]);
        let leaf = tree.scan_leaf(position, bound, Bound::Unbounded, direction, usize::MAX)?;
        let found = leaf.records();
        records.extend(found.map(|record| (record.key.to_vec(), record.value.to_vec())));
        match leaf.next {
            Some(next) => (from, position) = (next.map(|key| key.to_vec()), leaf.position),
            None => return Ok(records),
        }
    }
    panic!("a scan goes in circles");
}

/// Repairs the checksums of a data file, and with `rebind` the blocks' identities.
pub(super) fn seal(edited: &mut [u8], original: &[u8], rebind: bool) {
    for (block, original) in edited
        .chunks_exact_mut(PAGE_SIZE)
        .zip(original.chunks_exact(PAGE_SIZE))
    {
        if block != original {
            if rebind {
                block[4..16].copy_from_slice(&original[4..16]);
            }
            braid_store::fuzzing::seal_block(block);
        }
    }
    if rebind {
        braid_store::fuzzing::bind_addresses(edited);
    }
}

fn run(script: &[u8]) {
    let base = base();
    let mut image = base.image.clone();
    let outcome = image.edit(&mut Input(script));
    if outcome.seals() {
        seal(
            &mut image.files[0].1,
            &base.image.files[0].1,
            outcome.rebinds(),
        );
    }
    let device = image.device();
    drop(image);
    // Every failure is a typed error.
    let _ = look(base, device, outcome);
}

fn look(base: &Base, device: Arc<MemoryDevice>, outcome: Outcome) -> Result<(), StoreError> {
    let (store, meta) = Store::open(device.clone(), SMALL_POOL)?;
    let mut damages = Vec::new();
    store.verify(&mut |damage| damages.push(damage.what))?;
    let mut dump = String::new();
    let _ = store.dump(&mut dump);
    let found = contents(&store);
    if let Ok(found) = &found
        && outcome.must_be_noticed()
    {
        assert!(
            base.states
                .iter()
                .any(|(m, state)| *m == meta && state == found),
            "damage was taken for data"
        );
    }
    if damages.is_empty()
        && let Err(error) = found
    {
        panic!("verify found nothing, reading did: {error}");
    }
    for id in store.tree_ids() {
        let estimate = |lower: Bound<&[u8]>| store.tree(id)?.estimate(lower, Bound::Unbounded);
        for lower in [Bound::Unbounded, Bound::Excluded(&key(100)[..])] {
            if let (true, Err(error)) = (damages.is_empty(), estimate(lower)) {
                panic!("verify found nothing, an estimate did: {error}");
            }
        }
    }
    // Changes continue until one fails; none may panic.
    for id in store.tree_ids() {
        let Ok(tree) = store.tree(id) else { continue };
        for i in 0..60 {
            let key = key_of(id, i, i * 7);
            let value = vec![7; i as usize * 40];
            let _ = put(&tree, &key, 9, &value);
            if i % 3 == 0 {
                let _ = tree.modify(&key, |_| (Change::Remove, ()));
            }
        }
        // Enough to merge nodes.
        for i in 60..200 {
            let key = key_of(id, i % 60, i);
            let _ = tree.modify(&key, |_| (Change::Remove, ()));
        }
    }
    checkpoint(&store, b"third")?;
    if let Some(&id) = store.tree_ids().last() {
        let _ = store.drop_tree(id);
    }
    checkpoint(&store, b"fourth")?;
    drop(store);
    let (store, _) = Store::open(device, SMALL_POOL)?;
    contents(&store).map(drop)
}
