//! Format of a backup, the same in a file and in a stream; `docs/backup.md` describes it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use braid_io::{AlignedBuf, DeviceChoice};
use braid_rt::narrow;
use braid_store::{PAGE_SIZE, PageId};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::error::Result;
use crate::format::space::{ListedSpace, decode_list, encode_list};
use crate::schema::entry::SPACES_MAX;
use crate::services::archive::nanos;

pub(crate) const MAGIC: [u8; 8] = *b"BRAIDBK\x01";
pub(crate) const END_MAGIC: [u8; 8] = *b"BRAIDEND";
const MANIFEST_MAGIC: [u8; 8] = *b"BRAIDMAN";
pub(crate) const FORMAT: u32 = 3;

/// The format of a backup of a database without further tablespaces.
const FORMAT_MAIN: u32 = 2;

/// The oldest readable format: it lacks trees of layers (see `docs/file-format.md`).
const OLDEST: u32 = 1;

/// Maximum number of pages in a batch.
pub(crate) const BATCH_PAGES: usize = 64;

/// Bytes before a batch's pages: their number and their checksum.
pub(crate) const BATCH_HEADER: usize = 8;

/// The number of pages in the header that begins the pages of a tablespace. The length of the
/// tablespace's description (u32) follows, then the description.
pub(crate) const SPACE_HEADER: usize = u32::MAX as usize;

/// Greatest length of a tablespace's description.
pub(crate) const SPACE_BYTES_MAX: usize = 64 << 10;

/// Bytes of a page and its number.
pub(crate) const PAGE_RECORD: usize = 8 + PAGE_SIZE;

/// Bytes at the end: the manifest's length, and a magic.
pub(crate) const FOOTER: usize = 16;

/// The parent of an incremental backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    /// Digest of the parent's manifest.
    pub(crate) digest: u128,
    pub(crate) seqno: u64,
}

/// Description of a backup, stored at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The identity of the database's log.
    pub(crate) identity: u128,
    /// The backup contains the transactions up to this sequence number.
    pub(crate) seqno: u64,
    /// Sequence number of the copied checkpoint.
    pub(crate) sequence: u64,
    /// Time of the backup, since 1970.
    pub(crate) time: Duration,
    pub(crate) parent: Option<Parent>,
    /// Number of pages in the batches.
    pub(crate) pages: u64,
    /// Digest of everything before the manifest.
    pub(crate) pages_digest: u128,
    /// The superblock's metadata of the database.
    pub(crate) meta: Vec<u8>,
    pub(crate) trees: BTreeMap<u32, PageId>,
    /// The page map, see [`braid_store::PinnedCheckpoint::entries`].
    pub(crate) entries: Vec<u64>,
    /// The tablespaces other than the main one.
    pub(crate) spaces: Vec<ManifestSpace>,
}

/// The part of a manifest that describes a tablespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestSpace {
    /// Its entry in the list, without its place.
    pub(crate) entry: ListedSpace,
    pub(crate) trees: BTreeMap<u32, PageId>,
    pub(crate) entries: Vec<u64>,
}

