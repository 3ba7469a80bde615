//! `braid dump`: prints the log and the pages as text.

use std::path::PathBuf;

use braid::offline::Verify;

use super::tablespace_place::TablespaceArgs;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct DumpArgs {
    /// Directory of the database; other processes may have it open
    dir: PathBuf,

    #[command(flatten)]
    places: TablespaceArgs,
}

pub(crate) fn run(args: &DumpArgs, output: &mut Output) -> Result<(), Failure> {
    let result = args.places.verify(Verify::new()).dump(&args.dir, output);
    // A closed pipe stops the dump with a formatting error; the flush returns the actual reason.
    output.flush()?;
    Ok(result?)
}
