//! A medium that loses a write keeps the block's old contents, intact and with a valid checksum.
//! The store detects every such block, or nothing refers to the block.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use braid_io::{AlignedBuf, Device, MemoryDevice, OpenMode};
use braid_store::{Change, Direction, PAGE_SIZE, Salvage, Store, StoreError, StoreOptions};

const DATA: &str = "data.braid";
const POOL: StoreOptions = StoreOptions::of_pool(512 << 10);

type Contents = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

fn image(device: &MemoryDevice) -> Vec<u8> {
    let file = device.open(DATA, OpenMode::Existing).unwrap();
    let mut bytes = AlignedBuf::new(file.len().unwrap() as usize);
    file.read_at(&mut bytes, 0).unwrap();
    bytes.to_vec()
}

fn device_of(image: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new();
    let file = device.open(DATA, OpenMode::CreateNew).unwrap();
    let mut bytes = AlignedBuf::new(image.len());
    bytes.copy_from_slice(image);
    file.write_at(&[&bytes], 0).unwrap();
    Arc::new(device)
}

fn contents(store: &Store) -> Result<Contents, StoreError> {
    let mut all = Contents::new();
    for id in store.tree_ids() {
        let tree = store.tree(id)?;
        let (mut from, mut position) = (Bound::Unbounded, None);
        loop {
            let lower = from.as_ref().map(|key: &Vec<u8>| &key[..]);
            let leaf = tree.scan_leaf(
                position,
                lower,
                Bound::Unbounded,
                Direction::Forward,
                usize::MAX,
            )?;
            for record in leaf.records() {
                all.insert((id, record.key.to_vec()), record.value.to_vec());
            }
            match leaf.next {
                Some(next) => (from, position) = (next.map(|key| key.to_vec()), leaf.position),
                None => break,
            }
        }
    }
    Ok(all)
}

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(b"meta".to_vec()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
}

/// The contents of each block of a file over time, without duplicates, and the file's contents at
/// each checkpoint.
struct History {
    blocks: Vec<Vec<Vec<u8>>>,
    last: Vec<u8>,
    states: Vec<Contents>,
}

impl History {
    fn note(&mut self, image: Vec<u8>) {
        let blocks = image.chunks_exact(PAGE_SIZE);
        for (i, block) in blocks.enumerate() {
            if self.last.get(i * PAGE_SIZE..(i + 1) * PAGE_SIZE) == Some(block) {
                continue;
            }
            if self.blocks.len() <= i {
                self.blocks.resize(i + 1, Vec::new());
            }
            if !self.blocks[i].iter().any(|known| known == block) {
                self.blocks[i].push(block.to_vec());
            }
        }
        self.last = image;
    }
}

/// A store that is larger than its pool, so that pages are written, and written again, between
/// checkpoints.
fn history() -> History {
    let device = Arc::new(MemoryDevice::new());
    let mut history = History {
        blocks: Vec::new(),
        last: Vec::new(),
        states: Vec::new(),
    };
    let mut rng = fastrand::Rng::with_seed(5);
    let mut store = Store::create(device.clone(), POOL).unwrap();
    let mut expected = Contents::new();
    for version in 1..1_600 {
        let id = rng.u32(1..3);
        let key = rng.u32(..400).to_be_bytes().to_vec();
        let len = if rng.u32(..40) == 0 {
            9_000
        } else {
            rng.usize(..1_200)
        };
        let value = vec![version as u8; len];
        let put = Change::Put {
            version,
            value: &value,
        };
        let tree = store.tree(id).unwrap();
        if rng.u32(..10) == 0 {
            tree.modify(&key, |_| (Change::Remove, ())).unwrap();
            expected.remove(&(id, key));
        } else {
            tree.modify(&key, |_| (put, ())).unwrap();
            expected.insert((id, key), value);
        }
        if version % 130 == 0 {
            checkpoint(&store);
            history.states.push(expected.clone());
        }
        if version == 800 {
            // Blocks written since the checkpoint are free again, and will be reused under the same
            // numbers.
            drop(tree);
            store = Store::open(device.clone(), POOL).unwrap().0;
            expected = history.states.last().unwrap().clone();
        }
        history.note(image(&device));
    }
    checkpoint(&store);
    history.states.push(expected);
    history.note(image(&device));
    history
}

#[test]
fn every_lost_write_is_noticed_or_of_a_block_that_nothing_refers_to() {
    let history = history();
    let state = history.states.last().unwrap();
    let (mut tried, mut noticed, mut same_page) = (0, 0, 0);
    for (block, contents_of_block) in history.blocks.iter().enumerate() {
        let place = block * PAGE_SIZE..(block + 1) * PAGE_SIZE;
        let Some(newest) = history.last.get(place.clone()) else {
            continue;
        };
        for older in contents_of_block
            .iter()
            .filter(|older| older[..] != *newest)
        {
            let mut image = history.last.clone();
            image[place.clone()].copy_from_slice(older);
            tried += 1;
            let device = device_of(&image);
            let found = Store::open(device.clone(), POOL)
                .and_then(|(store, _)| Ok((contents(&store)?, store)));
            match found {
                Err(StoreError::Corrupted { .. }) => {
                    noticed += 1;
                    same_page += usize::from(older[8..16] == newest[8..16]);
                    assert_saved(device, state, block);
                }
                Err(error) => panic!("block {block}: {error}"),
                Ok((found, _)) if block < 2 => {
                    // The previous superblock: its blocks are intact, and the log continues from
                    // there.
                    assert!(history.states.contains(&found), "superblock {block}");
                }
                Ok((found, store)) => {
                    assert!(found == *state, "block {block}: a lost write was believed");
                    store
                        .verify(&mut |damage| panic!("block {block}: {}", damage.what))
                        .unwrap();
                }
            }
        }
    }
    assert!(
        tried > 400 && noticed > 300 && same_page > 10,
        "{tried} {noticed} {same_page}"
    );
}

/// Checks that salvage accepts no old contents as new.
fn assert_saved(device: Arc<MemoryDevice>, state: &Contents, block: usize) {
    let salvage = Salvage::open(device).unwrap();
    let is_sure = salvage.lost().is_empty();
    let mut wrong = Vec::new();
    let mut entry = |entry: braid_store::SalvagedEntry<'_>| {
        if let [tree] = entry.trees
            && state
                .get(&(*tree, entry.key.to_vec()))
                .map(|value| &value[..])
                != Some(entry.value)
        {
            wrong.push(entry.key.to_vec());
        }
        Ok(())
    };
    salvage.read(&mut entry, &mut |_| {}).unwrap();
    assert!(wrong.is_empty() || !is_sure, "block {block}: {wrong:?}");
}
