//! Where the tablespaces of a database are, if the caller names their directories.

use std::path::PathBuf;

use braid::offline::{Salvage, Verify};

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TablespaceArgs {
    /// Present directory of a tablespace that was moved, is mounted elsewhere, or belongs to a copy of
    /// the database; repeat it for each
    #[arg(long = "tablespace", value_name = "NAME=DIR", value_parser = parse_place)]
    pub(crate) tablespaces: Vec<(String, PathBuf)>,
}

impl TablespaceArgs {
    pub(crate) fn verify(&self, verify: Verify) -> Verify {
        let places = self.tablespaces.iter();
        places.fold(verify, |verify, (name, directory)| {
            verify.tablespace_directory(name, directory)
        })
    }

    pub(crate) fn salvage(&self) -> Salvage {
        let places = self.tablespaces.iter();
        places.fold(Salvage::new(), |salvage, (name, directory)| {
            salvage.tablespace_directory(name, directory)
        })
    }
}

pub(crate) fn parse_place(text: &str) -> Result<(String, PathBuf), String> {
    let (name, directory) = text
        .rsplit_once('=')
        .ok_or("give the name of a tablespace, = and a directory")?;
    Ok((name.to_owned(), directory.into()))
}
