//! Where the tablespaces of a database are, if the caller names their directories.

use std::path::PathBuf;

use braid::offline::{Salvage, Verify};

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TablespaceArgs {
    /// Present directory of a tablespace that was moved, is mounted elsewhere, or belongs to a copy of
    /// the database; repeat it for each
    #[arg(long = "tablespace", value_name = "NAME=DIR", value_parser = parse_place)]
    pub(crate) tablespaces: Vec<(String, PathBuf)>,

    /// Present directory of a tablespace's log that is in a directory of its own; repeat it for each
    #[arg(long = "tablespace-log", value_name = "NAME=DIR", value_parser = parse_place)]
    pub(crate) tablespace_logs: Vec<(String, PathBuf)>,
}

impl TablespaceArgs {
    pub(crate) fn verify(&self, mut verify: Verify) -> Verify {
        for (name, directory) in &self.tablespaces {
            verify = verify.tablespace_directory(name, directory);
        }
        for (name, directory) in &self.tablespace_logs {
            verify = verify.tablespace_log_directory(name, directory);
        }
        verify
    }

    pub(crate) fn salvage(&self) -> Salvage {
        let mut salvage = Salvage::new();
        for (name, directory) in &self.tablespaces {
            salvage = salvage.tablespace_directory(name, directory);
        }
        for (name, directory) in &self.tablespace_logs {
            salvage = salvage.tablespace_log_directory(name, directory);
        }
        salvage
    }
}

pub(crate) fn parse_place(text: &str) -> Result<(String, PathBuf), String> {
    let (name, directory) = text
        .rsplit_once('=')
        .filter(|(name, directory)| !name.is_empty() && !directory.is_empty())
        .ok_or("give the name of a tablespace, = and a directory")?;
    Ok((name.to_owned(), directory.into()))
}