/// Reason why bytes are not a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoManifest {
    Damaged,
    Format(u32),
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MANIFEST_MAGIC.to_vec();
        let format = if self.spaces.is_empty() {
            FORMAT_MAIN
        } else {
            FORMAT
        };
        out.extend(format.to_le_bytes());
        out.extend([0; 4]);
        let body = out.len();
        out.extend(self.identity.to_le_bytes());
        out.extend(self.seqno.to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        out.extend(nanos(self.time).to_le_bytes());
        let parent = self.parent.unwrap_or(Parent {
            digest: 0,
            seqno: 0,
        });
        out.extend(u64::from(self.parent.is_some()).to_le_bytes());
        out.extend(parent.digest.to_le_bytes());
        out.extend(parent.seqno.to_le_bytes());
        out.extend(self.pages.to_le_bytes());
        out.extend(self.pages_digest.to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        out.extend(&self.meta);
        encode_pages(&self.trees, &self.entries, &mut out);
        if !self.spaces.is_empty() {
            out.extend((self.spaces.len() as u64).to_le_bytes());
        }
        for space in &self.spaces {
            let entry = encode_space(&space.entry);
            out.extend((entry.len() as u64).to_le_bytes());
            out.extend(entry);
            encode_pages(&space.trees, &space.entries, &mut out);
        }
        let crc = crc32c::crc32c(&out[body..]);
        out[body - 4..body].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NoManifest> {
        let mut rest = Fields(bytes);
        if rest.take(8) != Some(&MANIFEST_MAGIC) {
            return Err(NoManifest::Damaged);
        }
        let format = rest.u32().ok_or(NoManifest::Damaged)?;
        let crc = rest.u32().ok_or(NoManifest::Damaged)?;
        // The bytes are undamaged, though this build may be unable to decode them.
        if crc32c::crc32c(rest.0) != crc {
            return Err(NoManifest::Damaged);
        }
        if !(OLDEST..=FORMAT).contains(&format) {
            return Err(NoManifest::Format(format));
        }
        Self::decode_body(rest, format).ok_or(NoManifest::Damaged)
    }

    fn decode_body(mut rest: Fields<'_>, format: u32) -> Option<Self> {
        let identity = rest.u128()?;
        let (seqno, sequence) = (rest.u64()?, rest.u64()?);
        let time = Duration::from_nanos(rest.u64()?);
        let has_parent = rest.u64()?;
        let parent = Parent {
            digest: rest.u128()?,
            seqno: rest.u64()?,
        };
        let parent = match has_parent {
            0 => None,
            1 => Some(parent),
            _ => return None,
        };
        let (pages, pages_digest) = (rest.u64()?, rest.u128()?);
        let meta_len = usize::try_from(rest.u64()?).ok()?;
        let meta = rest.take(meta_len)?.to_vec();
        let (trees, entries) = rest.pages()?;
        let count = if format > FORMAT_MAIN { rest.u64()? } else { 0 };
        let mut spaces = Vec::new();
        for _ in 0..count {
            let len = usize::try_from(rest.u64()?).ok()?;
            let entry = decode_space(rest.take(len)?)?;
            let (trees, entries) = rest.pages()?;
            spaces.push(ManifestSpace {
                entry,
                trees,
                entries,
            });
        }
        if !rest.0.is_empty() {
            return None;
        }
        Some(Self {
            identity,
            seqno,
            sequence,
            time,
            parent,
            pages,
            pages_digest,
            meta,
            trees,
            entries,
            spaces,
        })
    }

    /// Returns the names of the tablespaces other than the main one.
    pub(crate) fn names_of_spaces(&self) -> impl Iterator<Item = &str> {
        self.spaces.iter().map(|space| space.entry.name.as_str())
    }

    /// Whether the backup has this tree, in any tablespace.
    pub(crate) fn has_tree(&self, id: u32) -> bool {
        let mut further = self.spaces.iter();
        self.trees.contains_key(&id) || further.any(|space| space.trees.contains_key(&id))
    }

    /// Returns the part about a tablespace.
    pub(crate) fn space(&self, identity: u128) -> Option<&ManifestSpace> {
        let mut spaces = self.spaces.iter();
        spaces.find(|space| space.entry.identity == identity)
    }

    /// Returns the digest that identifies this backup.
    pub(crate) fn digest(&self) -> u128 {
        xxh3_128(&self.encode())
    }
}

/// Encodes the roots of trees, and a page map.
fn encode_pages(trees: &BTreeMap<u32, PageId>, entries: &[u64], out: &mut Vec<u8>) {
    out.extend((trees.len() as u64).to_le_bytes());
    for (&tree, &root) in trees {
        out.extend(u64::from(tree).to_le_bytes());
        out.extend(root.to_le_bytes());
    }
    out.extend((entries.len() as u64).to_le_bytes());
    entries
        .iter()
        .for_each(|entry| out.extend(entry.to_le_bytes()));
}

/// Encodes the description of a tablespace, without its place: a restore chooses another one, perhaps on
/// another machine.
fn encode_space(entry: &ListedSpace) -> Vec<u8> {
    let entry = ListedSpace {
        directory: PathBuf::new(),
        access: DeviceChoice::Auto,
        log: None,
        node: None,
        ..entry.clone()
    };
    encode_list(&[entry]).expect("names of tablespaces are short")
}

/// Decodes the description of a tablespace; `None` if it is malformed.
pub(crate) fn decode_space(bytes: &[u8]) -> Option<ListedSpace> {
    let mut spaces = decode_list(bytes)?;
    let is_further = |space: &ListedSpace| (1..SPACES_MAX).contains(&space.number);
    let space = spaces.pop().filter(is_further)?;
    spaces.is_empty().then_some(space)
}

/// Bytes that are decoded field by field.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        self.0.split_off(..len)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// Decodes what [`encode_pages`] encodes.
    fn pages(&mut self) -> Option<(BTreeMap<u32, PageId>, Vec<u64>)> {
        let trees = (0..self.u64()?)
            .map(|_| Some((u32::try_from(self.u64()?).ok()?, self.u64()?)))
            .collect::<Option<_>>()?;
        let count = usize::try_from(self.u64()?).ok()?;
        let (words, _) = self.take(count.checked_mul(8)?)?.as_chunks::<8>();
        let entries = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some((trees, entries))
    }
}

/// Writes a backup, batch by batch.
pub(crate) struct Batches<'a> {
    out: &'a mut dyn Write,
    digest: Xxh3,
    written: u64,
    batch: Vec<u8>,
}

