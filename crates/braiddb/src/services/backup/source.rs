//! Reading a backup and checking each of its parts.

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

use braid_io::AlignedBuf;
use braid_rt::to_usize;
use braid_store::{PAGE_SIZE, PageId};
use xxhash_rust::xxh3::Xxh3;

use super::format::{
    BATCH_HEADER, BATCH_PAGES, END_MAGIC, FOOTER, FORMAT, MAGIC, Manifest, NoManifest, PAGE_RECORD,
    SPACE_BYTES_MAX, SPACE_HEADER, decode_space,
};
use crate::error::{BackupError, Error, Result};
use crate::format::space::ListedSpace;

/// Description of a backup; see [`info`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Identity of the database that was backed up. A restored database has a new one.
    pub identity: u128,
    /// The backup contains the transactions up to this sequence number.
    pub seqno: u64,
    /// Time of the backup.
    pub time: SystemTime,
    /// Sequence number of the backup that it builds on; `None` for a full backup.
    pub parent: Option<u64>,
    /// Number of pages in the backup.
    pub pages: u64,
    /// The names of the tablespaces other than the main one. A restore needs a place for each.
    pub tablespaces: Vec<String>,
}

/// Reads the description of a backup file, a [`BackupInfo`], without its pages.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("monday");
/// # let db = braid::Database::in_memory()?;
/// let report = db.backup(&path)?;
/// let info = braid::backup::info(&path)?;
/// assert_eq!(info.seqno, report.seqno);
/// assert_eq!(info.parent, None); // a full backup
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Backup`] or [`Error::Io`].
pub fn info(path: impl AsRef<Path>) -> Result<BackupInfo> {
    let manifest = read_manifest(path.as_ref())?;
    Ok(BackupInfo {
        identity: manifest.identity,
        seqno: manifest.seqno,
        time: SystemTime::UNIX_EPOCH + manifest.time,
        parent: manifest.parent.map(|parent| parent.seqno),
        pages: manifest.pages,
        tablespaces: manifest.names_of_spaces().map(str::to_owned).collect(),
    })
}

/// Returns a backup's name for messages.
pub(crate) fn name_of(path: &Path) -> String {
    path.display().to_string()
}

/// Reads the manifest at a file's end.
pub(crate) fn read_manifest(path: &Path) -> Result<Manifest> {
    let name = name_of(path);
    let reading = |error| Error::io(format!("cannot read the backup {name}"), error);
    let mut file = braid_io::open_input(path).map_err(reading)?;
    let len = file.metadata().map_err(reading)?.len();
    let mut magic = [0; 8];
    let has_magic = len >= 8
        && file
            .read_exact(&mut magic)
            .map(|()| magic == MAGIC)
            .map_err(reading)?;
    if !has_magic {
        return Err(BackupError::NotABackup { backup: name }.into());
    }
    let incomplete = || BackupError::Incomplete {
        backup: name.clone(),
    };
    let mut footer = [0; FOOTER];
    let at = len.checked_sub(FOOTER as u64).ok_or_else(incomplete)?;
    file.seek(SeekFrom::Start(at)).map_err(reading)?;
    file.read_exact(&mut footer).map_err(reading)?;
    let (manifest_len, magic) = footer.split_at(8);
    if magic != END_MAGIC {
        return Err(incomplete().into());
    }
    let manifest_len = u64::from_le_bytes(manifest_len.try_into().unwrap_or_default());
    let manifest_at = at
        .checked_sub(manifest_len)
        .filter(|at| *at >= (MAGIC.len() + BATCH_HEADER) as u64)
        .ok_or_else(|| damaged(&name, "the length of its manifest"))?;
    file.seek(SeekFrom::Start(manifest_at)).map_err(reading)?;
    let mut bytes = vec![0; to_usize(manifest_len)];
    file.read_exact(&mut bytes).map_err(reading)?;
    decode(&name, &bytes)
}

fn damaged(backup: &str, what: &str) -> Error {
    BackupError::Damaged {
        backup: backup.to_owned(),
        what: what.to_owned(),
    }
    .into()
}

fn decode(name: &str, bytes: &[u8]) -> Result<Manifest> {
    Manifest::decode(bytes).map_err(|error| match error {
        NoManifest::Damaged => damaged(name, "its manifest"),
        NoManifest::Format(format) => BackupError::Format {
            backup: name.to_owned(),
            format,
            known: FORMAT,
        }
        .into(),
    })
}

/// The next part of a backup.
pub(crate) enum Part {
    /// Pages, of the main tablespace at first.
    Pages(Vec<(PageId, AlignedBuf)>),
    /// The pages that follow are those of this tablespace.
    Space(ListedSpace),
}

/// Reader of a backup, from its beginning.
pub(crate) struct Reader<'a> {
    name: String,
    from: Box<dyn Read + 'a>,
    digest: Xxh3,
    pages: u64,
    batch: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(crate) fn open(path: &Path) -> Result<Reader<'static>> {
        let name = name_of(path);
        let file = braid_io::open_input(path);
        let file = file.map_err(|e| Error::io(format!("cannot open the backup {name}"), e))?;
        Reader::new(name, Box::new(BufReader::with_capacity(1 << 20, file)))
    }

    pub(crate) fn new(name: String, from: Box<dyn Read + 'a>) -> Result<Self> {
        let mut reader = Self {
            name,
            from,
            digest: Xxh3::new(),
            pages: 0,
            batch: Vec::new(),
        };
        let mut magic = [0; 8];
        match reader.fill(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Err(error @ Error::Io { .. }) => return Err(error),
            _ => {
                return Err(BackupError::NotABackup {
                    backup: reader.name,
                }
                .into());
            }
        }
        Ok(reader)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.fill_unhashed(bytes)?;
        self.digest.update(bytes);
        Ok(())
    }

    fn fill_unhashed(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.from
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => BackupError::Incomplete {
                    backup: self.name.clone(),
                }
                .into(),
                _ => Error::io(format!("cannot read the backup {}", self.name), error),
            })
    }

    /// Reads the description of the tablespace to which the next pages belong.
    fn space(&mut self, crc: u32) -> Result<ListedSpace> {
        let mut fields = vec![0; 4];
        self.fill(&mut fields)?;
        let len = u32::from_le_bytes([fields[0], fields[1], fields[2], fields[3]]) as usize;
        let damaged = |name: &str| damaged(name, "the description of a tablespace");
        if len > SPACE_BYTES_MAX {
            return Err(damaged(&self.name));
        }
        let mut entry = vec![0; len];
        self.fill(&mut entry)?;
        fields.extend(&entry);
        let is_intact = crc32c::crc32c(&fields) == crc;
        let space = is_intact.then(|| decode_space(&entry)).flatten();
        space.ok_or_else(|| damaged(&self.name))
    }

    /// Reads the next part; `None` after the last.
    pub(crate) fn part(&mut self) -> Result<Option<Part>> {
        let mut header = [0; BATCH_HEADER];
        self.fill(&mut header)?;
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (count, crc) = (word(0) as usize, word(4));
        if count == 0 && crc == 0 {
            return Ok(None);
        }
        if count == SPACE_HEADER {
            return Ok(Some(Part::Space(self.space(crc)?)));
        }
        if count == 0 || count > BATCH_PAGES {
            return Err(damaged(&self.name, "the length of one of its parts"));
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.resize(count * PAGE_RECORD, 0);
        self.fill(&mut batch)?;
        if crc32c::crc32c(&batch) != crc {
            let what = format!("the part after page {} of the backup", self.pages);
            return Err(damaged(&self.name, &what));
        }
        self.pages += count as u64;
        let page = |record: &[u8]| {
            let (id, bytes) = record.split_at(8);
            let mut page = AlignedBuf::new(PAGE_SIZE);
            page.copy_from_slice(bytes);
            (u64::from_le_bytes(id.try_into().unwrap_or_default()), page)
        };
        let pages = batch.chunks_exact(PAGE_RECORD).map(page).collect();
        self.batch = batch;
        Ok(Some(Part::Pages(pages)))
    }

    /// Reads the manifest, after the last page.
    pub(crate) fn manifest(mut self) -> Result<Manifest> {
        let digest = self.digest.digest128();
        let mut rest = Vec::new();
        let read = self.from.read_to_end(&mut rest);
        read.map_err(|e| Error::io(format!("cannot read the backup {}", self.name), e))?;
        let incomplete = || BackupError::Incomplete {
            backup: self.name.clone(),
        };
        let (bytes, footer) = rest.split_last_chunk::<FOOTER>().ok_or_else(incomplete)?;
        let (len, magic) = footer.split_at(8);
        if magic != END_MAGIC {
            return Err(incomplete().into());
        }
        if len != (bytes.len() as u64).to_le_bytes() {
            return Err(damaged(&self.name, "the length of its manifest"));
        }
        let manifest = decode(&self.name, bytes)?;
        if manifest.pages != self.pages || manifest.pages_digest != digest {
            return Err(damaged(&self.name, "its pages differ from its manifest"));
        }
        Ok(manifest)
    }
}
