//! The order of backups, and the point up to which they are restored.

use std::collections::BTreeSet;

use crate::error::{BackupError, Result};
use crate::services::archive::{Archive, Until};
use crate::services::backup::format::Manifest;

/// A sequence of backups, each building on the previous one.
#[derive(Default)]
pub(super) struct Chain {
    pub(super) last: Option<(Manifest, String)>,
    /// Names of the tablespaces of all backups.
    pub(super) spaces: BTreeSet<String>,
}

impl Chain {
    pub(super) fn add(&mut self, manifest: Manifest, name: &str) -> Result<()> {
        let backup = || name.to_owned();
        match (&self.last, manifest.parent) {
            (None, None) => {}
            (None, Some(parent)) => {
                return Err(BackupError::NotFull {
                    backup: backup(),
                    parent: parent.seqno,
                }
                .into());
            }
            (Some((last, _)), _) if last.identity != manifest.identity => {
                return Err(BackupError::OtherDatabase { backup: backup() }.into());
            }
            (Some((last, _)), parent) => {
                if parent.is_none_or(|parent| parent.digest != last.digest()) {
                    return Err(BackupError::BrokenChain {
                        backup: backup(),
                        // A full backup needs no parent.
                        needs: parent.map_or(0, |parent| parent.seqno),
                        found: last.seqno,
                    }
                    .into());
                }
            }
        }
        let names = manifest.names_of_spaces().map(str::to_owned);
        self.spaces.extend(names);
        self.last = Some((manifest, backup()));
        Ok(())
    }
}

/// Returns the sequence number to which a database is restored.
pub(super) fn target(archive: Option<&Archive>, until: Until, manifest: &Manifest) -> Result<u64> {
    if let Some(archive) = archive {
        return archive.target(until, manifest.identity, manifest.seqno, manifest.time);
    }
    let asked = match until {
        Until::End => return Ok(manifest.seqno),
        Until::Seqno(seqno) if seqno == manifest.seqno => return Ok(seqno),
        Until::Seqno(seqno) => format!("sequence number {seqno}"),
        Until::Time(_) => "a time without an archive".to_owned(),
    };
    Err(BackupError::OutOfReach {
        asked,
        from: manifest.seqno,
        to: manifest.seqno,
    }
    .into())
}