impl<'a> Batches<'a> {
    pub(crate) fn begin(out: &'a mut dyn Write) -> Result<Self> {
        let mut batches = Self {
            out,
            digest: Xxh3::new(),
            written: 0,
            batch: Vec::new(),
        };
        batches.write(&MAGIC)?;
        Ok(batches)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(super::failed)?;
        self.digest.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes pages.
    pub(crate) fn put(&mut self, pages: &[(PageId, AlignedBuf)]) -> Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend([0; BATCH_HEADER]);
        for (id, bytes) in pages {
            batch.extend(id.to_le_bytes());
            batch.extend_from_slice(&bytes[..PAGE_SIZE]);
        }
        let crc = crc32c::crc32c(&batch[BATCH_HEADER..]);
        batch[..4].copy_from_slice(&narrow::<u32>(pages.len()).to_le_bytes());
        batch[4..8].copy_from_slice(&crc.to_le_bytes());
        let written = self.write(&batch);
        self.batch = batch;
        written
    }

    /// Begins the pages of a tablespace.
    pub(crate) fn begin_space(&mut self, entry: &ListedSpace) -> Result<()> {
        let entry = encode_space(entry);
        let len = narrow::<u32>(entry.len()).to_le_bytes();
        let fields = [&len[..], &entry].concat();
        let crc = crc32c::crc32c(&fields).to_le_bytes();
        let count = narrow::<u32>(SPACE_HEADER).to_le_bytes();
        self.write(&[&count[..], &crc, &fields].concat())
    }

    /// Writes the end of the backup. Returns the backup's length in bytes.
    pub(crate) fn finish(mut self, mut manifest: Manifest) -> Result<u64> {
        // An empty batch marks the end.
        self.write(&[0; BATCH_HEADER])?;
        manifest.pages_digest = self.digest.digest128();
        let manifest = manifest.encode();
        self.write(&manifest)?;
        self.write(&(manifest.len() as u64).to_le_bytes())?;
        self.write(&END_MAGIC)?;
        Ok(self.written)
    }
}

/// Recomputes the checksums and digests of a backup, as far as its contents are well-formed. With
/// `rebind`, also sets the identities of its pages to the page numbers stored before them.
pub(crate) fn seal(bytes: &mut [u8], rebind: bool, seal_page: fn(&mut [u8])) -> Option<()> {
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*word) as usize)
    };
    let mut at = MAGIC.len();
    loop {
        let count = word(bytes, at)?;
        let crc = at + 4..at + BATCH_HEADER;
        at += BATCH_HEADER;
        if count == 0 {
            break;
        }
        let batch = bytes.get_mut(at..at.checked_add(count.checked_mul(PAGE_RECORD)?)?)?;
        for record in batch.chunks_exact_mut(PAGE_RECORD) {
            if rebind {
                record.copy_within(..8, 16);
            }
            seal_page(&mut record[8..]);
        }
        let sum = crc32c::crc32c(batch);
        bytes[crc].copy_from_slice(&sum.to_le_bytes());
        at += count * PAGE_RECORD;
    }
    let (pages, manifest) = bytes.split_at_mut(at);
    let len = manifest.len().checked_sub(FOOTER)?;
    let manifest = &mut manifest[..len];
    // After identity, sequence number, checkpoint, time, parent and number of pages.
    let digest = manifest.get_mut(96..112)?;
    digest.copy_from_slice(&xxh3_128(pages).to_le_bytes());
    let crc = crc32c::crc32c(&manifest[16..]);
    manifest[12..16].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_damage_is_detected() {
        let manifest = Manifest {
            identity: 1 << 100,
            seqno: 42,
            sequence: 7,
            time: Duration::from_secs(1_700_000_000),
            parent: Some(Parent {
                digest: 99,
                seqno: 41,
            }),
            pages: 3,
            pages_digest: 5,
            meta: b"meta".to_vec(),
            trees: [(1, 1), (7, 2)].into(),
            entries: vec![0, 5, 6],
            spaces: Vec::new(),
        };
        let space = |number: u8| ManifestSpace {
            entry: ListedSpace {
                has_log: true,
                log: None,
                node: None,
                number,
                identity: u128::from(number) << 90,
                pool_bytes: 1 << 20,
                name: format!("space {number}"),
                directory: PathBuf::new(),
                access: DeviceChoice::Auto,
            },
            trees: [(1 << 30 | u32::from(number) << 24, 4)].into(),
            entries: vec![0, 0, u64::from(number)],
        };
        let with_spaces = Manifest {
            spaces: vec![space(1), space(63)],
            ..manifest.clone()
        };
        for manifest in [&manifest, &with_spaces] {
            let bytes = manifest.encode();
            assert_eq!(Manifest::decode(&bytes).as_ref(), Ok(manifest));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                // A changed format number has no checksum of its own, but is not this format.
                let is_detected = Manifest::decode(&damaged).is_err();
                assert!(is_detected, "byte {at}");
                assert!(Manifest::decode(&bytes[..at]).is_err(), "{at} bytes");
            }
        }
        // Without further tablespaces, an earlier version reads it.
        let bytes = manifest.encode();
        assert_eq!(bytes[8], 2);
        let of_format = |format: u8| {
            let mut other = bytes.clone();
            other[8] = format;
            Manifest::decode(&other).err()
        };
        assert_eq!(of_format(1), None);
        for unknown in [0, 4] {
            assert_eq!(of_format(unknown), Some(NoManifest::Format(unknown.into())));
        }
    }
}
