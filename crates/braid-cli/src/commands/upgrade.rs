//! `braid upgrade`: converts a database to the current format.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct UpgradeArgs {
    /// Directory of the database; no other process may have it open
    dir: PathBuf,
}

pub(crate) fn run(args: &UpgradeArgs, output: &mut Output) -> Result<(), Failure> {
    let report = braid::offline::upgrade(&args.dir)?;
    let dir = args.dir.display();
    if report.from == report.to {
        return output.line(format_args!(
            "{dir}: format {}, which is current",
            report.to
        ));
    }
    output.line(format_args!(
        "{dir}: converted from format {} to {}",
        report.from, report.to
    ))
}
